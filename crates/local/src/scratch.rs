//! Directories that are worth nothing once the process that made them is gone.

use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use leasehold_model::{Error, Result};
use rustix::fs::FlockOperation;

use crate::launch::file_work::remove_tree;
use crate::store::Store;

const PREFIX: &str = ".scratch-";

/// A directory of this process, locked as long as this lives and removed then, unless it was renamed.
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
    /// What helps to remove files of other owners.
    program: Option<PathBuf>,
    _lock: File,
}

fn cannot(what: &str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let message = format!("cannot {what} {}", path.display());
    move |error| Error::io("scratch", message, error)
}

impl Scratch {
    /// Makes one in a directory of the store.
    pub(crate) fn make(store: &Store, parent: &Path) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("{PREFIX}{}-{number}", std::process::id()));
        // A sweep that runs at this moment must not take the new directory for remains.
        let guard = store.lock_sandboxes(FlockOperation::LockShared)?;
        // A process of the same number may have left one.
        remove_tree(store.program(), &path)?;
        fs::DirBuilder::new().mode(0o700).create(&path).map_err(cannot("make the directory", &path))?;
        let lock = File::open(&path).map_err(cannot("open", &path))?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(io::Error::from)
            .map_err(cannot("lock", &path))?;
        drop(guard);
        Ok(Self { path, program: store.program().map(Path::to_path_buf), _lock: lock })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes what dead processes left in a directory of the store.
    pub(crate) fn sweep(store: &Store, parent: &Path) -> Result<()> {
        for entry in fs::read_dir(parent).map_err(cannot("list", parent))?.flatten() {
            if !entry.file_name().as_bytes().starts_with(PREFIX.as_bytes()) {
                continue;
            }
            let path = entry.path();
            let guard = store.lock_sandboxes(FlockOperation::LockExclusive)?;
            let Ok(lock) = File::open(&path) else { continue };
            let is_left = rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok();
            drop(guard);
            if is_left {
                remove_tree(store.program(), &path)?;
            }
        }
        Ok(())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = remove_tree(self.program.as_deref(), &self.path) {
            tracing::warn!(%error, "the next sweep removes what is left of a scratch directory");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_takes_only_what_nobody_holds() {
        let place = tempfile::tempdir().unwrap();
        let store = Store::open(place.path(), None).unwrap();
        let parent = store.template("");
        let held = Scratch::make(&store, &parent).unwrap();
        fs::create_dir(parent.join(".scratch-left")).unwrap();
        Scratch::sweep(&store, &parent).unwrap();
        assert!(held.path().is_dir() && !parent.join(".scratch-left").exists());
        let path = held.path().to_owned();
        drop(held);
        assert!(!path.exists());
    }
}
