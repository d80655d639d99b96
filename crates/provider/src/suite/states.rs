//! Stop, start, pause, archive, expiry, idle stop.

use std::sync::Arc;
use std::time::Duration;

use leasehold_model::{ErrorKind, ReceiptOutcome, Result, SandboxState, Verdict};

use super::case::declare_cases;
use super::workbench::{
    Workbench, exited, noise, pause, read, read_until, refused, run, same_bytes, sh, size, start, stdout,
    until, write,
};
use crate::provider::SandboxQuery;

declare_cases! {
    stop_ends_processes_and_keeps_files: [StopStart], "stop keeps the file system; its commands end with `SandboxStopped`";
    a_stopped_sandbox_refuses_commands: [StopStart], "exec on a stopped sandbox is a `Conflict`, never a silent start";
    stop_and_start_can_be_repeated: [StopStart], "stop and start are idempotent";
    f67_every_acknowledged_write_survives_stop: [StopStart], "F67: nothing written before stop is missing after start";
    pause_stops_progress_and_resume_goes_on: [Pause], "pause freezes processes with their memory";
    a_paused_sandbox_can_be_destroyed: [Pause], "a frozen sandbox is no leak";
    archive_and_start_bring_everything_back: [Archive], "archive keeps files, modes and links";
    f01_an_expired_sandbox_is_gone: [Expiry], "F01, invariant 6: expiry is enforced where the sandbox lives";
    an_expiry_can_be_moved_and_removed: [Expiry], "set_expiry replaces the expiry";
    an_expiry_ends_running_commands: [Expiry], "expiry ends commands with `SandboxStopped`";
    an_idle_sandbox_stops: [IdleStop, StopStart], "idle stop happens without us and keeps files";
    f50_a_running_command_is_not_idle: [IdleStop], "F50: a silent command holds the sandbox; its end restarts the clock";
}

async fn stop_ends_processes_and_keeps_files(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    stdout(&sandbox, "echo kept > file; mkdir d; echo deep > d/file").await?;
    let execution = start(&sandbox, "trap '' TERM; while :; do sleep 1; done").await?;
    let receipt = sandbox.stop().await?;
    assert_eq!((&receipt.sandbox, receipt.outcome), (sandbox.id(), ReceiptOutcome::Stopped));
    assert_eq!(execution.control.verdict().await, Verdict::SandboxStopped);
    assert_eq!(sandbox.state().await?, SandboxState::Stopped);
    sandbox.start().await?;
    assert_eq!(sandbox.state().await?, SandboxState::Running);
    assert_eq!(stdout(&sandbox, "cat file d/file").await?, "kept\ndeep\n");
    Ok(())
}

async fn a_stopped_sandbox_refuses_commands(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    sandbox.stop().await?;
    refused(start(&sandbox, "echo no").await, ErrorKind::Conflict, "exec on a stopped sandbox");
    assert_eq!(sandbox.state().await?, SandboxState::Stopped);
    let found = bench.provider().find(&SandboxQuery::Id(sandbox.id().clone())).await?;
    assert!(found.is_some(), "a stopped sandbox is still there");
    assert_eq!(bench.provider().list(&bench.labels()).await?[0].state, SandboxState::Stopped);
    Ok(())
}

async fn stop_and_start_can_be_repeated(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    for round in 0..3 {
        assert_eq!(sandbox.stop().await?.outcome, ReceiptOutcome::Stopped);
        assert_eq!(sandbox.stop().await?.outcome, ReceiptOutcome::Stopped);
        sandbox.start().await?;
        sandbox.start().await?;
        stdout(&sandbox, &format!("echo {round} >> rounds")).await?;
    }
    assert_eq!(stdout(&sandbox, "cat rounds").await?, "0\n1\n2\n");
    assert_eq!(sandbox.delete().await?.outcome, ReceiptOutcome::Destroyed);
    Ok(())
}

async fn f67_every_acknowledged_write_survives_stop(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let bytes = noise(100_000);
    for number in 0..50 {
        write(&sandbox, format!("api-{number}"), &bytes[number..]).await?;
    }
    stdout(&sandbox, "for i in $(seq 1 50); do echo $i > made-$i; done").await?;
    sandbox.stop().await?;
    sandbox.start().await?;
    for number in 0..50 {
        same_bytes(&read(&sandbox, format!("api-{number}")).await?, &bytes[number..], "a file after stop");
        let made = format!("made-{}", number + 1);
        assert_eq!(read(&sandbox, made).await?, format!("{}\n", number + 1).into_bytes());
    }
    Ok(())
}

async fn pause_stops_progress_and_resume_goes_on(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let line = "x=remembered; while [ ! -e end ]; do date +%s >> beat; sleep 0.1; done; echo $x";
    let execution = start(&sandbox, line).await?;
    until(|| async { Ok(size(&sandbox, "beat").await? > 30) }).await?;
    sandbox.pause().await?;
    assert_eq!(sandbox.state().await?, SandboxState::Paused);
    refused(start(&sandbox, "echo no").await, ErrorKind::Conflict, "exec on a paused sandbox");
    pause(3000).await;
    sandbox.resume().await?;
    assert_eq!(sandbox.state().await?, SandboxState::Running);
    let frozen = size(&sandbox, "beat").await?;
    until(|| async { Ok(size(&sandbox, "beat").await? > frozen + 30) }).await?;
    write(&sandbox, "end", b"").await?;
    let output = execution.collect(1000).await?;
    exited(&output.verdict, 0);
    assert_eq!(output.stdout, b"remembered\n");
    // The command's own clock shows the hole: three seconds without a beat.
    let beats = String::from_utf8(read(&sandbox, "beat").await?).expect("digits");
    let beats: Vec<u64> = beats.lines().map(|beat| beat.parse().expect("a time")).collect();
    let longest = beats.windows(2).map(|pair| pair[1] - pair[0]).max();
    assert!(longest >= Some(2), "the command went on while paused: longest hole {longest:?} s");
    Ok(())
}

async fn a_paused_sandbox_can_be_destroyed(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let execution = start(&sandbox, "while :; do sleep 0.1; done").await?;
    sandbox.pause().await?;
    assert_eq!(sandbox.delete().await?.outcome, ReceiptOutcome::Destroyed);
    assert_eq!(execution.control.verdict().await, Verdict::SandboxStopped);
    Ok(())
}

async fn archive_and_start_bring_everything_back(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let bytes = noise(300_000);
    write(&sandbox, "bytes", &bytes).await?;
    stdout(&sandbox, "mkdir d; echo tool > d/tool; chmod 755 d/tool; ln -s d/tool link").await?;
    let before = sandbox.files().list("d".as_ref()).await?;
    sandbox.archive().await?;
    assert_eq!(sandbox.state().await?, SandboxState::Archived);
    refused(start(&sandbox, "echo no").await, ErrorKind::Conflict, "exec on an archived sandbox");
    sandbox.start().await?;
    assert_eq!(sandbox.state().await?, SandboxState::Running);
    same_bytes(&read(&sandbox, "bytes").await?, &bytes, "a file after archive");
    assert_eq!(sandbox.files().list("d".as_ref()).await?, before);
    assert_eq!(stdout(&sandbox, "cat link").await?, "tool\n");
    Ok(())
}

async fn f01_an_expired_sandbox_is_gone(bench: Arc<Workbench>) -> Result<()> {
    let mut spec = bench.spec();
    spec.expire_after = Some(Duration::from_secs(2));
    let sandbox = bench.provider().create(spec).await?;
    let id = sandbox.id().clone();
    assert!(sandbox.refresh().await.map_or(true, |info| info.expires_at.is_some()));
    drop(sandbox);
    let query = SandboxQuery::Id(id.clone());
    until(|| async { Ok(bench.provider().find(&query).await?.is_none()) }).await?;
    assert!(bench.provider().list(&bench.labels()).await?.is_empty());
    assert_eq!(bench.provider().destroy(&id).await?.outcome, ReceiptOutcome::AlreadyGone);
    Ok(())
}

async fn an_expiry_can_be_moved_and_removed(bench: Arc<Workbench>) -> Result<()> {
    let mut spec = bench.spec();
    spec.expire_after = Some(Duration::from_secs(3600));
    let sandbox = bench.provider().create(spec).await?;
    let first = sandbox.refresh().await?.expires_at.expect("an expiry was asked for");
    sandbox.set_expiry(Some(Duration::from_secs(7200))).await?;
    let second = sandbox.refresh().await?.expires_at.expect("an expiry was set");
    assert!(second > first, "{second:?} is not after {first:?}");
    sandbox.set_expiry(None).await?;
    assert_eq!(sandbox.refresh().await?.expires_at, None);
    sandbox.set_expiry(Some(Duration::from_secs(1))).await?;
    let query = SandboxQuery::Id(sandbox.id().clone());
    until(|| async { Ok(bench.provider().find(&query).await?.is_none()) }).await
}

async fn an_expiry_ends_running_commands(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let mut execution = start(&sandbox, "trap '' TERM; echo begun; while :; do sleep 1; done").await?;
    read_until(&mut execution.output, "begun").await?;
    sandbox.set_expiry(Some(Duration::from_secs(1))).await?;
    drop(execution.output);
    assert_eq!(execution.control.verdict().await, Verdict::SandboxStopped);
    Ok(())
}

async fn an_idle_sandbox_stops(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    stdout(&sandbox, "echo kept > file").await?;
    sandbox.set_idle_stop(Some(Duration::from_secs(1))).await?;
    until(|| async { Ok(sandbox.state().await? == SandboxState::Stopped) }).await?;
    sandbox.start().await?;
    sandbox.set_idle_stop(None).await?;
    assert_eq!(stdout(&sandbox, "cat file").await?, "kept\n");
    Ok(())
}

async fn f50_a_running_command_is_not_idle(bench: Arc<Workbench>) -> Result<()> {
    let mut spec = bench.spec();
    spec.idle_stop_after = Some(Duration::from_secs(2));
    let sandbox = bench.provider().create(spec).await?;
    let output = run(&sandbox, leasehold_model::CommandSpec::shell("sleep 5; echo done")).await?;
    exited(&output.verdict, 0);
    assert_eq!(output.stdout, b"done\n");
    // The end restarted the clock: another command fits in at once.
    exited(&sh(&sandbox, "true").await?.verdict, 0);
    Ok(())
}
