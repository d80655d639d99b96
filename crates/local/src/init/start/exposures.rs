//! Step 10: the paths of the host that the user asked to see. They come last, so that they lie over
//! everything else.

use std::os::fd::AsFd;

use super::{Building, StepError, Subject, inside};
use crate::protocol::TreeAccess;
use crate::syscall::MountRestrictions;

pub(super) fn run(building: &mut Building<'_>) -> Result<(), StepError> {
    let hint = "check the path given with --expose";
    for shared in &building.plan.mounts.exposures {
        let subject = shared.source.display();
        let tree = building.system.clone_tree(building.place(&shared.source)?).on(&subject, hint)?;
        let restrictions = MountRestrictions {
            read_only: shared.access == TreeAccess::ReadOnly,
            ..MountRestrictions::PLAIN
        };
        building.system.restrict(tree.as_fd(), restrictions).on(&subject, hint)?;
        // The host has told which are directories by the slash at the end of the target.
        let root = building.root()?;
        let target = inside(&shared.target);
        if shared.target.as_os_str().as_encoded_bytes().ends_with(b"/") {
            building.system.make_directory(root, target, 0o755).on(&subject, hint)?;
        } else if let Some(parent) = target.parent() {
            building.system.make_directory(root, parent, 0o755).on(&subject, hint)?;
            if building.system.open_below(root, target).is_err() {
                building.system.write_below(root, target, b"", 0o644).on(&subject, hint)?;
            }
        }
        building.attach_at(tree.as_fd(), &shared.target)?;
    }
    Ok(())
}
