//! The file operations themselves.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Timespec, Timestamps};

use crate::protocol::{FilesReply, FilesRequest, Refusal, StatRecord};

/// Entries a reply holds at most, so that a frame stays small whatever a directory holds.
const ENTRIES_PER_REPLY: usize = 512;

/// A file being written beside its target.
struct Scratch {
    directory: OwnedFd,
    name: std::ffi::OsString,
    target_name: std::ffi::OsString,
}

/// One file server's state.
#[derive(Default)]
pub(super) struct Worker {
    scratch: Option<Scratch>,
    counter: u64,
}

type Reply = (FilesReply, Option<OwnedFd>);

fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    Ok(rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// A path's directory and last name. A path that ends in `..` or is the root has none.
fn split(path: &Path) -> io::Result<(&Path, &std::ffi::OsStr)> {
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => Ok((parent, name)),
        _ => Err(io::Error::from_raw_os_error(libc::EINVAL)),
    }
}

impl Worker {
    /// Does one request. A large directory gives several replies.
    pub(super) fn answer(&mut self, request: FilesRequest) -> Vec<Reply> {
        let result = match request {
            FilesRequest::OpenRead { path } => {
                open_read(&path).map(|file| vec![(FilesReply::Done, Some(file))])
            }
            FilesRequest::OpenScratch { path, mode, parents } => {
                self.open_scratch(&path, mode, parents).map(|file| vec![(FilesReply::Done, Some(file))])
            }
            FilesRequest::Stat { path } => {
                stat(CWD, &path).map(|entry| vec![(FilesReply::Entry(entry), None)])
            }
            FilesRequest::List { path } => list(&path),
            other => self.change(other).map(|()| vec![(FilesReply::Done, None)]),
        };
        result.unwrap_or_else(|error| {
            let refusal = Refusal {
                message: String::new(),
                errno: error.raw_os_error().unwrap_or(libc::EIO),
                about_program: false,
            };
            vec![(FilesReply::Refused(refusal), None)]
        })
    }

    fn change(&mut self, request: FilesRequest) -> io::Result<()> {
        match request {
            FilesRequest::CommitScratch => self.commit_scratch(),
            FilesRequest::AbandonScratch => {
                self.abandon_scratch();
                Ok(())
            }
            FilesRequest::MakeDirectory { path, mode, parents } => make_directory(&path, mode, parents),
            FilesRequest::MakeSymlink { path, target } => Ok(rustix::fs::symlinkat(&*target, CWD, &*path)?),
            FilesRequest::Remove { path, recursive } => remove(&path, recursive),
            FilesRequest::Rename { from, to } => Ok(rustix::fs::renameat(CWD, &*from, CWD, &*to)?),
            FilesRequest::SetMode { path, mode } => {
                Ok(rustix::fs::chmodat(CWD, &*path, Mode::from_raw_mode(mode & 0o7777), AtFlags::empty())?)
            }
            FilesRequest::SetModified { path, seconds, nanoseconds } => {
                set_modified(&path, seconds, nanoseconds)
            }
            _ => Err(io::Error::from_raw_os_error(libc::EINVAL)),
        }
    }

    fn open_scratch(&mut self, path: &Path, mode: u32, parents: bool) -> io::Result<OwnedFd> {
        self.abandon_scratch();
        // Writing through a link replaces what it points to, as a shell's redirection would.
        let target = resolve_link(path)?;
        let (parent, name) = split(&target)?;
        if parents {
            make_directory(parent, 0o755, true)?;
        }
        let directory = open_directory(parent)?;
        let mode = match rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(existing) => match FileType::from_raw_mode(existing.st_mode) {
                FileType::RegularFile => {
                    // A file that may not be written is not replaced either.
                    rustix::fs::openat(&directory, name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
                    existing.st_mode & 0o7777
                }
                FileType::Directory => return Err(io::Error::from_raw_os_error(libc::EISDIR)),
                _ => return Err(io::Error::from_raw_os_error(libc::EINVAL)),
            },
            Err(rustix::io::Errno::NOENT) => mode & 0o7777,
            Err(error) => return Err(error.into()),
        };
        self.counter += 1;
        let scratch_name = format!(".leasehold-{}-{}", std::process::id(), self.counter);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&directory, &scratch_name, flags, Mode::from_raw_mode(0o600))?;
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
        self.scratch = Some(Scratch { directory, name: scratch_name.into(), target_name: name.to_owned() });
        Ok(file)
    }

    fn commit_scratch(&mut self) -> io::Result<()> {
        let Some(scratch) = &self.scratch else {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        };
        rustix::fs::renameat(&scratch.directory, &scratch.name, &scratch.directory, &scratch.target_name)?;
        self.scratch = None;
        Ok(())
    }

    pub(super) fn abandon_scratch(&mut self) {
        if let Some(scratch) = self.scratch.take() {
            let _ = rustix::fs::unlinkat(&scratch.directory, &scratch.name, AtFlags::empty());
        }
    }
}

/// Follows a chain of links at the end of a path. The kernel's own bound is forty.
fn resolve_link(path: &Path) -> io::Result<PathBuf> {
    let mut current = path.to_path_buf();
    for _ in 0..40 {
        match rustix::fs::readlinkat(CWD, &current, Vec::new()) {
            Ok(target) => {
                let target = Path::new(std::ffi::OsStr::from_bytes(target.as_bytes())).to_path_buf();
                current = current.parent().map_or(target.clone(), |parent| parent.join(&target));
            }
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => return Ok(current),
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::Error::from_raw_os_error(libc::ELOOP))
}

/// Opens a regular file. A pipe or device would make the reader wait or worse, so it is refused.
fn open_read(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(CWD, path, flags, Mode::empty())?;
    match FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) {
        FileType::RegularFile => Ok(file),
        FileType::Directory => Err(io::Error::from_raw_os_error(libc::EISDIR)),
        _ => Err(io::Error::from_raw_os_error(libc::EINVAL)),
    }
}

fn stat(directory: impl AsFd, path: &Path) -> io::Result<StatRecord> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let found = rustix::fs::statat(&directory, path, AtFlags::SYMLINK_NOFOLLOW)?;
    let is_link = FileType::from_raw_mode(found.st_mode) == FileType::Symlink;
    Ok(StatRecord {
        name: path.file_name().map_or_else(|| b".".to_vec(), |name| name.as_bytes().to_vec()),
        mode: found.st_mode,
        size: u64::try_from(found.st_size).unwrap_or(0),
        user: found.st_uid,
        group: found.st_gid,
        seconds: found.st_mtime,
        nanoseconds: u32::try_from(found.st_mtime_nsec).unwrap_or(0),
        target: if is_link {
            Some(rustix::fs::readlinkat(&directory, path, Vec::new())?.into_bytes())
        } else {
            None
        },
    })
}

fn list(path: &Path) -> io::Result<Vec<Reply>> {
    let directory = open_directory(path)?;
    let mut entries = Vec::new();
    for entry in rustix::fs::Dir::read_from(&directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        match stat(&directory, Path::new(std::ffi::OsStr::from_bytes(name))) {
            Ok(record) => entries.push(record),
            // Removed between being listed and being looked at.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
            Err(error) => return Err(error),
        }
    }
    entries.sort_by(|left, right| left.name.cmp(&right.name));
    let mut replies = Vec::new();
    let mut rest = entries.into_iter().peekable();
    loop {
        let part: Vec<StatRecord> = rest.by_ref().take(ENTRIES_PER_REPLY).collect();
        let last = rest.peek().is_none();
        replies.push((FilesReply::Entries { entries: part, last }, None));
        if last {
            return Ok(replies);
        }
    }
}

fn make_directory(path: &Path, mode: u32, parents: bool) -> io::Result<()> {
    if parents {
        let mut walked = PathBuf::new();
        let components: Vec<_> = path.components().collect();
        for component in &components[..components.len().saturating_sub(1)] {
            walked.push(component);
            match rustix::fs::mkdirat(CWD, &walked, Mode::from_raw_mode(0o755)) {
                // A parent that can't be made may exist all the same; the next level tells.
                Ok(())
                | Err(rustix::io::Errno::EXIST | rustix::io::Errno::ROFS | rustix::io::Errno::ACCESS) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if open_directory(path).is_ok() {
            return Ok(());
        }
    }
    rustix::fs::mkdirat(CWD, path, Mode::from_raw_mode(mode & 0o7777))?;
    Ok(())
}

fn remove(path: &Path, recursive: bool) -> io::Result<()> {
    let (parent, name) = split(path)?;
    remove_entry(&open_directory(parent)?, name, recursive)
}

/// Removes one entry by its directory's descriptor, so that no rename on the way leads elsewhere.
fn remove_entry(directory: &OwnedFd, name: &std::ffi::OsStr, recursive: bool) -> io::Result<()> {
    match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) => return Ok(()),
        Err(rustix::io::Errno::ISDIR) => {}
        Err(error) => return Err(error.into()),
    }
    if recursive {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let inner = rustix::fs::openat(directory, name, flags, Mode::empty())?;
        for entry in rustix::fs::Dir::read_from(&inner)? {
            let entry = entry?;
            let inner_name = entry.file_name().to_bytes();
            if inner_name != b"." && inner_name != b".." {
                remove_entry(&inner, std::ffi::OsStr::from_bytes(inner_name), true)?;
            }
        }
    }
    Ok(rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR)?)
}

fn set_modified(path: &Path, seconds: i64, nanoseconds: u32) -> io::Result<()> {
    let keep = Timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT };
    let modified = Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() };
    let times = Timestamps { last_access: keep, last_modification: modified };
    Ok(rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}
