//! How a command ended, and why.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::Retry;

/// A signal by its Linux number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SignalNumber(pub i32);

impl SignalNumber {
    /// Terminal hang-up.
    pub const HANGUP: Self = Self(1);
    /// Interrupt, as by Ctrl-C.
    pub const INTERRUPT: Self = Self(2);
    /// Quit, as by Ctrl-\.
    pub const QUIT: Self = Self(3);
    /// Kill: cannot be caught.
    pub const KILL: Self = Self(9);
    /// A polite request to end.
    pub const TERMINATE: Self = Self(15);

    /// The name with its prefix, such as `SIGKILL`, where it has one.
    pub fn name(self) -> Option<&'static str> {
        const NAMES: [&str; 31] = [
            "SIGHUP",
            "SIGINT",
            "SIGQUIT",
            "SIGILL",
            "SIGTRAP",
            "SIGABRT",
            "SIGBUS",
            "SIGFPE",
            "SIGKILL",
            "SIGUSR1",
            "SIGSEGV",
            "SIGUSR2",
            "SIGPIPE",
            "SIGALRM",
            "SIGTERM",
            "SIGSTKFLT",
            "SIGCHLD",
            "SIGCONT",
            "SIGSTOP",
            "SIGTSTP",
            "SIGTTIN",
            "SIGTTOU",
            "SIGURG",
            "SIGXCPU",
            "SIGXFSZ",
            "SIGVTALRM",
            "SIGPROF",
            "SIGWINCH",
            "SIGIO",
            "SIGPWR",
            "SIGSYS",
        ];
        usize::try_from(self.0 - 1).ok().and_then(|index| NAMES.get(index).copied())
    }
}

impl fmt::Display for SignalNumber {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => formatter.write_str(name),
            None => write!(formatter, "signal {}", self.0),
        }
    }
}

/// Who sent the signal that ended a command. Known from records, never guessed from timing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndedBy {
    /// The holder of the lease, through us.
    Caller,
    /// Something else: the command itself, a process beside it, or the kernel.
    Other,
}

/// The one end of one command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Verdict {
    /// It ended by itself.
    Exited {
        /// Its exit status, 0 to 255.
        code: u8,
    },
    /// A signal ended it.
    Signalled {
        /// Which one.
        signal: SignalNumber,
        /// Who sent it.
        by: EndedBy,
    },
    /// Its deadline passed, and its whole process tree was killed.
    Deadline {
        /// The time it was allowed.
        allowed: Duration,
    },
    /// The kernel killed it for memory; the cgroup's own counter says so.
    OutOfMemory {
        /// The limit that was hit, where there was one.
        limit: Option<u64>,
    },
    /// It failed while the sandbox's disk allowance was used up.
    DiskFull {
        /// The limit that was hit.
        limit: u64,
        /// The exit status that it gave.
        code: u8,
    },
    /// The caller cancelled it, and its whole process tree was killed.
    Cancelled,
    /// The sandbox was stopped, destroyed or expired under it.
    SandboxStopped,
    /// The provider proved that the sandbox is gone.
    ProviderLost,
    /// We can no longer see it; it may still run.
    ObservationLost,
}

impl Verdict {
    /// Whether running the same command again can give another result for this reason.
    pub fn retry(&self) -> Retry {
        match self {
            Self::SandboxStopped | Self::ProviderLost | Self::ObservationLost => Retry::Later,
            _ => Retry::Never,
        }
    }

    /// Whether it ended by itself with status 0.
    pub fn is_success(&self) -> bool {
        matches!(self, Self::Exited { code: 0 })
    }

    /// The exit status a shell would show: the command's own, 128+n for signals, 124 for a deadline
    /// (as `timeout` gives), 137 for memory, and 125 where the command's own end is not known.
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::Exited { code } | Self::DiskFull { code, .. } => *code,
            Self::Signalled { signal, .. } => u8::try_from(128 + signal.0).unwrap_or(255),
            Self::Deadline { .. } => 124,
            Self::OutOfMemory { .. } | Self::Cancelled => 137,
            Self::SandboxStopped | Self::ProviderLost | Self::ObservationLost => 125,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        use crate::quantity::{ByteSize, Span};
        match self {
            Self::Exited { code } => write!(formatter, "exited with status {code}"),
            Self::Signalled { signal, by: EndedBy::Caller } => {
                write!(formatter, "was ended by {signal}, sent by the caller")
            }
            Self::Signalled { signal, by: EndedBy::Other } => write!(formatter, "was ended by {signal}"),
            Self::Deadline { allowed } => {
                write!(formatter, "was killed with its whole process tree after {}", Span(*allowed))
            }
            Self::OutOfMemory { limit: Some(limit) } => {
                write!(formatter, "was killed for memory: the limit of {} was reached", ByteSize(*limit))
            }
            Self::OutOfMemory { limit: None } => formatter.write_str("was killed for memory by the kernel"),
            Self::DiskFull { limit, code } => write!(
                formatter,
                "exited with status {code} with its disk allowance of {} used up",
                ByteSize(*limit)
            ),
            Self::Cancelled => formatter.write_str("was cancelled, and its whole process tree killed"),
            Self::SandboxStopped => formatter.write_str("ended because its sandbox was stopped"),
            Self::ProviderLost => formatter.write_str("was lost: its sandbox is gone"),
            Self::ObservationLost => formatter.write_str("is out of sight: it may still run"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_follow_the_shell() {
        let by = EndedBy::Other;
        assert_eq!(Verdict::Exited { code: 7 }.exit_status(), 7);
        assert_eq!(Verdict::Signalled { signal: SignalNumber::TERMINATE, by }.exit_status(), 143);
        assert_eq!(Verdict::Signalled { signal: SignalNumber(64), by }.exit_status(), 192);
        assert_eq!(Verdict::Deadline { allowed: Duration::from_secs(1) }.exit_status(), 124);
    }

    #[test]
    fn signals_have_their_names() {
        assert_eq!(SignalNumber(31).to_string(), "SIGSYS");
        assert_eq!(SignalNumber(34).to_string(), "signal 34");
        assert_eq!(SignalNumber(0).to_string(), "signal 0");
    }
}
