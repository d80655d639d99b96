//! Signals: what the program gets, the command gets.

mod front_door;

use front_door::{FrontDoor, noise, wait_until};
use rustix::process::Signal;

const FORWARDED: [(Signal, &str, i32); 4] =
    [(Signal::INT, "INT", 2), (Signal::TERM, "TERM", 15), (Signal::HUP, "HUP", 1), (Signal::QUIT, "QUIT", 3)];

#[test]
fn f45_a_command_that_traps_a_signal_ends_as_it_wants() {
    for (signal, name, _) in FORWARDED {
        let door = FrontDoor::new();
        let shared = door.shared().display().to_string();
        let script = format!(
            "trap 'echo got {name} >{shared}/caught; echo bye; exit 42' {name}; echo ready >{shared}/ready; \
             while :; do sleep 0.05; done"
        );
        let running = door.script(&["--expose", &door.shared_for_writing()], &script).start();
        wait_until("the command is ready", || door.mark("ready").exists());
        running.signal(signal);
        let outcome = running.finish().ended(42);
        assert_eq!(outcome.stdout_text(), "bye\n");
        assert_eq!(std::fs::read_to_string(door.mark("caught")).unwrap(), format!("got {name}\n"));
    }
}

#[test]
fn a_command_that_does_not_trap_a_signal_dies_of_it() {
    for (signal, name, number) in FORWARDED {
        let door = FrontDoor::new();
        // No shell: those catch interrupts for themselves, and lose one between two commands.
        let running = door.leasehold(["run", "--json", "--", "sleep", "1000"]).start();
        wait_until("the command runs", || {
            front_door::processes(door.root()).iter().any(|process| process.ends_with(" sleep"))
        });
        running.signal(signal);
        let outcome = running.finish().ended(128 + number);
        let report = outcome.report();
        assert_eq!(report["result"]["by"], "caller", "{name}: {report}");
    }
}

#[test]
fn a_command_that_ignores_a_signal_goes_on() {
    let door = FrontDoor::new();
    let shared = door.shared().display().to_string();
    let script = format!(
        "trap '' INT TERM HUP; touch {shared}/ready; while [ ! -e {shared}/go ]; do sleep 0.01; done; echo whole"
    );
    let running = door.script(&["--expose", &door.shared_for_writing()], &script).start();
    wait_until("the command is ready", || door.mark("ready").exists());
    for (signal, ..) in [FORWARDED[0], FORWARDED[1], FORWARDED[2]] {
        running.signal(signal);
    }
    std::fs::write(door.mark("go"), "").unwrap();
    assert_eq!(running.finish().succeeded().stdout_text(), "whole\n");
}

#[test]
fn a_signal_reaches_the_whole_group_of_the_command() {
    let door = FrontDoor::new();
    let shared = door.shared().display().to_string();
    let script = format!(
        "(trap 'echo child >{shared}/child; exit 0' TERM; touch {shared}/ready; while :; do sleep 0.05; done) & \
         trap 'wait; exit 9' TERM; while :; do sleep 0.05; done"
    );
    let running = door.script(&["--expose", &door.shared_for_writing()], &script).start();
    wait_until("the command is ready", || door.mark("ready").exists());
    running.signal(Signal::TERM);
    running.finish().ended(9);
    assert_eq!(std::fs::read_to_string(door.mark("child")).unwrap(), "child\n");
}

#[test]
fn a_signal_at_any_moment_of_the_start_ends_the_run_and_leaves_nothing() {
    let door = FrontDoor::new();
    door.script(&[], "true").finish().succeeded();
    for (round, delay) in noise(40, 45).into_iter().enumerate() {
        let running = door.leasehold(["run", "--", "sleep", "1000"]).start();
        std::thread::sleep(std::time::Duration::from_micros(u64::from(delay) * 250));
        running.signal(Signal::TERM);
        // Before the program catches signals it dies of it itself; later the command does.
        let outcome = running.finish_however();
        assert!(matches!(outcome.code, None | Some(143)), "round {round}: {outcome:?}");
    }
    door.leasehold(["sandbox", "sweep"]).finish().ended(0);
    assert_eq!(std::fs::read_dir(door.data().join("sandboxes")).unwrap().count(), 0);
}
