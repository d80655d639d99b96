//! Step 9: the overlays beside the root: `/etc`, toolchains, the workspace; then small files of our own.

use std::os::fd::AsFd;

use super::{Building, StepError, Subject, inside};

pub(super) fn run(building: &mut Building<'_>) -> Result<(), StepError> {
    for plan in &building.plan.mounts.overlays {
        let tree = building.overlay(plan)?;
        building
            .system
            .make_directory(building.root()?, inside(&plan.target), 0o755)
            .on(plan.target.display(), "something else than a directory is there")?;
        building.attach_at(tree.as_fd(), &plan.target)?;
    }
    for (path, content) in &building.plan.mounts.files {
        building
            .system
            .write_below(building.root()?, inside(path), content, 0o644)
            .on(path.display(), "run `leasehold doctor`")?;
    }
    Ok(())
}
