//! Walking a layer: every entry is told to a [`Sink`], directories before and after what they hold.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, chmodat, openat};
use rustix::io::Errno;
use rustix::path::Arg;
use serde::{Deserialize, Serialize};

use super::attributes::{Attributes, Status};
use crate::descent::Descent;
use crate::syscall::descriptor_path;

/// An entry that is neither a directory nor a regular file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Node {
    /// A symbolic link, with what it says.
    Symlink(Vec<u8>),
    /// A named pipe.
    Pipe,
    /// A socket that somebody listened on.
    Socket,
    /// A character device; 0/0 is the overlay's mark for a deletion.
    Device { major: u32, minor: u32 },
}

impl Node {
    /// The overlay's mark for a deletion.
    pub(crate) const WHITEOUT: Self = Self::Device { major: 0, minor: 0 };
}

/// The first name of a file that has several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shared {
    /// By which later names refer to it.
    pub(crate) number: u64,
    /// How many names it has, those outside the layer included.
    pub(crate) names: u32,
}

/// A regular file that is being read.
#[derive(Debug)]
pub(crate) struct Content<'a> {
    /// The open file.
    pub(crate) file: &'a File,
    /// Its length in bytes.
    pub(crate) size: u64,
}

/// What takes the entries of a layer. Names are single components, of any bytes.
pub(crate) trait Sink {
    /// A directory begins; what comes next lies in it.
    fn enter(&mut self, name: &[u8], attributes: &Attributes) -> io::Result<()>;
    /// A directory ends; the last one is the layer's own root.
    fn leave(&mut self, attributes: &Attributes) -> io::Result<()>;
    /// A regular file.
    fn file(
        &mut self,
        name: &[u8],
        content: &Content<'_>,
        attributes: &Attributes,
        shared: Option<Shared>,
    ) -> io::Result<()>;
    /// Anything else.
    fn node(
        &mut self,
        name: &[u8],
        node: &Node,
        attributes: &Attributes,
        shared: Option<Shared>,
    ) -> io::Result<()>;
    /// A further name of a file.
    fn link(&mut self, name: &[u8], number: u64) -> io::Result<()>;
}

/// How a layer is read.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ReadOptions {
    /// The owner that counts as owner 0.
    pub(crate) first_owner: u32,
    /// Whether names may vanish meanwhile, because somebody outside the layer's frozen processes writes.
    pub(crate) names_may_vanish: bool,
}

/// Whether a file was met before, under another name.
enum Met {
    OnlyName,
    First(Shared),
    Before(u64),
}

struct Visit {
    /// What is still to be looked at, the next one last.
    names: Vec<CString>,
    attributes: Attributes,
    /// The mode to put back when the directory had to be opened up.
    closed: Option<u32>,
}

struct Reading<'a, S: Sink> {
    options: ReadOptions,
    sink: &'a mut S,
    descent: Descent,
    visits: Vec<Visit>,
    numbers: HashMap<(u32, u32, u64), u64>,
}

/// Tells `sink` everything that the layer holds. Directories and files that their owner closed to
/// itself are opened up for as long as they are read.
pub(crate) fn read<S: Sink>(layer: &Path, options: ReadOptions, sink: &mut S) -> io::Result<()> {
    let status = Status::at(CWD, layer)?;
    let (root, closed) = open(CWD, layer, &status)?;
    let visit = visit(&root, &status, closed, options)?;
    let numbers = HashMap::new();
    let mut reading = Reading { options, sink, descent: Descent::new(root), visits: vec![visit], numbers };
    while let Some(visit) = reading.visits.last_mut() {
        match visit.names.pop() {
            Some(name) => reading.entry(&name)?,
            None => {
                if let Some(attributes) = reading.close()? {
                    reading.sink.leave(&attributes)?;
                }
            }
        }
    }
    Ok(())
}

fn visit(
    directory: &OwnedFd,
    status: &Status,
    closed: Option<u32>,
    options: ReadOptions,
) -> io::Result<Visit> {
    let looked = || {
        let mut names = Vec::new();
        for entry in Dir::read_from(directory)? {
            let name = entry?.file_name().to_owned();
            if name.as_c_str() != c"." && name.as_c_str() != c".." {
                names.push(name);
            }
        }
        names.sort_unstable_by(|left, right| right.cmp(left));
        let attributes = status.attributes(Some(directory.as_fd()), options.first_owner)?;
        Ok(Visit { names, attributes, closed })
    };
    looked().inspect_err(|_: &io::Error| {
        if let Some(mode) = closed {
            let _ = rustix::fs::fchmod(directory, Mode::from_raw_mode(mode));
        }
    })
}

/// Opens a file or directory whose owner may have closed it to itself; then its mode comes along, to be
/// put back.
fn open(parent: impl AsFd, name: impl Arg + Copy, status: &Status) -> io::Result<(OwnedFd, Option<u32>)> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let user = rustix::process::geteuid();
    // Reading a directory takes the right to search it too.
    let is_closed = status.kind == FileType::Directory
        && !user.is_root()
        && status.owner.0 == user.as_raw()
        && status.mode & 0o500 != 0o500;
    if !is_closed {
        match openat(&parent, name, flags, Mode::empty()) {
            Err(Errno::ACCESS) => {}
            other => return Ok((other?, None)),
        }
    }
    let place = openat(&parent, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let path = descriptor_path(place.as_fd());
    chmodat(CWD, &path, Mode::from_raw_mode(status.mode | 0o700), AtFlags::empty())?;
    match openat(&parent, name, flags, Mode::empty()) {
        Ok(opened) => Ok((opened, Some(status.mode))),
        Err(error) => {
            chmodat(CWD, &path, Mode::from_raw_mode(status.mode), AtFlags::empty())?;
            Err(error.into())
        }
    }
}

impl<S: Sink> Reading<'_, S> {
    fn entry(&mut self, name: &CStr) -> io::Result<()> {
        match self.existing_entry(name) {
            Err(error) if self.options.names_may_vanish && error.kind() == io::ErrorKind::NotFound => {
                // Only when it is the name itself that vanished, not something that the sink needs.
                match Status::at(self.descent.current(), name) {
                    Err(gone) if gone.kind() == io::ErrorKind::NotFound => Ok(()),
                    _ => Err(error),
                }
            }
            result => result,
        }
    }

    fn existing_entry(&mut self, name: &CStr) -> io::Result<()> {
        let parent = self.descent.current();
        let status = Status::at(parent, name)?;
        let first = self.options.first_owner;
        match status.kind {
            FileType::Directory => {
                let (directory, closed) = open(parent, name, &status)?;
                let visit = visit(&directory, &status, closed, self.options)?;
                let attributes = visit.attributes.clone();
                self.descent.enter(directory)?;
                self.visits.push(visit);
                self.sink.enter(name.to_bytes(), &attributes)
            }
            FileType::RegularFile => {
                let shared = match self.met(&status) {
                    Met::Before(number) => return self.sink.link(name.to_bytes(), number),
                    Met::First(shared) => Some(shared),
                    Met::OnlyName => None,
                };
                let (file, closed) = open(self.descent.current(), name, &status)?;
                // Reading extended attributes takes the right to read, however the file was opened.
                let attributes = status.attributes(Some(file.as_fd()), first);
                if let Some(mode) = closed {
                    rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
                }
                let attributes = attributes?;
                let file = File::from(file);
                let content = Content { file: &file, size: status.size };
                self.sink.file(name.to_bytes(), &content, &attributes, shared)
            }
            kind => {
                let node = match kind {
                    FileType::Symlink => {
                        Node::Symlink(rustix::fs::readlinkat(parent, name, Vec::new())?.into_bytes())
                    }
                    FileType::Fifo => Node::Pipe,
                    FileType::Socket => Node::Socket,
                    FileType::CharacterDevice => {
                        Node::Device { major: status.device.0, minor: status.device.1 }
                    }
                    _ => {
                        return Err(io::Error::new(
                            io::ErrorKind::Unsupported,
                            format!("`{}` is a block device", name.to_bytes().escape_ascii()),
                        ));
                    }
                };
                let shared = match self.met(&status) {
                    Met::Before(number) => return self.sink.link(name.to_bytes(), number),
                    Met::First(shared) => Some(shared),
                    Met::OnlyName => None,
                };
                self.sink.node(name.to_bytes(), &node, &status.attributes(None, first)?, shared)
            }
        }
    }

    /// Which name of its file this is. Deletions say nothing but that they are there, so each stands for
    /// itself.
    fn met(&mut self, status: &Status) -> Met {
        if status.names < 2 || status.is_whiteout() {
            return Met::OnlyName;
        }
        if let Some(number) = self.numbers.get(&status.identity) {
            return Met::Before(*number);
        }
        let number = self.numbers.len() as u64;
        self.numbers.insert(status.identity, number);
        Met::First(Shared { number, names: status.names })
    }

    /// Ends the current directory and gives it its mode back.
    fn close(&mut self) -> io::Result<Option<Attributes>> {
        let Some(visit) = self.visits.pop() else { return Ok(None) };
        let left = if self.visits.is_empty() { None } else { Some(self.descent.leave()?) };
        if let Some(mode) = visit.closed {
            let directory = left.as_ref().map_or(self.descent.current(), |left| left.as_fd());
            rustix::fs::fchmod(directory, Mode::from_raw_mode(mode))?;
        }
        Ok(Some(visit.attributes))
    }
}

impl<S: Sink> Drop for Reading<'_, S> {
    fn drop(&mut self) {
        // After an error, what was opened up is closed again.
        while !self.visits.is_empty() {
            if self.close().is_err() {
                break;
            }
        }
    }
}
