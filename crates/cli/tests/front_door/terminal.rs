//! A terminal with the program on it, and the test at the keyboard.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};

use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;

use super::invocation::{Invocation, Running, prepare};
use super::{FrontDoor, HANG};

/// What came out of the terminal so far, and whether more can come.
#[derive(Debug, Default)]
struct Screen {
    bytes: Vec<u8>,
    ended: bool,
}

/// A terminal on which the program runs as the leader of its session.
#[derive(Debug)]
pub(crate) struct Terminal {
    master: Arc<OwnedFd>,
    slave: Option<OwnedFd>,
    screen: Arc<(Mutex<Screen>, Condvar)>,
    running: Running,
}

impl Terminal {
    /// Starts `leasehold` with these arguments on a new terminal.
    pub(crate) fn open<S: AsRef<OsStr>>(door: &FrontDoor, arguments: impl IntoIterator<Item = S>) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = rustix::pty::openpt(flags).unwrap();
        rustix::pty::grantpt(&master).unwrap();
        rustix::pty::unlockpt(&master).unwrap();
        let slave = rustix::pty::ioctl_tiocgptpeer(&master, flags).unwrap();
        resize(&master, 80, 24);
        // The session and its terminal, so that a change of size is told as a login's is. It becomes the
        // program, so that the process is the program's.
        let mut command = Command::new("setsid");
        command.arg("--ctty").arg(env!("CARGO_BIN_EXE_leasehold")).args(arguments);
        prepare(&mut command, door);
        command.stdin(Stdio::from(slave.try_clone().unwrap()));
        command.stdout(Stdio::from(slave.try_clone().unwrap()));
        command.stderr(Stdio::from(slave.try_clone().unwrap()));
        let running = Invocation::from_command(command).spawn();
        let master = Arc::new(master);
        let screen = Arc::new((Mutex::new(Screen::default()), Condvar::new()));
        let (source, shared) = (Arc::clone(&master), Arc::clone(&screen));
        std::thread::spawn(move || read_screen(&source, &shared));
        Self { master, slave: Some(slave), screen, running }
    }

    /// Types bytes.
    pub(crate) fn type_bytes(&self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let count = rustix::io::write(&self.master, bytes).unwrap();
            bytes = &bytes[count..];
        }
    }

    /// Waits until this was shown.
    #[track_caller]
    pub(crate) fn expect(&self, text: &str) {
        let (screen, changed) = &*self.screen;
        let is_missing =
            |screen: &mut Screen| !screen.ended && !String::from_utf8_lossy(&screen.bytes).contains(text);
        let (screen, timeout) = changed.wait_timeout_while(screen.lock().unwrap(), HANG, is_missing).unwrap();
        let shown = String::from_utf8_lossy(&screen.bytes).into_owned();
        assert!(!timeout.timed_out() && shown.contains(text), "`{text}` was not shown, but:\n{shown}");
    }

    /// Gives it another size.
    pub(crate) fn resize(&self, columns: u16, rows: u16) {
        resize(&self.master, columns, rows);
    }

    /// Its modes, as text to compare.
    pub(crate) fn modes(&self) -> String {
        modes_of(self.slave.as_ref().unwrap())
    }

    /// The program on it.
    pub(crate) fn running(&self) -> &Running {
        &self.running
    }

    /// Waits for the program's end; its status, all that was shown, and the modes that it left.
    #[track_caller]
    pub(crate) fn finish(mut self) -> (i32, Vec<u8>, String) {
        let outcome = self.running.finish();
        let modes = modes_of(self.slave.as_ref().unwrap());
        // With our own copy goes the last one, and the screen ends after what is still in it.
        drop(self.slave.take());
        let (screen, changed) = &*self.screen;
        let (mut screen, timeout) =
            changed.wait_timeout_while(screen.lock().unwrap(), HANG, |screen| !screen.ended).unwrap();
        assert!(!timeout.timed_out(), "something holds the terminal after the end");
        (outcome.code.unwrap_or(-1), std::mem::take(&mut screen.bytes), modes)
    }
}

fn modes_of(slave: &OwnedFd) -> String {
    let modes = rustix::termios::tcgetattr(slave).unwrap();
    format!(
        "{:?} {:?} {:?} {:?} {:?}",
        modes.input_modes, modes.output_modes, modes.control_modes, modes.local_modes, modes.special_codes
    )
}

fn resize(master: &OwnedFd, columns: u16, rows: u16) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(master, size).unwrap();
}

fn read_screen(master: &OwnedFd, screen: &(Mutex<Screen>, Condvar)) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let count = match rustix::io::read(master, &mut buffer) {
            Ok(count) => count,
            Err(rustix::io::Errno::INTR) => continue,
            // The last user of the terminal is gone.
            Err(_) => 0,
        };
        let mut state = screen.0.lock().unwrap();
        state.bytes.extend_from_slice(&buffer[..count]);
        state.ended = count == 0;
        screen.1.notify_all();
        if count == 0 {
            return;
        }
    }
}
