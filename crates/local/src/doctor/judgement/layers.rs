//! The overlay and what lies under it.

use super::{blocked_by_namespaces, kernel_version};
use crate::doctor::diagnosis::{Block, Finding};
use crate::doctor::facts::{ErrorNumber, HostFacts, Trial};
use crate::doctor::fixes::Fixes;

pub(super) fn overlay(facts: &HostFacts) -> Finding {
    let block = Block::Overlay;
    let layer = &facts.data_directory;
    let directory = layer.directory.display();
    let fixes = Fixes::new(facts);
    if !layer.access.worked() {
        let fix = match layer.access.error() {
            Some(ErrorNumber::READ_ONLY) => "# choose a data directory on a writable file system".to_owned(),
            Some(ErrorNumber::NO_SPACE) => {
                "# free some space there, or choose another data directory".to_owned()
            }
            _ => fixes.own_directory(&layer.directory),
        };
        return Finding::missing(
            block,
            format!("cannot write in the data directory {directory}: {}", layer.access),
            Some(fix),
        );
    }
    if let Some(blocked) = blocked_by_namespaces(facts, block) {
        return blocked;
    }
    let kind = &layer.file_system;
    if layer.overlay.worked() {
        if layer.changes.worked() {
            return Finding::available(block, format!("on {kind} at {directory}"));
        }
        return Finding::missing(
            block,
            format!("{kind} at {directory} cannot record changes: {}", layer.changes),
            Some(fixes.other_file_system(&layer.directory)),
        );
    }
    if let Some(finding) = absent_module(facts, block, layer.overlay) {
        return finding;
    }
    if layer.overlay.forbidden() {
        let (reason, fix) = if kernel_version(facts).is_some_and(|version| version < (5, 11)) {
            ("this kernel forbids it in user namespaces", "# start a kernel of 5.12 or later".to_owned())
        } else if facts.confinement.container.is_some() || facts.confinement.seccomp_filter {
            ("the container or filter forbids it", fixes.container_flags())
        } else {
            ("a security module forbids it", fixes.find_the_forbidder())
        };
        return Finding::missing(block, format!("{reason}: {}", layer.overlay), Some(fix));
    }
    Finding::missing(
        block,
        format!("{kind} at {directory} cannot hold upper layers: {}", layer.overlay),
        Some(fixes.other_file_system(&layer.directory)),
    )
}

/// A finding that the kernel has no overlayfs at all.
fn absent_module(facts: &HostFacts, block: Block, trial: Trial) -> Option<Finding> {
    (trial.error() == Some(ErrorNumber::NO_DEVICE)).then(|| {
        Finding::missing(
            block,
            format!("this kernel has no overlayfs loaded: {trial}"),
            Some(Fixes::new(facts).load_module("overlay")),
        )
    })
}

pub(super) fn workspace(facts: &HostFacts) -> Option<Finding> {
    let block = Block::WorkspaceOverlay;
    let layer = facts.workspace.as_ref()?;
    let directory = layer.directory.display();
    if !layer.access.worked() {
        return Some(Finding::missing(
            block,
            format!("cannot read the workspace {directory}: {}", layer.access),
            Some("# choose a directory that exists and that this user can read".to_owned()),
        ));
    }
    if let Some(blocked) = blocked_by_namespaces(facts, block) {
        return Some(blocked);
    }
    let data = &facts.data_directory;
    if !data.access.worked() {
        return Some(Finding::blocked(block, Block::Overlay));
    }
    let kind = &layer.file_system;
    if layer.overlay.worked() {
        return Some(Finding::available(block, format!("on {kind} at {directory}")));
    }
    if layer.overlay.error() == Some(ErrorNumber::LOOP) {
        return Some(Finding::missing(
            block,
            format!(
                "the data directory {} lies inside the workspace {directory}: {}",
                data.directory.display(),
                layer.overlay
            ),
            Some("# choose a smaller workspace, or a data directory outside of it".to_owned()),
        ));
    }
    if !data.overlay.worked() {
        return Some(Finding::blocked(block, Block::Overlay));
    }
    if let [first, others @ ..] = layer.mounts_beneath.as_slice() {
        let unmount = format!(", or:\n{}umount {}", Fixes::new(facts).sudo(), layer.mounts_beneath.join(" "));
        return Some(Finding::missing(
            block,
            format!("{first} is mounted inside the workspace {directory}: {}", layer.overlay),
            Some(format!(
                "# choose a workspace without mounts beneath it{}",
                if others.len() < 3 { &unmount } else { "" }
            )),
        ));
    }
    Some(Finding::missing(
        block,
        format!("{kind} at {directory} cannot be a lower layer: {}", layer.overlay),
        Some("# copy the workspace to ext4, xfs, btrfs or tmpfs".to_owned()),
    ))
}

pub(super) fn user_xattrs(facts: &HostFacts) -> Finding {
    let block = Block::UserXattrs;
    let layer = &facts.data_directory;
    if !layer.access.worked() {
        return Finding::blocked(block, Block::Overlay);
    }
    let kind = &layer.file_system;
    if layer.user_attributes.worked() {
        return Finding::available(block, format!("on {kind}"));
    }
    let fix = if kind == "tmpfs" {
        "# start a kernel of 6.6 or later, or choose a data directory on ext4, xfs or btrfs".to_owned()
    } else {
        Fixes::new(facts).other_file_system(&layer.directory)
    };
    Finding::missing(block, format!("{kind} refuses them: {}", layer.user_attributes), Some(fix))
}
