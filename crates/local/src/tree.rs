//! Removing trees that strangers wrote.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags};
use rustix::io::Errno;

/// Removes a tree by descriptors, never following a link, whatever modes its directories have. A tree
/// that is not there is removed.
pub(crate) fn remove_tree(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let parent = match rustix::fs::openat(
        CWD,
        parent,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    ) {
        Ok(parent) => parent,
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    remove_entry(&parent, name)
}

fn remove_entry(parent: &OwnedFd, name: &OsStr) -> io::Result<()> {
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR) => {}
        Err(error) => return Err(error.into()),
    }
    match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::NOTEMPTY | Errno::EXIST | Errno::ACCESS) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = match rustix::fs::openat(parent, name, flags, Mode::empty()) {
        Err(Errno::ACCESS) => {
            make_usable(parent, name)?;
            rustix::fs::openat(parent, name, flags, Mode::empty())?
        }
        other => other?,
    };
    // Write and search permission may be missing although reading is allowed.
    let _ = rustix::fs::fchmod(&directory, Mode::from_raw_mode(0o700));
    for entry in Dir::read_from(&directory)? {
        let entry = entry?;
        let inner = entry.file_name().to_bytes();
        if inner != b"." && inner != b".." {
            remove_entry(&directory, OsStr::from_bytes(inner))?;
        }
    }
    match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Gives the owner of a directory its rights on it, without following a link.
fn make_usable(parent: &OwnedFd, name: &OsStr) -> io::Result<()> {
    let place = rustix::fs::openat(
        parent,
        name,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let path = crate::syscall::descriptor_path(std::os::fd::AsFd::as_fd(&place));
    Ok(rustix::fs::chmodat(CWD, path, Mode::from_raw_mode(0o700), AtFlags::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn unusable_directories_go_and_what_links_point_at_stays() {
        let base = tempfile::tempdir().unwrap();
        let outside = base.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("precious"), "x").unwrap();
        let tree = base.path().join("tree");
        fs::create_dir_all(tree.join("a/b")).unwrap();
        fs::write(tree.join("a/b/file"), "x").unwrap();
        std::os::unix::fs::symlink(&outside, tree.join("a/link")).unwrap();
        for path in ["a/b", "a"] {
            fs::set_permissions(tree.join(path), fs::Permissions::from_mode(0)).unwrap();
        }
        remove_tree(&tree).unwrap();
        assert!(!tree.exists() && outside.join("precious").exists());
        remove_tree(&tree).unwrap();
    }
}
