//! The texts that a newcomer reads first, word by word.

mod front_door;

use front_door::FrontDoor;

/// Help goes to standard output, in the width that a pipe gets.
fn help(arguments: &[&str]) -> String {
    let door = FrontDoor::new();
    let outcome = door.leasehold(arguments.iter().chain(&["--help"])).finish().succeeded();
    outcome.stdout_text()
}

fn check(name: &str, arguments: &[&str]) {
    let mut settings = insta::Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(name, help(arguments)));
}

#[test]
fn the_program() {
    check("leasehold", &[]);
}

#[test]
fn run() {
    check("run", &["run"]);
}

#[test]
fn shell() {
    check("shell", &["shell"]);
}

#[test]
fn sandbox_and_its_commands() {
    check("sandbox", &["sandbox"]);
    for name in ["list", "exec", "stop", "remove", "sweep"] {
        check(&format!("sandbox_{name}"), &["sandbox", name]);
    }
}

#[test]
fn changes_and_its_commands() {
    check("changes", &["changes"]);
    for name in ["list", "show", "diff", "apply", "discard"] {
        check(&format!("changes_{name}"), &["changes", name]);
    }
}

#[test]
fn image_and_its_commands() {
    check("image", &["image"]);
    for name in ["list", "pull", "remove", "prune"] {
        check(&format!("image_{name}"), &["image", name]);
    }
}

#[test]
fn doctor() {
    check("doctor", &["doctor"]);
}

#[test]
fn help_is_asked_for_in_every_usual_way() {
    let door = FrontDoor::new();
    let run = |arguments: &[&str]| door.leasehold(arguments).finish();
    assert_eq!(run(&["help", "run"]).succeeded().stdout_text(), help(&["run"]));
    assert_eq!(run(&["-h"]).succeeded().stdout_text(), help(&[]));
    let version = run(&["--version"]).succeeded().stdout_text();
    assert_eq!(version, format!("leasehold {}\n", env!("CARGO_PKG_VERSION")));
    // Without a command it is a mistake, and the help goes to standard error.
    for arguments in [&[][..], &["sandbox"], &["changes"], &["image"]] {
        let outcome = run(arguments).ended(125);
        assert_eq!((outcome.stdout_text(), outcome.stderr_text()), (String::new(), help(arguments)));
    }
}
