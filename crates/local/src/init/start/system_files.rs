//! Step 6: the host's system directories, read-only, and the links that stand for some of them.

use std::os::fd::AsFd;

use super::{Building, StepError, Subject, inside};
use crate::protocol::TreeAccess;
use crate::syscall::MountRestrictions;

pub(super) fn run(building: &mut Building<'_>) -> Result<(), StepError> {
    let hint = "run `leasehold doctor`";
    for (path, target) in &building.plan.mounts.links {
        building.system.make_symlink(building.root()?, inside(path), target).on(path.display(), hint)?;
    }
    for shared in &building.plan.mounts.system {
        let subject = shared.source.display();
        let tree = building.system.clone_tree(building.place(&shared.source)?).on(&subject, hint)?;
        let restrictions = MountRestrictions {
            read_only: shared.access == TreeAccess::ReadOnly,
            ..MountRestrictions::PLAIN
        };
        building.system.restrict(tree.as_fd(), restrictions).on(&subject, hint)?;
        building
            .system
            .make_directory(building.root()?, inside(&shared.target), 0o755)
            .on(shared.target.display(), hint)?;
        building.attach_at(tree.as_fd(), &shared.target)?;
    }
    Ok(())
}
