//! Step 12: the host name and the loopback device.

use super::{Building, StepError, Subject};
use crate::protocol::NetworkOwner;

pub(super) fn run(building: &mut Building<'_>) -> Result<(), StepError> {
    let hint = "run `leasehold doctor`";
    building.system.set_host_name(&building.plan.host_name).on(&building.plan.host_name, hint)?;
    if building.plan.network == NetworkOwner::Sandbox {
        building.system.loopback_up().on("lo", hint)?;
    }
    Ok(())
}
