//! A terminal on both ends.

mod front_door;

use std::fmt::Write as _;

use front_door::{FrontDoor, Terminal, assert_same_bytes, noise};

fn shell<'a>(door: &FrontDoor, flags: &[&'a str], script: &'a str) -> Terminal {
    Terminal::open(door, ["run"].iter().chain(flags).chain(&["--", "sh", "-c", script]))
}

#[test]
fn a_terminal_on_both_ends_gives_the_command_one() {
    let door = FrontDoor::new();
    let terminal = shell(&door, &[], "test -t 0 && test -t 1 && test -t 2 && echo yes; tty; exit 6");
    let (code, shown, _) = terminal.finish();
    assert_eq!((code, String::from_utf8_lossy(&shown).as_ref()), (6, "yes\r\n/dev/pts/0\r\n"));
}

#[test]
fn no_terminal_is_given_when_it_is_not_wanted() {
    let door = FrontDoor::new();
    let (code, shown, _) = shell(&door, &["-T"], "test -t 0 || test -t 1 || echo none").finish();
    assert_eq!((code, String::from_utf8_lossy(&shown).as_ref()), (0, "none\r\n"));
}

#[test]
fn the_size_of_the_terminal_is_the_users_and_follows_it() {
    let door = FrontDoor::new();
    let script = "trap 'stty size; exit 0' WINCH; stty size; echo ready; while :; do sleep 0.01; done";
    let terminal = shell(&door, &[], script);
    terminal.expect("24 80\r\nready");
    terminal.resize(132, 50);
    terminal.expect("50 132\r\n");
    assert_eq!(terminal.finish().0, 0);
}

#[test]
fn control_c_interrupts_the_command_and_not_the_program() {
    let door = FrontDoor::new();
    let terminal =
        shell(&door, &[], "trap 'echo caught; exit 3' INT; echo ready; while :; do sleep 0.01; done");
    terminal.expect("ready");
    terminal.type_bytes(b"\x03");
    let (code, shown, _) = terminal.finish();
    assert!(String::from_utf8_lossy(&shown).contains("caught"));
    assert_eq!(code, 3);
}

#[test]
fn control_c_ends_a_command_that_does_not_trap_it() {
    let door = FrontDoor::new();
    let terminal = Terminal::open(&door, ["run", "--", "cat"]);
    terminal.type_bytes(b"line\r");
    // The second one is what `cat` wrote.
    terminal.expect("line\r\nline\r\n");
    terminal.type_bytes(b"\x03");
    assert_eq!(terminal.finish().0, 130);
}

#[test]
fn control_d_ends_the_input() {
    let door = FrontDoor::new();
    let terminal = shell(&door, &[], "echo ready; cat; echo end");
    terminal.expect("ready");
    terminal.type_bytes(b"line\r");
    terminal.expect("line\r\nline\r\n");
    terminal.type_bytes(b"\x04");
    terminal.expect("end");
    assert_eq!(terminal.finish().0, 0);
}

#[test]
fn the_users_terminal_is_as_before_afterwards() {
    let door = FrontDoor::new();
    for script in
        ["echo ready; read line", "echo ready; read line; exit 1", "echo ready; read line; kill -9 $$"]
    {
        let terminal = shell(&door, &[], script);
        terminal.expect("ready");
        let raw = terminal.modes();
        terminal.type_bytes(b"\r");
        let (_, _, after) = terminal.finish();
        assert_ne!(raw, after, "the terminal is raw while the command runs");
        let (_, _, untouched) = shell(&door, &["-T"], "true").finish();
        assert_eq!(after, untouched);
    }
}

#[test]
fn the_users_terminal_is_as_before_when_the_command_cannot_start() {
    let door = FrontDoor::new();
    let (code, shown, after) = Terminal::open(&door, ["run", "--", "no-such-program"]).finish();
    assert_eq!(code, 127);
    let shown = String::from_utf8_lossy(&shown).into_owned();
    assert!(shown.starts_with("leasehold: error: `no-such-program` is not in the sandbox"), "{shown}");
    assert_eq!(after, shell(&door, &["-T"], "true").finish().2);
}

#[test]
fn f35_a_terminal_loses_none_of_100_000_lines() {
    let door = FrontDoor::new();
    let mut expected = String::new();
    for number in 1..=100_000 {
        let _ = write!(expected, "{number}\r\n");
    }
    for _ in 0..5 {
        let (code, shown, _) = shell(&door, &[], "seq 1 100000; exit 7").finish();
        assert_eq!(code, 7);
        assert_same_bytes(&shown, expected.as_bytes());
    }
    // The same without a terminal of the user's.
    for _ in 0..15 {
        let outcome = door.script(&["-t"], "seq 1 100000; exit 7").finish().ended(7);
        assert_same_bytes(&outcome.stdout, expected.as_bytes());
    }
}

#[test]
fn f51_a_large_paste_arrives_whole_at_a_slow_reader() {
    let door = FrontDoor::new();
    for length in [10 << 10, 1 << 20] {
        let paste = noise(length, 51);
        // The first part is read in small pieces, so that the paste has to wait in every buffer on its way.
        let script = format!(
            "stty raw -echo; echo ready; {{ dd bs=100 count=50 iflag=fullblock; sleep 0.2; head -c {}; }} \
             2>/dev/null >{}/pasted; stty sane; echo done",
            length - 5000,
            door.shared().display()
        );
        let terminal = shell(&door, &["--expose", &door.shared_for_writing()], &script);
        terminal.expect("ready");
        terminal.type_bytes(&paste);
        terminal.expect("done");
        assert_eq!(terminal.finish().0, 0);
        assert_same_bytes(&std::fs::read(door.mark("pasted")).unwrap(), &paste);
    }
}

#[test]
fn f54_a_terminal_changes_nothing_but_the_terminal() {
    let door = FrontDoor::new();
    std::fs::create_dir(door.workspace().join("sub")).unwrap();
    let script = "env | grep -v ^_= | sort; pwd; id; umask; ulimit -a; cat /proc/self/limits; sed s/leasehold-.*// /proc/self/cgroup; \
                  grep -E '^(Cap|NoNewPrivs|Seccomp:|Sig)' /proc/self/status; ls /proc/self/fd | wc -l";
    let flags = ["--env", "A=b c", "--cwd", "sub", "--user", "1234"];
    let own_flags: [&[&str]; 2] = [&["-T"], &["-t"]];
    let [pipes, terminal] = own_flags.map(|own| {
        let flags: Vec<&str> = flags.iter().chain(own).copied().collect();
        door.script(&flags, script).finish().succeeded().stdout_text().replace("\r\n", "\n")
    });
    assert!(pipes.contains("A=b c\n") && pipes.contains("uid=1234"), "{pipes}");
    assert_eq!(pipes, terminal);
}

#[test]
fn another_user_owns_the_terminal_of_its_command() {
    let door = FrontDoor::new();
    let script = "echo one >/dev/tty; echo two >/dev/stdout; echo three >/dev/stderr; echo four >$(tty)";
    let outcome = door.script(&["-t", "--user", "1234"], script).finish().succeeded();
    assert_eq!(outcome.stdout_text(), "one\r\ntwo\r\nthree\r\nfour\r\n");
}

#[test]
fn a_shell_is_ready_to_work_in() {
    let door = FrontDoor::new();
    door.write("file", "content of the workspace\n");
    let terminal = Terminal::open(&door, ["shell"]);
    terminal.type_bytes(b"cat file\r");
    terminal.expect("content of the workspace");
    terminal.type_bytes(b"exit 11\r");
    assert_eq!(terminal.finish().0, 11);
}

#[test]
fn a_terminal_that_is_hung_up_ends_the_run() {
    let door = FrontDoor::new();
    let terminal = shell(&door, &[], "echo ready; sleep 1000");
    terminal.expect("ready");
    terminal.running().signal(rustix::process::Signal::HUP);
    assert_eq!(terminal.finish().0, 129);
}
