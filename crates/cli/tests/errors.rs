//! Failures of Leasehold itself: one message, at most one hint, and 125 or what a shell would give.
#![allow(clippy::unwrap_used, reason = "what the tests share is as much a test as they are")]

mod front_door;

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;

use front_door::{FrontDoor, Outcome, is_root};

/// What was said, with the directories of this test named by what they are.
fn tell(door: &FrontDoor, outcome: Outcome, code: i32) -> String {
    let (message, hint) = outcome.failed(code);
    let mut text = format!("{code} {message}\n");
    if let Some(hint) = hint {
        let _ = writeln!(text, "    hint: {hint}");
    }
    text.replace(&door.root().display().to_string(), "DIR")
}

fn check(name: &str, text: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(name, text));
}

/// All of these in one snapshot, each under its own command line.
fn check_all(name: &str, lines: &[(&[&str], i32)]) {
    let door = FrontDoor::new();
    door.write("variables", "GOOD=1\nno variable\n");
    let mut text = String::new();
    for (arguments, code) in lines {
        let outcome = door.leasehold(*arguments).finish();
        let _ = write!(text, "$ leasehold {}\n{}\n", arguments.join(" "), tell(&door, outcome, *code));
    }
    check(name, &text);
}

#[test]
fn command_lines_that_cannot_be_understood() {
    check_all(
        "errors_command_line",
        &[
            (&["runn"], 125),
            (&["run"], 125),
            (&["run", "ls", "-la"], 125),
            (&["run", "--tymeout", "3s", "--", "true"], 125),
            (&["run", "--memory"], 125),
            (&["run", "-t", "-T", "--", "true"], 125),
            (&["run", "--quiet", "--json", "--", "true"], 125),
            (&["run", "--keep=yes", "--", "true"], 125),
            (&["sandbox", "list", "mine"], 125),
            (&["sandbox", "exec", "mine", "ls"], 125),
            (&["sandbox", "remove"], 125),
        ],
    );
}

#[test]
fn values_that_cannot_be_used() {
    check_all(
        "errors_values",
        &[
            (&["run", "--memory", "lots", "--", "true"], 125),
            (&["run", "--cpus", "0", "--", "true"], 125),
            (&["run", "--pids", "0", "--", "true"], 125),
            (&["run", "--disk", "-1", "--", "true"], 125),
            (&["run", "--timeout", "5 parsecs", "--", "true"], 125),
            (&["run", "--network", "lan", "--", "true"], 125),
            (&["run", "--user", "a/b", "--", "true"], 125),
            (&["run", "--user", "no-such-user", "--", "true"], 125),
            (&["run", "--name", "a b", "--", "true"], 125),
            (&["run", "--expose", ":rw", "--", "true"], 125),
            (&["run", "--expose", "/none", "--", "true"], 125),
            (&["run", "--env", "=x", "--", "true"], 125),
            (&["run", "--env", "NOT_SET_HERE", "--", "true"], 125),
            (&["run", "--env-file", "none", "--", "true"], 125),
            (&["run", "--env-file", "variables", "--", "true"], 125),
            (&["run", "--cwd", "/none", "--", "true"], 125),
        ],
    );
}

#[test]
fn programs_that_cannot_be_run() {
    check_all(
        "errors_programs",
        &[
            (&["run", "--", "no-such-program"], 127),
            (&["run", "--", "/etc/passwd"], 126),
            (&["run", "--", ""], 125),
        ],
    );
}

#[test]
fn things_that_do_not_exist() {
    check_all(
        "errors_absent",
        &[
            (&["sandbox", "exec", "mine", "--", "true"], 125),
            (&["sandbox", "stop", "mine"], 125),
            (&["sandbox", "remove", "mine"], 125),
            (&["sandbox", "remove", "../mine"], 125),
            (&["changes", "show", "mine"], 125),
            (&["changes", "discard", "mine"], 125),
        ],
    );
}

#[test]
fn workspaces_that_are_none() {
    let door = FrontDoor::new();
    door.write("file", "");
    let mut text = String::new();
    let mut tell_one = |what: &str, outcome: Outcome| {
        let _ = write!(text, "# {what}\n{}\n", tell(&door, outcome, 125));
    };
    let run = |flags: &[&str]| door.leasehold(["run"].iter().chain(flags).chain(&["--", "true"]));
    tell_one("it is missing", run(&["--workspace", "none"]).finish());
    tell_one("it is a file", run(&["--workspace", "file"]).finish());
    tell_one("the current directory is the home", run(&[]).directory(door.home()).finish());
    tell_one("the current directory is the root", run(&[]).directory("/").finish());
    tell_one("the root by name", run(&["--workspace", "/"]).finish());
    tell_one("it holds the data directory", run(&["--workspace", ".."]).finish());
    check("errors_workspace", &text);
    assert_eq!(std::fs::read_dir(door.data().join("sandboxes")).unwrap().count(), 0);
}

#[test]
fn data_directories_that_cannot_be_used() {
    let door = FrontDoor::new();
    let file = door.write("file", "");
    let run = || door.leasehold(["run", "--", "true"]);
    let mut text = String::new();
    let mut tell_one = |what: &str, outcome: Outcome| {
        let _ = write!(text, "# {what}\n{}\n", tell(&door, outcome, 125));
    };
    tell_one("below a file", run().env("LEASEHOLD_DATA_DIR", file.join("data")).finish());
    let homeless = run().without_env("HOME").without_env("LEASEHOLD_DATA_DIR").without_env("XDG_DATA_HOME");
    tell_one("no place at all", homeless.finish());
    check("errors_data_directory", &text);
    if is_root() {
        eprintln!("root may write everywhere: a closed data directory was not tried");
        return;
    }
    let closed = door.root().join("closed");
    std::fs::create_dir(&closed).unwrap();
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o500)).unwrap();
    let (message, hint) = run().env("LEASEHOLD_DATA_DIR", closed.join("data")).finish().failed(125);
    assert!(message.contains("Permission denied"), "{message}");
    assert!(hint.unwrap().contains("LEASEHOLD_DATA_DIR"));
}

#[test]
fn a_failure_leaves_the_details_to_the_log() {
    let door = FrontDoor::new();
    let outcome =
        door.leasehold(["run", "--", "no-such-program"]).env("LEASEHOLD_LOG", "warn").finish().ended(127);
    let text = outcome.stderr_text();
    for fact in
        ["kind: not_found", "operation: program.start", "cause: No such file or directory (os error 2)"]
    {
        assert!(text.contains(fact), "{text}");
    }
}
