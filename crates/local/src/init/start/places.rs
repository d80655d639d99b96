//! Step 2: every place of the host that later steps need is opened now, while this process can still
//! reach it as the user that started it; later steps use only the descriptors. Trees that came with
//! their owners mapped are laid over their places and stand for them from here on.

use std::os::fd::AsFd;
use std::path::PathBuf;

use super::{Building, StepError, Subject};

pub(super) fn run(building: &mut Building<'_>) -> Result<(), StepError> {
    let mounts = &building.plan.mounts;
    let hint = "check that it exists and that you may read it";
    let mapped: Vec<(PathBuf, _)> =
        mounts.mapped.iter().map(|path| path.to_path_buf()).zip(building.mapped.drain(..)).collect();
    for (path, tree) in mapped {
        let place = building.system.open_place(&path).on(path.display(), hint)?;
        building.system.attach(tree.as_fd(), place.as_fd()).on(path.display(), "run `leasehold doctor`")?;
        building.places.insert(path, tree);
    }
    // Places inside a mapped tree are found in it, since it lies over its own place by now.
    let overlays = std::iter::once(&mounts.root).chain(&mounts.overlays);
    let lower = overlays.flat_map(|overlay| overlay.lower.iter());
    let shared = mounts.system.iter().chain(&mounts.exposures).map(|tree| &tree.source);
    for path in std::iter::once(&mounts.state).chain(lower).chain(shared) {
        if !building.places.contains_key::<std::path::Path>(path) {
            let place = building.system.open_place(path).on(path.display(), hint)?;
            building.places.insert(path.to_path_buf(), place);
        }
    }
    Ok(())
}
