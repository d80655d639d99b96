//! Step 1: no mount made here is seen outside, and none made outside is seen here.

use super::{Building, StepError, Subject};

pub(super) fn run(building: &mut Building<'_>) -> Result<(), StepError> {
    building
        .system
        .make_mounts_private()
        .on("/", "run `leasehold doctor`: mount namespaces may be restricted")
}
