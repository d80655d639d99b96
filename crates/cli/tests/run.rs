//! `leasehold run`: streams, exit statuses and options.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "what the tests share is as much a test as they are"
)]

mod front_door;

use std::os::unix::fs::PermissionsExt;

use front_door::{FrontDoor, assert_same_bytes, noise, wait_until};

/// Every byte value, several times, so that no text survives by chance.
fn every_byte() -> Vec<u8> {
    (0..=255).cycle().take(1024).collect()
}

#[test]
fn every_byte_value_passes_in_and_out_on_both_streams() {
    let door = FrontDoor::new();
    let bytes = every_byte();
    let outcome = door.leasehold(["run", "--", "tee", "/dev/stderr"]).input(bytes.clone()).finish().ended(0);
    assert_same_bytes(&outcome.stdout, &bytes);
    assert_same_bytes(&outcome.stderr, &bytes);
}

#[test]
fn eight_mebibytes_pass_in_both_directions_at_once() {
    let door = FrontDoor::new();
    let bytes = noise(8 << 20, 7);
    let outcome = door.leasehold(["run", "--", "cat"]).input(bytes.clone()).finish().succeeded();
    assert_same_bytes(&outcome.stdout, &bytes);
}

#[test]
fn eight_mebibytes_pass_on_standard_error() {
    let door = FrontDoor::new();
    let bytes = noise(8 << 20, 8);
    let outcome = door.script(&[], "cat >&2").input(bytes.clone()).finish().ended(0);
    assert_eq!(outcome.stdout, b"");
    assert_same_bytes(&outcome.stderr, &bytes);
}

#[test]
fn a_command_that_reads_none_of_a_long_input_ends_as_it_wants() {
    let door = FrontDoor::new();
    let outcome = door.script(&[], "echo done; exit 3").input(noise(8 << 20, 9)).finish().ended(3);
    assert_eq!(outcome.stdout_text(), "done\n");
}

#[test]
fn the_streams_can_be_opened_by_name() {
    let door = FrontDoor::new();
    let script = "cat /dev/stdin >/dev/stdout; echo two >/dev/stderr; echo three >/proc/self/fd/1";
    let outcome = door.script(&[], script).input("one\n").finish().ended(0);
    assert_eq!((outcome.stdout_text(), outcome.stderr_text()), ("one\nthree\n".into(), "two\n".into()));
}

#[test]
fn every_exit_status_is_the_commands_own() {
    let door = FrontDoor::new();
    std::thread::scope(|scope| {
        for part in 0..4 {
            let door = &door;
            scope.spawn(move || {
                for code in (part..256).step_by(4) {
                    let outcome = door.script(&[], &format!("exit {code}")).finish().ended(code);
                    assert_eq!(outcome.stderr_text(), "", "status {code}");
                }
            });
        }
    });
}

#[test]
fn death_by_a_signal_is_128_and_its_number() {
    let door = FrontDoor::new();
    for signal in [1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 30, 31, 34, 64] {
        door.script(&[], &format!("kill -{signal} $$; sleep 1000")).finish().ended(128 + signal);
    }
}

#[test]
fn a_missing_program_is_127() {
    let door = FrontDoor::new();
    for program in ["no-such-program", "/no/such/program", "./no-such-program", "/etc/passwd/x"] {
        let (message, _) = door.leasehold(["run", "--", program]).finish().failed(127);
        assert!(message.starts_with(&format!("`{program}` is not in the sandbox")), "{message}");
    }
}

#[test]
fn a_program_that_is_none_is_126() {
    let door = FrontDoor::new();
    door.write("data", "text");
    for program in ["/etc/passwd", "/etc", "./data"] {
        let (message, _) = door.leasehold(["run", "--", program]).finish().failed(126);
        assert!(message.starts_with(&format!("`{program}` can't be executed")), "{message}");
    }
}

#[test]
fn a_script_of_the_workspace_runs_with_and_without_an_interpreter_line() {
    let door = FrontDoor::new();
    for (name, text) in [("with", "#!/bin/sh\necho \"$0 $1\"\n"), ("without", "echo \"$0 $1\"\n")] {
        let path = door.write(name, text);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let program = format!("./{name}");
        let outcome = door.leasehold(["run", "--", &program, "a b"]).finish().succeeded();
        assert_eq!(outcome.stdout_text(), format!("{program} a b\n"));
    }
}

#[test]
fn arguments_are_bytes_and_never_a_shell_line() {
    use std::os::unix::ffi::OsStrExt;
    let door = FrontDoor::new();
    let arguments: [&[u8]; 6] = [b"", b"a b", b"$HOME", b"\xff\xfe", b"--", b"*"];
    let own = ["run", "--", "printf", "[%s]"].map(str::as_bytes);
    let line = own.iter().chain(&arguments).map(|bytes| std::ffi::OsStr::from_bytes(bytes));
    let outcome = door.leasehold(line).finish().succeeded();
    assert_eq!(outcome.stdout, b"[][a b][$HOME][\xff\xfe][--][*]");
}

#[test]
fn a_timeout_is_124_and_keeps_what_was_said_before() {
    let door = FrontDoor::new();
    let script = "echo before; trap '' TERM INT HUP; sleep 1000";
    let outcome = door.script(&["--timeout", "1s"], script).finish().ended(124);
    assert_eq!(outcome.stdout_text(), "before\n");
    assert_eq!(
        outcome.stderr_text(),
        "leasehold: the command was killed with its whole process tree after 1s\n"
    );
}

#[test]
fn a_command_that_is_faster_than_its_timeout_is_not_touched() {
    let door = FrontDoor::new();
    assert_eq!(door.script(&["--timeout", "1h"], "echo ok; exit 5").finish().ended(5).stdout_text(), "ok\n");
}

#[test]
fn variables_come_from_flags_files_and_the_host_in_this_order() {
    let door = FrontDoor::new();
    let file = door.write("variables", "# comment\nA=file\nB=file with = and spaces \n\nC=file\n");
    let outcome = door
        .script(
            &["--env", "A=flag", "--env", "PASSED", "-e", "EMPTY=", "--env-file", file.to_str().unwrap()],
            "echo \"$A|$B|$C|$PASSED|${EMPTY-unset}|\"",
        )
        .env("PASSED", "from the host")
        .env("C", "not this")
        .finish()
        .succeeded();
    assert_eq!(outcome.stdout_text(), "flag|file with = and spaces |file|from the host||\n");
}

#[test]
fn secrets_of_the_hosts_environment_stay_outside() {
    let door = FrontDoor::new();
    let names = [
        "GITHUB_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "SSH_AUTH_SOCK",
        "LEASEHOLD_DATA_DIR",
        "DBUS_SESSION_BUS_ADDRESS",
    ];
    let invocation = names.iter().fold(
        door.script(&[], "env; cat /proc/self/environ /proc/1/environ 2>/dev/null; exit 0"),
        |invocation, name| {
            if *name == "LEASEHOLD_DATA_DIR" { invocation } else { invocation.env(name, "s3cret") }
        },
    );
    let outcome = invocation.finish().ended(0);
    let text = outcome.stdout_text();
    assert!(text.contains("PATH="), "{text}");
    for name in names.iter().chain(&["s3cret"]) {
        assert!(!text.contains(name), "{name} came along:\n{text}");
    }
}

#[test]
fn the_command_runs_as_the_user_asked_for() {
    let door = FrontDoor::new();
    for (flag, expected) in [("1234", "1234:1234"), ("1234:77", "1234:77"), ("nobody", "65534:65534")] {
        let outcome = door.script(&["--user", flag], "echo $(id -u):$(id -g)").finish().succeeded();
        assert_eq!(outcome.stdout_text(), format!("{expected}\n"));
    }
    let own = format!("{}\n", rustix::process::geteuid().as_raw());
    assert_eq!(door.script(&[], "id -u").finish().succeeded().stdout_text(), own);
}

#[test]
fn another_user_can_work_in_the_workspace_of_its_own_files() {
    let door = FrontDoor::new();
    let script = "echo out >/dev/stdout; echo error >/dev/stderr; echo x >/tmp/file; cat /tmp/file";
    let outcome = door.script(&["--user", "1234"], script).finish().ended(0);
    assert_eq!((outcome.stdout_text(), outcome.stderr_text()), ("out\nx\n".into(), "error\n".into()));
}

#[test]
fn the_command_starts_where_it_is_told_to() {
    let door = FrontDoor::new();
    std::fs::create_dir_all(door.workspace().join("sub/dir")).unwrap();
    let workspace = door.workspace().canonicalize().unwrap();
    let pwd = |flags: &[&str]| door.script(flags, "pwd").finish().succeeded().stdout_text();
    assert_eq!(pwd(&[]), format!("{}\n", workspace.display()));
    assert_eq!(pwd(&["--cwd", "sub/dir"]), format!("{}\n", workspace.join("sub/dir").display()));
    assert_eq!(pwd(&["--cwd", "/tmp"]), "/tmp\n");
    let (message, _) = door.script(&["--cwd", "/none"], "pwd").finish().failed(125);
    assert!(message.contains("`/none`"), "{message}");
}

#[test]
fn another_directory_can_be_the_workspace() {
    let door = FrontDoor::new();
    std::fs::write(door.mark("file"), "content").unwrap();
    let outcome =
        door.leasehold(["run", "--workspace", "../shared", "--", "cat", "file"]).finish().succeeded();
    assert_eq!(outcome.stdout_text(), "content");
    let home = door.home();
    std::fs::write(home.join("file"), "home").unwrap();
    let outcome = door
        .leasehold(["run", "--workspace", ".", "--", "cat", "file"])
        .directory(&home)
        .finish()
        .succeeded();
    assert_eq!(outcome.stdout_text(), "home", "a home is a workspace when it is asked for by name");
}

#[test]
fn an_exposed_directory_is_read_only_unless_asked() {
    let door = FrontDoor::new();
    std::fs::write(door.mark("file"), "host").unwrap();
    let path = door.shared().display().to_string();
    for flag in [path.clone(), format!("{path}:ro")] {
        let script = format!("cat {path}/file; echo new >{path}/file");
        let outcome = door.script(&["--expose", &flag], &script).finish();
        assert_eq!(outcome.stdout_text(), "host");
        assert_ne!(outcome.code, Some(0));
        assert!(outcome.stderr_text().contains("Read-only file system"), "{}", outcome.stderr_text());
    }
    let script = format!("echo new >{path}/file; mkdir {path}/made");
    door.script(&["--expose", &door.shared_for_writing()], &script).finish().succeeded();
    assert_eq!(std::fs::read_to_string(door.mark("file")).unwrap(), "new\n");
    assert!(door.mark("made").is_dir());
}

#[test]
fn one_exposed_file_shows_nothing_beside_it() {
    let door = FrontDoor::new();
    std::fs::write(door.mark("file"), "one").unwrap();
    std::fs::write(door.mark("other"), "two").unwrap();
    let path = door.shared().display().to_string();
    let script = format!("ls {path}; echo more >>{path}/file");
    let read = door.script(&["--expose", &format!("{path}/file")], &script).finish();
    assert_eq!(read.stdout_text(), "file\n");
    assert_ne!(read.code, Some(0));
    let write = door.script(&["--expose", &format!("{path}/file:rw")], &script).finish().succeeded();
    assert_eq!(write.stdout_text(), "file\n");
    assert_eq!(std::fs::read_to_string(door.mark("file")).unwrap(), "onemore\n");
}

#[test]
fn the_network_is_reached_only_when_asked_for() {
    let door = FrontDoor::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let _ = std::io::Write::write_all(&mut &connection, b"reached\n");
        }
    });
    let connect = format!("exec 3<>/dev/tcp/127.0.0.1/{port} && cat <&3");
    let run =
        |policy: &str| door.leasehold(["run", "--network", policy, "--", "bash", "-c", &connect]).finish();
    let none = run("none");
    assert_eq!((none.code, none.stdout_text()), (Some(1), String::new()));
    assert!(none.stderr_text().contains("Connection refused"), "{}", none.stderr_text());
    assert_eq!(run("host").succeeded().stdout_text(), "reached\n");
    let devices = door.script(&[], "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '").finish().succeeded();
    assert!(
        devices.stdout_text().lines().all(|device| !device.starts_with("eth") && !device.starts_with("en"))
    );
    assert!(devices.stdout_text().lines().any(|device| device == "lo"));
}

#[test]
fn the_sandboxs_own_loopback_works_without_network() {
    let door = FrontDoor::new();
    let script = "cat /sys/class/net/lo/operstate 2>/dev/null; exec 3<>/dev/tcp/127.0.0.1/9";
    let outcome = door.leasehold(["run", "--", "bash", "-c", script]).finish();
    // Refused by a loopback that is up; unreachable by one that is down.
    assert!(outcome.stderr_text().contains("Connection refused"), "{}", outcome.stderr_text());
}

#[test]
fn f47_processes_are_bounded_and_the_bound_is_told_by_the_kernel() {
    let door = FrontDoor::new();
    let many = "i=0; while [ $i -lt 500 ]; do sleep 1000 & i=$((i+1)); done; echo started $i";
    let outcome = door.script(&[], many).finish().succeeded();
    assert_eq!(outcome.stdout_text(), "started 500\n", "the default allows wide builds");
    let outcome = door.script(&["--pids", "40"], many).finish();
    assert_ne!(outcome.code, Some(0));
    let text = outcome.stderr_text().to_lowercase();
    assert!(text.contains("cannot fork") || text.contains("resource temporarily unavailable"), "{text}");
}

/// Whether this user can limit memory here; when not, the refusal is checked instead.
fn can_limit(door: &FrontDoor, flags: [&str; 2]) -> bool {
    let outcome = door.script(&flags, "true").finish();
    if outcome.code == Some(0) {
        return true;
    }
    let (message, hint) = outcome.failed(125);
    assert!(message.starts_with(&format!("{} can't be kept on this host", flags[0])), "{message}");
    assert!(hint.unwrap().contains("leasehold doctor"));
    eprintln!("this user can make no control group here: only the refusal was checked");
    false
}

#[test]
fn f81_out_of_memory_is_told_as_such_and_a_plain_kill_is_not() {
    let door = FrontDoor::new();
    if !can_limit(&door, ["--memory", "64M"]) {
        return;
    }
    let outcome =
        door.script(&["--memory", "64M"], "head -c 500M /dev/zero | tail >/dev/null").finish().ended(137);
    let text = outcome.stderr_text();
    assert!(
        text.ends_with("leasehold: the command was killed for memory: the limit of 64 MiB was reached\n"),
        "{text}"
    );
    let outcome = door.script(&["--memory", "64M"], "kill -9 $$").finish().ended(137);
    assert!(!outcome.stderr_text().contains("memory"), "{}", outcome.stderr_text());
    door.script(&["--memory", "64M"], "head -c 500M /dev/zero >/dev/null").finish().succeeded();
}

#[test]
fn processor_time_can_be_bounded() {
    let door = FrontDoor::new();
    if can_limit(&door, ["--cpus", "0.5"]) {
        door.script(&["--cpus", "1"], "true").finish().succeeded();
    }
}

#[test]
fn a_full_disk_is_told_as_such() {
    let door = FrontDoor::new();
    for place in ["/opt/../big", "/tmp/big", "/var/big"] {
        let script = format!("head -c 64M /dev/zero >{place}");
        let outcome = door.script(&["--disk", "16M"], &script).finish().ended(1);
        let text = outcome.stderr_text();
        assert!(text.contains("No space left on device"), "{text}");
        if place != "/tmp/big" {
            let told =
                "leasehold: the command exited with status 1 with its disk allowance of 16 MiB used up\n";
            assert!(text.ends_with(told), "{place}: {text}");
        }
    }
    door.script(&["--disk", "16M"], "head -c 8M /dev/zero >/var/big && wc -c </var/big").finish().succeeded();
}

#[test]
fn the_report_is_one_line_of_json() {
    let door = FrontDoor::new();
    let outcome = door.script(&["--json"], "echo out; exit 9").finish().ended(9);
    assert_eq!(outcome.stdout_text(), "out\n");
    let report = outcome.report();
    assert_eq!(report["exit_status"], 9);
    assert_eq!(report["result"]["verdict"], "exited");
    assert_eq!(report["result"]["code"], 9);
    assert_eq!(report["sandbox_kept"], false);
    assert!(report["sandbox"].as_str().unwrap().starts_with("sb"));
    assert!(report["seconds"].as_f64().unwrap() > 0.0);

    let report = door.script(&["--json"], "kill -TERM $$").finish().ended(143).report();
    assert_eq!(
        (&report["result"]["verdict"], &report["result"]["signal"]),
        (&"signalled".into(), &15.into())
    );
    assert_eq!(report["result"]["by"], "other");
    let report = door.script(&["--json", "--timeout", "100ms"], "sleep 1000").finish().ended(124).report();
    assert_eq!(report["result"]["verdict"], "deadline");
}

#[test]
fn no_terminal_is_given_to_streams_that_are_none_unless_asked() {
    let door = FrontDoor::new();
    let script = "test -t 0 && test -t 1 && test -t 2 && echo terminal || echo none";
    assert_eq!(door.script(&[], script).finish().succeeded().stdout_text(), "none\n");
    assert_eq!(door.script(&["-T"], script).finish().succeeded().stdout_text(), "none\n");
    assert_eq!(door.script(&["-t"], script).finish().succeeded().stdout_text(), "terminal\r\n");
}

#[test]
fn a_reader_that_goes_away_ends_the_command_as_without_us() {
    let door = FrontDoor::new();
    let mut running = door.leasehold(["run", "--", "yes"]).start();
    let mut line = [0; 2];
    std::io::Read::read_exact(&mut running.stdout(), &mut line).unwrap();
    assert_eq!(&line, b"y\n");
    let outcome = running.finish().ended(141);
    assert_eq!(outcome.stderr_text(), "");
}

#[test]
fn output_that_cannot_be_written_is_our_failure() {
    let door = FrontDoor::new();
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let outcome = door.script(&[], "echo x").stdout(full).spawn_piped().finish().ended(125);
    let text = outcome.stderr_text();
    assert_eq!(text, "leasehold: error: cannot write the command's output: No space left on device\n");
}

#[test]
fn two_runs_at_once_do_not_see_each_other() {
    let door = FrontDoor::new();
    let expose = door.shared_for_writing();
    let wait = format!(
        "echo one >/var/file; touch {0}/ready; while [ ! -e {0}/go ]; do sleep 0.01; done; cat /var/file; ps ax | grep -c '[s]leep 7777'; true",
        door.shared().display()
    );
    let running = door.script(&["--expose", &expose], &wait).start();
    wait_until("the first run is ready", || door.mark("ready").exists());
    let second =
        door.script(&[], "sleep 7777 & test ! -e /var/file && echo two >/var/file && cat /var/file").finish();
    assert_eq!(second.succeeded().stdout_text(), "two\n");
    std::fs::write(door.mark("go"), "").unwrap();
    assert_eq!(running.finish().succeeded().stdout_text(), "one\n0\n");
}
