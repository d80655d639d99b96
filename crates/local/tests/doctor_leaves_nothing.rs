//! The doctor cleans up after itself. Alone in its program, so that every child, namespace and cgroup
//! of this process is the doctor's.

use std::fs;
use std::path::{Path, PathBuf};

use leasehold_local::doctor::{Block, Diagnosis, Doctor};

fn statuses(diagnosis: &Diagnosis) -> Vec<(Block, bool)> {
    diagnosis.findings.iter().map(|finding| (finding.block, finding.status.is_lacking())).collect()
}

fn namespaces() -> Vec<PathBuf> {
    ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"]
        .iter()
        .map(|kind| fs::read_link(format!("/proc/self/ns/{kind}")).expect("a namespace of our own"))
        .collect()
}

/// Trial cgroups that this process has made and not removed.
fn own_groups(directory: &Path, depth: usize) -> Vec<PathBuf> {
    let name = format!("leasehold-doctor-{}-", std::process::id());
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        if entry.file_name().to_string_lossy().starts_with(&name) {
            found.push(entry.path());
        } else if depth > 0 {
            found.extend(own_groups(&entry.path(), depth - 1));
        }
    }
    found
}

#[test]
fn examinations_agree_side_by_side_and_leave_nothing() {
    let data = tempfile::tempdir().unwrap();
    let workspace = tempfile::tempdir().unwrap();
    fs::write(workspace.path().join("file"), "untouched").unwrap();
    let before = namespaces();
    let doctor = Doctor::new(data.path().join("not/made/yet")).with_workspace(workspace.path());
    let first = statuses(&doctor.examine());
    std::thread::scope(|scope| {
        let others: Vec<_> = (0..6).map(|_| scope.spawn(|| statuses(&doctor.examine()))).collect();
        for other in others {
            assert_eq!(other.join().unwrap(), first);
        }
    });
    assert_eq!(namespaces(), before);
    assert_eq!(fs::read_dir(data.path()).unwrap().count(), 0, "the scratch directory is gone");
    assert_eq!(fs::read_to_string(workspace.path().join("file")).unwrap(), "untouched");
    assert_eq!(fs::read_dir(workspace.path()).unwrap().count(), 1);
    assert_eq!(own_groups(Path::new("/sys/fs/cgroup"), 6), Vec::<PathBuf>::new());
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let children = tasks.map(|task| fs::read_to_string(task.path().join("children")).unwrap_or_default());
    assert_eq!(children.collect::<String>(), "", "every child is reaped");
}
