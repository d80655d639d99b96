//! Directories for work in progress. What a killed process leaves of them is recognised by its free lock.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use leasehold_model::{Error, Result};

use super::lock::{FileLock, LockMode};
use super::store::LayerUnpacker;

const LOCK_SUFFIX: &str = ".lock";

/// A new, empty directory that goes with its owner.
pub(super) struct TemporaryDirectory<'run> {
    path: PathBuf,
    lock: Option<FileLock>,
    unpacker: &'run dyn LayerUnpacker,
}

impl<'run> TemporaryDirectory<'run> {
    pub(super) fn create(place: &Path, unpacker: &'run dyn LayerUnpacker) -> Result<Self> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        loop {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos());
            let number = COUNTER.fetch_add(1, Ordering::Relaxed);
            let name = format!("{}-{now}-{number}", std::process::id());
            // The lock comes first: a directory without one would look abandoned.
            let Some(lock) = FileLock::try_take(&lock_path(place, &name), LockMode::Exclusive)? else {
                continue;
            };
            let path = place.join(name);
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Self { path, lock: Some(lock), unpacker }),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    let message = format!("cannot make the directory {}", path.display());
                    return Err(Error::io("image.store", message, error));
                }
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TemporaryDirectory<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.unpacker.remove(&self.path) {
            // It stays for the next opening of the store, which tries again.
            tracing::warn!(%error, path = %self.path.display(), "a temporary directory was left behind");
            return;
        }
        if let Some(lock) = self.lock.take()
            && let Err(error) = lock.remove()
        {
            tracing::warn!(%error, "a temporary lock was left behind");
        }
    }
}

/// Removes what killed processes left; gives how many directories that were.
pub(super) fn sweep(place: &Path, unpacker: &dyn LayerUnpacker) -> Result<u64> {
    let failed =
        |error| Error::io("image.store", format!("cannot read the directory {}", place.display()), error);
    let mut removed = 0;
    for entry in fs::read_dir(place).map_err(failed)? {
        let file_name = entry.map_err(failed)?.file_name();
        let name = file_name.to_string_lossy();
        let name = name.strip_suffix(LOCK_SUFFIX).unwrap_or(&name);
        let Some(lock) = FileLock::try_take(&lock_path(place, name), LockMode::Exclusive)? else { continue };
        let path = place.join(name);
        if path.symlink_metadata().is_ok() {
            if let Err(error) = unpacker.remove(&path) {
                // Made with another owner map, perhaps; no reason not to open the store.
                tracing::warn!(%error, path = %path.display(), "a temporary directory cannot be removed");
                continue;
            }
            removed += 1;
        }
        lock.remove()?;
    }
    Ok(removed)
}

fn lock_path(place: &Path, name: &str) -> PathBuf {
    place.join(format!("{name}{LOCK_SUFFIX}"))
}
