//! System calls by number, as an attacker makes them. All unsafe code of the suite is here.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::os::fd::RawFd;
use std::ptr;

/// One argument of a system call.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Argument<'a> {
    /// A number or a descriptor.
    Number(i64),
    /// A pointer to this text with a NUL behind it.
    Text(&'a str),
    /// A pointer to memory that starts with these bytes.
    Memory(&'a [u8]),
}

/// What any call of this suite reads or writes at most behind one pointer.
const ROOM: usize = 4096;

/// Makes a system call. Every pointer leads to [`ROOM`] bytes of its own, whatever its content.
///
/// The caller names calls that write no more than that, and none that changes this process's memory map.
pub(crate) fn call(number: i64, arguments: &[Argument<'_>]) -> io::Result<i64> {
    let mut memory: Vec<Vec<u8>> = Vec::new();
    let mut words = [0_i64; 6];
    for (word, argument) in words.iter_mut().zip(arguments) {
        let content = match argument {
            Argument::Number(number) => {
                *word = *number;
                continue;
            }
            Argument::Text(text) => text.as_bytes(),
            Argument::Memory(bytes) => bytes,
        };
        let mut room = vec![0_u8; ROOM.max(content.len() + 1)];
        room[..content.len()].copy_from_slice(content);
        *word = room.as_mut_ptr().expose_provenance().cast_signed() as i64;
        memory.push(room);
    }
    let [first, second, third, fourth, fifth, sixth] = words;
    // SAFETY: pointers among the words lead to `memory`, which outlives the call and is larger than
    // anything that the calls of this suite read or write; the rest are plain numbers.
    let result = unsafe { libc::syscall(number, first, second, third, fourth, fifth, sixth) };
    drop(memory);
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// How a forked child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// By itself, with this code.
    Exited(i32),
    /// By this signal.
    Killed(i32),
}

/// Runs `work` in a forked child and waits for its end. Only for the attacker, which has one thread.
pub(crate) fn in_child(work: impl FnOnce() -> i32) -> io::Result<Ended> {
    let Some(child) = fork()? else { leave(work()) };
    let mut status = 0;
    // SAFETY: `status` is live memory for one number.
    while unsafe { libc::waitpid(child, &raw mut status, 0) } < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    Ok(if libc::WIFEXITED(status) {
        Ended::Exited(libc::WEXITSTATUS(status))
    } else {
        Ended::Killed(libc::WTERMSIG(status))
    })
}

/// Forks; `None` in the child. Only for the attacker, which has one thread.
pub(crate) fn fork() -> io::Result<Option<i32>> {
    // SAFETY: the attacker has one thread, so that the child may go on as ordinary code.
    match unsafe { libc::fork() } {
        0 => Ok(None),
        child if child > 0 => Ok(Some(child)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Ends this process at once.
pub(crate) fn leave(code: i32) -> ! {
    // SAFETY: `_exit` takes any number and does not return.
    unsafe { libc::_exit(code) }
}

/// Makes a process by `clone` with these flags. Only for the attacker, which has one thread.
pub(crate) fn clone_with(flags: i32) -> io::Result<()> {
    let flags = i64::from(flags) | i64::from(libc::SIGCHLD);
    // SAFETY: without CLONE_VM and a stack the child is a copy, as after `fork`; it ends at once.
    let result = unsafe { libc::syscall(libc::SYS_clone, flags, 0_i64, 0_i64, 0_i64, 0_i64) };
    match result {
        0 => leave(0),
        _ if result < 0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// `getpid` by the 32-bit entry of the kernel, which numbers calls otherwise.
#[cfg(target_arch = "x86_64")]
pub(crate) fn get_pid_by_32_bit_entry() -> i64 {
    const GET_PID: i64 = 20;
    let mut result = GET_PID;
    // SAFETY: the call has no arguments and touches no memory; registers that the entry may change are
    // declared.
    unsafe {
        std::arch::asm!(
            "int 0x80",
            inlateout("rax") result,
            lateout("r8") _, lateout("r9") _, lateout("r10") _, lateout("r11") _,
        );
    }
    result
}

/// A POSIX message queue's descriptor.
pub(crate) fn open_message_queue(name: &str, flags: i32) -> io::Result<RawFd> {
    let name = CString::new(name)?;
    let none: *const libc::mq_attr = ptr::null();
    // SAFETY: the name is NUL-terminated; no attributes are given, which the call allows.
    let queue = unsafe { libc::mq_open(name.as_ptr(), flags, 0o666 as libc::mode_t, none) };
    if queue < 0 { Err(io::Error::last_os_error()) } else { Ok(queue) }
}

/// Removes a message queue.
pub(crate) fn remove_message_queue(name: &str) -> io::Result<()> {
    let name = CString::new(name)?;
    // SAFETY: the name is NUL-terminated.
    if unsafe { libc::mq_unlink(name.as_ptr()) } < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The version of Landlock that this kernel has; zero without it.
pub(crate) fn landlock_version() -> i64 {
    call(libc::SYS_landlock_create_ruleset, &[Argument::Number(0), Argument::Number(0), Argument::Number(1)])
        .unwrap_or(0)
}
