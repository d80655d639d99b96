//! Step 4: where everything that the sandbox writes is kept: its state directory on the host, or, with
//! a disk limit, a file system in memory of that size, which the kernel keeps full stop.

use std::os::fd::AsFd;
use std::path::Path;

use super::{Building, StepError, Subject};
use crate::syscall::MountRestrictions;

pub(super) fn run(building: &mut Building<'_>) -> Result<(), StepError> {
    let mounts = &building.plan.mounts;
    let state = building.place(&mounts.state)?;
    let Some(limit) = mounts.disk_limit else {
        building.layers = Some(building.system.open_below(state, Path::new(".")).on("layers", "")?);
        return Ok(());
    };
    // An inode costs about a kilobyte of kernel memory; the same bound that holds for bytes holds
    // for files, so that a bomb of empty files ends too.
    let inodes = (limit / 4096).max(1024);
    let options =
        [("size", limit.to_string()), ("nr_inodes", inodes.to_string()), ("mode", "0700".to_owned())];
    let hint = "run `leasehold doctor`: a limited disk needs tmpfs with user attributes (Linux 6.6)";
    let tree =
        building.system.new_filesystem("tmpfs", &options, MountRestrictions::PLAIN).on("disk limit", hint)?;
    building.system.attach(tree.as_fd(), state).on("disk limit", hint)?;
    for overlay in std::iter::once(&mounts.root).chain(&mounts.overlays) {
        for part in ["upper", "work"] {
            let directory = overlay.layer.join(part);
            building.system.make_directory(tree.as_fd(), &directory, 0o755).on(directory.display(), hint)?;
        }
    }
    building.layers = Some(tree);
    Ok(())
}
