//! Owner, attributes, mode and times of what was unpacked, set by descriptor.

use std::borrow::Cow;
use std::os::fd::BorrowedFd;

use leasehold_model::{Error, ErrorKind, Result};
use rustix::fs::{
    AtFlags, Gid, Mode, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags, chownat, fchmod, fchown,
    fsetxattr, futimens, utimensat,
};
use rustix::io::Errno;

use super::confine::{EntryPath, failed};
use super::limits::UnpackLimits;
use super::note::{NoteReason, UnpackReport};
use super::owner::OwnerMap;
use super::tarball::Entry;

const SET_ID_BITS: u32 = 0o6000;

/// What is set on an entry once its content is there.
#[derive(Debug, Clone)]
pub(super) struct Metadata {
    mode: u32,
    user: u64,
    group: u64,
    modified: (i64, u32),
    attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Metadata {
    /// Takes the metadata out of an entry.
    pub(super) fn of(entry: &mut Entry) -> Self {
        Self {
            mode: entry.mode,
            user: entry.user,
            group: entry.group,
            modified: entry.modified,
            attributes: std::mem::take(&mut entry.attributes),
        }
    }

    /// What the attributes need of memory.
    pub(super) fn attribute_bytes(&self) -> usize {
        self.attributes.iter().map(|(name, value)| name.len() + value.len()).sum()
    }

    /// What a directory gets that the archive needs and does not hold. The time is fixed, so that
    /// the same layer gives the same tree.
    pub(super) fn assumed() -> Self {
        Self { mode: 0o755, user: 0, group: 0, modified: (0, 0), attributes: Vec::new() }
    }
}

/// How metadata is applied in one layer.
pub(super) struct Applier<'run> {
    pub(super) owners: &'run OwnerMap,
    pub(super) limits: &'run UnpackLimits,
}

impl Applier<'_> {
    /// Sets everything on an open file, directory or FIFO. The order is the kernel's: giving a file
    /// away clears set-id bits and capabilities, and all of it touches the times.
    pub(super) fn apply(
        &self,
        file: BorrowedFd<'_>,
        path: &EntryPath,
        metadata: &Metadata,
        report: &mut UnpackReport,
    ) -> Result<()> {
        let mut mode = metadata.mode;
        if let Some(owner) = self.owners.owner(metadata.user, metadata.group) {
            fchown(file, Some(Uid::from_raw(owner.user)), Some(Gid::from_raw(owner.group)))
                .map_err(|error| owner_failed(path, error))?;
            if !owner.exact {
                mode &= !SET_ID_BITS;
                self.note_unmapped(path, metadata, report);
            }
        }
        for (name, value) in &metadata.attributes {
            self.attribute(file, path, name, value, report)?;
        }
        fchmod(file, Mode::from_raw_mode(mode))
            .map_err(|error| failed("cannot set the mode of", path, error))?;
        futimens(file, &times(metadata)).map_err(|error| failed("cannot set the times of", path, error))
    }

    /// Sets owner and times of a symbolic link, which has nothing else.
    pub(super) fn apply_to_symlink(
        &self,
        parent: BorrowedFd<'_>,
        path: &EntryPath,
        metadata: &Metadata,
        report: &mut UnpackReport,
    ) -> Result<()> {
        if let Some(owner) = self.owners.owner(metadata.user, metadata.group) {
            let (user, group) = (Uid::from_raw(owner.user), Gid::from_raw(owner.group));
            chownat(parent, path.name(), Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)
                .map_err(|error| owner_failed(path, error))?;
            if !owner.exact {
                self.note_unmapped(path, metadata, report);
            }
        }
        for (name, _) in &metadata.attributes {
            skipped(path, name, report);
        }
        utimensat(parent, path.name(), &times(metadata), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|error| failed("cannot set the times of", path, error))
    }

    #[allow(clippy::unused_self)] // Beside its two callers.
    fn note_unmapped(&self, path: &EntryPath, metadata: &Metadata, report: &mut UnpackReport) {
        let reason = NoteReason::OwnerUnmapped { user: metadata.user, group: metadata.group };
        report.note(path.as_bytes(), reason);
    }

    fn attribute(
        &self,
        file: BorrowedFd<'_>,
        path: &EntryPath,
        name: &[u8],
        value: &[u8],
        report: &mut UnpackReport,
    ) -> Result<()> {
        if value.len() > self.limits.attribute_bytes {
            return Err(Error::new(
                ErrorKind::LimitExceeded,
                "image.unpack",
                format!(
                    "an extended attribute of `{}` has {} bytes; {} are allowed",
                    path.as_bytes().escape_ascii(),
                    value.len(),
                    self.limits.attribute_bytes
                ),
            ));
        }
        // The overlay's own attributes redirect lookups: a layer that brings its own could show files
        // of other layers at places of its choice.
        let ours = name.starts_with(b"user.") && !name.starts_with(b"user.overlay.");
        let capability = name == b"security.capability";
        if name.contains(&0) || !(ours || capability) {
            skipped(path, name, report);
            return Ok(());
        }
        let value =
            if capability { capability_for(value, self.owners.root_user()) } else { Cow::Borrowed(value) };
        match fsetxattr(file, name, &value, XattrFlags::empty()) {
            Ok(()) => Ok(()),
            // Not for this user, this kind of file or this file system.
            Err(Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP | Errno::INVAL) => {
                skipped(path, name, report);
                Ok(())
            }
            Err(error) => Err(failed("cannot set an extended attribute of", path, error)),
        }
    }
}

fn skipped(path: &EntryPath, name: &[u8], report: &mut UnpackReport) {
    report.note(path.as_bytes(), NoteReason::AttributeSkipped(name.escape_ascii().to_string()));
}

fn owner_failed(path: &EntryPath, error: Errno) -> Error {
    failed("cannot set the owner of", path, error)
        .with_hint("an owner map with ranges needs root, or a user namespace that holds these ids")
}

fn times(metadata: &Metadata) -> Timestamps {
    let (seconds, nanoseconds) = metadata.modified;
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() },
    }
}

/// File capabilities in the form that works where the files will be used: bound to the id that the
/// sandbox's root has outside (revision 3), or unbound (revision 2) without a mapping.
/// Layout: `struct vfs_ns_cap_data` of `<linux/capability.h>`, little-endian.
fn capability_for(value: &[u8], root: Option<u32>) -> Cow<'_, [u8]> {
    const REVISION_2: u32 = 0x0200_0000;
    const REVISION_3: u32 = 0x0300_0000;
    const LENGTH_2: usize = 20;
    const LENGTH_3: usize = 24;

    let Some((magic, rest)) = value.split_first_chunk::<4>() else { return Cow::Borrowed(value) };
    let magic = u32::from_le_bytes(*magic);
    let known = matches!((magic & 0xFF00_0000, value.len()), (REVISION_2, LENGTH_2) | (REVISION_3, LENGTH_3));
    if !known {
        return Cow::Borrowed(value);
    }
    let revision = if root.is_some() { REVISION_3 } else { REVISION_2 };
    let mut bound = Vec::with_capacity(LENGTH_3);
    bound.extend_from_slice(&(revision | (magic & 0x00FF_FFFF)).to_le_bytes());
    bound.extend_from_slice(&rest[..LENGTH_2 - 4]);
    bound.extend(root.into_iter().flat_map(u32::to_le_bytes));
    Cow::Owned(bound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_bound_to_the_sandbox_root() {
        let unbound = [&0x0200_0001_u32.to_le_bytes()[..], &[7; 16]].concat();
        let bound = [&0x0300_0001_u32.to_le_bytes()[..], &[7; 16], &100_000_u32.to_le_bytes()].concat();
        assert_eq!(&*capability_for(&unbound, Some(100_000)), bound);
        assert_eq!(&*capability_for(&bound, None), unbound);
        assert_eq!(&*capability_for(&unbound, None), unbound);
        assert_eq!(&*capability_for(b"odd", Some(1)), b"odd");
    }
}
