//! Starting commands and how they end.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::sync::Arc;

use leasehold_model::{CommandSpec, EndedBy, ErrorKind, Result, SignalNumber, UserSpec, Verdict};

use super::case::declare_cases;
use super::workbench::{
    WORKSPACE, Workbench, exited, lines, read, read_until, refused, run, same_bytes, sh, start, stdout, write,
};
use crate::execution::SignalScope;
use crate::files::WriteOptions;

declare_cases! {
    exit_codes_are_exact: [], "every exit status from 0 to 255 is the command's own, 124, 125, 137 and 143 included (F42)";
    a_signal_from_inside_is_signalled_by_other: [], "the verdict names the signal; a plain SIGKILL is not out-of-memory (F81)";
    a_signal_from_the_caller_is_signalled_by_caller: [Signals], "the verdict knows who sent the signal";
    f45_a_caught_signal_lets_the_command_end_itself: [Signals], "F45: SIGTERM reaches the command, whose handler decides";
    a_group_signal_reaches_the_children: [Signals], "a signal to the group reaches what the shell waits for";
    a_tree_signal_reaches_what_left_the_group: [Signals, TreeKill], "a signal to the tree reaches processes in other sessions";
    f29_a_signal_after_the_end_changes_nothing: [Signals], "F29: signalling what has ended is success without effect";
    f29_a_missing_program_leaves_no_phantom: [], "F29: what failed to start is an error, and the sandbox goes on";
    a_file_without_the_executable_bit_is_not_run: [], "not executable is `PermissionDenied`";
    a_missing_directory_is_not_found: [], "a missing start directory is `NotFound` and runs nothing";
    a_script_is_run_by_its_interpreter: [], "an executable script starts by path";
    programs_are_found_on_the_path: [], "a bare name is looked up as execvp does";
    commands_start_in_the_workspace: [], "the default directory is the workspace";
    commands_start_where_they_are_told: [], "a directory, relative ones counted from the workspace";
    the_environment_is_exact: [], "variables of the sandbox and the command, later ones winning, any bytes but NUL";
    arguments_are_bytes: [], "arguments reach the program unchanged: empty, newlines, quotes, any bytes";
    f32_a_megabyte_of_arguments: [], "F32: long argument lists arrive whole";
    f32_one_too_long_argument_is_no_success: [], "F32: an argument beyond the kernel's limit is an error or arrives whole";
    f32_a_megabyte_script: [Stdin], "F32: a long script is fed by standard input";
    no_arguments_is_invalid: [], "a command without a program is `InvalidInput`";
    twenty_commands_at_once: [], "commands in one sandbox don't mix";
    verdict_can_be_asked_again: [], "there is one verdict, for every asker";
    another_user_on_request: [OtherUsers], "the command's user id is the one asked for";
    f47_many_processes_under_default_limits: [], "F47: an ordinary build's process count fits the defaults";
}

async fn exit_codes_are_exact(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let codes = [0, 1, 2, 3, 42, 99, 123, 124, 125, 126, 127, 128, 130, 137, 139, 143, 200, 254, 255];
    for code in codes {
        exited(&sh(&sandbox, &format!("exit {code}")).await?.verdict, code);
    }
    exited(&run(&sandbox, CommandSpec::new(["true"])).await?.verdict, 0);
    exited(&run(&sandbox, CommandSpec::new(["false"])).await?.verdict, 1);
    Ok(())
}

async fn a_signal_from_inside_is_signalled_by_other(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    for (name, signal) in [
        ("TERM", SignalNumber::TERMINATE),
        ("KILL", SignalNumber::KILL),
        ("HUP", SignalNumber::HANGUP),
        ("USR1", SignalNumber(10)),
    ] {
        let output = sh(&sandbox, &format!("echo before; kill -{name} $$; echo after")).await?;
        assert_eq!(output.verdict, Verdict::Signalled { signal, by: EndedBy::Other });
        assert_eq!(output.stdout, b"before\n");
    }
    Ok(())
}

async fn a_signal_from_the_caller_is_signalled_by_caller(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    for signal in [SignalNumber::TERMINATE, SignalNumber::KILL, SignalNumber::HANGUP] {
        let mut execution = start(&sandbox, "echo begun; exec sleep 600").await?;
        read_until(&mut execution.output, "begun").await?;
        execution.control.signal(signal, SignalScope::Group).await?;
        let verdict = execution.control.verdict().await;
        assert_eq!(verdict, Verdict::Signalled { signal, by: EndedBy::Caller });
    }
    Ok(())
}

async fn f45_a_caught_signal_lets_the_command_end_itself(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let line =
        "trap 'echo caught > caught; echo ending; exit 3' TERM; echo begun; while :; do sleep 0.1; done";
    let mut execution = start(&sandbox, line).await?;
    read_until(&mut execution.output, "begun").await?;
    execution.control.signal(SignalNumber::TERMINATE, SignalScope::Group).await?;
    read_until(&mut execution.output, "ending").await?;
    exited(&execution.control.verdict().await, 3);
    assert_eq!(read(&sandbox, "caught").await?, b"caught\n");
    Ok(())
}

async fn a_group_signal_reaches_the_children(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let mut execution = start(&sandbox, "echo begun; sleep 600; echo never; exit 0").await?;
    read_until(&mut execution.output, "begun").await?;
    // A shell that is just starting its child may swallow the first one, as it does anywhere else.
    let verdict = loop {
        execution.control.signal(SignalNumber::INTERRUPT, SignalScope::Group).await?;
        let patience = std::time::Duration::from_millis(200);
        if let Ok(verdict) = tokio::time::timeout(patience, execution.control.verdict()).await {
            break verdict;
        }
    };
    assert_eq!(verdict, Verdict::Signalled { signal: SignalNumber::INTERRUPT, by: EndedBy::Caller });
    assert!(execution.output.next().await.is_none(), "the shell went on after an interrupt");
    Ok(())
}

async fn a_tree_signal_reaches_what_left_the_group(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let line = "setsid sh -c 'trap \"echo reached > reached; exit\" USR1; echo begun; while :; do sleep 0.1; done' & \
                trap '' USR1; wait; while :; do sleep 0.1; done";
    let mut execution = start(&sandbox, line).await?;
    read_until(&mut execution.output, "begun").await?;
    execution.control.signal(SignalNumber(10), SignalScope::Tree).await?;
    super::workbench::until(|| super::workbench::exists(&sandbox, "reached")).await?;
    execution.control.cancel().await
}

async fn f29_a_signal_after_the_end_changes_nothing(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let execution = start(&sandbox, "exit 5").await?;
    drop(execution.output);
    exited(&execution.control.verdict().await, 5);
    for scope in [SignalScope::Group, SignalScope::Tree] {
        execution.control.signal(SignalNumber::KILL, scope).await?;
    }
    execution.control.cancel().await?;
    exited(&execution.control.verdict().await, 5);
    Ok(())
}

async fn f29_a_missing_program_leaves_no_phantom(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    for missing in ["no-such-program-anywhere", "/no/such/program", "./missing"] {
        refused(sandbox.exec(CommandSpec::new([missing])).await, ErrorKind::NotFound, missing);
    }
    assert_eq!(stdout(&sandbox, "echo alive").await?, "alive\n");
    Ok(())
}

async fn a_file_without_the_executable_bit_is_not_run(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    write(&sandbox, "tool", b"#!/bin/sh\necho no\n").await?;
    let path = format!("{WORKSPACE}/tool");
    refused(
        sandbox.exec(CommandSpec::new([&path])).await,
        ErrorKind::PermissionDenied,
        "a file of mode 0644",
    );
    refused(sandbox.exec(CommandSpec::new(["/tmp"])).await, ErrorKind::PermissionDenied, "a directory");
    Ok(())
}

async fn a_missing_directory_is_not_found(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let mut command = CommandSpec::shell("echo ran > /tmp/ran");
    command.directory = Some("/no/such/directory".into());
    refused(sandbox.exec(command).await, ErrorKind::NotFound, "a missing directory");
    assert!(!super::workbench::exists(&sandbox, "/tmp/ran").await?);
    Ok(())
}

async fn a_script_is_run_by_its_interpreter(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let script = super::workbench::reader(b"#!/bin/sh\necho \"script $1\"\nexit 4\n");
    let options = WriteOptions { mode: 0o755, create_parents: true };
    sandbox.files().write("bin/tool".as_ref(), script, options).await?;
    let output = run(&sandbox, CommandSpec::new([&format!("{WORKSPACE}/bin/tool"), "argument"])).await?;
    exited(&output.verdict, 4);
    assert_eq!(output.stdout, b"script argument\n");
    Ok(())
}

async fn programs_are_found_on_the_path(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let output = run(&sandbox, CommandSpec::new(["echo", "found"])).await?;
    assert_eq!(output.stdout, b"found\n");
    let script = super::workbench::reader(b"#!/bin/sh\necho mine\n");
    let options = WriteOptions { mode: 0o755, create_parents: true };
    sandbox.files().write("bin/my-own-tool".as_ref(), script, options).await?;
    let path = format!("{WORKSPACE}/bin:/usr/bin:/bin");
    let output = run(&sandbox, CommandSpec::new(["my-own-tool"]).with_environment("PATH", path)).await?;
    assert_eq!(output.stdout, b"mine\n");
    Ok(())
}

async fn commands_start_in_the_workspace(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    assert_eq!(stdout(&sandbox, "pwd").await?, format!("{WORKSPACE}\n"));
    assert_eq!(run(&sandbox, CommandSpec::new(["pwd"])).await?.stdout, format!("{WORKSPACE}\n").into_bytes());
    Ok(())
}

async fn commands_start_where_they_are_told(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    stdout(&sandbox, "mkdir -p 'a b/c'").await?;
    let expected = format!("{WORKSPACE}/a b/c\n");
    for (directory, expected) in
        [("/", "/\n"), (&format!("{WORKSPACE}/a b/c"), expected.as_str()), ("a b/c", expected.as_str())]
    {
        let mut command = CommandSpec::shell("pwd");
        command.directory = Some(directory.into());
        assert_eq!(String::from_utf8_lossy(&run(&sandbox, command).await?.stdout), expected);
    }
    Ok(())
}

async fn the_environment_is_exact(bench: Arc<Workbench>) -> Result<()> {
    let mut spec = bench.spec();
    spec.environment = vec![("BASE".into(), "sandbox".into()), ("BOTH".into(), "sandbox".into())];
    let sandbox = bench.provider().create(spec).await?;
    let bytes = OsString::from_vec(b"\xff\xfe line\n\ttab 'quote' \"double\" $HOME".to_vec());
    let command =
        CommandSpec::shell("printf '%s|' \"$BASE\" \"$BOTH\" \"$LAST\" \"$EMPTY\"; printf %s \"$BYTES\"")
            .with_environment("BOTH", "command")
            .with_environment("LAST", "first")
            .with_environment("LAST", "last")
            .with_environment("EMPTY", "")
            .with_environment("BYTES", bytes);
    let output = run(&sandbox, command).await?;
    let expected = b"sandbox|command|last||\xff\xfe line\n\ttab 'quote' \"double\" $HOME";
    same_bytes(&output.stdout, expected, "the environment");
    let output = stdout(&sandbox, "printf %s \"${LAST-unset}\"").await?;
    assert_eq!(output, "unset", "a command's variables stay with it");
    Ok(())
}

async fn arguments_are_bytes(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let every_byte: Vec<u8> = (1..=255).collect();
    let arguments: [&[u8]; 9] =
        [b"a b", b"", b"new\nline", b"-n", b"$HOME", b"*", b"'quote'\"", b"\xff\xfe\x80", &every_byte];
    let mut words = vec![OsString::from("printf"), OsString::from("%s\\0")];
    words.extend(arguments.iter().map(|bytes| OsString::from_vec(bytes.to_vec())));
    let output = run(&sandbox, CommandSpec::new(words)).await?;
    let expected: Vec<u8> =
        arguments.iter().flat_map(|bytes| bytes.iter().copied().chain(std::iter::once(0))).collect();
    same_bytes(&output.stdout, &expected, "the arguments");
    Ok(())
}

async fn f32_a_megabyte_of_arguments(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let mut words = vec!["printf".to_owned(), "%s\\n".to_owned()];
    words.extend((0..16).map(|number| format!("{number:x}").repeat(65_536)));
    let expected: String = words[2..].join("\n") + "\n";
    let output = run(&sandbox, CommandSpec::new(words)).await?;
    exited(&output.verdict, 0);
    same_bytes(&output.stdout, expected.as_bytes(), "a megabyte of arguments");
    Ok(())
}

async fn f32_one_too_long_argument_is_no_success(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let long = "x".repeat(1 << 20);
    if let Ok(execution) = sandbox.exec(CommandSpec::new(["printf", "%s", &long])).await {
        let output = execution.collect(2 << 20).await?;
        if output.verdict.is_success() {
            same_bytes(&output.stdout, long.as_bytes(), "a long argument");
        }
    }
    assert_eq!(stdout(&sandbox, "echo alive").await?, "alive\n");
    Ok(())
}

async fn f32_a_megabyte_script(bench: Arc<Workbench>) -> Result<()> {
    use tokio::io::AsyncWriteExt as _;
    let sandbox = bench.sandbox().await?;
    let mut script = String::new();
    while script.len() < 1 << 20 {
        script.push_str(": a line that does nothing but is long enough to add up to a megabyte at last\n");
    }
    script.push_str("echo end of script\nexit 6\n");
    let mut execution = sandbox.exec(CommandSpec::new(["sh"]).with_stdin()).await?;
    let mut stdin = execution.stdin.take().expect("a stream was asked for").0;
    let feed = tokio::spawn(async move {
        stdin.write_all(script.as_bytes()).await?;
        stdin.shutdown().await
    });
    let output = execution.collect(1000).await?;
    // The shell may stop reading at `exit`; only the outcome counts.
    let _ = feed.await;
    exited(&output.verdict, 6);
    assert_eq!(output.stdout, b"end of script\n");
    Ok(())
}

async fn no_arguments_is_invalid(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let none: [&str; 0] = [];
    refused(sandbox.exec(CommandSpec::new(none)).await, ErrorKind::InvalidInput, "no program");
    Ok(())
}

async fn twenty_commands_at_once(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let commands = (0_u8..20).map(|number| {
        let sandbox = Arc::clone(&sandbox);
        tokio::spawn(async move {
            let line = format!("for i in $(seq 1 200); do echo {number}-$i; done; exit {number}");
            sh(&sandbox, &line).await
        })
    });
    for (number, output) in (0_u8..).zip(futures_util::future::join_all(commands).await) {
        let output = output.expect("a command does not panic")?;
        exited(&output.verdict, number);
        let expected: String = lines(1..=200, |line| format!("{number}-{line}\n"));
        same_bytes(&output.stdout, expected.as_bytes(), "one of twenty outputs");
    }
    Ok(())
}

async fn verdict_can_be_asked_again(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let (first, second) = (start(&sandbox, "exit 9").await?, start(&sandbox, "exit 9").await?);
    assert_ne!(first.control.id(), second.control.id());
    drop(first.output);
    let (left, right) = tokio::join!(first.control.verdict(), first.control.verdict());
    exited(&left, 9);
    exited(&right, 9);
    exited(&first.control.verdict().await, 9);
    Ok(())
}

async fn another_user_on_request(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let mut command = CommandSpec::new(["id", "-u"]);
    command.user = Some(UserSpec::Id { user: 1234, group: Some(1234) });
    assert_eq!(run(&sandbox, command).await?.stdout, b"1234\n");
    Ok(())
}

async fn f47_many_processes_under_default_limits(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let output = sh(&sandbox, "for i in $(seq 1 200); do sleep 1 & done; wait; echo all").await?;
    exited(&output.verdict, 0);
    assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (&b"all\n"[..], &b""[..]));
    Ok(())
}
