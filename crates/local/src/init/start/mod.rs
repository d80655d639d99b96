//! Building the sandbox around pid 1, step by step.
//!
//! The order is told in `ARCHITECTURE.md` and fixed here. Pid 1 is alone in its namespaces, so that a
//! failure at any step undoes the earlier ones by ending the process: the kernel takes the mounts and
//! namespaces with it.

mod change_root;
mod devices;
mod exposures;
mod identity;
mod layers;
mod places;
mod private_mounts;
mod process_files;
mod root;
mod settings;
mod system_files;
mod trees;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use crate::protocol::{OverlayPlan, StartFailure, StartPlan};
use crate::syscall::{MountRestrictions, System};

/// One step of start-up.
struct Step {
    name: &'static str,
    run: fn(&mut Building<'_>) -> Result<(), StepError>,
}

/// The steps, in their order.
const STEPS: &[Step] = &[
    Step { name: "private_mounts", run: private_mounts::run },
    Step { name: "places", run: places::run },
    Step { name: "identity", run: identity::run },
    Step { name: "layers", run: layers::run },
    Step { name: "root", run: root::run },
    Step { name: "system_files", run: system_files::run },
    Step { name: "process_files", run: process_files::run },
    Step { name: "devices", run: devices::run },
    Step { name: "trees", run: trees::run },
    Step { name: "exposures", run: exposures::run },
    Step { name: "change_root", run: change_root::run },
    Step { name: "settings", run: settings::run },
];

/// What a step failed on.
pub(super) struct StepError {
    subject: String,
    source: io::Error,
    hint: &'static str,
}

/// Names what a failed call worked on.
pub(super) trait Subject<T> {
    /// Adds the subject, and what can be done about a failure.
    fn on(self, subject: impl std::fmt::Display, hint: &'static str) -> Result<T, StepError>;
}

impl<T> Subject<T> for io::Result<T> {
    fn on(self, subject: impl std::fmt::Display, hint: &'static str) -> Result<T, StepError> {
        self.map_err(|source| StepError { subject: subject.to_string(), source, hint })
    }
}

/// The sandbox while it is being built.
pub(super) struct Building<'a> {
    system: &'a dyn System,
    plan: &'a StartPlan,
    /// Trees of the host with their owners mapped, in the plan's order.
    mapped: Vec<OwnedFd>,
    /// Every place of the host that is needed, opened before this process changes its user.
    places: BTreeMap<PathBuf, OwnedFd>,
    /// Where the layers are.
    layers: Option<OwnedFd>,
    /// The new root.
    root: Option<OwnedFd>,
}

impl Building<'_> {
    fn place(&self, path: &Path) -> Result<BorrowedFd<'_>, StepError> {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        self.places
            .get(path)
            .map(AsFd::as_fd)
            .ok_or_else(missing)
            .on(path.display(), "report this as a fault")
    }

    fn root(&self) -> Result<BorrowedFd<'_>, StepError> {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        self.root.as_ref().map(AsFd::as_fd).ok_or_else(missing).on("the new root", "report this as a fault")
    }

    fn layers(&self) -> Result<BorrowedFd<'_>, StepError> {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        self.layers.as_ref().map(AsFd::as_fd).ok_or_else(missing).on("the layers", "report this as a fault")
    }

    /// Attaches a detached tree at a path below the new root, which must exist.
    fn attach_at(&self, tree: BorrowedFd<'_>, target: &Path) -> Result<(), StepError> {
        let hint = "run `leasehold doctor`";
        let place = self.system.open_below(self.root()?, inside(target)).on(target.display(), hint)?;
        self.system.attach(tree, place.as_fd()).on(target.display(), hint)
    }

    /// Makes the overlay of a plan, detached.
    fn overlay(&self, plan: &OverlayPlan) -> Result<OwnedFd, StepError> {
        use crate::syscall::descriptor_path;
        let hint = "run `leasehold doctor`: the file system may not take an overlay";
        let subject = plan.target.display();
        let part = |name: &str| {
            self.system
                .open_below(self.layers()?, &plan.layer.join(name))
                .on(plan.layer.join(name).display(), hint)
        };
        let (upper, work) = (part("upper")?, part("work")?);
        let mut options = Vec::with_capacity(plan.lower.len() + 3);
        let lower: Vec<String> = plan
            .lower
            .iter()
            .map(|path| Ok(descriptor_path(self.place(path)?)))
            .collect::<Result<_, StepError>>()?;
        let joined = lower.join(":");
        // One option may hold 255 bytes; `lowerdir+` (Linux 6.5) takes any number one by one.
        if joined.len() < 256 {
            options.push(("lowerdir", joined));
        } else {
            options.extend(lower.into_iter().map(|path| ("lowerdir+", path)));
        }
        options.push(("upperdir", descriptor_path(upper.as_fd())));
        options.push(("workdir", descriptor_path(work.as_fd())));
        options.push(("userxattr", String::new()));
        self.system.new_filesystem("overlay", &options, MountRestrictions::PLAIN).on(subject, hint)
    }
}

/// A path inside, relative to the new root.
fn inside(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}

/// Builds the sandbox. The layers' descriptor comes back, for the host to keep when they live in
/// memory.
pub(super) fn build(
    system: &dyn System,
    plan: &StartPlan,
    mapped: Vec<OwnedFd>,
) -> Result<Option<OwnedFd>, StartFailure> {
    let mut building = Building { system, plan, mapped, places: BTreeMap::new(), layers: None, root: None };
    for step in STEPS {
        (step.run)(&mut building).map_err(|error| StartFailure {
            step: step.name.to_owned(),
            subject: error.subject,
            errno: error.source.raw_os_error().unwrap_or(0),
            hint: error.hint.to_owned(),
        })?;
    }
    Ok(building.layers.filter(|_| plan.mounts.disk_limit.is_some()))
}

#[cfg(test)]
mod tests;
