//! A kernel that only writes down what it was asked.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use super::{MountRestrictions, System};

/// The recording double. Descriptors it hands out are real but lead nowhere.
#[derive(Debug, Default)]
pub(crate) struct Recording {
    asked: RefCell<Vec<String>>,
    fail_on: Option<&'static str>,
}

impl Recording {
    /// A double whose call named `call` fails.
    pub(crate) fn failing_on(call: &'static str) -> Self {
        Self { asked: RefCell::default(), fail_on: Some(call) }
    }

    /// What was asked, in order, one call a line.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.asked.borrow().clone()
    }

    fn note(&self, call: &'static str, detail: impl AsRef<str>) -> io::Result<()> {
        self.asked.borrow_mut().push(format!("{call} {}", detail.as_ref()).trim_end().to_owned());
        if self.fail_on == Some(call) { Err(io::ErrorKind::PermissionDenied.into()) } else { Ok(()) }
    }

    fn nowhere() -> io::Result<OwnedFd> {
        Ok(File::open("/dev/null")?.into())
    }
}

impl System for Recording {
    fn open_place(&self, path: &Path) -> io::Result<OwnedFd> {
        self.note("open_place", path.display().to_string())?;
        Self::nowhere()
    }
    fn open_below(&self, _root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
        self.note("open_below", path.display().to_string())?;
        Self::nowhere()
    }
    fn make_mounts_private(&self) -> io::Result<()> {
        self.note("make_mounts_private", "")
    }
    fn clone_tree(&self, _place: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        self.note("clone_tree", "")?;
        Self::nowhere()
    }
    fn restrict(&self, _tree: BorrowedFd<'_>, restrictions: MountRestrictions) -> io::Result<()> {
        self.note("restrict", format!("{restrictions:?}"))
    }
    fn new_filesystem(
        &self,
        kind: &'static str,
        options: &[(&'static str, String)],
        restrictions: MountRestrictions,
    ) -> io::Result<OwnedFd> {
        // Descriptor numbers differ from run to run; what matters is which options are given.
        let names: Vec<_> = options.iter().map(|(key, _)| *key).collect();
        self.note("new_filesystem", format!("{kind} {names:?} {restrictions:?}"))?;
        Self::nowhere()
    }
    fn attach(&self, _tree: BorrowedFd<'_>, _place: BorrowedFd<'_>) -> io::Result<()> {
        self.note("attach", "")
    }
    fn make_directory(&self, _root: BorrowedFd<'_>, path: &Path, mode: u32) -> io::Result<()> {
        self.note("make_directory", format!("{} {mode:o}", path.display()))
    }
    fn write_below(&self, _root: BorrowedFd<'_>, path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
        self.note("write_below", format!("{} {} bytes {mode:o}", path.display(), content.len()))
    }
    fn make_symlink(&self, _root: BorrowedFd<'_>, path: &Path, target: &str) -> io::Result<()> {
        self.note("make_symlink", format!("{} -> {target}", path.display()))
    }
    fn change_root(&self, _root: BorrowedFd<'_>) -> io::Result<()> {
        self.note("change_root", "")
    }
    fn become_user(&self, user: u32, group: u32) -> io::Result<()> {
        self.note("become_user", format!("{user}:{group}"))
    }
    fn set_host_name(&self, name: &str) -> io::Result<()> {
        self.note("set_host_name", name)
    }
    fn loopback_up(&self) -> io::Result<()> {
        self.note("loopback_up", "")
    }
    fn total_memory(&self) -> u64 {
        1 << 30
    }
    fn write_kernel_file(&self, path: &Path, content: &str) -> io::Result<()> {
        self.note("write_kernel_file", format!("{} {content}", path.display()))
    }
}
