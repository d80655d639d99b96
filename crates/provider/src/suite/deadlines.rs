//! Deadlines and cancels: they kill the whole tree, and the verdict knows why.

use std::sync::Arc;
use std::time::Duration;

use leasehold_model::{CommandSpec, EndedBy, Result, SignalNumber, Verdict};

use super::case::declare_cases;
use super::workbench::{
    Workbench, exited, lines, pause, read_until, run, same_bytes, sh, size, start, stdout, until, write,
};
use crate::sandbox::Sandbox;

declare_cases! {
    f39_a_cancel_kills_the_whole_tree: [TreeKill], "F39: nothing that the command left survives, however it hid";
    f39_a_deadline_kills_the_whole_tree: [TreeKill], "F39: nothing that the command left survives its deadline";
    f39_other_commands_live_on: [TreeKill], "a kill reaches its own tree only";
    a_deadline_keeps_the_output_so_far: [], "what was written before the deadline arrives, then the verdict";
    a_deadline_ignores_handlers: [], "a command that ignores SIGTERM ends at its deadline";
    a_deadline_with_unread_output: [], "a blocked command ends at its deadline too (F41)";
    f42_an_end_before_the_deadline_is_its_own: [], "F42: the cause is who ended it, not the time it took";
    a_cancel_is_a_verdict_of_its_own: [], "cancel gives `Cancelled`; again it changes nothing";
    a_cancel_keeps_the_output_so_far: [], "what was written before the cancel arrives";
    a_cancel_with_unread_output: [], "a blocked command can be cancelled (F41)";
}

/// A loop that shows in a file that it lives, until the file `end` exists.
const BEAT: &[u8] = b"while [ ! -e /workspace/end ]; do echo x >> /workspace/$1; sleep 0.1; done\n";

/// Ways to leave the group, the session, or the parent, or to resist.
const ESCAPES: &str = "setsid sh /workspace/beat session & \
    nohup sh /workspace/beat hangup >/dev/null 2>&1 & \
    (sh /workspace/beat orphan &) ; \
    (setsid sh -c 'sh /workspace/beat daemon &' >/dev/null 2>&1 </dev/null &) ; \
    sh -c 'trap \"\" TERM HUP INT; sh /workspace/beat stubborn' & \
    echo begun; sh /workspace/beat leader";
const BEATS: [&str; 6] = ["session", "hangup", "orphan", "daemon", "stubborn", "leader"];

async fn sizes(sandbox: &Arc<dyn Sandbox>) -> Result<Vec<u64>> {
    let mut sizes = Vec::new();
    for name in BEATS {
        sizes.push(size(sandbox, name).await?);
    }
    Ok(sizes)
}

async fn nothing_beats(sandbox: &Arc<dyn Sandbox>) -> Result<()> {
    let before = sizes(sandbox).await?;
    pause(800).await;
    assert_eq!(sizes(sandbox).await?, before, "something of {BEATS:?} still runs");
    Ok(())
}

async fn f39_a_cancel_kills_the_whole_tree(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    write(&sandbox, "beat", BEAT).await?;
    let execution = start(&sandbox, ESCAPES).await?;
    until(|| async { Ok(sizes(&sandbox).await?.iter().all(|size| *size > 0)) }).await?;
    execution.control.cancel().await?;
    drop(execution.output);
    assert_eq!(execution.control.verdict().await, Verdict::Cancelled);
    nothing_beats(&sandbox).await
}

async fn f39_a_deadline_kills_the_whole_tree(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    write(&sandbox, "beat", BEAT).await?;
    let allowed = Duration::from_secs(3);
    let output = run(&sandbox, CommandSpec::shell(ESCAPES).with_timeout(allowed)).await?;
    assert_eq!(output.verdict, Verdict::Deadline { allowed });
    assert_eq!(output.stdout, b"begun\n");
    nothing_beats(&sandbox).await
}

async fn f39_other_commands_live_on(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    write(&sandbox, "beat", BEAT).await?;
    let other = start(&sandbox, "sh beat other; echo whole").await?;
    let killed = start(&sandbox, "sh beat killed").await?;
    until(|| async { Ok(size(&sandbox, "other").await? > 0 && size(&sandbox, "killed").await? > 0) }).await?;
    killed.control.cancel().await?;
    drop(killed.output);
    assert_eq!(killed.control.verdict().await, Verdict::Cancelled);
    let before = size(&sandbox, "other").await?;
    until(|| async { Ok(size(&sandbox, "other").await? > before + 4) }).await?;
    write(&sandbox, "end", b"").await?;
    let output = other.collect(1000).await?;
    exited(&output.verdict, 0);
    assert_eq!(output.stdout, b"whole\n");
    Ok(())
}

async fn a_deadline_keeps_the_output_so_far(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let allowed = Duration::from_secs(3);
    let line = "echo before; echo error >&2; sleep 600; echo after";
    let output = run(&sandbox, CommandSpec::shell(line).with_timeout(allowed)).await?;
    assert_eq!(output.verdict, Verdict::Deadline { allowed });
    assert_eq!([output.stdout, output.stderr].concat(), b"before\nerror\n");
    Ok(())
}

async fn a_deadline_ignores_handlers(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let allowed = Duration::from_secs(1);
    let line = "trap '' TERM INT HUP QUIT; trap 'echo x' EXIT; while :; do sleep 0.2; done";
    let output = run(&sandbox, CommandSpec::shell(line).with_timeout(allowed)).await?;
    assert_eq!(output.verdict, Verdict::Deadline { allowed });
    Ok(())
}

async fn a_deadline_with_unread_output(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let allowed = Duration::from_secs(1);
    let mut execution = sandbox.exec(CommandSpec::new(["yes"]).with_timeout(allowed)).await?;
    pause(2000).await;
    // Reading late still gives whole output up to the end, then the verdict.
    let mut length = 0;
    while let Some(chunk) = execution.output.next().await {
        let chunk = chunk?;
        assert_eq!(chunk.offset.0, length);
        length += chunk.bytes.len() as u64;
    }
    assert!(length > 0);
    assert_eq!(execution.control.verdict().await, Verdict::Deadline { allowed });
    Ok(())
}

async fn f42_an_end_before_the_deadline_is_its_own(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let timed = |line: &str| CommandSpec::shell(line).with_timeout(Duration::from_secs(120));
    exited(&run(&sandbox, timed("sleep 1; exit 124")).await?.verdict, 124);
    exited(&run(&sandbox, timed("exit 137")).await?.verdict, 137);
    let output = run(&sandbox, timed("sleep 1; kill -KILL $$")).await?;
    assert_eq!(output.verdict, Verdict::Signalled { signal: SignalNumber::KILL, by: EndedBy::Other });
    exited(&sh(&sandbox, "true").await?.verdict, 0);
    Ok(())
}

async fn a_cancel_is_a_verdict_of_its_own(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let mut execution = start(&sandbox, "trap '' TERM; echo begun; while :; do sleep 1; done").await?;
    read_until(&mut execution.output, "begun").await?;
    let control = Arc::clone(&execution.control);
    let waiter = tokio::spawn(async move { control.verdict().await });
    execution.control.cancel().await?;
    execution.control.cancel().await?;
    assert!(execution.output.next().await.is_none());
    assert_eq!(execution.control.verdict().await, Verdict::Cancelled);
    assert_eq!(waiter.await.expect("no panic"), Verdict::Cancelled);
    assert_eq!(stdout(&sandbox, "echo alive").await?, "alive\n");
    Ok(())
}

async fn a_cancel_keeps_the_output_so_far(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let execution = start(&sandbox, "seq 1 1000; echo all > written; sleep 600").await?;
    until(|| async { Ok(size(&sandbox, "written").await? > 0) }).await?;
    execution.control.cancel().await?;
    let output = execution.collect(100_000).await?;
    assert_eq!(output.verdict, Verdict::Cancelled);
    let expected: String = lines(1..=1000, |number| format!("{number}\n"));
    same_bytes(&output.stdout, expected.as_bytes(), "output before the cancel");
    Ok(())
}

async fn a_cancel_with_unread_output(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let execution = sandbox.exec(CommandSpec::new(["yes"])).await?;
    pause(300).await;
    execution.control.cancel().await?;
    drop(execution.output);
    assert_eq!(execution.control.verdict().await, Verdict::Cancelled);
    Ok(())
}
