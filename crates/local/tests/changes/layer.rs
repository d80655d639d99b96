//! A host directory with an overlay on it, and shell scripts that run inside.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use leasehold_local::changes::{
    ApplyOptions, ApplyReport, Baseline, Cancellation, Change, ChangeSet, ChangeSource, ConflictPolicy,
    OwnerMap, apply, discard, scan,
};

/// A workspace, its upper layer and everything around them; removed on drop.
pub(crate) struct Layer {
    directory: Option<tempfile::TempDir>,
    baseline: Baseline,
}

impl Layer {
    /// A host directory filled by a script; `None` (with a word why) where the kernel gives users no
    /// overlay.
    pub(crate) fn over(host_script: &str) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        for name in ["base", "upper", "work", "merged", "outside"] {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        let mut layer = Self { baseline: Baseline::from_clock(), directory: Some(directory) };
        layer.on_host(host_script);
        layer.baseline = Baseline::take(&layer.path("upper")).unwrap();
        let probe = layer.namespaced(":").output().expect("unshare is part of util-linux");
        if !probe.status.success() {
            println!(
                "skipped: no overlay in a user namespace here: {}",
                String::from_utf8_lossy(&probe.stderr)
            );
            return None;
        }
        Some(layer)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.as_ref().unwrap().path().join(name)
    }

    pub(crate) fn base(&self, name: &str) -> PathBuf {
        self.path("base").join(name)
    }

    /// Runs a script in the host directory.
    pub(crate) fn on_host(&self, script: &str) {
        let status =
            Command::new("sh").args(["-euc", script]).current_dir(self.path("base")).status().unwrap();
        assert!(status.success(), "{script}");
    }

    /// Runs a script in the host directory, all of whose changes are stamped after the baseline.
    pub(crate) fn on_host_later(&self, script: &str) {
        loop {
            let probe = self.path("probe");
            fs::write(&probe, "x").unwrap();
            let status = fs::metadata(&probe).unwrap();
            let baseline = self.baseline.0;
            if (status.ctime(), status.ctime_nsec()) > (baseline.seconds, i64::from(baseline.nanoseconds)) {
                break;
            }
        }
        self.on_host(script);
    }

    fn namespaced(&self, script: &str) -> Command {
        let mut command = Command::new("unshare");
        let mount = "mount -t overlay overlay \
            -o lowerdir=base,upperdir=upper,workdir=work,userxattr merged && cd merged";
        command
            .args(["-Urm", "sh", "-c", &format!("{mount} || exit 9\n{script}")])
            .current_dir(self.directory.as_ref().unwrap().path());
        command
    }

    /// Runs a script inside the overlay; it must succeed.
    pub(crate) fn inside(&self, script: &str) {
        let output = self.namespaced(&format!("set -eu\n{script}")).stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Runs a script inside, whatever comes of it, and lists what is there afterwards.
    pub(crate) fn inside_listed(&self, script: &str) -> Vec<String> {
        let output = self.namespaced(&format!("{{ {script}\n}} >/dev/null 2>&1\n{LIST}")).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        listing(&output.stdout)
    }

    pub(crate) fn source(&self) -> ChangeSource {
        ChangeSource {
            upper: self.path("upper"),
            base: self.path("base"),
            baseline: self.baseline,
            owner_map: OwnerMap::Single,
            cancellation: Cancellation::default(),
        }
    }

    pub(crate) fn scan(&self) -> ChangeSet {
        let set = scan(&self.source()).unwrap();
        assert_eq!(set.problems, []);
        set
    }

    pub(crate) fn apply_with(&self, conflicts: ConflictPolicy) -> ApplyReport {
        let options = ApplyOptions { conflicts, ..ApplyOptions::default() };
        apply(&self.source(), &self.scan(), &options).unwrap()
    }

    pub(crate) fn apply(&self) -> ApplyReport {
        self.apply_with(ConflictPolicy::Refuse)
    }

    /// What `find` says of the host directory.
    pub(crate) fn listed(&self) -> Vec<String> {
        list(&self.path("base"))
    }
}

impl Drop for Layer {
    fn drop(&mut self) {
        // Closed directories and the overlay's own work directory are beyond `TempDir`.
        discard(&self.directory.take().unwrap().keep()).unwrap();
    }
}

/// One line for each entry: path, type, mode, modification time, link target; sizes and link counts
/// only where they mean something.
const LIST: &str =
    r"find . -mindepth 1 \( -type d -printf '%P|%y|%m|%T@|\0' -o -printf '%P|%y|%m|%T@|%l|%s|%n\0' \)";

fn listing(output: &[u8]) -> Vec<String> {
    let mut lines: Vec<_> = output
        .split(|byte| *byte == 0)
        .filter(|line| !line.is_empty())
        .map(|line| line.escape_ascii().to_string())
        .collect();
    lines.sort();
    lines
}

/// What `find` says of a directory, as somebody who may look everywhere.
pub(crate) fn list(directory: &Path) -> Vec<String> {
    let output =
        Command::new("unshare").args(["-Ur", "sh", "-c", LIST]).current_dir(directory).output().unwrap();
    assert!(output.status.success());
    listing(&output.stdout)
}

/// The changes as short lines: letter, path.
pub(crate) fn short(set: &ChangeSet) -> Vec<String> {
    set.changes.iter().map(|change| format!("{} {}", change.kind.letter(), change.path)).collect()
}

pub(crate) fn find<'a>(set: &'a ChangeSet, path: &str) -> &'a Change {
    set.changes.iter().find(|change| change.path.to_str() == Some(path)).unwrap()
}
