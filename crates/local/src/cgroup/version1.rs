//! Version 1: one hierarchy a controller. Found on older hosts and beside version 2 on hybrid ones.

use std::path::{Path, PathBuf};

use leasehold_model::{ResourceLimits, Result};

use super::{Cgroup, Freezer, MemoryEvidence, ROOT, control, make, own_groups};

/// The controllers that are used.
const CONTROLLERS: [&str; 4] = ["memory", "pids", "cpu", "freezer"];

/// The groups that this process is in, one a controller.
fn own_directory(controller: &str) -> Option<PathBuf> {
    own_groups().into_iter().find_map(|(controllers, path)| {
        let found = controllers.split(',').any(|name| name == controller);
        let directory = Path::new(ROOT).join(controller).join(path.trim_start_matches('/'));
        (found && directory.join("cgroup.procs").exists()).then_some(directory)
    })
}

/// Where groups of sandboxes may be.
pub(super) fn parents() -> Vec<PathBuf> {
    CONTROLLERS.iter().filter_map(|controller| own_directory(controller)).collect()
}

/// Makes the groups. `Ok(None)` where version 1 has none of the controllers.
pub(super) fn create(name: &str, limits: &ResourceLimits) -> Result<Option<Cgroup>> {
    let mut group = Cgroup { directories: Vec::new(), memory: None, freezer: None, memory_limit: None };
    for controller in CONTROLLERS {
        let Some(parent) = own_directory(controller) else {
            continue;
        };
        let directory = parent.join(name);
        make(&directory)?;
        match controller {
            "memory" => {
                if let Some(limit) = limits.memory {
                    control(&directory, "memory.limit_in_bytes", &limit.0.to_string())?;
                    // Where swap is counted, memory and swap together get the same bound.
                    if directory.join("memory.memsw.limit_in_bytes").exists() {
                        control(&directory, "memory.memsw.limit_in_bytes", &limit.0.to_string())?;
                    }
                    group.memory_limit = Some(limit.0);
                }
                group.memory = Some(MemoryEvidence { file: directory.join("memory.oom_control") });
            }
            "pids" => {
                if let Some(limit) = limits.processes {
                    control(&directory, "pids.max", &limit.to_string())?;
                }
            }
            "cpu" => {
                if let Some(quota) = limits.cpus {
                    // Thousandths of a processor in a period of 100 ms, in microseconds.
                    control(&directory, "cpu.cfs_period_us", "100000")?;
                    control(&directory, "cpu.cfs_quota_us", &(u64::from(quota.0) * 100).to_string())?;
                }
            }
            _ => {
                group.freezer = Some(Freezer {
                    file: directory.join("freezer.state"),
                    frozen: "FROZEN",
                    thawed: "THAWED",
                    evidence: (directory.join("freezer.state"), "FROZEN"),
                });
            }
        }
        group.directories.push(directory);
    }
    Ok(group.memory.is_some().then_some(group))
}
