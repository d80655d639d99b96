//! Locks between processes, as `flock` on small files. A lock goes with its process, however that ends.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold_model::{Error, ErrorKind, Result};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, open, stat};
use rustix::io::Errno;

/// How often a held lock is tried again. A waiter must notice that its caller has gone, which a
/// blocking `flock` would not.
pub(super) const POLL: Duration = Duration::from_millis(5);

/// Who else may hold the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LockMode {
    Shared,
    Exclusive,
}

/// A held lock; dropping it lets go.
#[derive(Debug)]
pub(super) struct FileLock {
    file: OwnedFd,
    path: PathBuf,
}

impl FileLock {
    /// Takes the lock if it is free at this moment.
    pub(super) fn try_take(path: &Path, mode: LockMode) -> Result<Option<Self>> {
        loop {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let file = open(path, flags, Mode::RUSR | Mode::WUSR).map_err(|error| failed(path, error))?;
            match flock(&file, mode.operation()) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(failed(path, error)),
            }
            // Who held it before may have removed the file; then this lock guards nothing.
            let held = fstat(&file).map_err(|error| failed(path, error))?;
            match stat(path) {
                Ok(named) if (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino) => {
                    return Ok(Some(Self { file, path: path.to_owned() }));
                }
                Ok(_) | Err(Errno::NOENT) => {}
                Err(error) => return Err(failed(path, error)),
            }
        }
    }

    /// Waits for the lock. `check` is asked at every turn whether waiting still makes sense.
    pub(super) fn take(path: &Path, mode: LockMode, check: &dyn Fn() -> Result<()>) -> Result<Self> {
        loop {
            if let Some(lock) = Self::try_take(path, mode)? {
                return Ok(lock);
            }
            check()?;
            std::thread::sleep(POLL);
        }
    }

    /// Lets others in beside us. Between the two states somebody else may have held the lock.
    pub(super) fn share(&self) -> Result<bool> {
        match flock(&self.file, LockMode::Shared.operation()) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(error) => Err(failed(&self.path, error)),
        }
    }

    /// Removes the lock's file while holding it exclusively, and lets go.
    pub(super) fn remove(self) -> Result<()> {
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::io("image.store", format!("cannot remove {}", self.path.display()), error))
            }
            _ => Ok(()),
        }
    }
}

impl LockMode {
    fn operation(self) -> FlockOperation {
        match self {
            Self::Shared => FlockOperation::NonBlockingLockShared,
            Self::Exclusive => FlockOperation::NonBlockingLockExclusive,
        }
    }
}

fn failed(path: &Path, error: Errno) -> Error {
    let error = Error::io("image.store", format!("cannot lock {}", path.display()), error.into());
    match error.kind() {
        ErrorKind::PermissionDenied => error.with_hint("the image store belongs to one user; choose another"),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exclusive_excludes_and_shared_shares() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("lock");
        let one = FileLock::try_take(&path, LockMode::Shared).unwrap().unwrap();
        let two = FileLock::try_take(&path, LockMode::Shared).unwrap();
        assert!(two.is_some());
        assert!(FileLock::try_take(&path, LockMode::Exclusive).unwrap().is_none());
        drop((one, two));
        let alone = FileLock::try_take(&path, LockMode::Exclusive).unwrap().unwrap();
        assert!(FileLock::try_take(&path, LockMode::Shared).unwrap().is_none());
        assert!(alone.share().unwrap());
        assert!(FileLock::try_take(&path, LockMode::Shared).unwrap().is_some());
    }

    #[test]
    fn a_removed_lock_file_guards_nothing() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("lock");
        let held = FileLock::try_take(&path, LockMode::Exclusive).unwrap().unwrap();
        held.remove().unwrap();
        let again = FileLock::try_take(&path, LockMode::Exclusive).unwrap();
        assert!(again.is_some() && path.exists());
    }
}
