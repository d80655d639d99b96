//! The one place where a process is made: `clone3` into new namespaces, then this program again.
//!
//! The caller may have many threads, so between `clone3` and `execveat` the child only makes plain
//! system calls on memory prepared before: it allocates nothing, locks nothing and drops nothing.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use rustix::process::Pid;

use crate::init::{CONNECTION_DESCRIPTOR, PROGRAM_NAME};

/// What the child needs, all of it prepared before it exists.
pub(super) struct CloneRequest<'a> {
    /// This program, opened.
    pub(super) program: BorrowedFd<'a>,
    /// Pid 1's end of the connection.
    pub(super) connection: BorrowedFd<'a>,
    /// Gives one byte when the id maps are written by the host.
    pub(super) gate: BorrowedFd<'a>,
    /// `/dev/null`, for the standard streams.
    pub(super) nothing: BorrowedFd<'a>,
    /// The lines of `uid_map` and `gid_map` when the child can write them itself.
    pub(super) own_maps: Option<(String, String)>,
    /// What it gets of its own.
    pub(super) namespaces: Namespaces,
}

/// What a new process gets of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Namespaces {
    /// Everything.
    Sandbox,
    /// Everything but the network.
    SandboxOnHostNetwork,
    /// Users only: it works on the host's files with other ids.
    UserOnly,
}

impl Namespaces {
    fn flags(self) -> i32 {
        let sandbox = libc::CLONE_NEWUSER
            | libc::CLONE_NEWNS
            | libc::CLONE_NEWPID
            | libc::CLONE_NEWIPC
            | libc::CLONE_NEWUTS
            | libc::CLONE_NEWCGROUP;
        match self {
            Self::Sandbox => sandbox | libc::CLONE_NEWNET,
            Self::SandboxOnHostNetwork => sandbox,
            Self::UserOnly => libc::CLONE_NEWUSER,
        }
    }
}

/// A new process.
#[derive(Debug)]
pub(super) struct Cloned {
    pub(super) pid: Pid,
    pub(super) descriptor: OwnedFd,
}

/// Descriptors that the child must not overwrite while it arranges its own.
const FIRST_FREE: RawFd = 10;

fn duplicate_high(descriptor: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    Ok(rustix::io::fcntl_dupfd_cloexec(descriptor, FIRST_FREE)?)
}

/// Makes the process.
pub(super) fn clone_into_namespaces(request: &CloneRequest<'_>) -> io::Result<Cloned> {
    let program = duplicate_high(request.program)?;
    let connection = duplicate_high(request.connection)?;
    let gate = duplicate_high(request.gate)?;
    let nothing = duplicate_high(request.nothing)?;
    let name = std::ffi::CString::new(PROGRAM_NAME)?;
    let arguments: [*const c_char; 2] = [name.as_ptr(), ptr::null()];
    let environment: [*const c_char; 1] = [ptr::null()];
    let child = Child {
        program: program.as_raw_fd(),
        connection: connection.as_raw_fd(),
        gate: gate.as_raw_fd(),
        nothing: nothing.as_raw_fd(),
        maps: request.own_maps.as_ref().map(|(users, groups)| (users.as_bytes(), groups.as_bytes())),
        arguments: &arguments,
        environment: &environment,
    };

    let flags = request.namespaces.flags() | libc::CLONE_PIDFD;
    let mut descriptor: RawFd = -1;
    // SAFETY: zero is valid for every field of this plain struct.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = u64::from(flags.unsigned_abs());
    arguments.pidfd = ptr::from_mut(&mut descriptor) as u64;
    // No signal at its end: the program that embeds us may wait for children of its own.
    arguments.exit_signal = 0;

    // SAFETY: `arguments` is a valid struct of the size given. Without CLONE_VM and a stack, the child
    // is a copy of this process that goes on from here on a copy of this stack, as after `fork`.
    let result = unsafe {
        libc::syscall(libc::SYS_clone3, ptr::from_mut(&mut arguments), size_of::<libc::clone_args>())
    };
    if result == 0 {
        child.become_init();
    }
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let pid = i32::try_from(result).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
    // SAFETY: the kernel made this descriptor for us, since CLONE_PIDFD was asked for and succeeded.
    let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
    Ok(Cloned { pid, descriptor })
}

/// Everything the child uses: numbers and borrowed memory that was ready before it existed.
struct Child<'a> {
    program: RawFd,
    connection: RawFd,
    gate: RawFd,
    nothing: RawFd,
    maps: Option<(&'a [u8], &'a [u8])>,
    arguments: &'a [*const c_char; 2],
    environment: &'a [*const c_char; 1],
}

impl Child<'_> {
    /// Becomes pid 1's program. Ends the process when that fails; the host then sees its connection
    /// close before a word was said.
    fn become_init(&self) -> ! {
        let failed_at = self.try_become_init();
        // SAFETY: `_exit` takes any status.
        unsafe { libc::_exit(failed_at) }
    }

    fn try_become_init(&self) -> i32 {
        self.close_all_others();
        let mapped = match self.maps {
            Some((users, groups)) => {
                write_file(c"/proc/self/setgroups", b"deny")
                    && write_file(c"/proc/self/uid_map", users)
                    && write_file(c"/proc/self/gid_map", groups)
            }
            None => wait_for_byte(self.gate),
        };
        if !mapped {
            return 101;
        }
        if !keep_capabilities_over_exec() {
            return 102;
        }
        // SAFETY: plain numbers and pointers to memory that lives in this process; see the module.
        unsafe {
            for stream in 0..3 {
                if libc::dup2(self.nothing, stream) < 0 {
                    return 103;
                }
            }
            if libc::dup2(self.connection, CONNECTION_DESCRIPTOR) < 0 {
                return 104;
            }
            let first = CONNECTION_DESCRIPTOR + 1;
            libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
            let none: libc::sigset_t = std::mem::zeroed();
            libc::sigprocmask(libc::SIG_SETMASK, ptr::from_ref(&none), ptr::null_mut());
            libc::syscall(
                libc::SYS_execveat,
                self.program,
                c"".as_ptr(),
                self.arguments.as_ptr(),
                self.environment.as_ptr(),
                libc::AT_EMPTY_PATH,
            );
        }
        105
    }
}

impl Child<'_> {
    /// Lets go of everything else that this process had open. Above all of the other end of the gate: a
    /// child that holds it itself would wait for ever once the host's process is killed.
    fn close_all_others(&self) {
        let mut kept = [self.program, self.connection, self.gate, self.nothing].map(RawFd::unsigned_abs);
        kept.sort_unstable();
        let mut first = 0;
        for descriptor in kept {
            if descriptor > first {
                close_range(first, descriptor - 1);
            }
            first = descriptor + 1;
        }
        close_range(first, u32::MAX);
    }
}

fn close_range(first: u32, last: u32) {
    // SAFETY: plain numbers; the descriptors are this process's own copies, and none is used again.
    unsafe {
        libc::syscall(libc::SYS_close_range, first, last, 0);
    }
}

fn write_file(path: &CStr, content: &[u8]) -> bool {
    // SAFETY: `path` is NUL-terminated, `content` is a live slice, and the descriptor is our own.
    unsafe {
        let file = libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        file >= 0 && libc::write(file, content.as_ptr().cast(), content.len()) == content.len().cast_signed()
    }
}

fn wait_for_byte(gate: RawFd) -> bool {
    let mut byte = 0_u8;
    loop {
        // SAFETY: one byte of live memory.
        let count = unsafe { libc::read(gate, ptr::from_mut(&mut byte).cast(), 1) };
        if count == 1 {
            return true;
        }
        // SAFETY: `errno` is this thread's own.
        if count == 0 || unsafe { *libc::__errno_location() } != libc::EINTR {
            return false;
        }
    }
}

/// The first process of a user namespace has every capability in it, but `execve` as an inner user
/// other than 0 would lose them. Ambient capabilities stay.
fn keep_capabilities_over_exec() -> bool {
    /// `_LINUX_CAPABILITY_VERSION_3`.
    const VERSION: u32 = 0x2008_0522;
    let mut header = [VERSION, 0];
    // Effective, permitted and inheritable, each in two words of which the second comes later.
    let mut sets = [0_u32; 6];
    // SAFETY: both arrays have the layout of version 3 and live on this stack; `prctl` takes numbers.
    unsafe {
        if libc::syscall(libc::SYS_capget, header.as_mut_ptr(), sets.as_mut_ptr()) != 0 {
            return false;
        }
        sets[2] = sets[1];
        sets[5] = sets[4];
        if libc::syscall(libc::SYS_capset, header.as_mut_ptr(), sets.as_ptr()) != 0 {
            return false;
        }
        let permitted = u64::from(sets[1]) | (u64::from(sets[4]) << 32);
        for number in 0..64 {
            if permitted & (1 << number) != 0
                && libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE, number, 0, 0) != 0
            {
                return false;
            }
        }
    }
    true
}

/// Collects the status of an ended process. The host owns it by its descriptor; nobody else waits.
pub(super) fn reap(descriptor: BorrowedFd<'_>) {
    // SAFETY: `siginfo_t` is plain data for which zero is valid, and the descriptor is open.
    unsafe {
        let mut information: libc::siginfo_t = std::mem::zeroed();
        let id = descriptor.as_raw_fd().unsigned_abs();
        let flags = libc::WEXITED | libc::WNOHANG | libc::__WALL;
        libc::waitid(libc::P_PIDFD, id, ptr::from_mut(&mut information), flags);
    }
}
