//! The `leasehold` program as a user meets it: directories of its own, arguments, streams, an exit status.
#![allow(dead_code, unused_imports, reason = "each test program uses a part of this")]
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

mod invocation;
mod remains;
mod terminal;

use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

pub(crate) use invocation::{Invocation, Outcome, Running};
pub(crate) use remains::{Remains, processes};
pub(crate) use terminal::Terminal;

/// Far beyond what anything here takes on a slow machine: only a hang reaches it.
pub(crate) const HANG: Duration = Duration::from_secs(180);

/// Directories for one test: a workspace, a home, a place for exposed files, and Leasehold's own data.
#[derive(Debug)]
pub(crate) struct FrontDoor {
    directory: TempDir,
}

impl FrontDoor {
    /// New directories, on disk: a sandbox's layers need a file system that takes an overlay.
    pub(crate) fn new() -> Self {
        let place = std::env::var_os("TMPDIR").map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from);
        let directory = tempfile::Builder::new().prefix("leasehold-cli-").tempdir_in(place).unwrap();
        let door = Self { directory };
        for part in ["workspace", "home", "data", "shared", "tmp"] {
            std::fs::create_dir(door.directory.path().join(part)).unwrap();
        }
        door
    }

    /// The directory that holds all others.
    pub(crate) fn root(&self) -> &Path {
        self.directory.path()
    }

    /// Where commands are run.
    pub(crate) fn workspace(&self) -> PathBuf {
        self.root().join("workspace")
    }

    /// The home of the user.
    pub(crate) fn home(&self) -> PathBuf {
        self.root().join("home")
    }

    /// Leasehold's data directory.
    pub(crate) fn data(&self) -> PathBuf {
        self.root().join("data")
    }

    /// A directory to expose.
    pub(crate) fn shared(&self) -> PathBuf {
        self.root().join("shared")
    }

    /// The argument that exposes [`Self::shared`] for writing.
    pub(crate) fn shared_for_writing(&self) -> String {
        format!("{}:rw", self.shared().display())
    }

    /// Writes a file into the workspace.
    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.workspace().join(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    /// `leasehold` with these arguments, in the workspace, with a plain environment.
    pub(crate) fn leasehold<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Invocation {
        Invocation::new(self, arguments)
    }

    /// `leasehold run FLAGS -- sh -c SCRIPT`.
    pub(crate) fn script(&self, flags: &[&str], script: &str) -> Invocation {
        self.leasehold(["run"].iter().chain(flags).chain(&["--", "sh", "-c", script]))
    }

    /// A file name that nobody used yet in [`Self::shared`], for a signal between test and command.
    pub(crate) fn mark(&self, name: &str) -> PathBuf {
        self.shared().join(name)
    }

    /// Everything about the workspace that a command could change.
    pub(crate) fn fingerprint(&self) -> Vec<String> {
        fingerprint(&self.workspace())
    }
}

impl Drop for FrontDoor {
    fn drop(&mut self) {
        // An overlay's work directory is closed even to its owner, who could then not remove it.
        let _ = std::process::Command::new("chmod").args(["-R", "u+rwX"]).arg(self.root()).output();
    }
}

/// Names, kinds, owners, modes, times and contents of a tree.
pub(crate) fn fingerprint(directory: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let mut waiting = vec![directory.to_path_buf()];
    while let Some(path) = waiting.pop() {
        let metadata = std::fs::symlink_metadata(&path).unwrap();
        let content = if metadata.is_symlink() {
            std::fs::read_link(&path).unwrap().display().to_string()
        } else if metadata.is_file() {
            format!("{:?}", std::fs::read(&path).unwrap())
        } else {
            waiting.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            String::new()
        };
        lines.push(format!(
            "{} mode {:o} owner {}:{} links {} modified {}.{} changed {}.{} {content}",
            path.display(),
            metadata.mode(),
            metadata.uid(),
            metadata.gid(),
            metadata.nlink(),
            metadata.mtime(),
            metadata.mtime_nsec(),
            metadata.ctime(),
            metadata.ctime_nsec(),
        ));
    }
    lines.sort();
    lines
}

/// Waits until a condition holds. Panics when it never does.
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let until = std::time::Instant::now() + HANG;
    while !holds() {
        assert!(std::time::Instant::now() < until, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Bytes that look random and are the same every time.
pub(crate) fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Compares long outputs without printing them whole.
#[track_caller]
pub(crate) fn assert_same_bytes(actual: &[u8], expected: &[u8]) {
    let difference = actual.iter().zip(expected).position(|(actual, expected)| actual != expected);
    assert!(
        difference.is_none() && actual.len() == expected.len(),
        "{} bytes instead of {}, first different at {difference:?}",
        actual.len(),
        expected.len()
    );
}

/// Whether the tests run with root's rights.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
