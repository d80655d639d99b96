//! Removing whole trees, whatever their modes and depth.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use leasehold_model::{Error, Result};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, chmod, fchmod, openat, renameat_with, unlinkat,
};
use rustix::io::Errno;

/// Directories held open at once; deeper ones are moved up first, so that no depth runs out of descriptors.
const OPEN_LEVELS: usize = 64;

/// Removes a file or a directory with all it holds; that it is not there is fine.
///
/// Directories that may not be read, written or entered are made accessible first, which their owner
/// may do. Symbolic links are removed, never followed. Blocking.
pub fn remove_tree(path: &Path) -> Result<()> {
    remove_at(CWD, path.as_os_str().as_bytes())
}

/// [`remove_tree`] for a name in an open directory.
pub(crate) fn remove_at(parent: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
    let failed = |error: Errno| {
        let message = format!("cannot remove `{}`", name.escape_ascii());
        Error::io("tree.remove", message, error.into())
            .with_hint("files of other owners can be removed only by root or in the namespace that made them")
    };
    match unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR) => {}
        Err(error) => return Err(failed(error)),
    }
    let top = open_directory(parent, name).map_err(failed)?;
    let mut moved = 0;
    // What was moved up is seen by the next round.
    loop {
        let before = moved;
        empty(&top, top.as_fd(), 0, &mut moved).map_err(failed)?;
        if moved == before {
            break;
        }
    }
    unlinkat(parent, name, AtFlags::REMOVEDIR).map_err(failed)
}

fn empty(directory: &OwnedFd, top: BorrowedFd<'_>, level: usize, moved: &mut u64) -> rustix::io::Result<()> {
    for (name, kind) in names(directory)? {
        if kind != FileType::Directory {
            match unlinkat(directory, &name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => continue,
                Err(Errno::ISDIR) => {}
                Err(error) => return Err(error),
            }
        }
        let child = open_directory(directory.as_fd(), name.to_bytes())?;
        if level < OPEN_LEVELS {
            empty(&child, top, level + 1, moved)?;
            unlinkat(directory, &name, AtFlags::REMOVEDIR)?;
        } else {
            move_up(directory, &name, top, moved)?;
        }
    }
    Ok(())
}

/// Moves a directory to the top of the tree, under a name that nothing has there.
fn move_up(from: &OwnedFd, name: &CStr, top: BorrowedFd<'_>, moved: &mut u64) -> rustix::io::Result<()> {
    loop {
        *moved += 1;
        let unused = format!(".leasehold-removed-{moved}");
        match renameat_with(from, name, top, unused, RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => {}
            result => return result,
        }
    }
}

fn names(directory: &OwnedFd) -> rustix::io::Result<Vec<(CString, FileType)>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name: &CStr = entry.file_name();
        if name != c"." && name != c".." {
            names.push((name.to_owned(), entry.file_type()));
        }
    }
    Ok(names)
}

/// Opens a directory and makes sure that its owner can list and change it.
fn open_directory(parent: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = match openat(parent, name, flags, Mode::empty()) {
        Err(Errno::ACCESS) => {
            // The descriptor pins the directory: chmod by name could be led elsewhere.
            let pin = openat(parent, name, OFlags::PATH | flags, Mode::empty())?;
            chmod(descriptor_path(&pin), Mode::RWXU)?;
            openat(parent, name, flags, Mode::empty())?
        }
        result => result?,
    };
    let mode = Mode::from_raw_mode(rustix::fs::fstat(&directory)?.st_mode);
    if !mode.contains(Mode::RWXU) {
        fchmod(&directory, Mode::RWXU)?;
    }
    Ok(directory)
}

fn descriptor_path(descriptor: &OwnedFd) -> String {
    use std::os::fd::AsRawFd;
    format!("/proc/self/fd/{}", descriptor.as_raw_fd())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn unwritable_directories_go_and_links_are_not_followed() {
        let place = tempfile::tempdir().unwrap();
        let outside = place.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("kept"), "x").unwrap();
        let tree = place.path().join("tree");
        fs::create_dir_all(tree.join("a/b")).unwrap();
        fs::write(tree.join("a/b/file"), "x").unwrap();
        symlink(&outside, tree.join("a/link")).unwrap();
        for (path, mode) in [("a/b/file", 0), ("a/b", 0), ("a", 0o555), ("", 0o111)] {
            fs::set_permissions(tree.join(path), fs::Permissions::from_mode(mode)).unwrap();
        }
        remove_tree(&tree).unwrap();
        assert!(!tree.exists() && outside.join("kept").exists());
        remove_tree(&tree).unwrap();
    }

    #[test]
    fn depth_does_not_run_out_of_descriptors() {
        let place = tempfile::tempdir().unwrap();
        let top = place.path().join("tree");
        fs::create_dir(&top).unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut directory = openat(CWD, &top, flags, Mode::empty()).unwrap();
        for _ in 0..1_500 {
            rustix::fs::mkdirat(&directory, "deep", Mode::RWXU).unwrap();
            directory = openat(&directory, "deep", flags, Mode::empty()).unwrap();
        }
        remove_tree(&top).unwrap();
        assert!(!top.exists());
    }
}
