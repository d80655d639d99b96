//! From what was seen to what it means and what to do about it.

mod calls;
mod cgroups;
mod ids;
mod layers;
mod namespaces;
#[cfg(test)]
mod tests;

use super::diagnosis::{Block, Finding};
use super::facts::HostFacts;

/// One finding per block: required ones first, each after those it stands on.
pub(super) fn judge(facts: &HostFacts) -> Vec<Finding> {
    let mut findings = vec![
        calls::kernel(facts),
        namespaces::user(facts),
        namespaces::processes(facts),
        namespaces::proc(facts),
        namespaces::network(facts),
        layers::overlay(facts),
    ];
    findings.extend(layers::workspace(facts));
    findings.extend([calls::seccomp(facts), calls::pidfd(facts), calls::openat2(facts)]);
    findings.extend([ids::subordinate(facts), ids::id_mapped(facts)]);
    findings.extend([cgroups::limits(facts), cgroups::freezer(facts)]);
    findings.extend([calls::landlock(facts), namespaces::terminals(facts), layers::user_xattrs(facts)]);
    findings.extend([cgroups::kill(facts), namespaces::tun(facts)]);
    findings.extend([calls::clone3(facts), calls::close_range(facts), calls::memfd(facts)]);
    findings
}

/// Whether mounts can be made inside a user namespace: most blocks stand on that.
fn mounts_work(facts: &HostFacts) -> bool {
    let trials = &facts.namespaces;
    [trials.user, trials.id_map, trials.mount, trials.tmpfs].iter().all(|trial| trial.worked())
}

/// A finding that is blocked by missing user namespaces, where they are missing.
fn blocked_by_namespaces(facts: &HostFacts, block: Block) -> Option<Finding> {
    (!mounts_work(facts)).then(|| Finding::blocked(block, Block::UserNamespaces))
}

/// Major and minor number of the kernel, where its release begins with them.
fn kernel_version(facts: &HostFacts) -> Option<(u32, u32)> {
    let mut parts = facts.kernel_release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}
