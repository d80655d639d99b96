//! The way down into a tree, of which only the last levels are held open, so that no depth runs out of
//! descriptors.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, openat, statx};

/// Directories held open at once.
const OPEN_LEVELS: usize = 64;

/// What tells one directory from all others: its device and its number there.
type Identity = (u32, u32, u64);

/// A directory, and those above it up to a root.
#[derive(Debug)]
pub(crate) struct Descent {
    current: OwnedFd,
    above: Vec<Above>,
}

#[derive(Debug)]
struct Above {
    /// `None` when it was closed because too many are open.
    directory: Option<OwnedFd>,
    identity: Identity,
}

fn identity(directory: impl AsFd) -> io::Result<Identity> {
    let status = statx(directory, c"", AtFlags::EMPTY_PATH, StatxFlags::INO)?;
    Ok((status.stx_dev_major, status.stx_dev_minor, status.stx_ino))
}

impl Descent {
    /// Begins at the root of a tree.
    pub(crate) fn new(root: OwnedFd) -> Self {
        Self { current: root, above: Vec::new() }
    }

    /// The directory that was entered last.
    pub(crate) fn current(&self) -> BorrowedFd<'_> {
        self.current.as_fd()
    }

    /// Whether this is the root.
    pub(crate) fn is_at_root(&self) -> bool {
        self.above.is_empty()
    }

    /// Goes into a directory that lies in the current one.
    pub(crate) fn enter(&mut self, directory: OwnedFd) -> io::Result<()> {
        let identity = identity(&self.current)?;
        let directory = Some(std::mem::replace(&mut self.current, directory));
        self.above.push(Above { directory, identity });
        if let Some(index) = self.above.len().checked_sub(OPEN_LEVELS + 1) {
            self.above[index].directory = None;
        }
        Ok(())
    }

    /// Goes back up, and gives the directory that was left. The current directory must be one that its
    /// owner may search.
    pub(crate) fn leave(&mut self) -> io::Result<OwnedFd> {
        let above = self.above.pop().ok_or(io::ErrorKind::InvalidInput)?;
        let directory = if let Some(directory) = above.directory {
            directory
        } else {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let directory = openat(&self.current, c"..", flags, Mode::empty())?;
            // Somebody who moves directories around must not lead the way out of the tree.
            if identity(&directory)? != above.identity {
                return Err(io::Error::other("a directory was moved meanwhile"));
            }
            directory
        };
        Ok(std::mem::replace(&mut self.current, directory))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, mkdirat};

    const FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

    #[test]
    fn the_way_back_is_the_way_down_whatever_the_depth() {
        let place = tempfile::tempdir().unwrap();
        let mut descent = Descent::new(openat(CWD, place.path(), FLAGS, Mode::empty()).unwrap());
        let mut passed = Vec::new();
        for _ in 0..300 {
            passed.push(identity(descent.current()).unwrap());
            mkdirat(descent.current(), "deep", Mode::RWXU).unwrap();
            descent.enter(openat(descent.current(), "deep", FLAGS, Mode::empty()).unwrap()).unwrap();
        }
        assert_eq!(descent.above.iter().filter(|above| above.directory.is_some()).count(), OPEN_LEVELS);
        for expected in passed.into_iter().rev() {
            descent.leave().unwrap();
            assert_eq!(identity(descent.current()).unwrap(), expected);
        }
        assert!(descent.is_at_root() && descent.leave().is_err());
    }

    #[test]
    fn a_moved_directory_does_not_lead_out() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("root");
        std::fs::create_dir(&root).unwrap();
        let mut descent = Descent::new(openat(CWD, &root, FLAGS, Mode::empty()).unwrap());
        for _ in 0..=OPEN_LEVELS {
            mkdirat(descent.current(), "deep", Mode::RWXU).unwrap();
            descent.enter(openat(descent.current(), "deep", FLAGS, Mode::empty()).unwrap()).unwrap();
        }
        std::fs::rename(root.join("deep"), place.path().join("elsewhere")).unwrap();
        for _ in 0..OPEN_LEVELS {
            descent.leave().unwrap();
        }
        assert!(descent.leave().is_err());
    }
}
