//! The directory in which trials mount and write.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// What the names of everything begin with that a trial makes in a file system.
pub(super) const PREFIX: &str = "leasehold-doctor-";

/// What is older than this was left by a killed doctor: an examination takes seconds at the worst.
const STALE: Duration = Duration::from_secs(600);

/// A name that no other trial of this process has.
pub(super) fn fresh_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{PREFIX}{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The entries of a directory that killed doctors left.
pub(super) fn stale_entries(directory: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    entries
        .flatten()
        .filter(|entry| entry.file_name().as_bytes().starts_with(prefix.as_bytes()))
        .filter(|entry| {
            let changed = entry.metadata().and_then(|metadata| metadata.modified());
            changed.is_ok_and(|changed| changed.elapsed().is_ok_and(|age| age > STALE))
        })
        .map(|entry| entry.path())
        .collect()
}

/// Removed, with all that trials left in it, when dropped.
#[derive(Debug)]
pub(super) struct Scratch(PathBuf);

impl Scratch {
    /// Makes one on the file system of `directory`, and removes what killed doctors left there.
    pub(super) fn below(directory: &Path) -> io::Result<Self> {
        for stale in stale_entries(directory, &format!(".{PREFIX}")) {
            // Somebody else's is not ours to remove.
            let _ = remove(&stale);
        }
        let path = directory.join(format!(".{}", fresh_name()));
        match make_directory(&path) {
            // Left by a killed doctor that had our process id.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                remove(&path)?;
                make_directory(&path)?;
            }
            other => other?,
        }
        Ok(Self(path))
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Makes a directory in it.
    pub(super) fn directory(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.0.join(name);
        make_directory(&path)?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.0) {
            tracing::warn!(path = %self.0.display(), %error, "cannot remove the doctor's scratch directory");
        }
    }
}

fn make_directory(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().mode(0o700).create(path)
}

/// As `remove_dir_all`, but also through directories without permissions, as overlayfs makes them.
fn remove(path: &Path) -> io::Result<()> {
    if !fs::symlink_metadata(path)?.is_dir() {
        return fs::remove_file(path);
    }
    if fs::remove_dir(path).is_ok() {
        return Ok(());
    }
    fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(path)? {
        remove(&entry?.path())?;
    }
    fs::remove_dir(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_with_everything_in_it() {
        let outer = tempfile::tempdir().unwrap();
        let scratch = Scratch::below(outer.path()).unwrap();
        let locked = scratch.directory("locked").unwrap();
        fs::write(locked.join("file"), "x").unwrap();
        fs::set_permissions(&locked, fs::Permissions::from_mode(0o000)).unwrap();
        drop(scratch);
        assert_eq!(fs::read_dir(outer.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_a_killed_doctor_left_is_removed_and_what_is_fresh_is_not() {
        let outer = tempfile::tempdir().unwrap();
        let [old, fresh, other] =
            [".leasehold-doctor-1-0", ".leasehold-doctor-1-1", "mine"].map(|name| outer.path().join(name));
        for directory in [&old, &fresh, &other] {
            fs::create_dir(directory).unwrap();
        }
        fs::write(old.join("file"), "x").unwrap();
        let long_ago = std::time::SystemTime::now() - 2 * STALE;
        for directory in [&old, &other] {
            fs::File::open(directory).unwrap().set_modified(long_ago).unwrap();
        }
        drop(Scratch::below(outer.path()).unwrap());
        assert!(!old.exists() && fresh.exists() && other.exists());
    }
}
