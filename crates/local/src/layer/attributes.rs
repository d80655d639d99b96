//! What is known of one entry of a layer besides its content.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::buffer::spare_capacity;
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, Statx, StatxFlags, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags,
};
use rustix::io::Errno;
use rustix::path::Arg;
use serde::{Deserialize, Serialize};

/// The mark of a file capability; only root's files on disk have one.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";

/// The largest value and the largest list of names that the kernel hands out.
const LARGEST: usize = 65_536;

/// Mode, owner, times and extended attributes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Attributes {
    /// Permission bits, set-id and sticky bits included.
    pub(crate) mode: u32,
    /// User and group.
    pub(crate) owner: (u32, u32),
    /// Seconds since 1970 and nanoseconds after them.
    pub(crate) modified: (i64, u32),
    /// Names and values of extended attributes: the overlay's own marks, what commands set, access lists.
    pub(crate) extended: Vec<(Vec<u8>, Vec<u8>)>,
}

/// What the kernel says of an entry.
#[derive(Debug, Clone, Copy)]
pub(super) struct Status {
    pub(super) kind: FileType,
    pub(super) mode: u32,
    pub(super) owner: (u32, u32),
    pub(super) modified: (i64, u32),
    pub(super) size: u64,
    pub(super) names: u32,
    /// Device and number: the same for every name of one file.
    pub(super) identity: (u32, u32, u64),
    /// Major and minor number of a device.
    pub(super) device: (u32, u32),
}

impl Status {
    /// Of a name in a directory, without following a link.
    pub(super) fn at(parent: impl AsFd, name: impl Arg) -> io::Result<Self> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        Ok(Self::from(rustix::fs::statx(parent, name, flags, StatxFlags::BASIC_STATS)?))
    }

    /// Of an open descriptor.
    pub(super) fn of(descriptor: impl AsFd) -> io::Result<Self> {
        Ok(Self::from(rustix::fs::statx(descriptor, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?))
    }

    /// The overlay's mark for "not there any more".
    pub(super) fn is_whiteout(&self) -> bool {
        self.kind == FileType::CharacterDevice && self.device == (0, 0)
    }

    /// These attributes with owners counted from `start`; the extended ones come from `descriptor`.
    pub(super) fn attributes(
        &self,
        descriptor: Option<BorrowedFd<'_>>,
        start: u32,
    ) -> io::Result<Attributes> {
        let shifted = |id: u32| id.saturating_sub(start);
        Ok(Attributes {
            mode: self.mode,
            owner: (shifted(self.owner.0), shifted(self.owner.1)),
            modified: self.modified,
            extended: descriptor.map(extended).transpose()?.unwrap_or_default(),
        })
    }
}

impl From<Statx> for Status {
    fn from(status: Statx) -> Self {
        let mode = u32::from(status.stx_mode);
        Self {
            kind: FileType::from_raw_mode(mode),
            mode: mode & 0o7777,
            owner: (status.stx_uid, status.stx_gid),
            modified: (status.stx_mtime.tv_sec, status.stx_mtime.tv_nsec),
            size: status.stx_size,
            names: status.stx_nlink,
            identity: (status.stx_dev_major, status.stx_dev_minor, status.stx_ino),
            device: (status.stx_rdev_major, status.stx_rdev_minor),
        }
    }
}

/// Whether a layer's copy must have this extended attribute. Security modules label files by themselves.
fn is_kept(name: &[u8]) -> bool {
    name.starts_with(b"user.") || name.starts_with(b"system.posix_acl_") || name == CAPABILITY
}

fn extended(descriptor: BorrowedFd<'_>) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut names = Vec::with_capacity(LARGEST);
    match rustix::fs::flistxattr(descriptor, spare_capacity(&mut names)) {
        Err(Errno::NOTSUP) => return Ok(Vec::new()),
        other => other?,
    };
    let mut found = Vec::new();
    for name in names.split(|byte| *byte == 0).filter(|name| is_kept(name)) {
        let mut value = Vec::with_capacity(LARGEST);
        rustix::fs::fgetxattr(descriptor, name, spare_capacity(&mut value))?;
        value.shrink_to_fit();
        found.push((name.to_vec(), value));
    }
    Ok(found)
}

impl Attributes {
    /// The value of an extended attribute.
    pub(crate) fn extended(&self, name: &[u8]) -> Option<&[u8]> {
        self.extended.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_slice())
    }

    fn times(&self) -> Timestamps {
        Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec: self.modified.0, tv_nsec: i64::from(self.modified.1) },
        }
    }

    fn raw_owner(&self) -> (Option<Uid>, Option<Gid>) {
        (Some(Uid::from_raw(self.owner.0)), Some(Gid::from_raw(self.owner.1)))
    }

    /// Sets them on an open file or directory. A change of owner takes set-id bits and capabilities
    /// away, so it comes first; the times come last.
    pub(super) fn apply(&self, descriptor: BorrowedFd<'_>, owners: bool) -> io::Result<()> {
        if owners && Status::of(descriptor)?.owner != self.owner {
            let (user, group) = self.raw_owner();
            rustix::fs::fchown(descriptor, user, group)?;
        }
        for (name, value) in &self.extended {
            rustix::fs::fsetxattr(descriptor, name.as_slice(), value, XattrFlags::empty())?;
        }
        rustix::fs::fchmod(descriptor, Mode::from_raw_mode(self.mode))?;
        Ok(rustix::fs::futimens(descriptor, &self.times())?)
    }

    /// Takes the extended attributes away that are not among these.
    pub(super) fn remove_others(&self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        for (name, _) in extended(descriptor)? {
            if self.extended(&name).is_none() {
                rustix::fs::fremovexattr(descriptor, name.as_slice())?;
            }
        }
        Ok(())
    }

    /// Sets them on what can't be opened: a link, a pipe, a device.
    pub(super) fn apply_to_name(
        &self,
        parent: BorrowedFd<'_>,
        name: &[u8],
        is_link: bool,
        owners: bool,
    ) -> io::Result<()> {
        if owners && Status::at(parent, name)?.owner != self.owner {
            let (user, group) = self.raw_owner();
            rustix::fs::chownat(parent, name, user, group, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        if !is_link {
            rustix::fs::chmodat(parent, name, Mode::from_raw_mode(self.mode), AtFlags::empty())?;
        }
        Ok(rustix::fs::utimensat(parent, name, &self.times(), AtFlags::SYMLINK_NOFOLLOW)?)
    }
}
