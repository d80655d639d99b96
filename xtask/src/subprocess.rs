//! Running other programs, with the command line in every message.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use leasehold_model::{Error, ErrorKind, Result};

/// The cargo that runs us, so that a `+toolchain` choice holds for every step.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(crate::workspace::root()).stdin(Stdio::null());
    command
}

/// Runs a command with its output shown; anything but success is an error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    println!("+ {}", describe(command));
    let status = command.status().map_err(|source| cannot_start(command, source))?;
    if status.success() { Ok(()) } else { Err(failed(command, &status.to_string())) }
}

/// Runs a command and returns what it wrote to standard output; its errors are shown.
pub(crate) fn capture(command: &mut Command) -> Result<Vec<u8>> {
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|source| cannot_start(command, source))?;
    if output.status.success() { Ok(output.stdout) } else { Err(failed(command, &output.status.to_string())) }
}

/// Whether a command can be run and succeeds; nothing of it is shown.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// The error for a program that could not be started at all.
pub(crate) fn cannot_start(command: &Command, source: std::io::Error) -> Error {
    Error::io("xtask.run", format!("cannot start `{}`", describe(command)), source)
}

fn failed(command: &Command, status: &str) -> Error {
    Error::new(ErrorKind::Unexpected, "xtask.run", format!("`{}` failed: {status}", describe(command)))
}

/// The program's file name and its arguments, as a line to read.
pub(crate) fn describe(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str());
    std::iter::once(name).chain(command.get_args()).map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

/// Where a program is: on the search path, or where administrators' programs live, which a normal
/// user's path leaves out.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_name_the_command_line() {
        let error = run(Command::new("sh").args(["-c", "exit 3"])).unwrap_err();
        assert_eq!(error.to_string(), "`sh -c exit 3` failed: exit status: 3");
        let error = run(&mut Command::new("/nowhere/program")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }

    #[test]
    fn programs_are_found_by_name() {
        assert!(find_program("sh").is_some());
        assert!(find_program("no-such-program-anywhere").is_none());
    }
}
