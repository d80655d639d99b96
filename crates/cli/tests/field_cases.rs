//! Faults that users of other sandboxes reported, at our front door. Terminals and signals have files of
//! their own.

mod front_door;

use std::fmt::Write as _;
use std::io::{Read, Write};

use front_door::{FrontDoor, assert_same_bytes, noise, wait_until};

#[test]
fn f23_text_of_several_bytes_a_character_is_not_touched() {
    let door = FrontDoor::new();
    let text: String = "€𝄞ä漢".chars().cycle().take(300_000).collect();
    for piece in [1, 3, 7] {
        let script = format!("dd bs={piece} count=3000 iflag=fullblock 2>/dev/null; cat");
        let outcome = door.script(&[], &script).input(text.clone()).finish().succeeded();
        assert_same_bytes(&outcome.stdout, text.as_bytes());
    }
}

#[test]
fn f24_binary_output_is_what_the_command_wrote() {
    let door = FrontDoor::new();
    let script = format!("head -c 1M /dev/urandom | tee {}/copy", door.shared().display());
    let outcome = door.script(&["--expose", &door.shared_for_writing()], &script).finish().succeeded();
    assert_eq!(outcome.stdout.len(), 1 << 20);
    assert_same_bytes(&outcome.stdout, &std::fs::read(door.mark("copy")).unwrap());
}

#[test]
fn f27_the_exit_status_comes_after_the_whole_output() {
    let door = FrontDoor::new();
    let mut expected = String::new();
    for number in 1..=200_000 {
        let _ = writeln!(expected, "{number}");
    }
    for _ in 0..20 {
        let outcome = door.script(&[], "seq 1 200000; exit 7").finish().ended(7);
        assert_same_bytes(&outcome.stdout, expected.as_bytes());
    }
}

#[test]
fn f30_a_command_that_ends_at_once_loses_nothing() {
    let door = FrontDoor::new();
    for round in 0..60 {
        let outcome = door.leasehold(["run", "--", "printf", "%s", &round.to_string()]).finish().succeeded();
        assert_eq!(outcome.stdout_text(), round.to_string());
        let outcome = door.script(&[], "echo error >&2; exit 1").finish().ended(1);
        assert_eq!(outcome.stderr_text(), "error\n");
    }
}

#[test]
fn f32_a_mebibyte_of_arguments_arrives_whole() {
    let door = FrontDoor::new();
    let arguments: Vec<String> = (0..16).map(|number| format!("{number:x}").repeat(64 << 10)).collect();
    let line = ["run", "--", "printf", "%s"].into_iter().chain(arguments.iter().map(String::as_str));
    let outcome = door.leasehold(line).finish().succeeded();
    assert_same_bytes(&outcome.stdout, arguments.concat().as_bytes());
}

#[test]
fn f32_what_the_kernel_finds_too_long_is_an_error_and_no_success() {
    let door = FrontDoor::new();
    // As an argument of ours the kernel would refuse it before we start.
    let file = door.write("variables", format!("LONG={}\n", "x".repeat(256 << 10)));
    let outcome = door.leasehold(["run", "--env-file", file.to_str().unwrap(), "--", "true"]).finish();
    let (message, hint) = outcome.failed(126);
    assert!(message.contains("too long for the kernel"), "{message}");
    assert!(hint.unwrap().contains("128 KiB"));
}

#[test]
fn f34_a_gibibyte_to_a_slow_reader_takes_bounded_memory() {
    const TOTAL: u64 = 1 << 30;
    let door = FrontDoor::new();
    let mut running = door.script(&[], &format!("head -c {TOTAL} /dev/zero")).start();
    let mut output = running.stdout();
    let mut buffer = vec![0; 1 << 20];
    let mut received = output.read(&mut buffer).unwrap() as u64;
    // A reader that stops reading: the program fills its buffers, then it and the command wait.
    let read_by_it = || {
        let text = std::fs::read_to_string(format!("/proc/{}/io", running.id())).unwrap_or_default();
        text.lines().find(|line| line.starts_with("rchar")).map(str::to_owned)
    };
    let mut before = None;
    wait_until("the program waits too", || {
        std::thread::sleep(std::time::Duration::from_millis(100));
        let now = read_by_it();
        std::mem::replace(&mut before, now.clone()) == now
    });
    let peak = || -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", running.id())).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("0 kB");
        line.trim().trim_end_matches(" kB").parse().unwrap()
    };
    let mut highest = 0;
    let mut last_look = 0;
    loop {
        let count = output.read(&mut buffer).unwrap() as u64;
        if count == 0 {
            break;
        }
        assert!(buffer[..usize::try_from(count).unwrap()].iter().all(|byte| *byte == 0));
        received += count;
        if received >= last_look + (16 << 20) {
            last_look = received;
            highest = highest.max(peak());
        }
    }
    assert_eq!(received, TOTAL);
    running.finish().succeeded();
    assert!(highest > 0 && highest < 128 << 10, "{highest} KiB at its peak");
}

#[test]
fn f38_a_grandchild_that_holds_the_output_does_not_hold_the_run() {
    let door = FrontDoor::new();
    let outcome = door.script(&[], "sleep 1000000 & echo STARTED; exit 4").finish().ended(4);
    assert_eq!(outcome.stdout_text(), "STARTED\n");
    // One that never stays silent does not either.
    let outcome =
        door.script(&[], "(while :; do echo again; done) & echo STARTED >&2; exit 5").finish().ended(5);
    assert!(outcome.stderr_text().starts_with("STARTED\n"));
    // Nor one that left the session.
    let outcome = door.script(&[], "setsid sleep 1000000 & echo STARTED").finish().succeeded();
    assert_eq!(outcome.stdout_text(), "STARTED\n");
}

/// A tree with everything that hides from a kill: sessions, orphans, ignored signals.
const TREE: &str = "trap '' TERM INT HUP; echo partial; sleep 7001 & setsid sleep 7002 & \
                    nohup sleep 7003 >/dev/null 2>&1 & (setsid sh -c '(sleep 7004 &)' &); \
                    setsid setsid nohup sh -c 'trap \"\" TERM; sleep 7005; sleep 7006' & \
                    while :; do sleep 7007; done";

#[test]
fn f39_a_timeout_ends_the_whole_tree_and_nothing_else() {
    let door = FrontDoor::new();
    door.leasehold(["run", "--keep", "--name", "kept", "--", "true"]).finish().ended(0);
    let exec = |flags: &[&str], script: &str| {
        let own = ["sandbox", "exec"];
        door.leasehold(own.iter().chain(flags).chain(&["kept", "--", "sh", "-c", script])).finish()
    };
    // A neighbour in the same sandbox, which must live on.
    exec(&[], "setsid sleep 8001 >/dev/null 2>&1 </dev/null &").ended(0);
    let outcome = exec(&["--timeout", "1s"], TREE).ended(124);
    assert!(outcome.stdout_text().starts_with("partial\n"), "{}", outcome.stdout_text());
    let left = exec(&[], "ps -eo args | grep '[s]leep' || true").ended(0);
    assert_eq!(left.stdout_text(), "sleep 8001\n");
    door.leasehold(["sandbox", "remove", "kept"]).finish().succeeded();
}

#[test]
fn f39_nothing_outlives_a_run_that_timed_out() {
    let door = FrontDoor::new();
    let outcome = door.script(&["--timeout", "1s"], TREE).finish().ended(124);
    assert!(outcome.stdout_text().starts_with("partial\n"));
    wait_until("every process is gone", || front_door::processes(door.root()).is_empty());
}

#[test]
fn f43_a_command_that_reads_gets_the_end_of_an_empty_input() {
    let door = FrontDoor::new();
    assert_eq!(door.script(&[], "cat; echo end").finish().succeeded().stdout_text(), "end\n");
    assert_eq!(door.script(&[], "read x || echo end").finish().succeeded().stdout_text(), "end\n");
    // A closed standard input is an empty one, and no other file takes its place.
    let closed = door.script(&[], "cat; echo end").through_shell("exec \"$@\" <&-");
    assert_eq!(closed.finish().succeeded().stdout_text(), "end\n");
}

#[test]
fn f43_input_that_comes_late_is_waited_for() {
    let door = FrontDoor::new();
    let mut running = door.script(&[], "echo ready; cat").start();
    let (mut stdin, mut stdout) = (running.stdin(), running.stdout());
    let mut seen = [0; 6];
    stdout.read_exact(&mut seen).unwrap();
    for round in 0..20 {
        let line = noise(1000 + round, round as u64);
        stdin.write_all(&line).unwrap();
        let mut echoed = vec![0; line.len()];
        stdout.read_exact(&mut echoed).unwrap();
        assert_same_bytes(&echoed, &line);
    }
    drop(stdin);
    assert_eq!(stdout.read(&mut seen).unwrap(), 0);
    running.finish().succeeded();
}

#[test]
fn f50_a_sweep_leaves_a_sandbox_alone_whose_command_is_silent() {
    let door = FrontDoor::new();
    let shared = door.shared().display().to_string();
    let script = format!("touch {shared}/ready; while [ ! -e {shared}/go ]; do sleep 0.01; done; echo whole");
    let running = door.script(&["--expose", &door.shared_for_writing()], &script).start();
    wait_until("the command is ready", || door.mark("ready").exists());
    for _ in 0..5 {
        door.leasehold(["sandbox", "sweep"]).finish().succeeded();
        door.script(&[], "true").finish().succeeded();
    }
    std::fs::write(door.mark("go"), "").unwrap();
    assert_eq!(running.finish().succeeded().stdout_text(), "whole\n");
}
