//! Step 5: the root: an overlay of the image, template or skeleton, attached over the state directory,
//! a place that certainly exists and that nothing needs by its path any more.

use std::os::fd::AsFd;

use super::{Building, StepError, Subject, inside};

pub(super) fn run(building: &mut Building<'_>) -> Result<(), StepError> {
    let mounts = &building.plan.mounts;
    let root = building.overlay(&mounts.root)?;
    let state = building.place(&mounts.state)?;
    building.system.attach(root.as_fd(), state).on("/", "run `leasehold doctor`")?;
    for (path, mode) in &mounts.directories {
        building
            .system
            .make_directory(root.as_fd(), inside(path), *mode)
            .on(path.display(), "something else than a directory is there")?;
    }
    building.root = Some(root);
    Ok(())
}
