//! Step 3: from here on this process is the sandbox's owner and nobody on the host.

use super::{Building, StepError, Subject};

pub(super) fn run(building: &mut Building<'_>) -> Result<(), StepError> {
    let (user, group) = building.plan.owner;
    building.system.become_user(user, group).on(
        format_args!("user {user}, group {group}"),
        "run `leasehold doctor`: the id mapping is incomplete",
    )
}
