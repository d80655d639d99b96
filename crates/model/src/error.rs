//! The one error shape of the house.

use std::error::Error as StdError;
use std::fmt;

/// The result of anything that can fail in Leasehold.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kind of thing went wrong. Callers decide by kind; people read the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The thing asked for was explicitly said not to exist. Never used for doubt (invariant 2).
    NotFound,
    /// The thing to be made exists already.
    AlreadyExists,
    /// What the caller gave cannot be used: a flag, a path, a message, an archive.
    InvalidInput,
    /// The provider or the host lacks an ability that was asked for (invariant 15).
    Unsupported,
    /// Somebody is not allowed to do this.
    PermissionDenied,
    /// The state of the thing forbids the operation now, or somebody changed it meanwhile.
    Conflict,
    /// A bound was hit: memory, disk, processes, queue length, frame size.
    LimitExceeded,
    /// The operation's own deadline passed. The effect is unknown unless the context says so.
    DeadlineExceeded,
    /// The caller cancelled.
    Cancelled,
    /// The other side cannot answer at the moment. Says nothing about what exists.
    Unavailable,
    /// The sandbox is proven gone.
    Lost,
    /// Data failed a check: a digest, a frame, a record.
    Corrupt,
    /// A system call or library failed in a way nobody foresaw.
    Unexpected,
}

impl ErrorKind {
    /// The kind as a stable lower-case word, for logs and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::AlreadyExists => "already_exists",
            Self::InvalidInput => "invalid_input",
            Self::Unsupported => "unsupported",
            Self::PermissionDenied => "permission_denied",
            Self::Conflict => "conflict",
            Self::LimitExceeded => "limit_exceeded",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::Cancelled => "cancelled",
            Self::Unavailable => "unavailable",
            Self::Lost => "lost",
            Self::Corrupt => "corrupt",
            Self::Unexpected => "unexpected",
        }
    }
}

/// Whether sending the same operation again can help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Retry {
    /// The same input gives the same failure.
    #[default]
    Never,
    /// The failure is expected to pass, and the operation had no effect or is idempotent.
    Later,
}

/// One error: kind, can-retry, operation, context, hint, and the cause below it.
///
/// `Display` prints one line for users; [`Error::report`] prints everything, one fact a line.
pub struct Error {
    inner: Box<Inner>,
}

struct Inner {
    kind: ErrorKind,
    retry: Retry,
    operation: &'static str,
    message: String,
    context: Vec<(&'static str, String)>,
    hint: Option<String>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// A new error. `operation` names what was being done, `message` says what failed and on what.
    pub fn new(kind: ErrorKind, operation: &'static str, message: impl Into<String>) -> Self {
        let retry = match kind {
            ErrorKind::Unavailable => Retry::Later,
            _ => Retry::Never,
        };
        Self {
            inner: Box::new(Inner {
                kind,
                retry,
                operation,
                message: message.into(),
                context: Vec::new(),
                hint: None,
                source: None,
            }),
        }
    }

    /// An error for input the caller can correct.
    pub fn invalid(operation: &'static str, message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidInput, operation, message)
    }

    /// An error for an ability that is missing.
    pub fn unsupported(operation: &'static str, message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, operation, message)
    }

    /// An error around a failed system call; the kind follows from the error number.
    pub fn io(operation: &'static str, message: impl Into<String>, source: std::io::Error) -> Self {
        use std::io::ErrorKind as Io;
        let kind = match source.kind() {
            Io::NotFound => ErrorKind::NotFound,
            Io::AlreadyExists => ErrorKind::AlreadyExists,
            Io::PermissionDenied => ErrorKind::PermissionDenied,
            Io::TimedOut => ErrorKind::DeadlineExceeded,
            Io::StorageFull | Io::QuotaExceeded | Io::FileTooLarge | Io::OutOfMemory => {
                ErrorKind::LimitExceeded
            }
            Io::InvalidInput | Io::NotADirectory | Io::IsADirectory | Io::InvalidFilename => {
                ErrorKind::InvalidInput
            }
            Io::DirectoryNotEmpty => ErrorKind::Conflict,
            _ => ErrorKind::Unexpected,
        };
        Self::new(kind, operation, message).with_source(source)
    }

    /// Replaces the judgement whether a retry can help.
    #[must_use]
    pub fn with_retry(mut self, retry: Retry) -> Self {
        self.inner.retry = retry;
        self
    }

    /// Adds one named fact.
    #[must_use]
    pub fn with_context(mut self, name: &'static str, value: impl fmt::Display) -> Self {
        self.inner.context.push((name, value.to_string()));
        self
    }

    /// Says what the reader can do about it.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.inner.hint = Some(hint.into());
        self
    }

    /// Keeps the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.inner.source = Some(source.into());
        self
    }

    /// The kind to decide by.
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// Whether the same operation can be sent again.
    pub fn retry(&self) -> Retry {
        self.inner.retry
    }

    /// What was being done.
    pub fn operation(&self) -> &'static str {
        self.inner.operation
    }

    /// What failed, without the cause.
    pub fn message(&self) -> &str {
        &self.inner.message
    }

    /// The named facts, in the order they were added.
    pub fn context(&self) -> &[(&'static str, String)] {
        &self.inner.context
    }

    /// What the reader can do about it.
    pub fn hint(&self) -> Option<&str> {
        self.inner.hint.as_deref()
    }

    /// Everything that is known, one fact a line: for logs and `--verbose`.
    pub fn report(&self) -> String {
        use std::fmt::Write as _;

        let mut text = format!(
            "{}\n  kind: {}\n  operation: {}",
            self.inner.message,
            self.kind().as_str(),
            self.inner.operation
        );
        for (name, value) in &self.inner.context {
            let _ = write!(text, "\n  {name}: {value}");
        }
        let mut cause = self.source();
        while let Some(current) = cause {
            let _ = write!(text, "\n  cause: {current}");
            cause = current.source();
        }
        if let Some(hint) = &self.inner.hint {
            let _ = write!(text, "\n  hint: {hint}");
        }
        text
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.inner.message)?;
        if let Some(source) = &self.inner.source {
            write!(formatter, ": {source}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.report())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.inner.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_for_users_and_every_fact_in_the_report() {
        let error = Error::io(
            "sandbox.mount",
            "cannot mount the overlay on /work",
            std::io::Error::from(std::io::ErrorKind::PermissionDenied),
        )
        .with_context("path", "/work")
        .with_hint("run `leasehold doctor`");
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        assert_eq!(error.to_string(), "cannot mount the overlay on /work: permission denied");
        let report = error.report();
        for fact in ["kind: permission_denied", "path: /work", "hint: run `leasehold doctor`"] {
            assert!(report.contains(fact), "{report}");
        }
    }

    #[test]
    fn doubt_can_be_retried_and_input_cannot() {
        assert_eq!(Error::new(ErrorKind::Unavailable, "find", "no answer").retry(), Retry::Later);
        assert_eq!(Error::invalid("parse", "bad").retry(), Retry::Never);
    }
}
