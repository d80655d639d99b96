//! Commands on a terminal.

use std::sync::Arc;

use leasehold_model::{CommandSpec, EndedBy, Result, SignalNumber, StreamKind, TerminalSize, Verdict};
use tokio::io::AsyncWriteExt as _;

use super::case::declare_cases;
use super::workbench::{Workbench, contains, exited, lines, noise, read, read_until, run, same_bytes, until};

declare_cases! {
    a_terminal_is_a_terminal: [Terminal], "all three descriptors are a terminal, merged into standard output";
    a_terminal_has_its_size: [Terminal], "the size asked for is there from the start";
    a_resize_is_seen: [Terminal], "a new size arrives with SIGWINCH";
    control_c_interrupts: [Terminal], "the byte 3 is SIGINT for the foreground, and a handler sees it";
    control_d_ends_input: [Terminal], "the byte 4 is end of input; typing echoes";
    f35_a_hundred_thousand_lines: [Terminal], "F35: a terminal's output is whole, run after run";
    f51_a_megabyte_pasted: [Terminal], "F51: a paste to a slow reader in raw mode arrives whole";
    f54_a_terminal_changes_nothing_else: [Terminal], "F54: user, directory, mask and environment as without one";
    a_deadline_ends_a_terminal: [Terminal], "deadline and cancel work on a terminal";
}

fn on_terminal(line: &str) -> CommandSpec {
    CommandSpec::shell(line).with_terminal(TerminalSize { columns: 100, rows: 30 })
}

async fn a_terminal_is_a_terminal(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let line = "test -t 0 && test -t 1 && test -t 2 && echo all; echo error >&2; exit 3";
    let mut execution = sandbox.exec(on_terminal(line)).await?;
    let mut seen = Vec::new();
    while let Some(chunk) = execution.output.next().await {
        let chunk = chunk?;
        assert_eq!(chunk.stream, StreamKind::Stdout, "a terminal has one stream");
        seen.extend_from_slice(&chunk.bytes);
    }
    assert_eq!(String::from_utf8_lossy(&seen), "all\r\nerror\r\n");
    exited(&execution.control.verdict().await, 3);
    let output = run(&sandbox, CommandSpec::shell("test -t 1 || echo none")).await?;
    assert_eq!(output.stdout, b"none\n");
    Ok(())
}

async fn a_terminal_has_its_size(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let output = run(&sandbox, on_terminal("stty size")).await?;
    assert_eq!(String::from_utf8_lossy(&output.stdout), "30 100\r\n");
    Ok(())
}

async fn a_resize_is_seen(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let line = "trap 'stty size; exit 0' WINCH; echo begun; while :; do sleep 0.1; done";
    let mut execution = sandbox.exec(on_terminal(line)).await?;
    read_until(&mut execution.output, "begun").await?;
    execution.control.resize(TerminalSize { columns: 132, rows: 43 }).await?;
    read_until(&mut execution.output, "43 132").await?;
    exited(&execution.control.verdict().await, 0);
    Ok(())
}

async fn control_c_interrupts(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let line = "trap 'echo handled; exit 9' INT; echo begun; while :; do sleep 0.1; done";
    let mut execution = sandbox.exec(on_terminal(line)).await?;
    let stdin = &mut execution.stdin.as_mut().expect("a terminal has input").0;
    read_until(&mut execution.output, "begun").await?;
    stdin.write_all(b"\x03").await.expect("the terminal takes a byte");
    stdin.flush().await.expect("the terminal takes a byte");
    read_until(&mut execution.output, "handled").await?;
    exited(&execution.control.verdict().await, 9);

    let mut execution = sandbox.exec(on_terminal("echo begun; exec sleep 600")).await?;
    let stdin = &mut execution.stdin.as_mut().expect("a terminal has input").0;
    read_until(&mut execution.output, "begun").await?;
    stdin.write_all(b"\x03").await.expect("the terminal takes a byte");
    stdin.flush().await.expect("the terminal takes a byte");
    drop(execution.output);
    // Whether a typed byte counts as the caller's signal is the provider's to say.
    let verdict = execution.control.verdict().await;
    let signal = SignalNumber::INTERRUPT;
    let either = [EndedBy::Other, EndedBy::Caller].map(|by| Verdict::Signalled { signal, by });
    assert!(either.contains(&verdict), "{verdict}");
    Ok(())
}

async fn control_d_ends_input(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let mut execution = sandbox.exec(on_terminal("echo begun; cat; echo end")).await?;
    let stdin = &mut execution.stdin.as_mut().expect("a terminal has input").0;
    let mut seen = read_until(&mut execution.output, "begun\r\n").await?;
    stdin.write_all(b"typed\n").await.expect("the terminal takes a line");
    stdin.flush().await.expect("the terminal takes a line");
    while seen.windows(5).filter(|part| part == b"typed").count() < 2 {
        seen.extend_from_slice(&execution.output.next().await.expect("more output")?.bytes);
    }
    stdin.write_all(b"\x04").await.expect("the terminal takes a byte");
    stdin.flush().await.expect("the terminal takes a byte");
    while let Some(chunk) = execution.output.next().await {
        seen.extend_from_slice(&chunk?.bytes);
    }
    assert!(contains(&seen, b"typed\r\ntyped\r\n"), "{:?}", String::from_utf8_lossy(&seen));
    assert!(seen.ends_with(b"end\r\n"), "{:?}", String::from_utf8_lossy(&seen));
    exited(&execution.control.verdict().await, 0);
    Ok(())
}

async fn f35_a_hundred_thousand_lines(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let expected = lines(1..=100_000, |number| format!("{number}\r\n"));
    for _ in 0..5 {
        let output = run(&sandbox, on_terminal("seq 1 100000; exit 7")).await?;
        exited(&output.verdict, 7);
        same_bytes(&output.stdout, expected.as_bytes(), "a terminal's output");
    }
    for number in 0_u8..50 {
        let output = run(&sandbox, on_terminal(&format!("echo {number}; exit {number}"))).await?;
        exited(&output.verdict, number);
        assert_eq!(output.stdout, format!("{number}\r\n").into_bytes());
    }
    Ok(())
}

async fn f51_a_megabyte_pasted(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    for length in [10_240, 1 << 20] {
        let bytes = noise(length);
        let line = format!("stty raw -echo; echo begun; sleep 0.5; head -c {length} > pasted; echo end");
        let mut execution = sandbox.exec(on_terminal(&line)).await?;
        read_until(&mut execution.output, "begun").await?;
        let mut stdin = execution.stdin.take().expect("a terminal has input").0;
        let sent = bytes.clone();
        let feed = tokio::spawn(async move {
            stdin.write_all(&sent).await?;
            stdin.flush().await?;
            Ok::<_, std::io::Error>(stdin)
        });
        read_until(&mut execution.output, "end").await?;
        feed.await.expect("no panic").expect("all was written");
        exited(&execution.control.verdict().await, 0);
        same_bytes(&read(&sandbox, "pasted").await?, &bytes, "the paste");
    }
    Ok(())
}

async fn f54_a_terminal_changes_nothing_else(bench: Arc<Workbench>) -> Result<()> {
    let mut spec = bench.spec();
    spec.environment = vec![("BASE".into(), "sandbox".into())];
    let sandbox = bench.provider().create(spec).await?;
    let line = "id -u; umask; pwd; echo \"$BASE $OWN $PATH $HOME\"";
    let without = CommandSpec::shell(line).with_environment("OWN", "command");
    let with = without.clone().with_terminal(TerminalSize::default());
    let without = run(&sandbox, without).await?;
    let with = run(&sandbox, with).await?;
    exited(&with.verdict, 0);
    let plain = String::from_utf8_lossy(&with.stdout).replace("\r\n", "\n");
    assert_eq!(plain, String::from_utf8_lossy(&without.stdout));
    assert!(plain.contains("sandbox command "), "{plain}");
    Ok(())
}

async fn a_deadline_ends_a_terminal(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let allowed = std::time::Duration::from_secs(2);
    let output =
        run(&sandbox, on_terminal("echo begun; while :; do sleep 0.2; done").with_timeout(allowed)).await?;
    assert_eq!(output.verdict, Verdict::Deadline { allowed });
    assert_eq!(output.stdout, b"begun\r\n");
    let mut execution = sandbox
        .exec(on_terminal("echo begun > begun; trap '' INT HUP TERM; while :; do sleep 0.2; done"))
        .await?;
    until(|| super::workbench::exists(&sandbox, "begun")).await?;
    execution.control.cancel().await?;
    while let Some(chunk) = execution.output.next().await {
        chunk?;
    }
    assert_eq!(execution.control.verdict().await, Verdict::Cancelled);
    Ok(())
}
