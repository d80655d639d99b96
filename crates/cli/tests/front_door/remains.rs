//! What Leasehold could leave on the machine, counted for one data directory.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::FrontDoor;

/// Processes, files, mounts, sockets and control groups that belong to one test's directories.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Remains {
    pub(crate) processes: Vec<String>,
    pub(crate) files: BTreeSet<PathBuf>,
    pub(crate) mounts: Vec<String>,
    pub(crate) sockets: Vec<String>,
    pub(crate) groups: BTreeSet<PathBuf>,
}

impl Remains {
    /// Everything of this test that exists now. Control groups are looked up by the ids of sandboxes.
    pub(crate) fn of(door: &FrontDoor, sandboxes: &BTreeSet<String>) -> Self {
        let root = door.root();
        let mentions = |path: &str| -> Vec<String> {
            let text = fs::read(path).unwrap_or_default();
            let text = String::from_utf8_lossy(&text).into_owned();
            text.lines()
                .filter(|line| line.contains(&root.display().to_string()))
                .map(str::to_owned)
                .collect()
        };
        Self {
            processes: processes(root),
            files: [door.data(), door.root().join("tmp"), door.home(), door.workspace()]
                .iter()
                .flat_map(|directory| files(directory))
                .collect(),
            mounts: mentions("/proc/self/mountinfo"),
            sockets: mentions("/proc/net/unix"),
            groups: groups(Path::new("/sys/fs/cgroup"), sandboxes, 8),
        }
    }
}

/// Processes other than this one that were started with, hold, or see anything in a directory. A pid 1
/// that is still being made has the environment of the program that makes it; later it holds the
/// sandbox's lock and has the workspace among its mounts.
pub(crate) fn processes(directory: &Path) -> Vec<String> {
    let needle = directory.as_os_str().as_bytes();
    let contains = |bytes: &[u8]| bytes.windows(needle.len()).any(|window| window == needle);
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.parse::<u32>().map_or(true, |id| id == std::process::id()) {
            continue;
        }
        let is_ours = ["environ", "cmdline", "mountinfo"]
            .iter()
            .any(|file| fs::read(path.join(file)).is_ok_and(|bytes| contains(&bytes)))
            || fs::read_dir(path.join("fd")).is_ok_and(|descriptors| {
                descriptors
                    .flatten()
                    .filter_map(|descriptor| fs::read_link(descriptor.path()).ok())
                    .any(|target| contains(target.as_os_str().as_bytes()))
            });
        // A zombie has ended; who reaps it is its parent's business.
        let status = fs::read_to_string(path.join("status")).unwrap_or_default();
        if is_ours && !status.contains("State:\tZ") {
            let program = fs::read_to_string(path.join("comm")).unwrap_or_default();
            found.push(format!("{name} {}", program.trim()));
        }
    }
    found
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut waiting = vec![directory.to_path_buf()];
    while let Some(path) = waiting.pop() {
        for entry in fs::read_dir(&path).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                waiting.push(entry.path());
            }
            found.push(entry.path());
        }
    }
    found
}

fn groups(directory: &Path, sandboxes: &BTreeSet<String>, depth: usize) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.strip_prefix("leasehold-").is_some_and(|id| sandboxes.contains(id)) {
            found.insert(entry.path());
        } else if depth > 0 {
            found.extend(groups(&entry.path(), sandboxes, depth - 1));
        }
    }
    found
}
