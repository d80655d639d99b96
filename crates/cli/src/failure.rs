//! How Leasehold's own failures look: one message, at most one hint, and an exit status from 125 up.

use std::io::Write;
use std::process::ExitCode;

use leasehold_model::{Error, ErrorKind};

/// A failure of Leasehold itself, never of the command that it runs.
#[derive(Debug)]
pub(crate) struct Failure {
    error: Error,
    status: u8,
}

impl Failure {
    /// A failure to start the command: 127 when it is not there, 126 when it can't be executed.
    pub(crate) fn of_start(error: Error) -> Self {
        let status = match error.kind() {
            ErrorKind::NotFound => 127,
            ErrorKind::PermissionDenied | ErrorKind::InvalidInput => 126,
            _ => 125,
        };
        Self { error, status }
    }

    /// Prints it and gives the exit status.
    pub(crate) fn tell(&self) -> ExitCode {
        message(&format!("error: {}", self.error));
        if let Some(hint) = self.error.hint() {
            message(&format!("hint: {hint}"));
        }
        if std::env::var_os("LEASEHOLD_LOG").is_some() {
            message(&self.error.report());
        }
        ExitCode::from(self.status)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { error, status: 125 }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Error::io("cli", "cannot work here", error).into()
    }
}

/// Writes lines for people to standard error.
pub(crate) fn message(text: &str) {
    let mut error = std::io::stderr().lock();
    for line in text.lines() {
        // Whoever closed standard error does not want to know.
        let _ = writeln!(error, "leasehold: {line}");
    }
}
