//! The door to the kernel for the privileged steps of start-up.
//!
//! Every step asks through [`System`]; [`Linux`] does it, and [`Recording`] writes down what it was
//! asked, so that order and arguments are tested without privileges.

mod linux;
pub(crate) mod raw;
#[cfg(test)]
mod recording;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

pub(crate) use linux::{Linux, c_string, descriptor_path};
#[cfg(test)]
pub(crate) use recording::Recording;

/// Restrictions on a mount. Restrictions are only ever added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MountRestrictions {
    /// Nothing can be written through it.
    pub(crate) read_only: bool,
    /// Device nodes on it are dead.
    pub(crate) no_devices: bool,
    /// Programs on it can't be executed.
    pub(crate) no_execute: bool,
}

impl MountRestrictions {
    /// For trees of programs and data: set-id bits and devices are dead.
    pub(crate) const PLAIN: Self = Self { read_only: false, no_devices: true, no_execute: false };
    /// The same, read-only.
    pub(crate) const READ_ONLY: Self = Self { read_only: true, no_devices: true, no_execute: false };
    /// For single device nodes, which must stay alive. Read-only holds for the node's owner, mode and
    /// times; what is read and written is the device.
    pub(crate) const DEVICE: Self = Self { read_only: true, no_devices: false, no_execute: true };
    /// For kernel file systems.
    pub(crate) const KERNEL: Self = Self { read_only: false, no_devices: true, no_execute: true };
}

/// What start-up asks of the kernel. Paths below `root` are resolved with `root` as their root
/// (`RESOLVE_IN_ROOT`), so no link in an image can lead a mount elsewhere.
pub(crate) trait System {
    /// Opens a place without reading it.
    fn open_place(&self, path: &Path) -> io::Result<OwnedFd>;
    /// Opens a place below `root`.
    fn open_below(&self, root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd>;
    /// Makes every mount of this namespace private, so that nothing propagates either way.
    fn make_mounts_private(&self) -> io::Result<()>;
    /// A detached copy of the mount tree at `place`.
    fn clone_tree(&self, place: BorrowedFd<'_>) -> io::Result<OwnedFd>;
    /// Adds restrictions to a detached tree, submounts included. Set-id bits are always dead.
    fn restrict(&self, tree: BorrowedFd<'_>, restrictions: MountRestrictions) -> io::Result<()>;
    /// A new file system, detached.
    fn new_filesystem(
        &self,
        kind: &'static str,
        options: &[(&'static str, String)],
        restrictions: MountRestrictions,
    ) -> io::Result<OwnedFd>;
    /// Attaches a detached tree on top of `place`.
    fn attach(&self, tree: BorrowedFd<'_>, place: BorrowedFd<'_>) -> io::Result<()>;
    /// Makes a directory below `root`, with its parents; one that exists is fine.
    fn make_directory(&self, root: BorrowedFd<'_>, path: &Path, mode: u32) -> io::Result<()>;
    /// Makes or replaces a small file below `root`.
    fn write_below(&self, root: BorrowedFd<'_>, path: &Path, content: &[u8], mode: u32) -> io::Result<()>;
    /// Makes a symbolic link below `root`; one that exists is left.
    fn make_symlink(&self, root: BorrowedFd<'_>, path: &Path, target: &str) -> io::Result<()>;
    /// Makes `root` the root of this process and lets go of the old one.
    fn change_root(&self, root: BorrowedFd<'_>) -> io::Result<()>;
    /// Becomes this user and group of the user namespace, keeping the capabilities.
    fn become_user(&self, user: u32, group: u32) -> io::Result<()>;
    /// Sets the host name.
    fn set_host_name(&self, name: &str) -> io::Result<()>;
    /// Switches the loopback device on.
    fn loopback_up(&self) -> io::Result<()>;
    /// The memory of this machine in bytes.
    fn total_memory(&self) -> u64;
    /// Writes to a kernel file by its path.
    fn write_kernel_file(&self, path: &Path, content: &str) -> io::Result<()>;
}
