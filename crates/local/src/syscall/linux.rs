//! The real kernel.

use std::ffi::CString;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags,
    UnmountFlags,
};

use super::{MountRestrictions, System, raw};

/// The real kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Linux;

fn attribute_flags(restrictions: MountRestrictions) -> MountAttrFlags {
    let mut flags = MountAttrFlags::MOUNT_ATTR_NOSUID;
    flags.set(MountAttrFlags::MOUNT_ATTR_RDONLY, restrictions.read_only);
    flags.set(MountAttrFlags::MOUNT_ATTR_NODEV, restrictions.no_devices);
    flags.set(MountAttrFlags::MOUNT_ATTR_NOEXEC, restrictions.no_execute);
    flags
}

/// Splits a path below a root into its parent and last name.
fn parent_and_name(path: &Path) -> io::Result<(&Path, &std::ffi::OsStr)> {
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => Ok((parent, name)),
        _ => Err(io::Error::from(io::ErrorKind::InvalidInput)),
    }
}

impl Linux {
    fn open_in_root(root: BorrowedFd<'_>, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        Ok(rustix::fs::openat2(root, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)?)
    }
}

impl System for Linux {
    fn open_place(&self, path: &Path) -> io::Result<OwnedFd> {
        Ok(rustix::fs::openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
    }

    fn open_below(&self, root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
        Self::open_in_root(root, path, OFlags::PATH)
    }

    fn make_mounts_private(&self) -> io::Result<()> {
        Ok(rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?)
    }

    fn clone_tree(&self, place: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_EMPTY_PATH
            | OpenTreeFlags::AT_RECURSIVE;
        Ok(rustix::mount::open_tree(place, c"", flags)?)
    }

    fn restrict(&self, tree: BorrowedFd<'_>, restrictions: MountRestrictions) -> io::Result<()> {
        raw::mount_setattr(tree, attribute_flags(restrictions).bits().into(), None)
    }

    fn new_filesystem(
        &self,
        kind: &'static str,
        options: &[(&'static str, String)],
        restrictions: MountRestrictions,
    ) -> io::Result<OwnedFd> {
        let context = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
        for (key, value) in options {
            if value.is_empty() {
                rustix::mount::fsconfig_set_flag(context.as_fd(), *key)?;
            } else {
                rustix::mount::fsconfig_set_string(context.as_fd(), *key, value.as_str())?;
            }
        }
        rustix::mount::fsconfig_create(context.as_fd())?;
        Ok(rustix::mount::fsmount(
            context.as_fd(),
            FsMountFlags::FSMOUNT_CLOEXEC,
            attribute_flags(restrictions),
        )?)
    }

    fn attach(&self, tree: BorrowedFd<'_>, place: BorrowedFd<'_>) -> io::Result<()> {
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        Ok(rustix::mount::move_mount(tree, c"", place, c"", flags)?)
    }

    fn make_directory(&self, root: BorrowedFd<'_>, path: &Path, mode: u32) -> io::Result<()> {
        let mut directory = Self::open_in_root(root, Path::new("."), OFlags::PATH)?;
        let mut walked = std::path::PathBuf::new();
        let count = path.components().count();
        for (position, component) in path.components().enumerate() {
            let Component::Normal(name) = component else {
                continue;
            };
            walked.push(name);
            directory = match Self::open_in_root(root, &walked, OFlags::PATH | OFlags::DIRECTORY) {
                Ok(next) => next,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    let mode = Mode::from_raw_mode(if position + 1 == count { mode } else { 0o755 });
                    rustix::fs::mkdirat(&directory, name, mode)?;
                    // Whatever the umask took away.
                    rustix::fs::chmodat(&directory, name, mode, rustix::fs::AtFlags::empty())?;
                    Self::open_in_root(root, &walked, OFlags::PATH | OFlags::DIRECTORY)?
                }
                Err(error) => return Err(error),
            };
        }
        Ok(())
    }

    fn write_below(&self, root: BorrowedFd<'_>, path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
        let (parent, name) = parent_and_name(path)?;
        let directory = Self::open_in_root(root, parent, OFlags::PATH | OFlags::DIRECTORY)?;
        let _ = rustix::fs::unlinkat(&directory, name, rustix::fs::AtFlags::empty());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&directory, name, flags, Mode::from_raw_mode(mode))?;
        std::fs::File::from(file).write_all(content)
    }

    fn make_symlink(&self, root: BorrowedFd<'_>, path: &Path, target: &str) -> io::Result<()> {
        let (parent, name) = parent_and_name(path)?;
        let directory = Self::open_in_root(root, parent, OFlags::PATH | OFlags::DIRECTORY)?;
        match rustix::fs::symlinkat(target, &directory, name) {
            Err(error) if error != rustix::io::Errno::EXIST => Err(error.into()),
            _ => Ok(()),
        }
    }

    fn change_root(&self, root: BorrowedFd<'_>) -> io::Result<()> {
        rustix::process::fchdir(root)?;
        rustix::process::pivot_root(".", ".")?;
        // The old root now lies over the new one; let go of it with everything below.
        rustix::mount::unmount(".", UnmountFlags::DETACH)?;
        Ok(rustix::process::chdir("/")?)
    }

    fn become_user(&self, user: u32, group: u32) -> io::Result<()> {
        raw::set_ids(user, group)
    }

    fn set_host_name(&self, name: &str) -> io::Result<()> {
        Ok(rustix::system::sethostname(name.as_bytes())?)
    }

    fn loopback_up(&self) -> io::Result<()> {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        raw::device_up(socket.as_fd(), c"lo")
    }

    fn total_memory(&self) -> u64 {
        let facts = rustix::system::sysinfo();
        u64::from(facts.mem_unit).saturating_mul(facts.totalram)
    }

    fn write_kernel_file(&self, path: &Path, content: &str) -> io::Result<()> {
        let file = rustix::fs::openat(CWD, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        std::fs::File::from(file).write_all(content.as_bytes())
    }
}

/// The path by which the kernel finds an open descriptor, for options that take only paths.
pub(crate) fn descriptor_path(descriptor: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", descriptor.as_raw_fd())
}

/// A path as a C string; a NUL inside is an input error.
pub(crate) fn c_string(bytes: impl AsRef<std::ffi::OsStr>) -> io::Result<CString> {
    CString::new(bytes.as_ref().as_bytes()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Shared memory at `/dev/shm` could once be written by its owner alone.
    #[test]
    fn a_nested_directory_has_the_mode_that_was_asked_for_whatever_the_umask() {
        let root = tempfile::tempdir().unwrap();
        let place = Linux.open_place(root.path()).unwrap();
        Linux.make_directory(place.as_fd(), Path::new("dev/shm"), 0o1777).unwrap();
        let mode =
            |path: &str| std::fs::metadata(root.path().join(path)).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode("dev"), mode("dev/shm")), (0o755, 0o1777));
        // One that is there keeps its own.
        Linux.make_directory(place.as_fd(), Path::new("dev/shm"), 0o700).unwrap();
        assert_eq!(mode("dev/shm"), 0o1777);
    }
}
