//! Modes, owners and extended attributes through a descriptor, so that no name is looked up twice.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Gid, Mode, Uid, XattrFlags};
use rustix::io::Errno;

type Io<T> = rustix::io::Result<T>;

/// The overlay's own book-keeping (mount option `userxattr`); never shown to the host.
const OVERLAY_PREFIX: &[u8] = b"user.overlay.";
/// What a user may attach to files.
const USER_PREFIX: &[u8] = b"user.";
/// The largest value and the largest list of names that the kernel hands out.
const LARGEST: usize = 65_536;

/// The extended attributes of one file.
pub(super) type Attributes = BTreeMap<CString, Vec<u8>>;

/// The name in `/proc` under which the kernel leads to an open descriptor's file itself, also for one
/// opened only as a place (`O_PATH`).
#[derive(Debug)]
pub(super) struct DescriptorPath<'a> {
    path: PathBuf,
    /// The name means something only while the descriptor is open.
    descriptor: PhantomData<BorrowedFd<'a>>,
}

impl<'a> DescriptorPath<'a> {
    pub(super) fn of(descriptor: BorrowedFd<'a>) -> Self {
        let path = PathBuf::from(format!("/proc/self/fd/{}", descriptor.as_raw_fd()));
        Self { path, descriptor: PhantomData }
    }

    pub(super) fn as_path(&self) -> &Path {
        &self.path
    }
}

/// Sets the permission bits, whatever the umask.
pub(super) fn set_mode(descriptor: BorrowedFd<'_>, mode: u32) -> Io<()> {
    let mode = Mode::from_raw_mode(mode & 0o7777);
    match rustix::fs::fchmod(descriptor, mode) {
        Err(Errno::BADF) => rustix::fs::chmod(DescriptorPath::of(descriptor).as_path(), mode),
        result => result,
    }
}

/// Gives the file away. Clears set-id bits, so the mode comes after.
pub(super) fn set_owner(descriptor: BorrowedFd<'_>, user: u32, group: u32) -> Io<()> {
    let (user, group) = (Some(Uid::from_raw(user)), Some(Gid::from_raw(group)));
    rustix::fs::chownat(descriptor, c"", user, group, rustix::fs::AtFlags::EMPTY_PATH)
}

/// The attributes that users set, without the overlay's own. Empty where there can be none.
pub(super) fn user_attributes(descriptor: impl AsFd) -> Io<Attributes> {
    let path = DescriptorPath::of(descriptor.as_fd());
    let mut attributes = Attributes::new();
    let mut names = Vec::with_capacity(LARGEST);
    match rustix::fs::listxattr(path.as_path(), rustix::buffer::spare_capacity(&mut names)) {
        Ok(_) => {}
        Err(Errno::NOTSUP) => return Ok(attributes),
        Err(error) => return Err(error),
    }
    for name in names.split(|byte| *byte == 0) {
        if !name.starts_with(USER_PREFIX) || name.starts_with(OVERLAY_PREFIX) {
            continue;
        }
        let Ok(name) = CString::new(name) else { continue };
        if let Some(value) = attribute_at(path.as_path(), &name)? {
            attributes.insert(name, value);
        }
    }
    Ok(attributes)
}

fn attribute_at(path: &Path, name: &std::ffi::CStr) -> Io<Option<Vec<u8>>> {
    let mut value = Vec::with_capacity(LARGEST);
    match rustix::fs::getxattr(path, name, rustix::buffer::spare_capacity(&mut value)) {
        Ok(_) => Ok(Some(value)),
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(None),
        Err(error) => Err(error),
    }
}

/// One attribute by name; `None` where it is not set.
pub(super) fn attribute(descriptor: impl AsFd, name: &std::ffi::CStr) -> Io<Option<Vec<u8>>> {
    attribute_at(DescriptorPath::of(descriptor.as_fd()).as_path(), name)
}

/// Makes the user's attributes of a file exactly these.
pub(super) fn set_user_attributes(descriptor: BorrowedFd<'_>, wanted: &Attributes) -> Io<()> {
    let present = user_attributes(descriptor)?;
    let path = DescriptorPath::of(descriptor);
    for name in present.keys().filter(|name| !wanted.contains_key(*name)) {
        rustix::fs::removexattr(path.as_path(), name.as_c_str())?;
    }
    for (name, value) in wanted {
        if present.get(name) != Some(value) {
            rustix::fs::setxattr(path.as_path(), name.as_c_str(), value, XattrFlags::empty())?;
        }
    }
    Ok(())
}

/// Carries the access list of a replaced file over to the new one, where it has one.
pub(super) fn keep_access_list(old: impl AsFd, new: BorrowedFd<'_>) -> Io<()> {
    const NAME: &std::ffi::CStr = c"system.posix_acl_access";
    if let Some(list) = attribute(old, NAME)? {
        rustix::fs::setxattr(DescriptorPath::of(new).as_path(), NAME, &list, XattrFlags::empty())?;
    }
    Ok(())
}

/// How an upper directory treats what lies below it in the base.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opacity {
    /// The base shows through.
    Merged,
    /// The base is hidden.
    Opaque,
    /// The base shows through, and empty files may be marked as deletions.
    MarkedDeletions,
}

/// Reads the overlay's mark on an upper directory.
pub(super) fn opacity(directory: impl AsFd) -> Io<Opacity> {
    Ok(match attribute(directory, c"user.overlay.opaque")?.as_deref() {
        Some(b"y") => Opacity::Opaque,
        Some(b"x") => Opacity::MarkedDeletions,
        _ => Opacity::Merged,
    })
}

/// Whether the overlay copied this file or directory up from the base.
pub(super) fn is_copied_up(descriptor: impl AsFd) -> Io<bool> {
    attribute(descriptor, c"user.overlay.origin").map(|value| value.is_some())
}

/// Whether an empty file is a deletion mark (only in directories with marked deletions).
pub(super) fn is_marked_deletion(descriptor: impl AsFd) -> Io<bool> {
    attribute(descriptor, c"user.overlay.whiteout").map(|value| value.is_some())
}
