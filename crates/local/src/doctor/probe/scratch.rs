//! The directory in which trials mount and write.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Removed, with all that trials left in it, when dropped.
#[derive(Debug)]
pub(super) struct Scratch(PathBuf);

impl Scratch {
    /// Makes one on the file system of `directory`.
    pub(super) fn below(directory: &Path) -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = directory.join(format!(".leasehold-doctor-{}-{number}", std::process::id()));
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
}
