//! Finding every process of a command, wherever it moved.
//!
//! Each command starts in a UTS namespace of its own (with the same host name). Descendants inherit it
//! whatever they do: a new session, a double fork, a changed name. They can't leave it, since the
//! system-call filter denies `setns` and `unshare`. So the namespace's number in `/proc` marks the tree
//! exactly, with no cgroup needed. Pid 1 alone can read it of any process.

use std::io;

use rustix::process::{Pid, Signal};

/// The mark of one command's tree: the inode number of its UTS namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TreeMark(pub(super) u64);

/// The mark of the calling process.
pub(super) fn own_mark() -> io::Result<TreeMark> {
    mark_of("self")
}

pub(super) fn mark_of(process: &str) -> io::Result<TreeMark> {
    let link = rustix::fs::readlink(format!("/proc/{process}/ns/uts"), Vec::new())?;
    let bad = || io::Error::from(io::ErrorKind::InvalidData);
    let text = link.to_str().map_err(|_| bad())?;
    let number = text.strip_prefix("uts:[").and_then(|rest| rest.strip_suffix(']')).ok_or_else(bad)?;
    number.parse().map(TreeMark).map_err(|_| bad())
}

/// Every live process of the tree. Zombies have no namespace any more and don't count.
pub(super) fn members(mark: TreeMark) -> io::Result<Vec<Pid>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(number) = name.to_str().and_then(|text| text.parse::<i32>().ok()) else {
            continue;
        };
        if number != 1
            && mark_of(&number.to_string()).is_ok_and(|other| other == mark)
            && let Some(pid) = Pid::from_raw(number)
        {
            found.push(pid);
        }
    }
    Ok(found)
}

/// Sends a signal to every process of the tree; answers how many there were.
pub(super) fn signal(mark: TreeMark, number: i32) -> io::Result<usize> {
    let members = members(mark)?;
    if let Some(signal) = Signal::from_named_raw(number) {
        for pid in &members {
            // A process that is gone by now needs no signal.
            let _ = rustix::process::kill_process(*pid, signal);
        }
    }
    Ok(members.len())
}

/// Kills the tree, pass by pass, since a process may fork between being seen and being killed.
/// `true` when nothing was left.
pub(super) fn kill(mark: TreeMark) -> io::Result<bool> {
    for _ in 0..32 {
        if signal(mark, libc::SIGKILL)? == 0 {
            return Ok(true);
        }
    }
    Ok(false)
}
