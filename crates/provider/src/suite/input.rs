//! Standard input.

use std::sync::Arc;

use leasehold_model::{CommandSpec, Result};
use tokio::io::AsyncWriteExt as _;

use super::case::declare_cases;
use super::workbench::{Workbench, exited, noise, read_until, run, same_bytes, sh, stdout};

declare_cases! {
    a_megabyte_echoes_through_cat: [Stdin], "input and output flow at the same time, byte-exact";
    f43_empty_input_is_the_end_at_once: [], "F43: a command that reads gets end of input and goes on";
    f43_input_is_not_shared: [], "F43: a background job does not read somebody else's input";
    closing_input_is_its_end: [Stdin], "shutting the stream down is end of input";
    dropping_input_is_its_end: [Stdin], "dropping the stream is end of input";
    input_to_a_command_that_ended: [Stdin], "writing to a command that does not read neither hangs nor breaks it";
    input_waits_for_a_slow_reader: [Stdin], "unread input is bounded, and none is lost";
}

async fn a_megabyte_echoes_through_cat(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let bytes = noise(1 << 20);
    let mut execution = sandbox.exec(CommandSpec::new(["cat"]).with_stdin()).await?;
    let mut stdin = execution.stdin.take().expect("a stream was asked for").0;
    let sent = bytes.clone();
    let feed = tokio::spawn(async move {
        stdin.write_all(&sent).await?;
        stdin.shutdown().await
    });
    let output = execution.collect(2 << 20).await?;
    feed.await.expect("no panic").expect("all was written");
    exited(&output.verdict, 0);
    same_bytes(&output.stdout, &bytes, "the echo");
    Ok(())
}

async fn f43_empty_input_is_the_end_at_once(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let output = run(&sandbox, CommandSpec::new(["cat"])).await?;
    exited(&output.verdict, 0);
    assert!(output.stdout.is_empty());
    assert_eq!(stdout(&sandbox, "read line || echo end; wc -c | tr -d ' '").await?, "end\n0\n");
    Ok(())
}

async fn f43_input_is_not_shared(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    assert_eq!(stdout(&sandbox, "cat & wait; echo end").await?, "end\n");
    Ok(())
}

async fn closing_input_is_its_end(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let mut execution = sandbox.exec(CommandSpec::shell("cat; echo end; exit 4").with_stdin()).await?;
    let stdin = &mut execution.stdin.as_mut().expect("a stream was asked for").0;
    stdin.write_all(b"one line\n").await.expect("the command reads");
    stdin.flush().await.expect("the command reads");
    assert_eq!(read_until(&mut execution.output, "line\n").await?, b"one line\n");
    stdin.shutdown().await.expect("the command reads");
    assert_eq!(read_until(&mut execution.output, "end\n").await?, b"end\n");
    exited(&execution.control.verdict().await, 4);
    Ok(())
}

async fn dropping_input_is_its_end(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let mut execution = sandbox.exec(CommandSpec::shell("cat; echo end").with_stdin()).await?;
    drop(execution.stdin.take());
    assert_eq!(read_until(&mut execution.output, "end\n").await?, b"end\n");
    exited(&execution.control.verdict().await, 0);
    Ok(())
}

async fn input_to_a_command_that_ended(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let mut execution = sandbox.exec(CommandSpec::shell("exit 2").with_stdin()).await?;
    let mut stdin = execution.stdin.take().expect("a stream was asked for").0;
    let feed = tokio::spawn(async move { stdin.write_all(&noise(4 << 20)).await });
    let output = execution.collect(1000).await?;
    exited(&output.verdict, 2);
    assert!(feed.await.expect("no panic").is_err(), "4 MiB went to a command that reads nothing");
    exited(&sh(&sandbox, "true").await?.verdict, 0);
    Ok(())
}

async fn input_waits_for_a_slow_reader(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let bytes = noise(2 << 20);
    let mut execution =
        sandbox.exec(CommandSpec::shell("sleep 1; cat > late; echo end").with_stdin()).await?;
    let mut stdin = execution.stdin.take().expect("a stream was asked for").0;
    let sent = bytes.clone();
    let feed = tokio::spawn(async move {
        stdin.write_all(&sent).await?;
        stdin.shutdown().await
    });
    exited(&execution.collect(1000).await?.verdict, 0);
    feed.await.expect("no panic").expect("all was written");
    same_bytes(&super::workbench::read(&sandbox, "late").await?, &bytes, "late input");
    Ok(())
}
