//! Id maps of a new user namespace, and trees seen through them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};

use leasehold_model::{BytePath, Error, ErrorKind, Result};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::OpenTreeFlags;
use rustix::process::Pid;

use crate::identity::IdentityMap;
use crate::syscall::raw;

/// `MOUNT_ATTR_IDMAP`.
const MAP_OWNERS: u64 = 0x0010_0000;

/// Writes the id maps that the new process can't write itself.
pub(super) fn write_maps(identity: &IdentityMap, pid: Pid) -> Result<()> {
    let pid = pid.as_raw_nonzero();
    match identity {
        IdentityMap::Single { .. } => Ok(()),
        IdentityMap::Shifted { .. } => {
            let (users, groups) = identity.map_lines();
            for (file, lines) in [("uid_map", users), ("gid_map", groups)] {
                let path = format!("/proc/{pid}/{file}");
                std::fs::write(&path, lines)
                    .map_err(|error| Error::io("sandbox.identity", format!("cannot write {path}"), error))?;
            }
            Ok(())
        }
        IdentityMap::Subordinate { .. } => {
            let (users, groups) = identity.map_lines();
            for (program, lines) in [("newuidmap", users), ("newgidmap", groups)] {
                let numbers = lines.split_whitespace().map(str::to_owned).collect();
                run_map_program(program, pid.get(), numbers)?;
            }
            Ok(())
        }
    }
}

fn run_map_program(program: &'static str, pid: i32, numbers: Vec<String>) -> Result<()> {
    let failed = |detail: String| {
        Error::new(
            ErrorKind::Unsupported,
            "sandbox.identity",
            format!("`{program}` could not map the subordinate ids: {detail}"),
        )
        .with_hint("run `leasehold doctor`; it checks the program and /etc/subuid and /etc/subgid")
    };
    let output = Command::new(program)
        .arg(pid.to_string())
        .args(numbers)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

/// Copies of the mounts at these places with their owners mapped into the namespace of `pid`.
pub(super) fn map_trees(places: &[BytePath], pid: Pid) -> Result<Vec<OwnedFd>> {
    if places.is_empty() {
        return Ok(Vec::new());
    }
    let path = format!("/proc/{}/ns/user", pid.as_raw_nonzero());
    let namespace = rustix::fs::openat(CWD, &path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| Error::io("sandbox.identity", format!("cannot open {path}"), error.into()))?;
    let map = |place: &BytePath| -> io::Result<OwnedFd> {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let tree = rustix::mount::open_tree(CWD, place.as_ref(), flags)?;
        raw::mount_setattr(tree.as_fd(), MAP_OWNERS, Some(namespace.as_fd()))?;
        Ok(tree)
    };
    places
        .iter()
        .map(|place| {
            map(place).map_err(|error| {
                let message = format!("cannot map the owners of files in {}", place.display());
                Error::io("sandbox.identity", message, error)
                    .with_context("path", place.display())
                    .with_hint("its file system may not take id-mapped mounts; run `leasehold doctor`, or run as a normal user")
            })
        })
        .collect()
}
