//! What a command writes arrives: every byte, in order, before the verdict, in bounded memory.

use std::fmt::Write as _;
use std::sync::Arc;

use leasehold_model::{ByteOffset, CommandSpec, Result, StreamKind};

use super::case::declare_cases;
use super::workbench::{
    Workbench, exists, exited, lines, pause, read, read_until, run, same_bytes, sh, size, start, stdout,
    until, write,
};

declare_cases! {
    every_byte_value_arrives_on_both_streams: [SeparateStreams], "invariant 7: bytes 0 to 255 unchanged, the streams apart";
    f23_utf8_split_across_chunks: [Stdin], "F23: multi-byte characters survive any chunk boundary";
    f24_binary_output_equals_the_file: [], "F24: random bytes are not decoded on the way";
    f25_output_that_looks_like_a_protocol: [], "F25: no output is mistaken for framing or for an exit status";
    f27_output_right_before_the_exit: [], "F27: the tail is never lost and the status never replaced, run after run";
    f27_a_last_line_without_newline: [], "F27: a short tail without a newline arrives";
    f30_output_before_anybody_reads: [], "F30: what is written before the reader is ready waits for it";
    eight_megabytes_on_both_streams_at_once: [SeparateStreams], "both streams at once, whole and in order";
    chunks_are_contiguous_and_never_empty: [], "offsets count every byte once";
    f34_a_slow_reader_holds_the_command_back: [], "F34: unread output is bounded; the command waits";
    f34_dropped_output_does_not_break_the_command: [], "F34: output nobody wants is discarded, not an error for the command";
    f34_output_after_a_long_silence: [], "a silent command stays connected";
    f38_a_grandchild_that_holds_the_output: [], "F38, invariant 8: the execution ends when its leader ends";
    f38_the_background_writer_lives_on: [], "F38: later output is drained, so the writer is not broken";
    collecting_stops_at_its_bound: [], "invariant 14: a bound that bites says so, and cancels";
}

async fn every_byte_value_arrives_on_both_streams(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let all: Vec<u8> = (0..=255).collect();
    let reversed: Vec<u8> = (0..=255).rev().collect();
    let octal = |bytes: &[u8]| {
        bytes.iter().fold(String::new(), |mut text, byte| {
            write!(text, "\\{byte:03o}").expect("writing to a string");
            text
        })
    };
    let output =
        sh(&sandbox, &format!("printf '{}'; printf '{}' >&2", octal(&all), octal(&reversed))).await?;
    exited(&output.verdict, 0);
    same_bytes(&output.stdout, &all, "standard output");
    same_bytes(&output.stderr, &reversed, "standard error");
    Ok(())
}

async fn f23_utf8_split_across_chunks(bench: Arc<Workbench>) -> Result<()> {
    use tokio::io::AsyncWriteExt as _;
    let sandbox = bench.sandbox().await?;
    let text = "€🦀漢\u{10ffff}".repeat(8_000).into_bytes();
    let mut execution = sandbox.exec(CommandSpec::new(["cat"]).with_stdin()).await?;
    let mut stdin = execution.stdin.take().expect("a stream was asked for").0;
    let pieces = text.clone();
    let feed = tokio::spawn(async move {
        let (mut rest, mut step) = (pieces.as_slice(), 0);
        while !rest.is_empty() {
            // Pieces of 1 to 7 bytes, then some long ones, so that the case stays short.
            let length = if step < 2_000 { step % 7 + 1 } else { 997 };
            let (piece, later) = rest.split_at(length.min(rest.len()));
            stdin.write_all(piece).await?;
            stdin.flush().await?;
            (rest, step) = (later, step + 1);
        }
        stdin.shutdown().await
    });
    let output = execution.collect(1 << 20).await?;
    feed.await.expect("no panic").expect("all was written");
    exited(&output.verdict, 0);
    same_bytes(&output.stdout, &text, "multi-byte characters");
    Ok(())
}

async fn f24_binary_output_equals_the_file(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let output = sh(&sandbox, "head -c 1048576 /dev/urandom | tee copy").await?;
    exited(&output.verdict, 0);
    assert_eq!(output.stdout.len(), 1 << 20);
    same_bytes(&output.stdout, &read(&sandbox, "copy").await?, "random bytes");
    Ok(())
}

async fn f25_output_that_looks_like_a_protocol(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let text: &[u8] = b"\x00\x00\x00\x04exit\x01\x02\x03\n__EXIT_CODE__:0\n{\"type\":\"exited\",\"code\":0}\r\n\r\n\
        data: {\"exit_code\":0}\n\nevent: end\n\n\x1b]0;title\x07\x04\x03\x1a\xff\xd8HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    write(&sandbox, "text", text).await?;
    let output = sh(&sandbox, "cat text; cat text >&2; exit 17").await?;
    exited(&output.verdict, 17);
    let all: Vec<u8> = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    same_bytes(&all, &text.repeat(2), "markers");
    // And one byte at a time.
    let octal = text.iter().fold(String::new(), |mut line, byte| {
        write!(line, "printf '\\{byte:03o}';").expect("writing to a string");
        line
    });
    let output = sh(&sandbox, &format!("{octal} exit 18")).await?;
    exited(&output.verdict, 18);
    same_bytes(&output.stdout, text, "markers byte by byte");
    Ok(())
}

async fn f27_output_right_before_the_exit(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let expected = lines(1..=200_000, |number| format!("{number}\n"));
    for _ in 0..10 {
        let output = sh(&sandbox, "seq 1 200000; exit 7").await?;
        exited(&output.verdict, 7);
        same_bytes(&output.stdout, expected.as_bytes(), "output before the exit");
    }
    for number in 0_u8..100 {
        let output = sh(&sandbox, &format!("echo out {number}; exit {number}")).await?;
        exited(&output.verdict, number);
        assert_eq!(output.stdout, format!("out {number}\n").into_bytes());
    }
    Ok(())
}

async fn f27_a_last_line_without_newline(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    for line in ["printf tail", "sleep 0.2; printf tail", "printf ta; sleep 0.2; printf il; kill -KILL $$"] {
        assert_eq!(sh(&sandbox, line).await?.stdout, b"tail", "{line}");
    }
    let output = sh(&sandbox, "true").await?;
    assert!(output.stdout.is_empty() && output.stderr.is_empty());
    Ok(())
}

async fn f30_output_before_anybody_reads(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    for wait in [0, 1, 5, 20, 100, 300] {
        let execution = start(&sandbox, "echo early; echo early >&2; exit 3").await?;
        pause(wait).await;
        let output = execution.collect(1000).await?;
        exited(&output.verdict, 3);
        let all = [output.stdout, output.stderr].concat();
        assert_eq!(all, b"early\nearly\n", "after {wait} ms");
    }
    Ok(())
}

async fn eight_megabytes_on_both_streams_at_once(bench: Arc<Workbench>) -> Result<()> {
    const LENGTH: usize = 8 << 20;
    let sandbox = bench.sandbox().await?;
    let line = "(yes out-line | head -c 8388608) & (yes error | head -c 8388608 >&2); wait";
    let output = sh(&sandbox, line).await?;
    exited(&output.verdict, 0);
    for (found, line) in [(&output.stdout, "out-line\n"), (&output.stderr, "error\n")] {
        let expected: Vec<u8> = line.bytes().cycle().take(LENGTH).collect();
        same_bytes(found, &expected, "8 MiB");
    }
    Ok(())
}

async fn chunks_are_contiguous_and_never_empty(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let line = "for i in $(seq 1 300); do echo line $i; echo error $i >&2; done; seq 1 50000";
    let mut execution = start(&sandbox, line).await?;
    let (mut out, mut error) = (0, 0);
    while let Some(chunk) = execution.output.next().await {
        let chunk = chunk?;
        assert!(!chunk.bytes.is_empty(), "an empty chunk at {}", chunk.offset);
        let position = match chunk.stream {
            StreamKind::Stdout => &mut out,
            StreamKind::Stderr => &mut error,
        };
        assert_eq!(chunk.offset, ByteOffset(*position), "a gap or repeat on {:?}", chunk.stream);
        *position += chunk.bytes.len() as u64;
    }
    exited(&execution.control.verdict().await, 0);
    let count = |word: &str| (1..=300).map(|number| format!("{word} {number}\n").len() as u64).sum::<u64>();
    let numbers: u64 = (1..=50_000).map(|number: u32| format!("{number}\n").len() as u64).sum();
    assert_eq!(out + error, count("line") + count("error") + numbers);
    Ok(())
}

async fn f34_a_slow_reader_holds_the_command_back(bench: Arc<Workbench>) -> Result<()> {
    const LENGTH: u64 = 64 << 20;
    let sandbox = bench.sandbox().await?;
    let mut execution = start(&sandbox, "head -c 67108864 /dev/zero; echo done > finished").await?;
    pause(1500).await;
    assert!(!exists(&sandbox, "finished").await?, "64 MiB were taken in while nobody read");
    let mut length = 0;
    while let Some(chunk) = execution.output.next().await {
        let chunk = chunk?;
        assert_eq!(chunk.offset, ByteOffset(length));
        assert!(chunk.bytes.iter().all(|byte| *byte == 0));
        length += chunk.bytes.len() as u64;
    }
    assert_eq!(length, LENGTH);
    exited(&execution.control.verdict().await, 0);
    assert!(exists(&sandbox, "finished").await?);
    Ok(())
}

async fn f34_dropped_output_does_not_break_the_command(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let mut execution =
        start(&sandbox, "echo begun; head -c 33554432 /dev/zero && echo whole > whole").await?;
    read_until(&mut execution.output, "begun").await?;
    drop(execution.output);
    exited(&execution.control.verdict().await, 0);
    assert_eq!(read(&sandbox, "whole").await?, b"whole\n");
    Ok(())
}

async fn f34_output_after_a_long_silence(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    assert_eq!(stdout(&sandbox, "echo before; sleep 3; echo after").await?, "before\nafter\n");
    Ok(())
}

async fn f38_a_grandchild_that_holds_the_output(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    // Without the drain rule this hangs for ever, and the case's own bound says so.
    for line in [
        "while :; do sleep 1; done & echo STARTED",
        "(while :; do sleep 1; done) 2>/dev/null & echo STARTED",
        "setsid sh -c 'while :; do sleep 1; done' & echo STARTED",
        "while :; do echo noise >&2; sleep 0.01; done & echo STARTED",
    ] {
        let output = sh(&sandbox, line).await?;
        exited(&output.verdict, 0);
        assert_eq!(output.stdout, b"STARTED\n", "{line}");
    }
    Ok(())
}

async fn f38_the_background_writer_lives_on(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let line = "(while :; do echo more || exit; echo x >> beat; sleep 0.05; done) & echo STARTED";
    let output = sh(&sandbox, line).await?;
    exited(&output.verdict, 0);
    assert!(output.stdout.starts_with(b"STARTED\n") || output.stdout.starts_with(b"more\n"));
    // Twenty beats after the end: none of the writes broke it.
    let after = size(&sandbox, "beat").await?;
    until(|| async { Ok(size(&sandbox, "beat").await? > after + 40) }).await
}

async fn collecting_stops_at_its_bound(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let execution = sandbox.exec(CommandSpec::new(["yes"])).await?;
    let control = Arc::clone(&execution.control);
    super::workbench::refused(
        execution.collect(100_000).await,
        leasehold_model::ErrorKind::LimitExceeded,
        "collect",
    );
    assert_eq!(control.verdict().await, leasehold_model::Verdict::Cancelled);
    let output = run(&sandbox, CommandSpec::new(["head", "-c", "100000", "/dev/zero"])).await?;
    same_bytes(&output.stdout, &vec![0; 100_000], "output within the bound");
    Ok(())
}
