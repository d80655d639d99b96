//! Trials of control groups: a child group is made, entered by a forked process, and removed.

use std::fs;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use super::child;
use super::description::MountEntry;
use super::scratch::{PREFIX, fresh_name, stale_entries};
use super::script::{Call, Script, StepNumber, kernel_path};
use crate::doctor::facts::{CgroupFacts, LegacyCgroup, Trial, UnifiedCgroup};

/// The v1 controllers that matter to a sandbox.
const LEGACY_CONTROLLERS: [&str; 4] = ["memory", "pids", "cpu", "freezer"];

/// Tries the unified hierarchy and every v1 hierarchy that matters.
pub(super) fn probe(mounts: &[MountEntry]) -> CgroupFacts {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let unified = mounts
        .iter()
        .find(|mount| mount.kind == "cgroup2")
        .and_then(|mount| Some((mount, own_directory(mount, group_of(&own, "")?))));
    let legacy = LEGACY_CONTROLLERS.into_iter().filter_map(|controller| {
        let mount = mounts.iter().find(|mount| {
            mount.kind == "cgroup" && mount.options.split(',').any(|option| option == controller)
        })?;
        Some((controller, own_directory(mount, group_of(&own, controller)?)))
    });
    let legacy: Vec<_> =
        legacy.map(|(controller, directory)| (controller, TrialGroup::below(directory))).collect();
    let unified = unified.map(|(_, directory)| TrialGroup::below(directory));

    // One process visits all groups, one after the other.
    let mut script = Script::default();
    let mut visit = |group: &TrialGroup| group.created.worked().then(|| script.may(group.entering()));
    let unified_visit = unified.as_ref().and_then(&mut visit);
    let legacy_visits: Vec<_> = legacy.iter().map(|(_, group)| visit(group)).collect();
    let outcomes = child::run(&script);
    let entered = |visit: Option<StepNumber>| visit.map_or(Trial::NotTried, |step| outcomes.of(step));

    CgroupFacts {
        unified: unified.map(|group| unified_facts(&group, entered(unified_visit))),
        legacy: legacy
            .iter()
            .zip(legacy_visits)
            .map(|((controller, group), visit)| LegacyCgroup {
                controller: (*controller).to_owned(),
                directory: group.parent.clone(),
                create: group.created,
                enter: entered(visit),
            })
            .collect(),
    }
}

/// This process's group in the hierarchy of a controller; the empty name is the unified one.
fn group_of<'text>(own: &'text str, controller: &str) -> Option<&'text str> {
    own.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let hierarchy = fields.next()?;
        let mut controllers = fields.next()?.split(',');
        let wanted =
            if controller.is_empty() { hierarchy == "0" } else { controllers.any(|name| name == controller) };
        fields.next().filter(|_| wanted)
    })
}

/// The group as a directory. The mount may show only a part of the hierarchy, as in a container.
fn own_directory(mount: &MountEntry, group: &str) -> PathBuf {
    let group = Path::new(group);
    let below = group.strip_prefix(&mount.root).or_else(|_| group.strip_prefix("/")).unwrap_or(group);
    // Joining an empty path would add a trailing slash.
    if below.as_os_str().is_empty() { mount.target.clone() } else { mount.target.join(below) }
}

/// A child group, removed on drop.
struct TrialGroup {
    parent: PathBuf,
    path: PathBuf,
    created: Trial,
}

impl TrialGroup {
    fn below(parent: PathBuf) -> Self {
        for stale in stale_entries(&parent, PREFIX) {
            // Refused for a group that is in use.
            let _ = fs::remove_dir(stale);
        }
        let path = parent.join(fresh_name());
        let created = match fs::create_dir(&path) {
            Ok(()) => Trial::Worked,
            Err(error) => (&error).into(),
        };
        Self { parent, path, created }
    }

    /// `0` stands for the process that writes it.
    fn entering(&self) -> Call {
        Call::Write { path: kernel_path(&self.path.join("cgroup.procs")), bytes: b"0".to_vec() }
    }
}

impl Drop for TrialGroup {
    fn drop(&mut self) {
        if !self.created.worked() {
            return;
        }
        if let Err(error) = fs::remove_dir(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the doctor's cgroup");
        }
    }
}

fn unified_facts(group: &TrialGroup, enter: Trial) -> UnifiedCgroup {
    let words = |name: &str| -> Vec<String> {
        let text = fs::read_to_string(group.parent.join(name)).unwrap_or_default();
        text.split_whitespace().map(str::to_owned).collect()
    };
    let kill = if group.created.worked() {
        // The group is empty again: its visitor has ended.
        write_trial(&group.path.join("cgroup.kill"), Some(b"1"))
    } else {
        Trial::NotTried
    };
    let freeze = if group.created.worked() {
        write_trial(&group.path.join("cgroup.freeze"), Some(b"1"))
    } else {
        Trial::NotTried
    };
    UnifiedCgroup {
        directory: group.parent.clone(),
        create: group.created,
        enter,
        // Only opened: enabling a controller would outlive the trial.
        subtree_control: write_trial(&group.parent.join("cgroup.subtree_control"), None),
        kill,
        freeze,
        controllers: words("cgroup.controllers"),
    }
}

/// Opens a control file for writing, never creating it, and writes into it.
fn write_trial(path: &Path, bytes: Option<&[u8]>) -> Trial {
    use std::io::Write as _;
    let open = fs::OpenOptions::new().write(true).custom_flags(libc::O_CLOEXEC).open(path);
    match open.and_then(|mut file| bytes.map_or(Ok(()), |bytes| file.write_all(bytes))) {
        Ok(()) => Trial::Worked,
        Err(error) => (&error).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "9:name=systemd:/\n4:memory:/process/one:two\n2:cpu,cpuacct:/\n0::/user.slice\n";

    #[test]
    fn the_own_group_is_found_in_both_generations() {
        assert_eq!(group_of(HYBRID, ""), Some("/user.slice"));
        assert_eq!(group_of(HYBRID, "memory"), Some("/process/one:two"));
        assert_eq!(group_of(HYBRID, "cpu"), Some("/"));
        assert_eq!(group_of(HYBRID, "pids"), None);
    }

    #[test]
    fn a_mount_that_shows_a_part_of_the_hierarchy_is_understood() {
        let mount = |root: &str| MountEntry {
            root: root.into(),
            target: "/sys/fs/cgroup/memory".into(),
            kind: "cgroup".to_owned(),
            options: "rw,memory".to_owned(),
        };
        let directory = |root: &str, group: &str| own_directory(&mount(root), group);
        assert_eq!(directory("/", "/a/b"), Path::new("/sys/fs/cgroup/memory/a/b"));
        assert_eq!(directory("/docker/1", "/docker/1"), Path::new("/sys/fs/cgroup/memory"));
        assert_eq!(directory("/docker/1", "/docker/1/x"), Path::new("/sys/fs/cgroup/memory/x"));
    }
}
