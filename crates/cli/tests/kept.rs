//! Sandboxes that are kept, and the commands that use them.
#![allow(clippy::unwrap_used, reason = "what the tests share is as much a test as they are")]

mod front_door;

use front_door::{FrontDoor, Remains, wait_until};

fn list(door: &FrontDoor) -> Vec<serde_json::Value> {
    let outcome = door.leasehold(["sandbox", "list", "--json"]).finish().succeeded();
    serde_json::from_str(&outcome.stdout_text()).unwrap()
}

#[test]
fn a_kept_sandbox_is_listed_used_stopped_and_removed() {
    let door = FrontDoor::new();
    door.write("file", "host\n");
    let outcome = door
        .script(&["--keep", "--name", "mine"], "echo inside >made; echo temporary >/var/state")
        .finish()
        .ended(0);
    assert!(outcome.stderr_text().contains("leasehold sandbox exec"), "{}", outcome.stderr_text());
    let all = list(&door);
    assert_eq!(all.len(), 1);
    assert_eq!((all[0]["name"].as_str(), all[0]["state"].as_str()), (Some("mine"), Some("stopped")));
    let id = all[0]["id"].as_str().unwrap().to_owned();
    let table = door.leasehold(["sandbox", "list"]).finish().succeeded().stdout_text();
    assert!(table.contains(&id) && table.contains("mine") && table.contains("stopped"), "{table}");

    for handle in ["mine", &id] {
        let outcome = door
            .leasehold(["sandbox", "exec", handle, "--", "sh", "-c", "cat file made /var/state - && exit 8"])
            .input("typed\n")
            .finish()
            .ended(8);
        assert_eq!(outcome.stdout_text(), "host\ninside\ntemporary\ntyped\n");
    }
    assert_eq!(list(&door)[0]["state"], "running", "it goes on between commands");
    let exec = |arguments: &[&str]| door.leasehold(["sandbox", "exec"].iter().chain(arguments)).finish();
    exec(&["mine", "--", "no-such-program"]).failed(127);
    exec(&["--timeout", "200ms", "mine", "--", "sleep", "1000"]).ended(124);
    assert_eq!(exec(&["-t", "mine", "--", "tty"]).succeeded().stdout_text(), "/dev/pts/0\r\n");

    door.leasehold(["sandbox", "stop", "mine"]).finish().succeeded();
    assert_eq!(list(&door)[0]["state"], "stopped");
    door.leasehold(["sandbox", "stop", "mine"]).finish().succeeded();
    door.leasehold(["sandbox", "remove", "mine"]).finish().succeeded();
    assert_eq!(list(&door).len(), 0);
    wait_until("nothing is left of it", || {
        let remains = Remains::of(&door, &[id.clone()].into());
        remains.processes.is_empty() && remains.groups.is_empty() && remains.sockets.is_empty()
    });
    assert_eq!(std::fs::read_to_string(door.workspace().join("file")).unwrap(), "host\n");
    assert!(!door.workspace().join("made").exists());
}

#[test]
fn a_name_is_given_once() {
    let door = FrontDoor::new();
    door.leasehold(["run", "-q", "--keep", "--name", "one", "--", "true"]).finish().succeeded();
    let (message, hint) =
        door.leasehold(["run", "--keep", "--name", "one", "--", "true"]).finish().failed(125);
    assert_eq!(message, "there is a sandbox named `one` already");
    assert!(hint.is_some());
    assert_eq!(list(&door).len(), 1);
    door.leasehold(["sandbox", "remove", "one"]).finish().succeeded();
    door.leasehold(["run", "-q", "--keep", "--name", "one", "--", "true"]).finish().succeeded();
    door.leasehold(["sandbox", "remove", "one"]).finish().succeeded();
}

#[test]
fn a_running_kept_sandbox_outlives_its_command_and_not_its_removal() {
    let door = FrontDoor::new();
    door.leasehold(["run", "-q", "--keep", "--name", "server", "--", "true"]).finish().succeeded();
    let start = "setsid sleep 9001 >/dev/null 2>&1 </dev/null & echo started";
    let exec =
        |script: &str| door.leasehold(["sandbox", "exec", "server", "--", "sh", "-c", script]).finish();
    assert_eq!(exec(start).succeeded().stdout_text(), "started\n");
    assert_eq!(exec("ps -eo args | grep -c '[s]leep 9001'").succeeded().stdout_text(), "1\n");
    door.leasehold(["sandbox", "sweep"]).finish().succeeded();
    assert_eq!(exec("ps -eo args | grep -c '[s]leep 9001'").succeeded().stdout_text(), "1\n");
    door.leasehold(["sandbox", "remove", "server"]).finish().succeeded();
    wait_until("its processes are gone", || front_door::processes(door.root()).is_empty());
}

#[test]
fn removal_goes_on_after_one_that_fails() {
    let door = FrontDoor::new();
    for name in ["one", "two"] {
        door.leasehold(["run", "-q", "--keep", "--name", name, "--", "true"]).finish().succeeded();
    }
    let (message, _) = door.leasehold(["sandbox", "remove", "one", "none", "two"]).finish().failed(125);
    assert_eq!(message, "there is no sandbox `none`");
    assert_eq!(list(&door).len(), 0);
}
