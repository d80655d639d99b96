//! The kernel and its single calls.

use super::kernel_version;
use crate::doctor::diagnosis::{Block, Finding};
use crate::doctor::facts::{ErrorNumber, HostFacts, Trial};
use crate::doctor::fixes::Fixes;

/// The oldest kernel that has every required block: id-mapped mounts came with it, and overlays in
/// user namespaces one release before.
const OLDEST_KERNEL: (u32, u32) = (5, 12);

pub(super) fn kernel(facts: &HostFacts) -> Finding {
    let release = &facts.kernel_release;
    match kernel_version(facts) {
        Some(version) if version < OLDEST_KERNEL => Finding::missing(
            Block::Kernel,
            format!("{release} is older than 5.12"),
            Some(
                "# start a kernel of 5.12 or later, as Debian 12, Ubuntu 22.04 and RHEL 9 have it".to_owned(),
            ),
        ),
        Some(_) => Finding::available(Block::Kernel, release.clone()),
        None => {
            Finding::available(Block::Kernel, format!("`{release}` has no version; see the trials below"))
        }
    }
}

/// Whether it was a seccomp filter, not the kernel, that refused a call. A filter forbids, kills, or
/// hides the call from a kernel that is new enough to have it.
fn is_filtered(facts: &HostFacts, trial: Trial, since: (u32, u32)) -> bool {
    let hidden = trial.error() == Some(ErrorNumber::NO_SUCH_CALL)
        && kernel_version(facts).is_some_and(|version| version >= since);
    facts.confinement.seccomp_filter && (trial.forbidden() || hidden)
}

/// A finding of one call that needs nothing but the kernel's consent.
fn call(facts: &HostFacts, block: Block, name: &str, trial: Trial, since: (u32, u32)) -> Finding {
    if trial.worked() {
        return Finding::available(block, "works");
    }
    let filtered = is_filtered(facts, trial, since);
    let reason = if filtered {
        format!("{name}: {trial}, by the seccomp filter that this process inherits")
    } else {
        format!("{name}: {trial}")
    };
    let fix = if filtered {
        Fixes::new(facts).container_flags()
    } else {
        format!("# start a kernel of {}.{} or later", since.0, since.1)
    };
    Finding::missing(block, reason, Some(fix))
}

pub(super) fn pidfd(facts: &HostFacts) -> Finding {
    let calls = &facts.calls;
    if calls.pidfd.worked() {
        call(facts, Block::Pidfd, "waitid(P_PIDFD)", calls.wait_on_pidfd, (5, 4))
    } else {
        call(facts, Block::Pidfd, "pidfd_open", calls.pidfd, (5, 3))
    }
}

pub(super) fn openat2(facts: &HostFacts) -> Finding {
    call(facts, Block::Openat2, "openat2", facts.calls.openat2, (5, 6))
}

pub(super) fn clone3(facts: &HostFacts) -> Finding {
    call(facts, Block::Clone3, "clone3", facts.calls.clone3, (5, 7))
}

pub(super) fn close_range(facts: &HostFacts) -> Finding {
    call(facts, Block::CloseRange, "close_range", facts.calls.close_range, (5, 9))
}

pub(super) fn memfd(facts: &HostFacts) -> Finding {
    call(facts, Block::MemfdCreate, "memfd_create", facts.calls.memfd, (3, 17))
}

pub(super) fn seccomp(facts: &HostFacts) -> Finding {
    let trial = facts.calls.seccomp;
    if trial.worked() {
        return Finding::available(Block::Seccomp, "filters can be installed");
    }
    if facts.confinement.seccomp_filter {
        return call(facts, Block::Seccomp, "seccomp", trial, (3, 17));
    }
    Finding::missing(
        Block::Seccomp,
        format!("installing a filter: {trial}"),
        Some("# start a kernel built with CONFIG_SECCOMP_FILTER=y".to_owned()),
    )
}

pub(super) fn landlock(facts: &HostFacts) -> Finding {
    let calls = &facts.calls;
    match calls.landlock_version {
        Some(version) if calls.landlock.worked() => {
            return Finding::available(Block::Landlock, format!("interface version {version}"));
        }
        Some(_) => return call(facts, Block::Landlock, "landlock_restrict_self", calls.landlock, (5, 13)),
        None => {}
    }
    if is_filtered(facts, calls.landlock, (5, 13)) {
        return call(facts, Block::Landlock, "landlock_create_ruleset", calls.landlock, (5, 13));
    }
    if calls.landlock.error() == Some(ErrorNumber::NOT_SUPPORTED) {
        let active = calls.security_modules.as_deref().map_or("LIST", str::trim);
        return Finding::missing(
            Block::Landlock,
            "the kernel has it, but it was not switched on at start",
            Some(format!(
                "# add this to the kernel's command line (GRUB_CMDLINE_LINUX in /etc/default/grub, then\n\
                 # update-grub) and restart:\n\
                 lsm=landlock,{active}"
            )),
        );
    }
    Finding::missing(
        Block::Landlock,
        format!("the kernel has none: {}", calls.landlock),
        Some("# start a kernel of 5.13 or later built with CONFIG_SECURITY_LANDLOCK=y".to_owned()),
    )
}
