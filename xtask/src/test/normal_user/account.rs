//! The account itself: made, looked at, removed.

use std::fs;
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use leasehold_model::{Error, ErrorKind, Result};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::process::{Pid, Signal};

use crate::subprocess;
use crate::workspace::cannot_read;

/// The user's name.
pub(super) const NAME: &str = "leasehold-test";

/// Its comment field, by which we know that an account of this name is ours to remove.
const COMMENT: &str = "Leasehold tests; made and removed by cargo xtask test";
/// Everything of the user's is in here. Not in `/tmp`, which may be small and in memory.
const HOME: &str = "/var/tmp/leasehold-test";
/// Held while the account exists, so that two runs on one machine take turns.
const LOCK: &str = "/run/lock/leasehold-test.lock";
/// How many subordinate ids a login gets.
const RANGE_LENGTH: u32 = 65_536;
/// Far from what Debian hands to logins and from what container runtimes and our own sandboxes take
/// as root, so that a process with such an id is certainly ours to end.
const FIRST_RANGE: u32 = 0x7FF0_0000;

/// The user while it exists.
#[derive(Debug)]
pub(super) struct Account {
    /// Its user id.
    pub(super) user: u32,
    /// Its group id.
    pub(super) group: u32,
    subordinate: RangeInclusive<u32>,
    /// Released when the account is dropped.
    _lock: OwnedFd,
}

/// A process of the user's or of one of its subordinate ids.
#[derive(Debug)]
pub(super) struct Process {
    /// Its id.
    pub(super) id: i32,
    /// Its name.
    pub(super) command: String,
}

impl Account {
    /// Makes the user, after removing what a killed run left.
    pub(super) fn create() -> Result<Self> {
        let lock = lock()?;
        let users = read("/etc/passwd")?;
        if let Some(line) = line_of(&users, NAME) {
            if !line.contains(COMMENT) {
                return Err(Error::new(
                    ErrorKind::AlreadyExists,
                    "xtask.test",
                    format!("there is a user {NAME} that is not ours"),
                )
                .with_hint("rename that user; the tests need the name for one of their own"));
            }
            end_processes(&[ids(line)?.0..=ids(line)?.0])?;
            delete()?;
        }
        remove_home()?;
        subprocess::run(
            Command::new("useradd")
                .args(["--system", "--user-group", "--no-create-home", "--shell=/bin/sh"])
                .args(["--home-dir", HOME, "--comment", COMMENT, NAME]),
        )?;
        Self::furnish(lock).inspect_err(|_| {
            // The reason for giving up is the one to report.
            let _ = delete();
            let _ = remove_home();
        })
    }

    /// Gives the new user its subordinate ids and its home.
    fn furnish(lock: OwnedFd) -> Result<Self> {
        let users = read("/etc/passwd")?;
        let line = line_of(&users, NAME).ok_or_else(|| {
            Error::new(ErrorKind::NotFound, "xtask.test", format!("useradd made no line for {NAME}"))
        })?;
        let (user, group) = ids(line)?;
        let taken = [read("/etc/subuid")?, read("/etc/subgid")?].concat();
        let first = first_free(&taken);
        let subordinate = first..=first + RANGE_LENGTH - 1;
        let range = format!("{first}-{}", subordinate.end());
        subprocess::run(Command::new("usermod").args([
            "--add-subuids",
            &range,
            "--add-subgids",
            &range,
            NAME,
        ]))?;
        let account = Self { user, group, subordinate, _lock: lock };
        for directory in [Self::home(), &Self::temporary()] {
            make_directory(directory)?;
            std::os::unix::fs::chown(directory, Some(user), Some(group))
                .map_err(|source| cannot_write(directory, source))?;
        }
        make_directory(&Self::staging())?;
        Ok(account)
    }

    /// Its home directory.
    pub(super) fn home() -> &'static Path {
        Path::new(HOME)
    }

    /// Where its temporary files go.
    pub(super) fn temporary() -> PathBuf {
        Self::home().join("tmp")
    }

    /// An empty directory of root's for mounts.
    pub(super) fn staging() -> PathBuf {
        Self::home().join("staging")
    }

    /// Its live processes.
    pub(super) fn processes(&self) -> Result<Vec<Process>> {
        processes(&[self.user..=self.user, self.subordinate.clone()])
    }

    /// Ends its processes and removes it with its home.
    pub(super) fn remove(self) -> Result<()> {
        end_processes(&[self.user..=self.user, self.subordinate.clone()])?;
        let deleted = delete();
        remove_home()?;
        deleted
    }
}

fn lock() -> Result<OwnedFd> {
    let failed =
        |source: rustix::io::Errno| Error::io("xtask.test", format!("cannot lock {LOCK}"), source.into());
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let lock = rustix::fs::open(LOCK, flags, Mode::from_raw_mode(0o600)).map_err(failed)?;
    if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        println!("test: waiting for another run on this machine to give up the user {NAME}");
        rustix::fs::flock(&lock, FlockOperation::LockExclusive).map_err(failed)?;
    }
    Ok(lock)
}

/// Also takes the user's lines out of `/etc/subuid` and `/etc/subgid`.
fn delete() -> Result<()> {
    subprocess::run(Command::new("userdel").arg(NAME))
}

fn remove_home() -> Result<()> {
    match fs::remove_dir_all(HOME) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(cannot_write(Path::new(HOME), source))
        }
        _ => Ok(()),
    }
}

fn make_directory(path: &Path) -> Result<()> {
    fs::create_dir(path)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o755)))
        .map_err(|source| cannot_write(path, source))
}

fn cannot_write(path: &Path, source: std::io::Error) -> Error {
    Error::io("xtask.test", format!("cannot change {}", path.display()), source)
}

fn read(path: &str) -> Result<String> {
    match fs::read_to_string(path) {
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        result => result.map_err(|source| cannot_read(Path::new(path), source)),
    }
}

fn line_of<'a>(users: &'a str, name: &str) -> Option<&'a str> {
    users.lines().find(|line| line.split(':').next() == Some(name))
}

/// The user and group id of a line of `/etc/passwd`.
fn ids(line: &str) -> Result<(u32, u32)> {
    let mut numbers = line.split(':').skip(2).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(user)), Some(Ok(group))) => Ok((user, group)),
        _ => {
            Err(Error::new(ErrorKind::Corrupt, "xtask.test", format!("cannot read `{line}` of /etc/passwd")))
        }
    }
}

/// The first id after all ranges that are taken, as in `/etc/subuid`: `name:first:count`.
fn first_free(taken: &str) -> u32 {
    let ends = taken.lines().filter_map(|line| {
        let mut numbers = line.split(':').skip(1).map(str::parse::<u32>);
        numbers.next()?.ok()?.checked_add(numbers.next()?.ok()?)
    });
    ends.max().unwrap_or(0).max(FIRST_RANGE)
}

fn processes(owners: &[RangeInclusive<u32>]) -> Result<Vec<Process>> {
    let proc = Path::new("/proc");
    let entries = fs::read_dir(proc).map_err(|source| cannot_read(proc, source))?;
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // A process that ended meanwhile has no status any more.
        let Ok(status) = fs::read_to_string(entry.path().join("status")) else { continue };
        if let Some((owner, command)) = live_process(&status)
            && owners.iter().any(|range| range.contains(&owner))
        {
            found.push(Process { id, command });
        }
    }
    Ok(found)
}

/// The real user id and the name in `/proc/PID/status`, unless the process is dead and only waits
/// for its parent.
fn live_process(status: &str) -> Option<(u32, String)> {
    let field = |name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    };
    if field("State")?.starts_with(['Z', 'X']) {
        return None;
    }
    let owner = field("Uid")?.split_whitespace().next()?.parse().ok()?;
    Some((owner, field("Name")?.to_owned()))
}

/// Kills until nothing is left: a process may be forking while we look.
fn end_processes(owners: &[RangeInclusive<u32>]) -> Result<()> {
    const ROUNDS: usize = 100;
    for _ in 0..ROUNDS {
        let left = processes(owners)?;
        if left.is_empty() {
            return Ok(());
        }
        for process in left {
            if let Some(id) = Pid::from_raw(process.id) {
                // It may have ended by itself.
                let _ = rustix::process::kill_process(id, Signal::KILL);
            }
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    Err(Error::new(ErrorKind::Conflict, "xtask.test", format!("processes of {NAME} cannot be ended")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_start_after_the_last_one_taken() {
        assert_eq!(first_free("odd line\na:100000:65536\n"), FIRST_RANGE);
        let taken = format!("a:{}:9\nb:{FIRST_RANGE}:65536\n", FIRST_RANGE + 65_536);
        assert_eq!(first_free(&taken), FIRST_RANGE + 65_545);
    }

    #[test]
    fn accounts_are_found_by_their_whole_name() {
        let users = "leasehold-test2:x:5:6::/:/bin/sh\nleasehold-test:x:998:997:c:/h:/bin/sh\n";
        let line = line_of(users, NAME).unwrap();
        assert_eq!(ids(line).unwrap(), (998, 997));
        assert_eq!(line_of(users, "leasehold"), None);
        assert!(ids("leasehold-test:x:many").is_err());
    }

    #[test]
    fn dead_processes_are_not_live() {
        let status = |state| format!("Name:\tsleep\nState:\t{state}\nUid:\t998\t998\t998\t998\n");
        assert_eq!(live_process(&status("S (sleeping)")), Some((998, "sleep".to_owned())));
        assert_eq!(live_process(&status("Z (zombie)")), None);
    }

    #[test]
    fn processes_are_found_by_their_owner() {
        let me = rustix::process::getuid().as_raw();
        let id = i32::try_from(std::process::id()).unwrap();
        assert!(processes(&[me..=me]).unwrap().iter().any(|process| process.id == id));
        assert!(!processes(&[me + 1..=me + 1]).unwrap().iter().any(|process| process.id == id));
    }
}
