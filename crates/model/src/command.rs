//! What a command is asked to be.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Which of a command's two output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StreamKind {
    /// Standard output. A terminal has only this one.
    Stdout,
    /// Standard error.
    Stderr,
}

/// The size of a terminal in character cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    /// Columns.
    pub columns: u16,
    /// Rows.
    pub rows: u16,
}

impl Default for TerminalSize {
    fn default() -> Self {
        Self { columns: 80, rows: 24 }
    }
}

/// Where a command's standard input comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StdinMode {
    /// End of input at once: a command that reads gets nothing and goes on (field case F43).
    #[default]
    Empty,
    /// A stream that the caller writes and closes.
    Stream,
}

/// The user that a command runs as, inside the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum UserSpec {
    /// By number; the group is the user's own where that is known, else the same number.
    Id {
        /// User id.
        user: u32,
        /// Group id.
        group: Option<u32>,
    },
    /// By name, looked up in the sandbox's own user database.
    Name(String),
}

impl FromStr for UserSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = || {
            Error::invalid("user.parse", format!("`{text}` is not a user"))
                .with_hint("write a name, a number, or two numbers as USER:GROUP")
        };
        let (user, group) = match text.split_once(':') {
            Some((user, group)) => (user, Some(group.parse().map_err(|_| bad())?)),
            None => (text, None),
        };
        match (user.parse::<u32>(), group) {
            (Ok(user), group) if user != u32::MAX => Ok(Self::Id { user, group }),
            (Err(_), None)
                if !user.is_empty()
                    && !user.starts_with(|first: char| first.is_ascii_digit() || first == '-')
                    && !user.chars().any(|c| c.is_control() || c.is_whitespace() || c == '/') =>
            {
                Ok(Self::Name(user.to_owned()))
            }
            _ => Err(bad()),
        }
    }
}

/// The checked name of an environment variable.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EnvironmentName(String);

impl EnvironmentName {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for EnvironmentName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let starts_well = text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
        if starts_well && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            return Ok(Self(text.to_owned()));
        }
        Err(Error::invalid(
            "environment.parse",
            format!("`{text}` is not the name of an environment variable"),
        )
        .with_hint("use letters, digits and `_`, not starting with a digit"))
    }
}

impl fmt::Display for EnvironmentName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// One command: a program with its arguments, never a shell line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandSpec {
    /// The program and its arguments; at least the program. Bytes, not text.
    pub arguments: Vec<OsString>,
    /// Variables added to the sandbox's own environment, later ones winning.
    pub environment: Vec<(OsString, OsString)>,
    /// Where it starts; the workspace (or the image's directory) when not given.
    pub directory: Option<PathBuf>,
    /// Who it runs as; the sandbox's user when not given.
    pub user: Option<UserSpec>,
    /// Its standard input.
    pub stdin: StdinMode,
    /// A terminal of this size instead of three pipes.
    pub terminal: Option<TerminalSize>,
    /// How long it may run before its whole tree is killed. `None` means no bound of its own.
    pub timeout: Option<Duration>,
}

impl CommandSpec {
    /// A command with defaults for all but its arguments.
    pub fn new<S: Into<OsString>>(arguments: impl IntoIterator<Item = S>) -> Self {
        Self {
            arguments: arguments.into_iter().map(Into::into).collect(),
            environment: Vec::new(),
            directory: None,
            user: None,
            stdin: StdinMode::Empty,
            terminal: None,
            timeout: None,
        }
    }

    /// A line for the POSIX shell.
    pub fn shell(line: impl Into<OsString>) -> Self {
        Self::new([OsString::from("/bin/sh"), OsString::from("-c"), line.into()])
    }

    /// The same command with a stream as its standard input.
    #[must_use]
    pub fn with_stdin(mut self) -> Self {
        self.stdin = StdinMode::Stream;
        self
    }

    /// The same command with a bound on its running time.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// The same command on a terminal.
    #[must_use]
    pub fn with_terminal(mut self, size: TerminalSize) -> Self {
        self.terminal = Some(size);
        self.stdin = StdinMode::Stream;
        self
    }

    /// The same command with one more environment variable.
    #[must_use]
    pub fn with_environment(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_names_or_numbers() {
        assert_eq!("1000".parse::<UserSpec>().unwrap(), UserSpec::Id { user: 1000, group: None });
        assert_eq!("1:2".parse::<UserSpec>().unwrap(), UserSpec::Id { user: 1, group: Some(2) });
        assert_eq!("postgres".parse::<UserSpec>().unwrap(), UserSpec::Name("postgres".into()));
        for bad in ["", "-1", "a b", "1:x", "4294967295", "root:0", "a/b"] {
            assert!(bad.parse::<UserSpec>().is_err(), "{bad}");
        }
    }

    #[test]
    fn variable_names_are_identifiers() {
        assert!("_A1".parse::<EnvironmentName>().is_ok());
        for bad in ["", "1A", "A-B", "A=B", "Ä", "A B"] {
            assert!(bad.parse::<EnvironmentName>().is_err(), "{bad}");
        }
    }
}
