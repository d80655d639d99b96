//! A directory tree that is only ever looked at from its root downwards, by the kernel's own rules.

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;

use leasehold_model::{Error, Result};
use rustix::fs::{AtFlags, Dir, Mode, OFlags, ResolveFlags, Statx, StatxAttributes, StatxFlags};
use rustix::io::Errno;

use super::attributes::{DescriptorPath, set_mode};
use super::baseline::Timestamp;
use super::change::FileType;
use super::relative_path::RelativePath;

type Io<T> = rustix::io::Result<T>;

/// Resolution never leaves the root, follows no symbolic link and enters no other mount, whatever
/// somebody renames at the same time.
const CONFINED: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// The bits that an owner needs on a directory to read and change what is in it.
const OWNER_ALL: u32 = 0o700;
/// The bits that an owner needs to see what is in it.
const OWNER_LISTS: u32 = 0o500;
/// The bit that an owner needs to reach what is in it.
const OWNER_ENTERS: u32 = 0o100;

/// What the kernel says of one entry.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) file_type: FileType,
    /// Permission bits, set-id and sticky bits included.
    pub(super) mode: u32,
    pub(super) size: u64,
    pub(super) mtime: Timestamp,
    pub(super) ctime: Timestamp,
    pub(super) user: u32,
    pub(super) group: u32,
    pub(super) inode: u64,
    pub(super) links: u32,
    /// Major and minor number of a device.
    pub(super) device: (u32, u32),
    /// Whether another file system is mounted on it.
    pub(super) mount_root: bool,
}

impl Entry {
    pub(super) fn is_directory(&self) -> bool {
        self.file_type == FileType::Directory
    }

    /// The overlay's mark for "not there any more": a character device 0/0.
    pub(super) fn is_whiteout(&self) -> bool {
        self.file_type == FileType::CharacterDevice && self.device == (0, 0)
    }
}

impl From<Statx> for Entry {
    fn from(status: Statx) -> Self {
        let raw = rustix::fs::FileType::from_raw_mode(u32::from(status.stx_mode));
        let file_type = match raw {
            rustix::fs::FileType::Directory => FileType::Directory,
            rustix::fs::FileType::Symlink => FileType::Symlink,
            rustix::fs::FileType::Fifo => FileType::Fifo,
            rustix::fs::FileType::Socket => FileType::Socket,
            rustix::fs::FileType::CharacterDevice => FileType::CharacterDevice,
            rustix::fs::FileType::BlockDevice => FileType::BlockDevice,
            _ => FileType::Regular,
        };
        Self {
            file_type,
            mode: u32::from(status.stx_mode) & 0o7777,
            size: status.stx_size,
            mtime: status.stx_mtime.into(),
            ctime: status.stx_ctime.into(),
            user: status.stx_uid,
            group: status.stx_gid,
            inode: status.stx_ino,
            links: status.stx_nlink,
            device: (status.stx_rdev_major, status.stx_rdev_minor),
            mount_root: status.stx_attributes.contains(StatxAttributes::MOUNT_ROOT),
        }
    }
}

/// What is known of an open descriptor.
pub(super) fn stat_descriptor(descriptor: impl AsFd) -> Io<Entry> {
    rustix::fs::statx(descriptor, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS).map(Entry::from)
}

/// What is known of a name in an open directory; `None` when there is no such name.
pub(super) fn stat_name(directory: impl AsFd, name: &OsStr) -> Io<Option<Entry>> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    match rustix::fs::statx(directory, name, flags, StatxFlags::BASIC_STATS) {
        Ok(status) => Ok(Some(status.into())),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The names in an open directory, sorted by their bytes.
pub(super) fn names_in(directory: impl AsFd) -> Io<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(OsString::from_vec(name));
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// What to do with a file that its own owner may not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Restricted {
    /// It is an error.
    Respect,
    /// It is made readable for as long as it is open.
    OpenUp,
}

/// A tree by its open root. A directory that is closed to its own owner, who uses this tree, is opened
/// up; dropping the tree puts the old mode back.
#[derive(Debug)]
pub(super) struct Tree {
    root: OwnedFd,
    /// What to do with closed files.
    files: Restricted,
    /// Directories that were opened up, with the modes to put back, outermost first.
    opened_up: RefCell<Vec<(RelativePath, u32)>>,
}

impl Tree {
    /// Opens a tree of ours, in which nothing is closed to us.
    pub(super) fn open_upper(root: &Path, operation: &'static str) -> Result<Self> {
        Self::open(root, Restricted::OpenUp, operation)
    }

    /// Opens a tree of the host's. A closed file stays closed: opening it up would look like a change
    /// by the host later on.
    pub(super) fn open_base(root: &Path, operation: &'static str) -> Result<Self> {
        Self::open(root, Restricted::Respect, operation)
    }

    /// Symbolic links in the path of the root itself are the caller's wish.
    fn open(root: &Path, files: Restricted, operation: &'static str) -> Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(root, flags, Mode::empty()).map_err(|error| {
            Error::io(operation, format!("cannot open the directory {}", root.display()), error.into())
        })?;
        Ok(Self { root, files, opened_up: RefCell::new(Vec::new()) })
    }

    fn open_confined(&self, path: &Path, flags: OFlags) -> Io<OwnedFd> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        loop {
            let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            match rustix::fs::openat2(&self.root, path, flags, Mode::empty(), CONFINED) {
                // A rename elsewhere made the kernel unsure; it asks to try again.
                Err(Errno::AGAIN | Errno::INTR) => {}
                result => return result,
            }
        }
    }

    fn open_directory_for(&self, path: &RelativePath, flags: OFlags, needed: u32) -> Io<OwnedFd> {
        let flags = flags | OFlags::DIRECTORY;
        let directory = match self.open_confined(path, flags) {
            Err(Errno::ACCESS) => {
                self.open_up_along(path, needed)?;
                self.open_confined(path, flags)?
            }
            result => result?,
        };
        self.open_up(path, directory.as_fd(), needed)?;
        Ok(directory)
    }

    /// A directory to list.
    pub(super) fn open_to_list(&self, path: &RelativePath) -> Io<OwnedFd> {
        self.open_directory_for(path, OFlags::RDONLY, OWNER_LISTS)
    }

    /// A directory to reach what is in it.
    pub(super) fn open_directory(&self, path: &RelativePath) -> Io<OwnedFd> {
        self.open_directory_for(path, OFlags::PATH, OWNER_ENTERS)
    }

    /// A directory to change what is in it.
    pub(super) fn open_to_change(&self, path: &RelativePath) -> Io<OwnedFd> {
        self.open_directory_for(path, OFlags::PATH, OWNER_ALL)
    }

    /// What is at a path. `None` also when a directory on the way is missing.
    pub(super) fn stat(&self, path: &RelativePath) -> Io<Option<Entry>> {
        if path.is_root() {
            return stat_descriptor(&self.root).map(Some);
        }
        let (parent, name) = path.split();
        let directory = match self.open_directory(&parent) {
            Err(Errno::NOENT) => return Ok(None),
            result => result?,
        };
        stat_name(&directory, name)
    }

    /// Opens a regular file to read, whatever its mode says to its owner in a tree that may be opened up.
    pub(super) fn open_file(&self, path: &RelativePath) -> Io<ReadableFile> {
        let (parent, name) = path.split();
        let directory = self.open_directory(&parent)?;
        ReadableFile::open_in(directory.as_fd(), name, self.files)
    }

    /// Forgets that a directory has to get its old mode back, because it has its final one.
    pub(super) fn keep_mode(&self, path: &RelativePath) {
        self.opened_up.borrow_mut().retain(|(opened, _)| opened != path);
    }

    /// Whether this tree itself changed the mode of a directory, and so its change time.
    pub(super) fn has_opened_up(&self, path: &RelativePath) -> bool {
        self.opened_up.borrow().iter().any(|(opened, _)| opened == path)
    }

    fn open_up_along(&self, path: &RelativePath, needed: u32) -> Io<()> {
        let mut prefix = RelativePath::root();
        self.open_up(&prefix, self.root.as_fd(), OWNER_ENTERS)?;
        for name in path.iter() {
            prefix = prefix.child(name).ok_or(Errno::NAMETOOLONG)?;
            let directory = self.open_confined(&prefix, OFlags::PATH | OFlags::DIRECTORY)?;
            let wanted = if prefix == *path { needed } else { OWNER_ENTERS };
            self.open_up(&prefix, directory.as_fd(), wanted)?;
        }
        Ok(())
    }

    fn open_up(&self, path: &RelativePath, directory: BorrowedFd<'_>, needed: u32) -> Io<()> {
        let user = rustix::process::geteuid();
        if user.is_root() {
            return Ok(());
        }
        let entry = stat_descriptor(directory)?;
        if entry.user == user.as_raw() && entry.mode & needed != needed {
            set_mode(directory, entry.mode | needed)?;
            // A second opening up keeps the first, true mode.
            if !self.has_opened_up(path) {
                self.opened_up.borrow_mut().push((path.clone(), entry.mode));
            }
        }
        Ok(())
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        // Innermost first: the way down goes through the outer ones.
        for (path, mode) in self.opened_up.take().into_iter().rev() {
            if let Ok(directory) = self.open_confined(&path, OFlags::PATH | OFlags::DIRECTORY) {
                let _ = set_mode(directory.as_fd(), mode);
            }
        }
    }
}

/// An open regular file. When its mode had to be widened to open it, dropping puts the mode back.
#[derive(Debug)]
pub(super) struct ReadableFile {
    descriptor: OwnedFd,
    mode_to_restore: Option<u32>,
}

impl ReadableFile {
    /// Opens a name in a directory without following a link and without waiting on a pipe.
    pub(super) fn open_in(directory: BorrowedFd<'_>, name: &OsStr, restricted: Restricted) -> Io<Self> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(directory, name, flags, Mode::empty()) {
            Ok(descriptor) => Self { descriptor, mode_to_restore: None },
            Err(Errno::ACCESS) if restricted == Restricted::OpenUp => Self::open_widened(directory, name)?,
            Err(error) => return Err(error),
        };
        match stat_descriptor(&file.descriptor)?.file_type {
            FileType::Regular => Ok(file),
            _ => Err(Errno::STALE),
        }
    }

    fn open_widened(directory: BorrowedFd<'_>, name: &OsStr) -> Io<Self> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let place = rustix::fs::openat(directory, name, flags, Mode::empty())?;
        let entry = stat_descriptor(&place)?;
        if entry.file_type != FileType::Regular || entry.user != rustix::process::geteuid().as_raw() {
            return Err(Errno::ACCESS);
        }
        set_mode(place.as_fd(), entry.mode | 0o400)?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        match rustix::fs::open(DescriptorPath::of(place.as_fd()).as_path(), flags, Mode::empty()) {
            Ok(descriptor) => Ok(Self { descriptor, mode_to_restore: Some(entry.mode) }),
            Err(error) => {
                set_mode(place.as_fd(), entry.mode)?;
                Err(error)
            }
        }
    }
}

impl AsFd for ReadableFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Drop for ReadableFile {
    fn drop(&mut self) {
        if let Some(mode) = self.mode_to_restore {
            let _ = set_mode(self.descriptor.as_fd(), mode);
        }
    }
}
