//! What stays behind: nothing.
#![allow(clippy::unwrap_used, reason = "what the tests share is as much a test as they are")]

mod front_door;

use std::collections::BTreeSet;
use std::time::Duration;

use front_door::{FrontDoor, Remains, noise, wait_until};
use rustix::process::Signal;

/// As many runs as are asked for, or few enough for every test run.
fn rounds(usual: usize) -> usize {
    std::env::var("LEASEHOLD_TEST_RUNS").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// The ids of all sandboxes that have a directory.
fn directories(door: &FrontDoor) -> BTreeSet<String> {
    let entries = std::fs::read_dir(door.data().join("sandboxes")).unwrap();
    entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn many_runs_leave_nothing_behind() {
    let door = FrontDoor::new();
    // The first run makes what all others share.
    door.script(&[], "true").finish().succeeded();
    let before = Remains::of(&door, &BTreeSet::new());
    assert_eq!(before.processes, Vec::<String>::new());
    let mut sandboxes = BTreeSet::new();
    for round in 0..rounds(300) {
        let (flags, script, code): (&[&str], _, _) = match round % 6 {
            0 => (&["--json"], "exit 3", 3),
            1 => (&["--json"], "sleep 1000 & setsid sleep 1000 & exit 0", 0),
            2 => (&["--json", "--timeout", "20ms"], "sleep 1000", 124),
            3 => (&["--json", "-t"], "stty size >/dev/null; kill -9 $$", 137),
            4 => (&["--json", "--disk", "8M"], "echo x >/var/x", 0),
            _ => (&["--json", "--network", "host"], "mkfifo /tmp/f; mkdir -p /var/a/b; chmod 000 /var/a", 0),
        };
        let report = door.script(flags, script).finish().ended(code).report();
        sandboxes.insert(report["sandbox"].as_str().unwrap().to_owned());
    }
    wait_until("every process is gone", || front_door::processes(door.root()).is_empty());
    assert_eq!(Remains::of(&door, &sandboxes), before);
}

#[test]
fn runs_that_cannot_start_leave_nothing_behind() {
    let door = FrontDoor::new();
    door.script(&[], "true").finish().succeeded();
    let before = Remains::of(&door, &BTreeSet::new());
    for _ in 0..rounds(10).min(100) {
        door.leasehold(["run", "--", "no-such-program"]).finish().failed(127);
        door.leasehold(["run", "--cwd", "/none", "--", "true"]).finish().failed(125);
        door.leasehold(["run", "--user", "no-such-user", "--", "true"]).finish().failed(125);
        door.leasehold(["run", "--expose", "/none", "--", "true"]).finish().failed(125);
        door.leasehold(["run", "--workspace", "/none", "--", "true"]).finish().failed(125);
        door.leasehold(["run", "--image", "./none", "--", "true"]).finish().failed(125);
    }
    wait_until("every process is gone", || front_door::processes(door.root()).is_empty());
    let after = Remains::of(&door, &BTreeSet::new());
    let new: Vec<_> = after.files.difference(&before.files).filter(|path| !is_image_store(path)).collect();
    assert!(new.is_empty(), "{new:?}");
    assert_eq!((after.mounts, after.sockets), (before.mounts, before.sockets));
}

/// The store of images makes its own directories the first time that an image is asked for.
fn is_image_store(path: &std::path::Path) -> bool {
    path.components().any(|part| part.as_os_str() == "images")
}

#[test]
fn a_kill_at_any_moment_leaves_nothing_after_the_next_command() {
    let door = FrontDoor::new();
    door.script(&[], "true").finish().succeeded();
    let before = Remains::of(&door, &BTreeSet::new());
    let seed = std::env::var("LEASEHOLD_TEST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(20);
    let delays = noise(rounds(100), seed);
    let mut sandboxes = BTreeSet::new();
    for (round, delay) in delays.iter().enumerate() {
        let script = "setsid sleep 1000 & sleep 1000 & mkdir -p /var/a; exec sleep 0.03";
        let running = door.script(&[], script).start();
        // From before the first system call to after the last one.
        std::thread::sleep(Duration::from_micros(u64::from(*delay) * 600));
        running.signal(Signal::KILL);
        running.finish_however();
        wait_until("nothing outlives its creator", || front_door::processes(door.root()).is_empty());
        sandboxes.extend(directories(&door));
        let outcome = match round % 2 {
            0 => door.leasehold(["sandbox", "sweep"]).finish(),
            _ => door.script(&[], "true").finish(),
        };
        outcome.ended(0);
        assert_eq!(directories(&door), BTreeSet::new(), "round {round} of seed {seed}");
    }
    wait_until("every process is gone", || front_door::processes(door.root()).is_empty());
    assert_eq!(Remains::of(&door, &sandboxes), before, "seed {seed}");
}

#[test]
fn the_changes_of_a_run_that_was_killed_are_kept() {
    let door = FrontDoor::new();
    let shared = door.shared().display().to_string();
    let script = format!("echo precious >made; touch {shared}/ready; sleep 1000");
    let running = door.script(&["--expose", &door.shared_for_writing()], &script).start();
    wait_until("the command is ready", || door.mark("ready").exists());
    running.signal(Signal::KILL);
    running.finish_however();
    wait_until("nothing outlives its creator", || front_door::processes(door.root()).is_empty());
    let outcome = door.leasehold(["sandbox", "sweep"]).finish().ended(0);
    assert!(outcome.stderr_text().contains("kept the changes of"), "{}", outcome.stderr_text());
    let list = door.leasehold(["changes", "list", "--json"]).finish().succeeded();
    let all: Vec<serde_json::Value> = serde_json::from_str(&list.stdout_text()).unwrap();
    assert_eq!(all.len(), 1);
    let id = all[0]["id"].as_str().unwrap();
    let show = door.leasehold(["changes", "show", id]).finish().succeeded();
    assert_eq!(show.stdout_text(), "A made\n");
    door.leasehold(["changes", "discard", id]).finish().succeeded();
}

#[test]
fn runs_side_by_side_do_not_sweep_each_other_away() {
    let door = FrontDoor::new();
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let door = &door;
            scope.spawn(move || {
                for round in 0..rounds(180) / 6 {
                    let script = format!("echo {thread}-{round} >made; exit 0");
                    let report = door.script(&["--json"], &script).finish().ended(0).report();
                    assert_eq!(report["changes"]["state"], "kept", "{report}");
                    let id = report["sandbox"].as_str().unwrap();
                    door.leasehold(["changes", "discard", id]).finish().succeeded();
                }
            });
        }
    });
    assert_eq!(directories(&door), BTreeSet::new());
}
