//! Removes a directory of ours, whatever a sandbox left in it.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use leasehold_model::{Error, Result};
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::attributes::set_mode;
use super::place::open_place;
use super::tree::{names_in, stat_descriptor, stat_name};

type Io<T> = rustix::io::Result<T>;

const OPERATION: &str = "changes.discard";
/// Directories held open at a time. What lies deeper is first moved up, so that a tree of any depth
/// costs neither descriptors nor stack.
const OPEN_AT_ONCE: usize = 64;

/// Removes a directory with all that it holds: closed directories, any depth, any names. Links are
/// removed, never followed. A directory that is gone already is a success.
pub fn discard(directory: &Path) -> Result<()> {
    let failed = |error: Errno| {
        Error::io(OPERATION, format!("cannot remove the directory {}", directory.display()), error.into())
            .with_hint("look for a process that still uses it, or for files that only root can remove")
    };
    let (Some(parent), Some(name)) = (directory.parent(), directory.file_name()) else {
        return Err(Error::invalid(OPERATION, format!("{} cannot be removed", directory.display())));
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = match rustix::fs::open(parent, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        result => result.map_err(failed)?,
    };
    match stat_name(&parent, name).map_err(failed)? {
        None => return Ok(()),
        Some(entry) if !entry.is_directory() => return Err(failed(Errno::NOTDIR)),
        Some(_) => {}
    }
    remove_tree(&parent, name).map_err(failed)
}

/// An open directory on the way down.
struct Level {
    directory: OwnedFd,
    name: OsString,
    left: Vec<OsString>,
}

fn remove_tree(parent: &OwnedFd, name: &OsStr) -> Io<()> {
    let mut first_error = None;
    let mut note = |result: Io<()>| {
        if let Err(error) = result {
            first_error.get_or_insert(error);
        }
    };
    let mut levels = vec![enter(parent.as_fd(), name, &mut note)?];
    let mut moved = 0_u64;
    while let Some(depth) = levels.len().checked_sub(1) {
        let Some(child) = levels[depth].left.pop() else {
            let done = levels.swap_remove(depth);
            let above = levels.last().map_or(parent.as_fd(), |level| level.directory.as_fd());
            note(rustix::fs::unlinkat(above, &done.name, AtFlags::REMOVEDIR));
            continue;
        };
        if levels.len() < OPEN_AT_ONCE {
            match enter(levels[depth].directory.as_fd(), &child, &mut note) {
                Ok(level) => levels.push(level),
                Err(error) => note(Err(error)),
            }
            continue;
        }
        match move_up(&levels[depth].directory, &child, &levels[0].directory, &mut moved) {
            Ok(name) => levels[0].left.push(name),
            Err(error) => note(Err(error)),
        }
    }
    first_error.map_or(Ok(()), Err)
}

/// Opens a directory for its owner, removes the files in it and lists the directories.
fn enter(parent: BorrowedFd<'_>, name: &OsStr, note: &mut impl FnMut(Io<()>)) -> Io<Level> {
    open_for_owner(parent, name)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(parent, name, flags, Mode::empty())?;
    let mut left = Vec::new();
    for child in names_in(&directory)? {
        match rustix::fs::unlinkat(&directory, &child, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::ISDIR) => left.push(child),
            // POSIX allows this answer for a directory, too.
            Err(Errno::PERM) if stat_name(&directory, &child)?.is_some_and(|entry| entry.is_directory()) => {
                left.push(child);
            }
            Err(error) => note(Err(error)),
        }
    }
    Ok(Level { directory, name: name.to_owned(), left })
}

fn open_for_owner(parent: BorrowedFd<'_>, name: &OsStr) -> Io<()> {
    let place = open_place(parent, name)?;
    let entry = stat_descriptor(&place)?;
    if !entry.is_directory() {
        return Err(Errno::NOTDIR);
    }
    if entry.mode & 0o700 != 0o700 {
        // Root manages without; for anybody else the error comes with the next step.
        let _ = set_mode(place.as_fd(), entry.mode | 0o700);
    }
    Ok(())
}

fn move_up(from: &OwnedFd, name: &OsStr, to: &OwnedFd, moved: &mut u64) -> Io<OsString> {
    // A directory that changes its parent must be writable itself.
    open_for_owner(from.as_fd(), name)?;
    loop {
        *moved += 1;
        let new_name = OsString::from(format!(".discard-{moved}"));
        match rustix::fs::renameat_with(from, name, to, &new_name, RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => {}
            result => return result.map(|()| new_name),
        }
    }
}
