//! One start of the program, and how it ended.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal};

use super::{FrontDoor, HANG};

/// A start that is being put together.
#[derive(Debug)]
pub(crate) struct Invocation {
    command: Command,
    input: Option<Vec<u8>>,
}

/// A program that runs.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    process: OwnedFd,
    shown: String,
    stdout: Option<Receiver<Vec<u8>>>,
    stderr: Option<Receiver<Vec<u8>>>,
}

/// How it ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The exit status; `None` when a signal ended the program itself.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    shown: String,
}

impl Invocation {
    pub(crate) fn new<S: AsRef<OsStr>>(door: &FrontDoor, arguments: impl IntoIterator<Item = S>) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
        command.args(arguments);
        prepare(&mut command, door);
        Self { command, input: None }
    }

    /// A start that was prepared elsewhere.
    pub(super) fn from_command(command: Command) -> Self {
        Self { command, input: None }
    }

    /// The same start, through `sh -c` with `"$@"` for the program and its arguments.
    pub(crate) fn through_shell(self, script: &str) -> Self {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script, "sh"]).arg(self.command.get_program()).args(self.command.get_args());
        command.env_clear();
        for (name, value) in self.command.get_envs() {
            if let Some(value) = value {
                command.env(name, value);
            }
        }
        if let Some(directory) = self.command.get_current_dir() {
            command.current_dir(directory);
        }
        Self { command, input: self.input }
    }

    pub(crate) fn input(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.input = Some(bytes.into());
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    pub(crate) fn without_env(mut self, name: &str) -> Self {
        self.command.env_remove(name);
        self
    }

    pub(crate) fn directory(mut self, path: impl AsRef<Path>) -> Self {
        self.command.current_dir(path);
        self
    }

    pub(crate) fn stdout(mut self, stream: impl Into<Stdio>) -> Self {
        self.command.stdout(stream);
        self
    }

    /// Runs it to its end, feeding the input, collecting both outputs.
    #[track_caller]
    pub(crate) fn finish(mut self) -> Outcome {
        self.command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let input = self.input.take();
        self.command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
        let mut running = self.spawn();
        if let (Some(mut stdin), Some(input)) = (running.child.stdin.take(), input) {
            std::thread::spawn(move || {
                // A command may end without having read everything.
                let _ = stdin.write_all(&input);
            });
        }
        running.finish()
    }

    /// Starts it with all three streams as pipes that the test holds.
    #[track_caller]
    pub(crate) fn start(mut self) -> Running {
        self.command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        self.spawn()
    }

    /// Starts it without input and with standard error as a pipe, whatever standard output is.
    #[track_caller]
    pub(crate) fn spawn_piped(mut self) -> Running {
        self.command.stdin(Stdio::null()).stderr(Stdio::piped());
        self.spawn()
    }

    /// Starts it with the streams that were given before.
    #[track_caller]
    pub(crate) fn spawn(mut self) -> Running {
        let shown = format!("{:?}", self.command);
        let child = self.command.spawn().unwrap_or_else(|error| panic!("{shown}: {error}"));
        let process = rustix::process::pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        let mut running = Running { child, process, shown, stdout: None, stderr: None };
        running.stderr = running.child.stderr.take().map(collect);
        running
    }
}

/// The environment of a user with nothing special, in directories of the test's own.
pub(super) fn prepare(command: &mut Command, door: &FrontDoor) {
    command
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin")
        .env("HOME", door.home())
        .env("LEASEHOLD_DATA_DIR", door.data())
        .env("TMPDIR", door.root().join("tmp"))
        .env("TERM", "xterm")
        .env("LANG", "C.UTF-8")
        .current_dir(door.workspace());
}

fn collect(mut source: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = source.read_to_end(&mut bytes);
        let _ = sender.send(bytes);
    });
    receiver
}

impl Running {
    /// Standard input, to be written and closed by the test.
    pub(crate) fn stdin(&mut self) -> ChildStdin {
        self.child.stdin.take().unwrap()
    }

    /// Standard output, to be read by the test.
    pub(crate) fn stdout(&mut self) -> std::process::ChildStdout {
        self.child.stdout.take().unwrap()
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the program and nobody else.
    pub(crate) fn signal(&self, signal: Signal) {
        // It may have ended already.
        let _ = rustix::process::pidfd_send_signal(&self.process, signal);
    }

    pub(crate) fn has_ended(&self) -> bool {
        let mut wait = [PollFd::new(&self.process, PollFlags::IN)];
        poll(&mut wait, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
    }

    /// Waits for the end. Fails the test when it does not come, or when it is a crash.
    #[track_caller]
    pub(crate) fn finish(self) -> Outcome {
        let outcome = self.finish_however();
        assert!(outcome.code.is_some(), "{}\n{}", outcome.shown, outcome.stderr_text());
        outcome
    }

    /// Waits for the end, even by a signal that the test sent. Fails the test when it does not come.
    #[track_caller]
    pub(crate) fn finish_however(mut self) -> Outcome {
        if self.stdout.is_none() {
            self.stdout = self.child.stdout.take().map(collect);
        }
        drop(self.child.stdin.take());
        self.wait_for_end();
        let status = self.child.wait().unwrap();
        let take = |stream: Option<Receiver<Vec<u8>>>, name: &str| match stream {
            None => Vec::new(),
            Some(stream) => stream
                .recv_timeout(HANG)
                .unwrap_or_else(|_| panic!("{}: {name} is held open after the end", self.shown)),
        };
        let stdout = take(self.stdout, "standard output");
        let stderr = take(self.stderr, "standard error");
        Outcome { code: status.code(), stdout, stderr, shown: format!("{}: {status}", self.shown) }
    }

    #[track_caller]
    fn wait_for_end(&mut self) {
        let until = Instant::now() + HANG;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let mut wait = [PollFd::new(&self.process, PollFlags::IN)];
            let time = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: 0 };
            match poll(&mut wait, Some(&time)) {
                Ok(count) if count > 0 => return,
                Ok(_) if left < Duration::from_secs(1) => {
                    let _ = self.child.kill();
                    panic!("{} hangs", self.shown);
                }
                Ok(_) | Err(_) => {}
            }
        }
    }
}

impl Outcome {
    pub(crate) fn stdout_text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub(crate) fn stderr_text(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// Asserts the exit status.
    #[track_caller]
    pub(crate) fn ended(self, code: i32) -> Self {
        let shown = |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(4000)]).into_owned();
        assert!(
            self.code == Some(code),
            "expected {code} of {}\nstandard output:\n{}\nstandard error:\n{}",
            self.shown,
            shown(&self.stdout),
            shown(&self.stderr)
        );
        self
    }

    /// Asserts success, and that nothing was said on standard error.
    #[track_caller]
    pub(crate) fn succeeded(self) -> Self {
        let outcome = self.ended(0);
        assert_eq!(outcome.stderr_text(), "", "{}", outcome.shown);
        outcome
    }

    /// Asserts that Leasehold itself failed with this status, in the one shape that all failures have,
    /// and gives the message and the hint.
    #[track_caller]
    pub(crate) fn failed(self, code: i32) -> (String, Option<String>) {
        let outcome = self.ended(code);
        assert_eq!(outcome.stdout_text(), "", "a failure belongs on standard error");
        let text = outcome.stderr_text();
        let mut lines = text.lines();
        let message = lines.next().and_then(|line| line.strip_prefix("leasehold: error: "));
        let hint = lines.next().map(|line| line.strip_prefix("leasehold: hint: "));
        assert!(message.is_some() && hint != Some(None) && lines.next().is_none(), "{text}");
        (message.unwrap().to_owned(), hint.flatten().map(str::to_owned))
    }

    /// The report of `--json`, the only line on standard error.
    #[track_caller]
    pub(crate) fn report(&self) -> serde_json::Value {
        let text = self.stderr_text();
        let line = text.strip_prefix("leasehold: ").unwrap_or_else(|| panic!("no report: {text}"));
        assert_eq!(line.lines().count(), 1, "{text}");
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {text}"))
    }
}
