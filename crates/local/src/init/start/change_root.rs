//! Step 11: the new root becomes the root, and the host's file system is let go.

use super::{Building, StepError, Subject};

pub(super) fn run(building: &mut Building<'_>) -> Result<(), StepError> {
    building.system.change_root(building.root()?).on("/", "run `leasehold doctor`")?;
    building.places.clear();
    Ok(())
}
