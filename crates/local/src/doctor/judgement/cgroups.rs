//! Control groups, of both generations.

use super::kernel_version;
use crate::doctor::diagnosis::{Block, Finding};
use crate::doctor::facts::{CgroupFacts, HostFacts, LegacyCgroup, Trial, UnifiedCgroup};
use crate::doctor::fixes::Fixes;

/// The controllers behind `--memory`, `--pids` and `--cpus`.
const LIMITS: [&str; 3] = ["memory", "pids", "cpu"];

/// Whether the own group of the unified hierarchy is really ours: child groups can be made, entered
/// and given controllers.
fn is_delegated(group: &UnifiedCgroup) -> bool {
    group.create.worked() && group.enter.worked() && group.subtree_control.worked()
}

/// How a controller can be used: `v2`, `v1`, or not.
fn generation(cgroups: &CgroupFacts, controller: &str) -> Option<&'static str> {
    let unified = cgroups
        .unified
        .as_ref()
        .is_some_and(|group| is_delegated(group) && group.controllers.iter().any(|name| name == controller));
    if unified {
        return Some("v2");
    }
    legacy(cgroups, controller).is_some_and(|group| group.enter.worked()).then_some("v1")
}

fn legacy<'facts>(cgroups: &'facts CgroupFacts, controller: &str) -> Option<&'facts LegacyCgroup> {
    cgroups.legacy.iter().find(|group| group.controller == controller)
}

/// Why a controller cannot be used.
fn refusal(cgroups: &CgroupFacts, controller: &str) -> String {
    if let Some(group) = legacy(cgroups, controller) {
        let trial = group.enter.after(group.create);
        return format!("{} is not ours: {trial}", group.directory.display());
    }
    match &cgroups.unified {
        None => "no cgroup hierarchy is mounted".to_owned(),
        Some(group) => {
            let place = group.directory.display();
            let failed =
                [group.create, group.enter, group.subtree_control].into_iter().find(|trial| !trial.worked());
            match failed {
                Some(trial) => format!("{place} is not delegated to us: {trial}"),
                None => format!("{place} lacks the controller"),
            }
        }
    }
}

pub(super) fn limits(facts: &HostFacts) -> Finding {
    let cgroups = &facts.cgroups;
    let (usable, lacking): (Vec<_>, Vec<_>) =
        LIMITS.into_iter().partition(|controller| generation(cgroups, controller).is_some());
    let Some(first) = lacking.first() else {
        let parts: Vec<String> = usable
            .iter()
            .map(|controller| format!("{controller} ({})", generation(cgroups, controller).unwrap_or("?")))
            .collect();
        return Finding::available(Block::CgroupLimits, parts.join(", "));
    };
    let mut reason = format!("{}: {}", lacking.join(", "), refusal(cgroups, first));
    if !usable.is_empty() {
        reason = format!("{reason} (usable: {})", usable.join(", "));
    }
    Finding::missing(Block::CgroupLimits, reason, Some(Fixes::new(facts).delegate_cgroups()))
}

pub(super) fn freezer(facts: &HostFacts) -> Finding {
    let block = Block::CgroupFreezer;
    let cgroups = &facts.cgroups;
    if let Some(group) = &cgroups.unified
        && group.create.worked()
        && group.enter.worked()
        && group.freeze.worked()
    {
        return Finding::available(block, "v2");
    }
    if legacy(cgroups, "freezer").is_some_and(|group| group.enter.worked()) {
        return Finding::available(block, "v1");
    }
    let reason = refusal(cgroups, "freezer");
    Finding::missing(block, reason, Some(Fixes::new(facts).delegate_cgroups()))
}

pub(super) fn kill(facts: &HostFacts) -> Finding {
    let block = Block::CgroupKill;
    let Some(group) = &facts.cgroups.unified else {
        return Finding::missing(block, "the unified hierarchy (v2) is not mounted", None);
    };
    if group.enter.worked() && group.kill.worked() {
        return Finding::available(block, "works");
    }
    let trial = group.enter.after(group.create);
    if trial.worked() {
        let old = kernel_version(facts).is_some_and(|version| version < (5, 14));
        return Finding::missing(
            block,
            format!("cgroup.kill: {}", group.kill),
            old.then(|| "# start a kernel of 5.14 or later".to_owned()),
        );
    }
    let place = group.directory.display();
    let fix = (trial != Trial::NotTried).then(|| Fixes::new(facts).delegate_cgroups());
    Finding::missing(block, format!("{place} is not delegated to us: {trial}"), fix)
}
