//! More than one id.

use super::kernel_version;
use crate::doctor::diagnosis::{Block, Finding};
use crate::doctor::facts::HostFacts;
use crate::doctor::fixes::Fixes;

pub(super) fn subordinate(facts: &HostFacts) -> Finding {
    let block = Block::SubordinateIds;
    let ids = &facts.subordinate_ids;
    if !facts.namespaces.user.worked() {
        return Finding::blocked(block, Block::UserNamespaces);
    }
    if ids.mapping.worked() {
        let detail = match ids.user_range {
            Some((first, count)) => format!("{count} ids from {first}"),
            None => "any range, as root".to_owned(),
        };
        return Finding::available(block, detail);
    }
    let fixes = Fixes::new(facts);
    if facts.user_id == 0 {
        let mapped = facts.confinement.mapped_ids;
        return Finding::missing(
            block,
            format!("mapping a range: {}; this user namespace has {mapped} ids", ids.mapping),
            Some("# start this container with a larger range of ids, or as root of the host".to_owned()),
        );
    }
    // Everything that is wrong is said at once, so that one round of commands is enough.
    let mut reasons = Vec::new();
    let mut commands = Vec::new();
    if ids.newuidmap.is_none() || ids.newgidmap.is_none() {
        reasons.push("newuidmap and newgidmap are not installed".to_owned());
        commands.push(fixes.install_uidmap());
    } else if !ids.tools_privileged {
        reasons.push("newuidmap or newgidmap has lost its set-uid bit".to_owned());
        commands.push(fixes.restore_set_user_id());
    }
    if ids.user_range.is_none() || ids.group_range.is_none() {
        let name = &facts.user_name;
        reasons.push(format!("nothing is reserved for {name} in /etc/subuid and /etc/subgid"));
        commands.push(fixes.reserve_ids());
    }
    if facts.confinement.no_new_privileges {
        reasons.push("no_new_privs keeps newuidmap from its set-uid right".to_owned());
        commands.push(
            "# start this process without no_new_privs (Docker: no `no-new-privileges`; systemd: NoNewPrivileges=no)"
                .to_owned(),
        );
    }
    if reasons.is_empty() {
        reasons.push(ids.complaint.clone().unwrap_or_else(|| format!("mapping them: {}", ids.mapping)));
    }
    let fix = (!commands.is_empty()).then(|| commands.join("\n"));
    Finding::missing(block, reasons.join("; "), fix)
}

pub(super) fn id_mapped(facts: &HostFacts) -> Finding {
    let block = Block::IdMappedMounts;
    if facts.user_id != 0 {
        return Finding::not_needed(block, "only root can make them");
    }
    if !facts.subordinate_ids.mapping.worked() {
        return Finding::blocked(block, Block::SubordinateIds);
    }
    if !facts.data_directory.overlay.worked() {
        return Finding::blocked(block, Block::Overlay);
    }
    if facts.workspace.as_ref().is_some_and(|workspace| !workspace.overlay.worked()) {
        return Finding::blocked(block, Block::WorkspaceOverlay);
    }
    let trials = &facts.id_mapped;
    if trials.mount.worked() && trials.overlay.worked() {
        return Finding::available(block, "also under an overlay");
    }
    let layer = facts.workspace.as_ref().unwrap_or(&facts.data_directory);
    let kind = &layer.file_system;
    let (what, trial) = if trials.mount.worked() {
        ("an overlay over one", trials.overlay)
    } else {
        ("making one", trials.mount)
    };
    let fix = if kernel_version(facts).is_some_and(|version| version < (5, 19)) {
        "# start a kernel of 5.19 or later"
    } else if trial.forbidden() {
        "# start as root of the host, not of a container and without an inherited seccomp filter"
    } else {
        "# put the workspace on a file system that has them: ext4, xfs, btrfs, or tmpfs since kernel 6.3"
    };
    Finding::missing(
        block,
        format!("{what} on {kind} at {}: {trial}", layer.directory.display()),
        Some(fix.to_owned()),
    )
}
