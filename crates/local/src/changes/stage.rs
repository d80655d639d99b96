//! A new file beside its place, invisible or under a name of its own, until it is moved there in one step.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::attributes::DescriptorPath;

type Io<T> = rustix::io::Result<T>;

/// Names of files that are not in their place yet begin so. Almost always such a file has no name at
/// all, so a crash leaves nothing.
const PREFIX: &str = ".leasehold-apply-";

/// A file in the making. Dropping it without moving it removes it.
#[derive(Debug)]
pub(super) struct Staged<'a> {
    directory: BorrowedFd<'a>,
    name: Option<OsString>,
    descriptor: Option<OwnedFd>,
}

impl<'a> Staged<'a> {
    /// An empty regular file that only its owner can use, without a name where the file system can.
    pub(super) fn regular(directory: BorrowedFd<'a>) -> Io<Self> {
        let mode = Mode::RUSR | Mode::WUSR;
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        match rustix::fs::openat(directory, c".", flags | OFlags::TMPFILE, mode) {
            Ok(descriptor) => Ok(Self { directory, name: None, descriptor: Some(descriptor) }),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT | Errno::NOSYS) => {
                let (name, descriptor) = with_new_name(|name| {
                    rustix::fs::openat(
                        directory,
                        name,
                        flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW,
                        mode,
                    )
                })?;
                Ok(Self { directory, name: Some(name), descriptor: Some(descriptor) })
            }
            Err(error) => Err(error),
        }
    }

    /// Something else, made by `make` under the name that it is given.
    pub(super) fn named(directory: BorrowedFd<'a>, make: impl FnMut(&OsStr) -> Io<()>) -> Io<Self> {
        let (name, ()) = with_new_name(make)?;
        Ok(Self { directory, name: Some(name), descriptor: None })
    }

    /// The descriptor of a regular file.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor.as_ref().map(AsFd::as_fd)
    }

    /// The name that it has for now.
    pub(super) fn name(&self) -> Option<&OsStr> {
        self.name.as_deref()
    }

    /// Moves it to a name that must be free: `EXIST` when it is not.
    pub(super) fn move_to_free(mut self, target: &OsStr) -> Io<()> {
        let Some(name) = &self.name else { return self.link_as(target) };
        match rustix::fs::renameat_with(self.directory, name, self.directory, target, RenameFlags::NOREPLACE)
        {
            Err(Errno::INVAL | Errno::NOSYS) => {
                if super::tree::stat_name(self.directory, target)?.is_some() {
                    return Err(Errno::EXIST);
                }
                rustix::fs::renameat(self.directory, name, self.directory, target)?;
            }
            result => result?,
        }
        self.name = None;
        Ok(())
    }

    /// Gives it a name of its own, so that the move is one step.
    pub(super) fn make_visible(&mut self) -> Io<()> {
        if self.name.is_none() {
            let (name, ()) = with_new_name(|name| self.link_as(name))?;
            self.name = Some(name);
        }
        Ok(())
    }

    /// Moves it over what is at a name.
    pub(super) fn move_over(mut self, target: &OsStr) -> Io<()> {
        self.make_visible()?;
        if let Some(name) = &self.name {
            rustix::fs::renameat(self.directory, name, self.directory, target)?;
        }
        self.name = None;
        Ok(())
    }

    fn link_as(&self, name: &OsStr) -> Io<()> {
        let descriptor = self.descriptor.as_ref().ok_or(Errno::BADF)?;
        let path = DescriptorPath::of(descriptor.as_fd());
        rustix::fs::linkat(rustix::fs::CWD, path.as_path(), self.directory, name, AtFlags::SYMLINK_FOLLOW)
    }
}

impl Drop for Staged<'_> {
    fn drop(&mut self) {
        if let Some(name) = self.name.take() {
            let _ = rustix::fs::unlinkat(self.directory, name, AtFlags::empty());
        }
    }
}

fn with_new_name<T>(mut make: impl FnMut(&OsStr) -> Io<T>) -> Io<(OsString, T)> {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    loop {
        let count = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = OsString::from(format!("{PREFIX}{}-{count}", std::process::id()));
        match make(&name) {
            Err(Errno::EXIST) => {}
            result => return result.map(|made| (name, made)),
        }
    }
}
