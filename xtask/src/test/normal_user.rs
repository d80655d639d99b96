//! Running the test programs as a normal user, made for this run and removed after it.
//!
//! The user has what a login on a Debian machine gives: a home, a range of subordinate ids, no
//! supplementary groups, a plain environment. Afterwards it must have left nothing behind: a process
//! or temporary file of its is a failure, because leaving nothing behind is what we promise.

mod account;

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use leasehold_model::{Error, Result};

use super::open_paths::OpenPaths;
use super::programs::TestProgram;
use super::tally::{self, Tally};
use crate::subprocess;
use crate::workspace;
use account::{Account, NAME};

/// How long processes of a sandbox may take to end after the test that made it.
const GRACE: Duration = Duration::from_secs(10);

/// Variables of the caller that choose what tests do or say.
const PASSED_ON: &[&str] = &["CI", "LANG", "TERM"];
const PASSED_ON_PREFIXES: &[&str] = &["LEASEHOLD_", "PROPTEST_", "RUST_", "INSTA_"];

/// Runs all programs; what the user leaves behind counts as a failure.
pub(crate) fn run(programs: &[TestProgram], target: &Path) -> Result<Tally> {
    let account = Account::create()?;
    let result = run_as(&account, programs, target);
    // Removed whatever happened; the tests' own outcome is the more telling one.
    let removed = account.remove();
    let sum = result?;
    removed?;
    Ok(sum)
}

fn run_as(account: &Account, programs: &[TestProgram], target: &Path) -> Result<Tally> {
    let paths = OpenPaths::to([workspace::root(), target])?;
    let mut sum = Tally::default();
    for program in programs {
        check_reach(account, &paths, program)?;
        let name = program.executable.file_name().unwrap_or_default().to_string_lossy();
        let mut command = account_command(account, &paths, program);
        command.arg(&program.executable);
        sum.add(tally::run(&format!("{NAME}: {name}"), &mut command)?);
    }
    if !left_nothing(account)? {
        sum.add(Tally::FAILURE);
    }
    Ok(sum)
}

/// A command as the user, in the directory of the program's crate.
fn account_command(account: &Account, paths: &OpenPaths, program: &TestProgram) -> std::process::Command {
    let mut command = paths.command(&Account::staging(), &program.directory, "setpriv");
    let user = account.user;
    command
        .args([format!("--reuid={user}"), format!("--regid={}", account.group)])
        .args(["--init-groups", "--inh-caps=-all", "--"])
        .env_clear()
        .envs(environment(program));
    command
}

fn environment(program: &TestProgram) -> BTreeMap<OsString, OsString> {
    let passed_on = env::vars_os().filter(|(name, _)| {
        let name = name.to_string_lossy();
        PASSED_ON.contains(&&*name) || PASSED_ON_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    });
    let mut variables: BTreeMap<OsString, OsString> = passed_on.collect();
    let mut set = |name: String, value: &dyn AsRef<std::ffi::OsStr>| {
        variables.insert(name.into(), value.as_ref().to_owned());
    };
    set("HOME".into(), &Account::home());
    set("USER".into(), &NAME);
    set("LOGNAME".into(), &NAME);
    set("SHELL".into(), &"/bin/sh");
    set("TMPDIR".into(), &Account::temporary());
    set("PATH".into(), &"/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin");
    // What cargo would set and test support libraries read while running.
    set("CARGO_MANIFEST_DIR".into(), &program.directory);
    for (name, path) in &program.binaries {
        set(format!("CARGO_BIN_EXE_{name}"), path);
    }
    // Snapshots can't be written into a checkout of somebody else's.
    set("INSTA_UPDATE".into(), &"no");
    set("INSTA_WORKSPACE_ROOT".into(), &workspace::root());
    variables
}

fn check_reach(account: &Account, paths: &OpenPaths, program: &TestProgram) -> Result<()> {
    let mut command = account_command(account, paths, program);
    command.args(["test", "-x"]).arg(&program.executable);
    let output = command.output().map_err(|source| subprocess::cannot_start(&command, source))?;
    if output.status.success() {
        return Ok(());
    }
    Err(Error::unsupported(
        "xtask.test",
        format!("the user {NAME} cannot run {}", program.executable.display()),
    )
    .with_context("said", String::from_utf8_lossy(&output.stderr).trim())
    .with_hint(
        "the checkout and the build directory must be readable by others (umask 022), and root must \
             be able to mount; `--quick` leaves the normal user out",
    ))
}

/// Whether no process and no temporary file of the user is left; says what is, and ends it.
fn left_nothing(account: &Account) -> Result<bool> {
    let until = Instant::now() + GRACE;
    let mut processes = account.processes()?;
    while !processes.is_empty() && Instant::now() < until {
        thread::sleep(Duration::from_millis(50));
        processes = account.processes()?;
    }
    for process in &processes {
        eprintln!("error: a test left process {} behind: {}", process.id, process.command);
    }
    let temporary = Account::temporary();
    let entries = fs::read_dir(&temporary).map_err(|source| workspace::cannot_read(&temporary, source))?;
    let mut files = 0;
    for entry in entries.flatten() {
        eprintln!("error: a test left {} behind", entry.path().display());
        files += 1;
    }
    Ok(processes.is_empty() && files == 0)
}
