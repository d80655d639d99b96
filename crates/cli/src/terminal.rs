//! The terminal that the user sits at.

use std::io::IsTerminal;
use std::os::fd::AsFd;

use leasehold_model::TerminalSize;
use rustix::termios::{OptionalActions, Termios};

/// Whether a command gets a terminal: when asked for, or when the user sits at both ends.
pub(crate) fn is_wanted(tty: bool, no_tty: bool) -> bool {
    tty || (!no_tty && std::io::stdin().is_terminal() && std::io::stdout().is_terminal())
}

/// The size of the user's terminal; a common one when there is none.
pub(crate) fn size() -> TerminalSize {
    rustix::termios::tcgetwinsize(std::io::stdout())
        .or_else(|_| rustix::termios::tcgetwinsize(std::io::stdin()))
        .ok()
        .filter(|size| size.ws_col > 0 && size.ws_row > 0)
        .map_or_else(TerminalSize::default, |size| TerminalSize { columns: size.ws_col, rows: size.ws_row })
}

/// The user's terminal in raw mode: every key goes to the command. Put back when dropped.
#[derive(Debug)]
pub(crate) struct RawMode {
    before: Termios,
}

impl RawMode {
    /// Enters raw mode. `None` when standard input is no terminal.
    pub(crate) fn enter() -> Option<Self> {
        let stdin = std::io::stdin();
        let before = rustix::termios::tcgetattr(stdin.as_fd()).ok()?;
        let mut raw = before.clone();
        raw.make_raw();
        // What was typed while the sandbox was made is for the command; flushing would lose it.
        rustix::termios::tcsetattr(stdin.as_fd(), OptionalActions::Now, &raw).ok()?;
        Some(Self { before })
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // A terminal that is gone needs no mode.
        let _ = rustix::termios::tcsetattr(std::io::stdin().as_fd(), OptionalActions::Now, &self.before);
    }
}
