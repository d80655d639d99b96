//! The system calls that no safe wrapper offers. The only unsafe code of the doctor.
#![allow(unsafe_code)]

use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use rustix::io::{Errno, Result};
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions};
use rustix::thread::UnshareFlags;

use super::script::{self, Script};

/// Turns the result of a libc call into ours.
fn check(result: libc::c_long) -> Result<libc::c_long> {
    if result < 0 { Err(last_error()) } else { Ok(result) }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Ends the process when dropped, so that not even a panic returns from a forked child into code
/// that belongs to its parent.
struct ExitGuard;

impl Drop for ExitGuard {
    fn drop(&mut self) {
        // SAFETY: `_exit` takes a plain number, runs no exit handlers and does not return.
        unsafe { libc::_exit(0) }
    }
}

/// Forks a child that performs the script from step `first` on and then exits. All signals are
/// blocked in the child, so that no handler of this program runs there.
pub(super) fn fork_performing(script: &Script, first: usize, report: BorrowedFd<'_>) -> Result<Pid> {
    // SAFETY: an all-zero `sigset_t` is a valid value, and `sigfillset` overwrites it.
    let mut every: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let mut before: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: both point to live `sigset_t` values of this frame.
    unsafe {
        libc::sigfillset(&raw mut every);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const every, &raw mut before);
    }
    // SAFETY: the child has only this thread, while another may have held any lock at the moment of
    // the fork. It runs nothing but `script::perform`, which makes system calls on memory prepared
    // by the parent, neither allocates nor locks, and it leaves through `_exit` by the guard.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let guard = ExitGuard;
        script::perform(script, first, report);
        drop(guard);
    }
    let outcome = if child < 0 { Err(last_error()) } else { Pid::from_raw(child).ok_or(Errno::SRCH) };
    // SAFETY: `before` was filled in by the first call.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    outcome
}

/// `unshare(2)`.
pub(super) fn unshare(flags: UnshareFlags) -> Result<()> {
    if flags.contains(UnshareFlags::FILES) {
        return Err(Errno::INVAL);
    }
    // SAFETY: only `FILES` can invalidate descriptors that others hold, and it is refused above.
    unsafe { rustix::thread::unshare_unsafe(flags) }
}

/// Makes a child with `clone3` and no flags, and waits for its end.
pub(super) fn clone3_and_wait() -> Result<()> {
    // `struct clone_args` of its first published size: eight 64-bit fields, `exit_signal` the fifth.
    const EXIT_SIGNAL: usize = 4;
    let mut arguments = [0_u64; 8];
    arguments[EXIT_SIGNAL] = libc::SIGCHLD as u64;
    // SAFETY: without flags and stack the call behaves as `fork`; the argument array outlives it.
    let child =
        unsafe { libc::syscall(libc::SYS_clone3, arguments.as_ptr(), std::mem::size_of_val(&arguments)) };
    if child == 0 {
        drop(ExitGuard);
    }
    let child = i32::try_from(check(child)?).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
    loop {
        match rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty()) {
            Err(Errno::INTR) => {}
            // A program that ignores SIGCHLD has its children reaped by the kernel.
            Ok(_) | Err(Errno::CHILD) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// Makes a child that ends at once, and waits for its end through a pidfd.
pub(super) fn fork_and_wait_on_pidfd() -> Result<()> {
    // SAFETY: the child calls nothing but `_exit`, by the guard.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(ExitGuard);
    }
    if child < 0 {
        return Err(last_error());
    }
    let child = Pid::from_raw(child).ok_or(Errno::SRCH)?;
    let pidfd = rustix::process::pidfd_open(child, PidfdFlags::empty())?;
    loop {
        match rustix::process::waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED) {
            Err(Errno::INTR) => {}
            // A program that ignores SIGCHLD has its children reaped by the kernel.
            Ok(_) | Err(Errno::CHILD) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// `close_range` on the one descriptor number that can never be open.
pub(super) fn close_range_of_nothing() -> Result<()> {
    // SAFETY: the range holds no valid descriptor, so nothing is closed.
    check(unsafe { libc::syscall(libc::SYS_close_range, u32::MAX, u32::MAX, 0_u32) }).map(drop)
}

/// Installs a seccomp filter that allows everything. Needs `no_new_privs` or `CAP_SYS_ADMIN`.
pub(super) fn install_open_seccomp_filter() -> Result<()> {
    let mut allow = [libc::sock_filter {
        code: 0x06, // BPF_RET | BPF_K
        jt: 0,
        jf: 0,
        k: libc::SECCOMP_RET_ALLOW,
    }];
    let program = libc::sock_fprog { len: 1, filter: allow.as_mut_ptr() };
    // SAFETY: the program points to one live instruction, and the kernel copies it.
    check(unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0_u32, &raw const program)
    })
    .map(drop)
}

/// The version of the Landlock interface.
pub(super) fn landlock_version() -> Result<u32> {
    const VERSION: u32 = 1;
    // SAFETY: with this flag the kernel wants a null pointer and a zero size, and makes nothing.
    let version = check(unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0_usize, VERSION)
    })?;
    u32::try_from(version).map_err(|_| Errno::RANGE)
}

/// Forbids this process to execute files, by Landlock. Needs `no_new_privs`.
pub(super) fn enforce_landlock() -> Result<()> {
    // The first field of `struct landlock_ruleset_attr`; its first version ends there.
    const EXECUTE: u64 = 1;
    let handled = EXECUTE;
    // SAFETY: the attribute is one live 64-bit field, as the size says.
    let rules = check(unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, &raw const handled, size_of::<u64>(), 0_u32)
    })?;
    let rules = i32::try_from(rules).map_err(|_| Errno::RANGE)?;
    // SAFETY: the kernel has just given this descriptor to us alone.
    let rules = unsafe { OwnedFd::from_raw_fd(rules) };
    // SAFETY: plain numbers.
    check(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, rules.as_raw_fd(), 0_u32) }).map(drop)
}

/// Gives a detached mount the id mapping of a user namespace.
pub(super) fn map_mount_ids(mount: BorrowedFd<'_>, namespace: BorrowedFd<'_>) -> Result<()> {
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_IDMAP,
        attr_clr: 0,
        propagation: 0,
        userns_fd: u64::try_from(namespace.as_raw_fd()).map_err(|_| Errno::BADF)?,
    };
    // SAFETY: the path is an empty C string, the attributes are live and of the size given.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    })
    .map(drop)
}

/// Makes a tun interface on an open `/dev/net/tun`; it vanishes with the descriptor.
pub(super) fn make_tunnel(device: BorrowedFd<'_>) -> Result<()> {
    // `struct ifreq`: 16 bytes of name, then a union of 24 bytes that begins with the flags.
    #[repr(C, align(8))]
    struct Request {
        name: [u8; 16],
        flags: libc::c_short,
        rest: [u8; 22],
    }
    let flags = libc::IFF_TUN | libc::IFF_NO_PI;
    let mut request =
        Request { name: [0; 16], flags: flags.try_into().map_err(|_| Errno::RANGE)?, rest: [0; 22] };
    // SAFETY: the request has the layout of `struct ifreq` and outlives the call, which writes the
    // name it chose into it.
    check(unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF, &raw mut request) }.into()).map(drop)
}
