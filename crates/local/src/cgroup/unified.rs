//! Version 2: one hierarchy for all controllers.

use std::fs;
use std::path::{Path, PathBuf};

use leasehold_model::{ResourceLimits, Result};

use super::{Cgroup, Freezer, MemoryEvidence, ROOT, control, make, own_groups};

const CONTROLLERS: [&str; 3] = ["memory", "pids", "cpu"];

/// Where the hierarchy is: by itself, or beside version 1 on a hybrid host.
fn mount() -> Option<PathBuf> {
    [Path::new(ROOT).to_path_buf(), Path::new(ROOT).join("unified")]
        .into_iter()
        .find(|path| path.join("cgroup.controllers").exists())
}

fn words(path: &Path) -> Vec<String> {
    fs::read_to_string(path).unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

/// Where groups of sandboxes may be: this process's group and those above it, the nearest first. A
/// group with processes of its own can't share its controllers, so it is mostly one above.
pub(super) fn parents() -> Vec<PathBuf> {
    let Some(mount) = mount() else {
        return Vec::new();
    };
    let own = own_groups().into_iter().find(|(controllers, _)| controllers.is_empty());
    let Some((_, path)) = own else {
        return Vec::new();
    };
    let own = mount.join(path.trim_start_matches('/'));
    own.ancestors().take_while(|path| path.starts_with(&mount)).map(Path::to_path_buf).collect()
}

/// Makes the group in the nearest place that shares the controllers. `Ok(None)` where none does.
pub(super) fn create(name: &str, limits: &ResourceLimits) -> Result<Option<Cgroup>> {
    for parent in parents() {
        let offered = words(&parent.join("cgroup.controllers"));
        if !CONTROLLERS.iter().all(|controller| offered.iter().any(|word| word == controller)) {
            continue;
        }
        let shared = words(&parent.join("cgroup.subtree_control"));
        let missing: Vec<String> = CONTROLLERS
            .iter()
            .filter(|controller| !shared.iter().any(|word| word == *controller))
            .map(|controller| format!("+{controller}"))
            .collect();
        if !missing.is_empty() && fs::write(parent.join("cgroup.subtree_control"), missing.join(" ")).is_err()
        {
            continue;
        }
        let directory = parent.join(name);
        if make(&directory).is_err() {
            continue;
        }
        return limit(directory, limits).map(Some);
    }
    Ok(None)
}

fn limit(directory: PathBuf, limits: &ResourceLimits) -> Result<Cgroup> {
    if let Some(limit) = limits.memory {
        control(&directory, "memory.max", &limit.0.to_string())?;
        if directory.join("memory.swap.max").exists() {
            control(&directory, "memory.swap.max", "0")?;
        }
    }
    // Each process carries the bound too; the group's also holds for a root that becomes many users.
    if let Some(limit) = limits.processes
        && directory.join("pids.max").exists()
    {
        control(&directory, "pids.max", &limit.to_string())?;
    }
    if let Some(quota) = limits.cpus {
        control(&directory, "cpu.max", &format!("{} 100000", u64::from(quota.0) * 100))?;
    }
    Ok(Cgroup {
        memory: Some(MemoryEvidence { file: directory.join("memory.events") }),
        freezer: Some(Freezer {
            file: directory.join("cgroup.freeze"),
            frozen: "1",
            thawed: "0",
            evidence: (directory.join("cgroup.events"), "frozen 1"),
        }),
        memory_limit: limits.memory.map(|limit| limit.0),
        directories: vec![directory],
    })
}
