//! System calls that have no safe wrapper in our libraries. Each function is one call.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Adds mount attributes (`MOUNT_ATTR_*`) to a whole tree; with `namespace`, also the id mapping of
/// that user namespace.
pub(crate) fn mount_setattr(
    tree: BorrowedFd<'_>,
    attributes: u64,
    namespace: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let request = libc::mount_attr {
        attr_set: attributes,
        attr_clr: 0,
        propagation: 0,
        userns_fd: namespace.map_or(0, |fd| u64::from(fd.as_raw_fd().unsigned_abs())),
    };
    let empty = c"";
    let flags = libc::AT_EMPTY_PATH | libc::AT_RECURSIVE;
    // SAFETY: `tree` is open, `empty` is NUL-terminated and `request` is a live struct of the size
    // given; the kernel only reads them.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            empty.as_ptr(),
            flags,
            ptr::from_ref(&request),
            size_of::<libc::mount_attr>(),
        )
    };
    check(result).map(drop)
}

/// Forks this process. `None` in the child.
///
/// Only pid 1 of a sandbox calls this: it has one thread, so that the child may go on as ordinary
/// code (no lock can be held by a thread that does not exist there).
pub(crate) fn fork() -> io::Result<Option<rustix::process::Pid>> {
    // SAFETY: `fork` has no memory preconditions; the caller is single-threaded, see above.
    let pid = unsafe { libc::fork() };
    check(pid.into()).map(|_| rustix::process::Pid::from_raw(pid))
}

/// Replaces this process. Returns only on failure.
pub(crate) fn execve(program: &CStr, arguments: &[CString], environment: &[CString]) -> io::Error {
    let pointers = |texts: &[CString]| -> Vec<*const c_char> {
        texts.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect()
    };
    let (arguments, environment) = (pointers(arguments), pointers(environment));
    // SAFETY: both arrays are null-terminated and point to NUL-terminated strings that outlive the
    // call.
    unsafe { libc::execve(program.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
    io::Error::last_os_error()
}

/// Ends this process at once, without running anything on the way.
pub(crate) fn exit_now(status: i32) -> ! {
    // SAFETY: `_exit` takes any status and never returns.
    unsafe { libc::_exit(status) }
}

/// Replaces the supplementary groups.
pub(crate) fn set_groups(groups: &[u32]) -> io::Result<()> {
    // SAFETY: pointer and length describe one live slice of `gid_t`.
    check(unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) }).map(drop)
}

/// Sets real, effective, saved and file-system group, then user, of this single-threaded process.
pub(crate) fn set_ids(user: u32, group: u32) -> io::Result<()> {
    // SAFETY: both calls take plain numbers.
    check(unsafe { libc::syscall(libc::SYS_setresgid, group, group, group) })?;
    // SAFETY: as above.
    check(unsafe { libc::syscall(libc::SYS_setresuid, user, user, user) }).map(drop)
}

/// Forgets which signals whoever started this process ignored: a shell ignores some for what it runs in
/// the background. Only the one that would end this process by a closed pipe stays ignored.
pub(crate) fn forget_ignored_signals() {
    for number in 1..=64 {
        let action = if number == libc::SIGPIPE { libc::SIG_IGN } else { libc::SIG_DFL };
        // SAFETY: both actions are valid for every signal; the kernel refuses the few that can't be
        // changed, which is what we want.
        unsafe { libc::signal(number, action) };
    }
}

/// Puts the one signal that pid 1 ignores back to its default action, and unblocks all.
pub(crate) fn reset_signals() {
    // SAFETY: the default action is valid for the signal; an all-zero set is the empty signal set; the old
    // mask is not asked for.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        let none: libc::sigset_t = std::mem::zeroed();
        libc::sigprocmask(libc::SIG_SETMASK, ptr::from_ref(&none), ptr::null_mut());
    }
}

/// Blocks these signals and gives a descriptor that reports them instead.
pub(crate) fn signal_descriptor(signals: &[i32]) -> io::Result<OwnedFd> {
    // SAFETY: the set is initialised by `sigemptyset` before use, both calls only read it, and the
    // descriptor that `signalfd` returns is new and ours.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(ptr::from_mut(&mut set));
        for signal in signals {
            libc::sigaddset(ptr::from_mut(&mut set), *signal);
        }
        check(libc::sigprocmask(libc::SIG_BLOCK, ptr::from_ref(&set), ptr::null_mut()).into())?;
        let descriptor = libc::signalfd(-1, ptr::from_ref(&set), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        check(descriptor.into())?;
        Ok(OwnedFd::from_raw_fd(descriptor))
    }
}

/// Marks every descriptor from `first` on as closed at the next `execve`.
pub(crate) fn close_on_exec_from(first: RawFd) -> io::Result<()> {
    // SAFETY: the call takes plain numbers and only sets a flag on descriptors.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) })
        .map(drop)
}

/// Takes over a descriptor that this process was started with.
///
/// `None` when it is not open.
pub(crate) fn take_inherited(descriptor: RawFd) -> Option<OwnedFd> {
    // SAFETY: `fcntl` only asks whether the number is open.
    let open = unsafe { libc::fcntl(descriptor, libc::F_GETFD) } >= 0;
    // SAFETY: it is open, and by the start protocol nobody else in this process owns it.
    open.then(|| unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Switches one network device on or off flags through `SIOCSIFFLAGS`.
pub(crate) fn device_up(socket: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    let up = libc::c_short::try_from(libc::IFF_UP).map_err(io::Error::other)?;
    // SAFETY: `ifreq` is plain data for which zero is valid; the name fits (checked by `take`), and the
    // kernel reads and writes only this struct.
    unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        for (slot, byte) in request.ifr_name.iter_mut().zip(name.to_bytes().iter().take(libc::IFNAMSIZ - 1)) {
            *slot = c_char::from_ne_bytes([*byte]);
        }
        check(libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS, ptr::from_mut(&mut request)).into())?;
        request.ifr_ifru.ifru_flags |= up;
        check(libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, ptr::from_ref(&request)).into()).map(drop)
    }
}

/// Sends a signal to every process of this process namespace except its pid 1.
///
/// Only pid 1 of a sandbox calls this; anywhere else it would reach every process of the user.
pub(crate) fn signal_everyone(signal: i32) {
    if rustix::process::getpid().as_raw_nonzero().get() == 1 {
        // SAFETY: the call takes plain numbers; -1 stays within this process namespace.
        unsafe { libc::kill(-1, signal) };
    }
}

/// Closes every descriptor from `first` on. The caller uses none of them afterwards.
pub(crate) fn close_from(first: RawFd) -> io::Result<()> {
    // SAFETY: the call takes plain numbers. Owners of closed descriptors exist only in memory that the
    // caller, a freshly forked child, never drops: it ends by `exit_now`.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) }).map(drop)
}

/// Moves this process into a new UTS namespace that starts as a copy of its old one.
pub(crate) fn new_uts_namespace() -> io::Result<()> {
    // SAFETY: this flag changes nothing but the names that `uname` gives.
    check(unsafe { libc::unshare(libc::CLONE_NEWUTS) }.into()).map(drop)
}
