//! Looking at the host. Each building block is really tried; what a trial makes lives in a forked
//! child or in a scratch directory and is gone when the trial ends.

mod calls;
mod cgroups;
mod child;
mod description;
mod id_mapping;
mod layers;
mod namespaces;
mod scratch;
mod script;
mod system_calls;

use std::path::{Path, PathBuf};

use crate::doctor::Doctor;
use crate::doctor::facts::HostFacts;
use scratch::Scratch;

/// Collects everything that is to know. Most of the time is spent waiting for the kernel to take
/// namespaces and groups down again, so independent trials wait side by side.
pub(super) fn collect(doctor: &Doctor) -> HostFacts {
    let mounts = description::mounts();
    let user_name = description::user_name();
    let existing = existing_ancestor(&doctor.data_directory);
    let scratch = Scratch::below(&existing);
    let place = scratch.as_ref().ok();
    let workspace = doctor.workspace.as_deref();
    std::thread::scope(|scope| {
        let cgroups = scope.spawn(|| cgroups::probe(&mounts));
        let namespaces = scope.spawn(|| namespaces::probe(place));
        let ids = scope.spawn(|| id_mapping::probe(&user_name, workspace.unwrap_or(&existing), place));
        let data_directory =
            layers::probe_data_directory(&doctor.data_directory, &existing, &scratch, &mounts);
        let workspace = workspace.map(|workspace| layers::probe_workspace(workspace, place, &mounts));
        let calls = calls::probe();
        let (subordinate_ids, id_mapped) = ids.join().unwrap_or_default();
        HostFacts {
            kernel_release: description::kernel_release(),
            distribution: description::distribution(),
            systemd: Path::new("/run/systemd/system").is_dir(),
            program: doctor.program.clone(),
            user_id: rustix::process::geteuid().as_raw(),
            user_name: user_name.clone(),
            confinement: description::confinement(&mounts),
            settings: description::settings(),
            namespaces: namespaces.join().unwrap_or_default(),
            covered_proc_paths: description::covered_proc_paths(&mounts),
            subordinate_ids,
            data_directory,
            workspace,
            id_mapped,
            cgroups: cgroups.join().unwrap_or_default(),
            calls,
        }
    })
}

/// The directory itself, or the nearest one above it that exists: what will be made in there comes
/// to lie on the same file system.
fn existing_ancestor(directory: &Path) -> PathBuf {
    let absolute = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
    absolute.ancestors().find(|ancestor| ancestor.is_dir()).unwrap_or(Path::new("/")).to_owned()
}
