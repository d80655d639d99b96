//! Building a layer entry by entry, through open directories: no name can lead out of it.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, linkat, makedev, mkdirat, mknodat, openat, renameat};
use rustix::io::Errno;

use super::attributes::{Attributes, Status};
use super::content;
use super::reader::{Content, Node, Shared, Sink};
use crate::descent::Descent;
use crate::removal::{remove_at, remove_tree};
use crate::syscall::descriptor_path;

/// The longest name of one file that Linux file systems take.
const NAME_BYTES: usize = 255;
/// The mode of a directory while it is being filled; its own comes when it is left.
const WORKING_MODE: Mode = Mode::RWXU;

/// A layer that is being built.
#[derive(Debug)]
pub(crate) struct Writer {
    descent: Descent,
    owners: bool,
    /// Where files with several names wait for the next one; made when it is first needed.
    waiting_room: PathBuf,
    waiting: Option<OwnedFd>,
    /// How many names of a waiting file are still missing.
    missing_names: HashMap<u64, u32>,
}

fn malformed(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

/// Refuses what is not the name of one entry.
pub(crate) fn check_name(name: &[u8]) -> io::Result<()> {
    let is_fine = !matches!(name, b"" | b"." | b"..")
        && name.len() <= NAME_BYTES
        && !name.iter().any(|byte| matches!(byte, 0 | b'/'));
    if is_fine { Ok(()) } else { Err(malformed(format!("`{}` is not a name", name.escape_ascii()))) }
}

fn open_directory(parent: impl AsFd, name: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(parent, name, flags, Mode::empty())
}

impl Writer {
    /// Begins at an existing directory. `waiting_room` is a place on the same file system where nothing
    /// is; with `owners`, entries get the owners that their attributes name.
    pub(crate) fn new(root: &Path, waiting_room: PathBuf, owners: bool) -> io::Result<Self> {
        use std::os::unix::ffi::OsStrExt as _;
        let root = open_directory(CWD, root.as_os_str().as_bytes())?;
        let descent = Descent::new(root);
        Ok(Self { descent, owners, waiting_room, waiting: None, missing_names: HashMap::new() })
    }

    /// The directory that is being filled.
    pub(super) fn current(&self) -> BorrowedFd<'_> {
        self.descent.current()
    }

    /// Begins a new directory in the current one.
    pub(crate) fn enter_new(&mut self, name: &[u8]) -> io::Result<()> {
        check_name(name)?;
        mkdirat(self.current(), name, WORKING_MODE)?;
        let directory = open_directory(self.current(), name)?;
        self.descent.enter(directory)
    }

    /// Goes into a directory that is there already.
    pub(super) fn enter_existing(&mut self, name: &[u8]) -> io::Result<()> {
        check_name(name)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let place = openat(self.current(), name, flags, Mode::empty())?;
        rustix::fs::chmodat(CWD, descriptor_path(place.as_fd()), WORKING_MODE, AtFlags::empty())?;
        let directory = open_directory(self.current(), name)?;
        self.descent.enter(directory)
    }

    /// Ends the current directory; the root when nothing else is open.
    pub(crate) fn leave(&mut self, attributes: &Attributes) -> io::Result<()> {
        if self.descent.is_at_root() {
            return attributes.apply(self.current(), self.owners);
        }
        // The way up must be taken before the mode may close it.
        let left = self.descent.leave()?;
        attributes.apply(left.as_fd(), self.owners)
    }

    /// The same, for a directory that may have other extended attributes.
    pub(super) fn leave_exactly(&mut self, attributes: &Attributes) -> io::Result<()> {
        attributes.remove_others(self.current())?;
        self.leave(attributes)
    }

    /// Makes a regular file to be filled.
    pub(crate) fn create(&self, name: &[u8]) -> io::Result<File> {
        check_name(name)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(self.current(), name, flags, Mode::RUSR | Mode::WUSR)?.into())
    }

    /// Ends a file that [`Writer::create`] made.
    pub(crate) fn finish(
        &mut self,
        name: &[u8],
        file: &File,
        attributes: &Attributes,
        shared: Option<Shared>,
    ) -> io::Result<()> {
        attributes.apply(file.as_fd(), self.owners)?;
        self.let_wait(name, shared)
    }

    fn let_wait(&mut self, name: &[u8], shared: Option<Shared>) -> io::Result<()> {
        let Some(Shared { number, names }) = shared.filter(|shared| shared.names > 1) else {
            return Ok(());
        };
        if self.waiting.is_none() {
            rustix::fs::mkdir(&self.waiting_room, WORKING_MODE)?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            self.waiting = Some(openat(CWD, &self.waiting_room, flags, Mode::empty())?);
        }
        let waiting = self.waiting.as_ref().ok_or(io::ErrorKind::NotFound)?;
        linkat(self.current(), name, waiting, number.to_string(), AtFlags::empty())?;
        self.missing_names.insert(number, names - 1);
        Ok(())
    }

    /// Gives a file one more name. The last one takes the waiting one's place, so that a file never has
    /// more names than it had.
    fn add_name(&mut self, name: &[u8], number: u64) -> io::Result<()> {
        check_name(name)?;
        let parent = self.descent.current();
        let (Some(waiting), Some(missing)) = (&self.waiting, self.missing_names.get_mut(&number)) else {
            return Err(malformed("a further name stands before the first one"));
        };
        if *missing > 1 {
            *missing -= 1;
            return Ok(linkat(waiting, number.to_string(), parent, name, AtFlags::empty())?);
        }
        self.missing_names.remove(&number);
        Ok(renameat(waiting, number.to_string(), parent, name)?)
    }

    fn make_node(&mut self, name: &[u8], node: &Node, attributes: &Attributes) -> io::Result<()> {
        check_name(name)?;
        let parent = self.current();
        let mode = Mode::from_raw_mode(attributes.mode);
        let special = |kind| mknodat(parent, name, kind, mode, 0);
        match node {
            Node::Symlink(target) => rustix::fs::symlinkat(target.as_slice(), parent, name)?,
            Node::Pipe => special(FileType::Fifo)?,
            Node::Socket => special(FileType::Socket)?,
            Node::Device { major, minor } => {
                mknodat(parent, name, FileType::CharacterDevice, mode, makedev(*major, *minor))?;
            }
        }
        let is_link = matches!(node, Node::Symlink(_));
        attributes.apply_to_name(parent, name, is_link, self.owners)
    }

    /// Whether a regular file is at a name that does not have a mark. The file is about to be replaced,
    /// so its mode may change.
    pub(super) fn made_here(&self, name: &[u8], mark: &[u8]) -> io::Result<bool> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let place = match openat(self.current(), name, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(false),
            other => other?,
        };
        if Status::of(&place)?.kind != FileType::RegularFile {
            return Ok(false);
        }
        let path = descriptor_path(place.as_fd());
        rustix::fs::chmodat(CWD, &path, Mode::RUSR, AtFlags::empty())?;
        match rustix::fs::getxattr(&path, mark, &mut [0_u8; 256][..]) {
            Ok(_) | Err(Errno::RANGE) => Ok(false),
            Err(Errno::NODATA | Errno::NOTSUP) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes what is at a name, with all it holds.
    pub(super) fn remove(&self, name: &[u8]) -> io::Result<()> {
        match rustix::fs::unlinkat(self.current(), name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::ISDIR) => remove_at(self.current(), name).map_err(io::Error::other),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if self.waiting.is_some() {
            // What waits for a name that lies outside the layer needs none here. A failure leaves files
            // that go with the scratch directory around them.
            let _ = remove_tree(&self.waiting_room);
        }
    }
}

impl Sink for Writer {
    fn enter(&mut self, name: &[u8], _attributes: &Attributes) -> io::Result<()> {
        self.enter_new(name)
    }

    fn leave(&mut self, attributes: &Attributes) -> io::Result<()> {
        Self::leave(self, attributes)
    }

    fn file(
        &mut self,
        name: &[u8],
        content: &Content<'_>,
        attributes: &Attributes,
        shared: Option<Shared>,
    ) -> io::Result<()> {
        let file = self.create(name)?;
        content::copy(content.file, &file, content.size)?;
        self.finish(name, &file, attributes, shared)
    }

    fn node(
        &mut self,
        name: &[u8],
        node: &Node,
        attributes: &Attributes,
        shared: Option<Shared>,
    ) -> io::Result<()> {
        self.make_node(name, node, attributes)?;
        self.let_wait(name, shared)
    }

    fn link(&mut self, name: &[u8], number: u64) -> io::Result<()> {
        self.add_name(name, number)
    }
}
