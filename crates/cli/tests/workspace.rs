//! The host's files: a command sees them and changes none.
#![allow(clippy::unwrap_used, reason = "what the tests share is as much a test as they are")]

mod front_door;

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::time::{Duration, SystemTime};

use front_door::FrontDoor;

/// A tree with what a careless copy would change.
fn fill(door: &FrontDoor) {
    let workspace = door.workspace();
    std::fs::create_dir_all(workspace.join("directory/inner")).unwrap();
    for (name, mode) in
        [("plain", 0o644), ("program", 0o755), ("private", 0o600), ("directory/inner/file", 0o640)]
    {
        let path = door.write(name, format!("content of {name}\n"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let time = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
        std::fs::File::options().append(true).open(&path).unwrap().set_modified(time).unwrap();
    }
    symlink("plain", workspace.join("link")).unwrap();
    symlink("/nowhere", workspace.join("dangling")).unwrap();
    std::fs::hard_link(workspace.join("plain"), workspace.join("second-name")).unwrap();
}

#[test]
fn a_command_sees_the_workspace_as_it_is() {
    let door = FrontDoor::new();
    fill(&door);
    let script = "find . -printf '%P %y %m %T@ %l\\n' | sort; cat plain program private directory/inner/file";
    let inside = door.script(&[], script).finish().succeeded().stdout_text();
    let outside = std::process::Command::new("sh")
        .args(["-c", script])
        .current_dir(door.workspace())
        .env("LANG", "C.UTF-8")
        .env_remove("LC_ALL")
        .output()
        .unwrap();
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&inside), sorted(&String::from_utf8(outside.stdout).unwrap()));
}

#[test]
fn a_command_cannot_change_the_host() {
    let door = FrontDoor::new();
    fill(&door);
    let before = door.fingerprint();
    for script in [
        "echo new >plain; echo more >>program; : >private; echo made >made; mkdir -p a/b/c",
        "rm -rf ./* .[!.]*; test -z \"$(ls -A)\"",
        "chmod 777 plain directory; chmod 000 private; touch -d @1 plain directory .; ln plain third-name",
        "mv directory moved; mv plain program; ln -sfn /etc link; rm dangling; truncate -s 1M second-name",
        "rm -r directory; mkdir directory; echo other >directory/file; rm plain; mkdir plain",
        "chown 0:0 plain 2>/dev/null; setfattr -n user.x -v y plain 2>/dev/null; sync; true",
    ] {
        door.script(&[], script).finish().ended(0);
        assert_eq!(door.fingerprint(), before, "{script}");
    }
}

#[test]
fn a_command_can_change_neither_the_system_nor_the_home() {
    let door = FrontDoor::new();
    std::fs::write(door.home().join("secret"), "key").unwrap();
    let host_name = std::fs::metadata("/etc/passwd").unwrap();
    let script =
        "cat ~/secret; ls -A ~; echo x >~/made; echo x >/usr/made; echo x >>/etc/passwd; rm -f /etc/hostname";
    let outcome = door.script(&[], script).finish();
    assert_eq!(outcome.stdout_text(), "", "{}", outcome.stderr_text());
    assert!(outcome.stderr_text().contains("Read-only file system"), "{}", outcome.stderr_text());
    assert_eq!(std::fs::read_dir(door.home()).unwrap().count(), 1);
    let after = std::fs::metadata("/etc/passwd").unwrap();
    assert_eq!((after.len(), after.mtime_nsec()), (host_name.len(), host_name.mtime_nsec()));
    assert!(!std::path::Path::new("/usr/made").exists());
}

#[test]
fn each_run_starts_from_the_host_again() {
    let door = FrontDoor::new();
    door.write("file", "host\n");
    door.script(&[], "echo changed >file; echo x >made").finish().ended(0);
    let outcome = door.script(&[], "cat file; ls").finish().succeeded();
    assert_eq!(outcome.stdout_text(), "host\nfile\n");
}

#[test]
fn the_owner_of_the_workspace_is_the_same_inside() {
    let door = FrontDoor::new();
    door.write("file", "");
    let outcome = door.script(&[], "stat -c '%u:%g' . file; id -u").finish().succeeded();
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    assert_eq!(outcome.stdout_text(), format!("{user}:{group}\n{user}:{group}\n{user}\n"));
}
