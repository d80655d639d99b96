//! The sandboxes' first processes, as `/proc` shows them.

use std::fs;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A pid 1 that this process started.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Process {
    /// Its number out here.
    pub(crate) id: u32,
}

/// Every pid 1 of a sandbox that this process started and that is still there, dead ones included.
pub(crate) fn of_sandboxes() -> Vec<Process> {
    let own = std::process::id().to_string();
    let numbers = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers
        .filter(|id| {
            let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
            let is_ours = field(&status, "PPid:").is_some_and(|parent| parent == own);
            // Helpers of a measurement are children too, but of one user namespace with us.
            is_ours
                && fs::read_link(format!("/proc/{id}/ns/pid")).ok() != fs::read_link("/proc/self/ns/pid").ok()
        })
        .map(|id| Process { id })
        .collect()
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()
}

fn kibibytes(path: &str, name: &str) -> Option<f64> {
    field(&fs::read_to_string(path).ok()?, name)?.parse().ok()
}

impl Process {
    /// Its share of memory in KiB, where pages of several processes count in parts. The kernel tells only
    /// root of a process that hides itself, as a pid 1 does.
    pub(crate) fn proportional_memory(self) -> Option<f64> {
        kibibytes(&format!("/proc/{}/smaps_rollup", self.id), "Pss:")
    }

    /// Its pages in memory in KiB, shared ones counted in full.
    pub(crate) fn resident_memory(self) -> Option<f64> {
        kibibytes(&format!("/proc/{}/status", self.id), "VmRSS:")
    }
}

/// This process's largest memory use so far, in KiB.
pub(crate) fn own_peak_memory() -> f64 {
    kibibytes("/proc/self/status", "VmHWM:").unwrap_or(0.0)
}

/// Starts counting the largest memory use afresh.
pub(crate) fn forget_own_peak_memory() {
    // Where the kernel refuses, the peak of the whole life stands, which is no smaller.
    let _ = fs::write("/proc/self/clear_refs", "5");
}

/// Memory of the machine that is free or can be freed, in KiB.
pub(crate) fn available_memory() -> f64 {
    kibibytes("/proc/meminfo", "MemAvailable:").unwrap_or(0.0)
}

/// Processor time that this process has used, all threads together.
pub(crate) fn own_processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
}
