//! Copying an overlay's layer as it is: files, deletions and marks.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use leasehold_model::{Error, Result};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, Timespec, Timestamps};

use crate::syscall::descriptor_path;

/// Whose files the owners of the source are.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Owners {
    /// Everything belongs to the caller.
    Caller,
    /// Source user `start + n` is user `n` of the copy.
    ShiftedFrom(u32),
}

/// Copies the tree below `from`, which nobody writes meanwhile, into the new directory `to`.
pub(crate) fn copy(from: &Path, to: &Path, owners: Owners) -> Result<()> {
    let work = || -> io::Result<()> {
        let source = open_directory(CWD, from.as_os_str())?;
        rustix::fs::mkdir(to, Mode::from_raw_mode(0o700))?;
        let target = open_directory(CWD, to.as_os_str())?;
        copy_directory(&source, &target, owners)
    };
    work().map_err(|error| {
        Error::io("layer.copy", format!("cannot copy {} to {}", from.display(), to.display()), error)
    })
}

fn open_directory(parent: impl AsFd, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(parent, name, flags, Mode::empty())?)
}

/// Copies what is in a directory, then what is known of the directory itself.
fn copy_directory(source: &OwnedFd, target: &OwnedFd, owners: Owners) -> io::Result<()> {
    for entry in Dir::read_from(source)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name != "." && name != ".." {
            copy_entry(source, target, name, owners)?;
        }
    }
    let status = rustix::fs::fstat(source)?;
    copy_attributes(source.as_fd(), target.as_fd())?;
    finish(target.as_fd(), &status, owners)
}

fn copy_entry(source: &OwnedFd, target: &OwnedFd, name: &OsStr, owners: Owners) -> io::Result<()> {
    let status = rustix::fs::statat(source, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let kind = FileType::from_raw_mode(status.st_mode);
    let private = Mode::from_raw_mode(0o700);
    match kind {
        FileType::Directory => {
            let inner = open_even_if_closed(source, name, &status)?;
            rustix::fs::mkdirat(target, name, private)?;
            return copy_directory(&inner, &open_directory(target, name)?, owners);
        }
        FileType::RegularFile => {
            let input = open_even_if_closed(source, name, &status)?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let output = rustix::fs::openat(target, name, flags, private)?;
            copy_attributes(input.as_fd(), output.as_fd())?;
            let mut output = File::from(output);
            io::copy(&mut File::from(input), &mut output)?;
            return finish(output.as_fd(), &status, owners);
        }
        FileType::Symlink => {
            let link = rustix::fs::readlinkat(source, name, Vec::new())?;
            rustix::fs::symlinkat(link, target, name)?;
        }
        _ => rustix::fs::mknodat(
            target,
            name,
            kind,
            Mode::from_raw_mode(status.st_mode & 0o7777),
            status.st_rdev,
        )?,
    }
    if let Owners::ShiftedFrom(start) = owners {
        let (user, group) = shifted(&status, start);
        rustix::fs::chownat(target, name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(rustix::fs::utimensat(target, name, &times(&status), AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Opens a file or directory whose owner may have closed it to everybody, itself included.
fn open_even_if_closed(parent: &OwnedFd, name: &OsStr, status: &Stat) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    match rustix::fs::openat(parent, name, flags, Mode::empty()) {
        Err(rustix::io::Errno::ACCESS) => {
            // The source is a layer that goes away after the copy, so its modes may change.
            let place = rustix::fs::openat(
                parent,
                name,
                OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
                Mode::empty(),
            )?;
            let mode = Mode::from_raw_mode((status.st_mode & 0o7777) | 0o700);
            rustix::fs::chmodat(CWD, descriptor_path(place.as_fd()), mode, AtFlags::empty())?;
            Ok(rustix::fs::openat(parent, name, flags, Mode::empty())?)
        }
        other => Ok(other?),
    }
}

fn shifted(status: &Stat, start: u32) -> (rustix::fs::Uid, rustix::fs::Gid) {
    let user = status.st_uid.checked_sub(start).unwrap_or(0);
    let group = status.st_gid.checked_sub(start).unwrap_or(0);
    (rustix::fs::Uid::from_raw(user), rustix::fs::Gid::from_raw(group))
}

fn times(status: &Stat) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT },
        last_modification: Timespec {
            tv_sec: status.st_mtime,
            tv_nsec: i64::try_from(status.st_mtime_nsec).unwrap_or(0),
        },
    }
}

fn finish(target: BorrowedFd<'_>, status: &Stat, owners: Owners) -> io::Result<()> {
    if let Owners::ShiftedFrom(start) = owners {
        let (user, group) = shifted(status, start);
        rustix::fs::fchown(target, Some(user), Some(group))?;
    }
    rustix::fs::fchmod(target, Mode::from_raw_mode(status.st_mode & 0o7777))?;
    Ok(rustix::fs::futimens(target, &times(status))?)
}

/// Extended attributes of users: the overlay's own marks, and what commands set.
fn copy_attributes(source: BorrowedFd<'_>, target: BorrowedFd<'_>) -> io::Result<()> {
    let mut names = Vec::new();
    let length = rustix::fs::flistxattr(source, &mut [0_u8; 0][..])?;
    names.resize(length, 0);
    let length = rustix::fs::flistxattr(source, &mut names[..])?;
    for name in names[..length].split(|byte| *byte == 0).filter(|name| name.starts_with(b"user.")) {
        let mut value = Vec::new();
        let length = rustix::fs::fgetxattr(source, name, &mut [0_u8; 0][..])?;
        value.resize(length, 0);
        let length = rustix::fs::fgetxattr(source, name, &mut value[..])?;
        rustix::fs::fsetxattr(target, name, &value[..length], rustix::fs::XattrFlags::empty())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    #[test]
    fn files_deletions_marks_and_closed_directories_arrive_as_they_were() {
        let base = tempfile::Builder::new().tempdir_in("/var/tmp").unwrap();
        let from = base.path().join("from");
        fs::create_dir_all(from.join("closed")).unwrap();
        fs::write(from.join("closed/file"), "content").unwrap();
        std::os::unix::fs::symlink("/nowhere", from.join("link")).unwrap();
        let directory = File::open(&from).unwrap();
        rustix::fs::mknodat(&directory, "gone", FileType::CharacterDevice, Mode::empty(), 0).unwrap();
        rustix::fs::fsetxattr(&directory, "user.overlay.opaque", b"y", rustix::fs::XattrFlags::empty())
            .unwrap();
        fs::set_permissions(from.join("closed"), fs::Permissions::from_mode(0o2000)).unwrap();

        let to = base.path().join("to");
        copy(&from, &to, Owners::Caller).unwrap();
        assert_eq!(fs::symlink_metadata(to.join("gone")).unwrap().rdev(), 0);
        assert_eq!(fs::read_link(to.join("link")).unwrap(), Path::new("/nowhere"));
        let mut value = [0; 8];
        let length =
            rustix::fs::fgetxattr(File::open(&to).unwrap(), "user.overlay.opaque", &mut value[..]).unwrap();
        assert_eq!(&value[..length], b"y");
        assert_eq!(fs::metadata(to.join("closed")).unwrap().mode() & 0o7777, 0o2000);
        fs::set_permissions(to.join("closed"), fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(fs::read_to_string(to.join("closed/file")).unwrap(), "content");
        fs::set_permissions(from.join("closed"), fs::Permissions::from_mode(0o700)).unwrap();
    }
}
