//! One piece of file work in a user namespace with many ids; see `launch::file_work`.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use leasehold_model::{Error, Result};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, Uid};

use crate::archive;
use crate::image::{OwnerMap, OwnerRange, unpack_layer};
use crate::layer::{self, Owners, Writers};
use crate::protocol::{EventBody, FileWork, Refusal};
use crate::removal::remove_tree;
use crate::syscall::descriptor_path;

/// Does the work and gives the answer.
pub(super) fn perform(work: FileWork, mut descriptors: Vec<OwnedFd>) -> EventBody {
    let done = match work {
        FileWork::Remove { path } => remove_tree(&path).map(|()| EventBody::Done),
        FileWork::TakeOver { path } => {
            let base = descriptors.pop();
            let path = match &base {
                Some(base) => Path::new(&descriptor_path(base.as_fd())).join(&*path),
                None => path.to_path_buf(),
            };
            take_over(&path).map(|()| EventBody::Done)
        }
        FileWork::Unpack { destination, limits } => {
            // Ids are numbered here as in the image; the namespace maps them.
            let all = || vec![OwnerRange { inside: 0, outside: 0, length: 65_536 }];
            let owners = OwnerMap::Ranges { users: all(), groups: all() };
            match descriptors.pop() {
                Some(pipe) => unpack_layer(&mut File::from(pipe), &destination, &owners, &limits)
                    .map(EventBody::Unpacked),
                None => Err(Error::invalid("image.unpack", "no archive came with the work")),
            }
        }
        FileWork::PackLayers { state } => archive::write(&state).map(EventBody::Packed),
        FileWork::UnpackLayers { state } => archive::unpack(&state).map(|()| EventBody::Done),
        FileWork::CopyLayer { from, to } => {
            layer::copy(&from, &to, Owners::Kept, Writers::Outside).map(|()| EventBody::Done)
        }
        FileWork::MergeLayers { layers, to } => {
            // Here the caller is root, who makes everything.
            let layers: Vec<_> = layers.iter().map(|layer| (layer.to_path_buf(), Owners::Caller)).collect();
            layer::merge(&layers, &to).map(|()| EventBody::Done)
        }
    };
    done.unwrap_or_else(|error| {
        EventBody::Refused(Refusal { message: error.to_string(), errno: 0, about_program: false })
    })
}

/// Gives a tree to user and group 0, who stand for the caller. Set-id bits, which that takes away, are
/// put back, since the tree is only read from here on.
fn take_over(path: &Path) -> Result<()> {
    let walk = || -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let top = rustix::fs::openat(CWD, path, flags, Mode::empty())?;
        take_over_below(&top)?;
        Ok(rustix::fs::fchown(&top, Some(Uid::ROOT), Some(Gid::ROOT))?)
    };
    walk()
        .map_err(|error| Error::io("files.take_over", format!("cannot take over {}", path.display()), error))
}

fn take_over_below(directory: &OwnedFd) -> io::Result<()> {
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        let status = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(status.st_mode) == FileType::Directory {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            take_over_below(&rustix::fs::openat(directory, name, flags, Mode::empty())?)?;
        }
        if (status.st_uid, status.st_gid) == (0, 0) {
            continue;
        }
        rustix::fs::chownat(directory, name, Some(Uid::ROOT), Some(Gid::ROOT), AtFlags::SYMLINK_NOFOLLOW)?;
        if status.st_mode & 0o6000 != 0 && FileType::from_raw_mode(status.st_mode) != FileType::Symlink {
            let mode = Mode::from_raw_mode(status.st_mode & 0o7777);
            rustix::fs::chmodat(directory, name, mode, AtFlags::empty())?;
        }
    }
    Ok(())
}
