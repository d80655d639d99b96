//! Deletions in a layer: how OCI archives mark them, and how the overlay file system reads them.

use std::os::fd::BorrowedFd;

use leasehold_model::{Error, ErrorKind, Result};
use rustix::fs::{AtFlags, FileType, Mode, XattrFlags, fsetxattr, makedev, mknodat, statat};
use rustix::io::Errno;

/// What an entry's name asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Marker<'name> {
    /// A plain entry.
    None,
    /// `.wh..wh..opq`: nothing below shows through this directory.
    Opaque,
    /// `.wh.NAME`: the lower `NAME` is gone.
    Hides(&'name [u8]),
    /// `.wh..wh.…`: bookkeeping of the aufs driver, which means nothing here.
    Aufs,
    /// A whiteout of no name, `.` or `..`.
    Bad,
}

impl<'name> Marker<'name> {
    pub(super) fn of(name: &'name [u8]) -> Self {
        match name.strip_prefix(b".wh.") {
            None => Self::None,
            Some(b".wh..opq") => Self::Opaque,
            Some(b"" | b"." | b"..") => Self::Bad,
            Some(rest) if rest.starts_with(b".wh.") => Self::Aufs,
            Some(rest) => Self::Hides(rest),
        }
    }
}

/// Makes the whiteout of `name`. A file that the layer itself has at this name stays: it hides the lower one too.
pub(super) fn place(parent: BorrowedFd<'_>, name: &[u8]) -> Result<Placed> {
    match mknodat(parent, name, FileType::CharacterDevice, Mode::empty(), makedev(0, 0)) {
        Ok(()) => Ok(Placed::Made),
        Err(Errno::EXIST) => {
            let stat = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).map_err(|error| {
                Error::io("image.unpack", "cannot examine the entry beside a whiteout", error.into())
            })?;
            let directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
            Ok(if directory { Placed::DirectoryThere } else { Placed::FileThere })
        }
        Err(error) => {
            let message = format!("cannot make the whiteout of `{}`", name.escape_ascii());
            Err(Error::new(ErrorKind::Unsupported, "image.unpack", message)
                .with_source(std::io::Error::from(error))
                .with_hint(
                    "whiteouts need Linux 5.8 or later and a local file system; put the image store on \
                     ext4, XFS, Btrfs or tmpfs",
                ))
        }
    }
}

/// What [`place`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Placed {
    Made,
    FileThere,
    DirectoryThere,
}

/// Makes a directory opaque for overlay mounts with `userxattr`.
pub(super) fn make_opaque(directory: BorrowedFd<'_>, path: &[u8]) -> Result<()> {
    fsetxattr(directory, "user.overlay.opaque", b"y", XattrFlags::empty()).map_err(|error| {
        Error::new(
            ErrorKind::Unsupported,
            "image.unpack",
            format!("cannot mark the directory `{}` as opaque", path.escape_ascii()),
        )
        .with_source(std::io::Error::from(error))
        .with_hint("put the image store on a file system with user extended attributes, such as ext4 or XFS")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_apart() {
        assert_eq!(Marker::of(b"a"), Marker::None);
        assert_eq!(Marker::of(b".wh.a"), Marker::Hides(b"a"));
        assert_eq!(Marker::of(b".wh..wh..opq"), Marker::Opaque);
        assert_eq!(Marker::of(b".wh..wh.plnk"), Marker::Aufs);
        for bad in [&b".wh."[..], b".wh..", b".wh..."] {
            assert_eq!(Marker::of(bad), Marker::Bad);
        }
    }
}
