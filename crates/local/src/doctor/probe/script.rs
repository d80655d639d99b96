//! What a probe's child process does, as data: the parent prepares every path and byte, and the
//! child only makes system calls, because after a fork it must neither allocate nor lock.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{CWD, MemfdFlags, Mode, OFlags, ResolveFlags};
use rustix::io::{Errno, Result};
use rustix::mount::{MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags};
use rustix::process::{PidfdFlags, Signal, WaitOptions};
use rustix::thread::UnshareFlags;

use super::system_calls;

/// One thing that a child does.
#[derive(Debug)]
pub(super) enum Call {
    /// Leaves namespaces.
    Unshare(UnshareFlags),
    /// Writes into an existing file, in one call.
    Write { path: CString, bytes: Vec<u8> },
    /// Cuts its mounts off from everybody else's.
    PrivateMounts,
    /// Makes a directory the current one.
    Enter(CString),
    /// Mounts a new file system.
    Mount { kind: &'static CStr, target: CString, options: CString },
    /// Shows a tree at a second place.
    Bind { source: CString, target: CString },
    /// Takes a copy of a mount, gives it the ids of a user namespace, and attaches it.
    BindMapped { source: CString, target: CString, namespace: OwnedFd },
    /// Copies a mount and gives it the ids of a user namespace, without attaching it.
    MapIds { source: CString, namespace: OwnedFd },
    /// Removes a file.
    RemoveFile(CString),
    /// Removes an empty directory and makes it anew.
    ReplaceDirectory(CString),
    /// Opens a device for reading and writing.
    Open(CString),
    /// Makes a tun interface on a device.
    Tunnel(CString),
    /// The rest happens in a child of the child: the first process of a new pid namespace.
    ContinueInChild,
    /// Gives up gaining privileges by execution.
    NoNewPrivileges,
    /// Installs a seccomp filter.
    Seccomp,
    /// Enforces a Landlock rule set.
    Landlock,
    /// Makes a process by `clone3`.
    Clone3,
    /// Opens a pidfd of itself.
    Pidfd,
    /// Makes a process and waits for it through a pidfd.
    WaitOnPidfd,
    /// Resolves the current directory beneath itself.
    Openat2,
    /// Closes a range of descriptors that holds none.
    CloseRange,
    /// Makes a file in memory.
    Memfd,
    /// Stays until it is killed.
    Hold,
}

/// The steps of one child.
#[derive(Debug, Default)]
pub(super) struct Script {
    steps: Vec<(Call, OnFailure)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OnFailure {
    Stop,
    GoOn,
}

/// The place of a step in its script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StepNumber(pub(super) usize);

impl Script {
    /// Adds a step that the later ones need.
    pub(super) fn must(&mut self, call: Call) -> StepNumber {
        self.push(call, OnFailure::Stop)
    }

    /// Adds a step that the later ones don't need.
    pub(super) fn may(&mut self, call: Call) -> StepNumber {
        self.push(call, OnFailure::GoOn)
    }

    fn push(&mut self, call: Call, on_failure: OnFailure) -> StepNumber {
        self.steps.push((call, on_failure));
        StepNumber(self.steps.len() - 1)
    }

    /// How many steps there are.
    pub(super) fn len(&self) -> usize {
        self.steps.len()
    }
}

/// A path as the kernel wants it. A path with a zero byte cannot exist; it becomes the empty path,
/// which the kernel refuses.
pub(super) fn kernel_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap_or_default()
}

/// The record of one step on the report pipe: its number and its error number, or zero.
pub(super) const RECORD_LENGTH: usize = 8;

/// One record as bytes.
fn record(step: usize, error: i32) -> [u8; RECORD_LENGTH] {
    let step = u32::try_from(step).unwrap_or(u32::MAX).to_ne_bytes();
    let error = error.to_ne_bytes();
    [step[0], step[1], step[2], step[3], error[0], error[1], error[2], error[3]]
}

/// Reads a record back.
pub(super) fn read_record(bytes: [u8; RECORD_LENGTH]) -> (StepNumber, i32) {
    let [step @ .., e0, e1, e2, e3] = bytes;
    (StepNumber(u32::from_ne_bytes(step) as usize), i32::from_ne_bytes([e0, e1, e2, e3]))
}

/// Performs the steps from `first` on, in a forked child, and reports each as it ends.
pub(super) fn perform(script: &Script, first: usize, report: BorrowedFd<'_>) {
    // The child must not outlive a parent that is killed.
    if rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).is_err() {
        return;
    }
    for (number, (call, on_failure)) in script.steps.iter().enumerate().skip(first) {
        if matches!(call, Call::ContinueInChild) {
            continue_in_child(script, number, report);
            return;
        }
        if matches!(call, Call::Hold) {
            let _ = rustix::io::write(report, &record(number, 0));
            loop {
                rustix::event::pause();
            }
        }
        let error = perform_call(call).map_or_else(Errno::raw_os_error, |()| 0);
        let _ = rustix::io::write(report, &record(number, error));
        if error != 0 && *on_failure == OnFailure::Stop {
            return;
        }
    }
}

/// Forks, lets the child do the steps after `number`, and waits for it.
fn continue_in_child(script: &Script, number: usize, report: BorrowedFd<'_>) {
    let child = system_calls::fork_performing(script, number + 1, report);
    let error = child.map_or_else(Errno::raw_os_error, |_| 0);
    let _ = rustix::io::write(report, &record(number, error));
    if let Ok(child) = child {
        while matches!(rustix::process::waitpid(Some(child), WaitOptions::empty()), Err(Errno::INTR)) {}
    }
}

fn perform_call(call: &Call) -> Result<()> {
    match call {
        Call::Unshare(flags) => system_calls::unshare(*flags),
        Call::Write { path, bytes } => {
            let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
            let written = rustix::io::write(&file, bytes)?;
            if written == bytes.len() { Ok(()) } else { Err(Errno::IO) }
        }
        Call::PrivateMounts => {
            rustix::mount::mount_change(c"/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        }
        Call::Enter(path) => rustix::process::chdir(path),
        Call::Mount { kind, target, options } => {
            // Not `nodev`: a terminal is a device.
            let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
            rustix::mount::mount(*kind, target, *kind, flags, options.as_c_str())
        }
        Call::Bind { source, target } => rustix::mount::mount_bind_recursive(source, target),
        Call::BindMapped { source, target, namespace } => {
            let tree = clone_mapped(source, namespace)?;
            rustix::mount::move_mount(&tree, c"", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        }
        Call::MapIds { source, namespace } => clone_mapped(source, namespace).map(drop),
        Call::RemoveFile(path) => rustix::fs::unlink(path),
        Call::ReplaceDirectory(path) => {
            rustix::fs::rmdir(path)?;
            rustix::fs::mkdir(path, Mode::RWXU)
        }
        Call::Open(path) => open_device(path).map(drop),
        Call::Tunnel(path) => system_calls::make_tunnel(open_device(path)?.as_fd()),
        Call::NoNewPrivileges => rustix::thread::set_no_new_privs(true),
        Call::Seccomp => system_calls::install_open_seccomp_filter(),
        Call::Landlock => system_calls::enforce_landlock(),
        Call::Clone3 => system_calls::clone3_and_wait(),
        Call::Pidfd => rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).map(drop),
        Call::WaitOnPidfd => system_calls::fork_and_wait_on_pidfd(),
        Call::Openat2 => {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            rustix::fs::openat2(CWD, c".", flags, Mode::empty(), ResolveFlags::BENEATH).map(drop)
        }
        Call::CloseRange => system_calls::close_range_of_nothing(),
        Call::Memfd => {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            rustix::fs::memfd_create(c"leasehold-doctor", flags).map(drop)
        }
        // Both are the business of `perform`.
        Call::ContinueInChild | Call::Hold => Err(Errno::INVAL),
    }
}

fn open_device(path: &CStr) -> Result<OwnedFd> {
    rustix::fs::open(path, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())
}

/// A detached copy of the mount that `source` is on, beginning there, with mapped ids.
fn clone_mapped(source: &CStr, namespace: &OwnedFd) -> Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = rustix::mount::open_tree(CWD, source, flags)?;
    system_calls::map_mount_ids(tree.as_fd(), namespace.as_fd())?;
    Ok(tree)
}
