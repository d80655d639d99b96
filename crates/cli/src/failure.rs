//! How Leasehold's own failures look: one message, at most one hint, and an exit status from 125 up.

use std::error::Error as _;
use std::io::Write;
use std::process::ExitCode;

use clap::error::{ContextKind, ErrorKind as UsageKind};
use leasehold_model::{Error, ErrorKind};

/// A failure of Leasehold itself, never of the command that it runs.
#[derive(Debug)]
pub(crate) struct Failure {
    error: Error,
    status: u8,
}

impl Failure {
    /// A failure to start the command: 127 when it is not there, 126 when it can't be executed, and 125
    /// when it is not about the program, such as a directory to start in that is missing.
    pub(crate) fn of_start(error: Error) -> Self {
        let status = match error.kind() {
            _ if error.operation() != leasehold_local::START_PROGRAM => 125,
            ErrorKind::NotFound => 127,
            _ => 126,
        };
        let error = match (status, error.hint()) {
            (127, None) => error.with_hint("check its name, or show where it is with `--expose PATH`"),
            _ => error,
        };
        Self { error, status }
    }

    /// A command line that can't be understood, in the same shape as every other failure. Help and
    /// version are no failures; they go to standard output.
    pub(crate) fn of_usage(usage: &clap::Error) -> Result<ExitCode, Self> {
        if matches!(usage.kind(), UsageKind::DisplayHelp | UsageKind::DisplayVersion) {
            // Whoever closed standard output does not want to read it.
            let _ = usage.print();
            return Ok(ExitCode::SUCCESS);
        }
        if usage.kind() == UsageKind::DisplayHelpOnMissingArgumentOrSubcommand {
            let _ = usage.print();
            return Ok(ExitCode::from(125));
        }
        let text = usage.render().to_string();
        let mut lines = text.lines();
        let message: Vec<&str> = lines.by_ref().take_while(|line| !line.is_empty()).map(str::trim).collect();
        let message = message.join(" ");
        let message = match own_error(usage) {
            Some(error) => {
                let argument =
                    usage.get(ContextKind::InvalidArg).map(ToString::to_string).unwrap_or_default();
                format!("{}: {error}", argument.split(' ').next().unwrap_or_default())
            }
            None => message.strip_prefix("error: ").unwrap_or(&message).to_owned(),
        };
        let error = Error::invalid("arguments.parse", message);
        Err(error.with_hint(usage_hint(usage, lines)).into())
    }

    /// Prints it and gives the exit status.
    pub(crate) fn tell(&self) -> ExitCode {
        message(&format!("error: {}", without_numbers(&self.error.to_string())));
        if let Some(hint) = self.error.hint() {
            message(&format!("hint: {hint}"));
        }
        if std::env::var_os("LEASEHOLD_LOG").is_some() {
            message(&self.error.report());
        }
        ExitCode::from(self.status)
    }
}

/// The failure of a value's own parser.
fn own_error(usage: &clap::Error) -> Option<&Error> {
    usage.source()?.downcast_ref()
}

/// What to write instead: what the value's own parser says, what comes closest, or where the help is.
fn usage_hint<'a>(usage: &clap::Error, rest: impl Iterator<Item = &'a str>) -> String {
    if let Some(hint) = own_error(usage).and_then(Error::hint) {
        return hint.to_owned();
    }
    let mut usage_line = None;
    for line in rest {
        if let Some(tip) = line.trim().strip_prefix("tip: ") {
            return tip.to_owned();
        }
        usage_line = usage_line.or_else(|| line.strip_prefix("Usage: "));
    }
    let unknown = usage.get(ContextKind::InvalidArg).map(ToString::to_string).unwrap_or_default();
    match usage_line {
        Some(line)
            if usage.kind() == UsageKind::UnknownArgument
                && !unknown.starts_with('-')
                && line.contains(" -- <COMMAND>") =>
        {
            let program = line.split(" -- ").next().unwrap_or(line).replace(" [OPTIONS]", "");
            format!("write `--` before the command: `{program} -- {unknown} ...`")
        }
        Some(line) => format!("write `{line}`"),
        None => "`--help` tells what can be given".to_owned(),
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

/// The text without the numbers that the standard library adds to a system's errors; they are in the log.
fn without_numbers(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(" (os error ") {
        kept.push_str(before);
        rest = after.split_once(')').map_or("", |(_, after)| after);
    }
    kept + rest
}

/// Writes lines for people to standard error.
pub(crate) fn message(text: &str) {
    let mut error = std::io::stderr().lock();
    for line in text.lines() {
        // Whoever closed standard error does not want to know.
        let _ = writeln!(error, "leasehold: {line}");
    }
}
