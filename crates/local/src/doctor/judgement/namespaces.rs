//! Namespaces and what is mounted in them.

use super::{blocked_by_namespaces, mounts_work};
use crate::doctor::diagnosis::{Block, Finding};
use crate::doctor::facts::{ErrorNumber, HostFacts, Trial};
use crate::doctor::fixes::Fixes;

pub(super) fn user(facts: &HostFacts) -> Finding {
    if mounts_work(facts) {
        return Finding::available(Block::UserNamespaces, "can be made, with mounts inside");
    }
    let (reason, fix) = if facts.namespaces.user.worked() { powerless(facts) } else { not_made(facts) };
    Finding::missing(Block::UserNamespaces, reason, fix)
}

/// Why no user namespace can be made, and what to do. The order is from the surest cause to the
/// least sure one.
fn not_made(facts: &HostFacts) -> (String, Option<String>) {
    let fixes = Fixes::new(facts);
    let trial = facts.namespaces.user;
    let settings = &facts.settings;
    match trial.error() {
        Some(ErrorNumber::NO_SPACE | ErrorNumber::TOO_MANY_USERS) => return exhausted(facts),
        Some(ErrorNumber::INVALID) => {
            return (
                "this kernel was built without them: EINVAL".to_owned(),
                Some("# start a kernel built with CONFIG_USER_NS=y".to_owned()),
            );
        }
        _ => {}
    }
    if settings.unprivileged_clone == Some(0) && facts.user_id != 0 {
        return (
            format!("kernel.unprivileged_userns_clone is 0: {trial}"),
            Some(fixes.setting("kernel.unprivileged_userns_clone", 1)),
        );
    }
    if facts.confinement.seccomp_filter {
        let by = facts.confinement.container.as_deref().map_or_else(
            || "the seccomp filter that this process inherits".to_owned(),
            |container| format!("the seccomp filter of this {container} container"),
        );
        return (format!("forbidden by {by}: {trial}"), Some(fixes.container_flags()));
    }
    if facts.confinement.changed_root {
        return (
            format!("forbidden, because this process runs in a chroot: {trial}"),
            Some(
                "# start it outside the chroot, or make its directory the root of a mount namespace:\n\
                 unshare --mount sh -c 'cd NEW_ROOT && pivot_root . OLD_ROOT && exec COMMAND'"
                    .to_owned(),
            ),
        );
    }
    if settings.apparmor_restriction == Some(1) {
        return (restricted(trial), Some(fixes.apparmor()));
    }
    (
        format!("forbidden by a security module, a chroot, or the one who started this process: {trial}"),
        Some(fixes.find_the_forbidder()),
    )
}

/// A limit on the number of user namespaces was reached.
fn exhausted(facts: &HostFacts) -> (String, Option<String>) {
    const NAME: &str = "user.max_user_namespaces";
    // Plenty for every user of a machine; each costs some kilobytes of kernel memory while it lives.
    const PLENTY: u64 = 15_000;
    let fixes = Fixes::new(facts);
    let trial = facts.namespaces.user;
    match facts.settings.maximum_user_namespaces {
        Some(0) => (format!("{NAME} is 0: {trial}"), Some(fixes.setting(NAME, PLENTY))),
        Some(maximum) if maximum < PLENTY => (
            format!("all {maximum} that {NAME} allows are in use: {trial}"),
            Some(fixes.setting(NAME, PLENTY)),
        ),
        _ => (
            format!("nested too deeply, or a limit of an outer namespace is reached: {trial}"),
            Some(format!("# on the host, outside of every container:\n{}", fixes.setting(NAME, PLENTY))),
        ),
    }
}

fn restricted(trial: Trial) -> String {
    format!(
        "AppArmor denies capabilities in them (kernel.apparmor_restrict_unprivileged_userns is 1): {trial}"
    )
}

/// Why a user namespace is made, but gives no power, and what to do.
fn powerless(facts: &HostFacts) -> (String, Option<String>) {
    let fixes = Fixes::new(facts);
    let trials = &facts.namespaces;
    let (what, trial) = [
        ("mapping one id", trials.id_map),
        ("making a mount namespace inside", trials.mount),
        ("mounting inside", trials.tmpfs),
    ]
    .into_iter()
    .find(|(_, trial)| !trial.worked())
    .unwrap_or(("mounting inside", Trial::NotTried));
    if facts.settings.apparmor_restriction == Some(1) && trial.forbidden() {
        return (restricted(trial), Some(fixes.apparmor()));
    }
    if facts.confinement.seccomp_filter || facts.confinement.container.is_some() {
        return (
            format!("{what} is forbidden by the container or filter that this process runs in: {trial}"),
            Some(fixes.container_flags()),
        );
    }
    if facts.user_id == 0 && !trials.id_map.worked() {
        return (
            format!("{what}: {trial}; as root this needs CAP_SETFCAP, which this process lacks"),
            Some("# run it as a normal user, or with CAP_SETFCAP in its bounding set".to_owned()),
        );
    }
    (format!("{what}: {trial}"), Some(fixes.find_the_forbidder()))
}

pub(super) fn processes(facts: &HostFacts) -> Finding {
    let block = Block::ProcessNamespaces;
    if let Some(blocked) = blocked_by_namespaces(facts, block) {
        return blocked;
    }
    let trials = &facts.namespaces;
    let failed = [("pid", trials.pid), ("ipc and uts", trials.ipc_and_uts)]
        .into_iter()
        .find(|(_, trial)| !trial.worked());
    let Some((name, trial)) = failed else {
        return Finding::available(block, "pid, ipc and uts");
    };
    let fix = match trial.error() {
        Some(ErrorNumber::NO_SPACE) => {
            let setting = if name == "pid" { "user.max_pid_namespaces" } else { "user.max_ipc_namespaces" };
            Fixes::new(facts).setting(setting, 15_000)
        }
        _ => "# start a kernel built with CONFIG_PID_NS=y, CONFIG_IPC_NS=y and CONFIG_UTS_NS=y".to_owned(),
    };
    Finding::missing(block, format!("{name}: {trial}"), Some(fix))
}

pub(super) fn proc(facts: &HostFacts) -> Finding {
    let block = Block::Proc;
    if let Some(blocked) = blocked_by_namespaces(facts, block) {
        return blocked;
    }
    let trials = &facts.namespaces;
    if !trials.pid.worked() {
        return Finding::blocked(block, Block::ProcessNamespaces);
    }
    if trials.proc.worked() {
        return Finding::available(block, "a new one can be mounted");
    }
    let covered = &facts.covered_proc_paths;
    if !trials.proc.forbidden() || covered.is_empty() {
        let fix = trials.proc.forbidden().then(|| Fixes::new(facts).container_flags());
        return Finding::missing(block, format!("mounting a new one: {}", trials.proc), fix);
    }
    let more = match covered.len() {
        1 => String::new(),
        count => format!(" and {} more", count - 1),
    };
    let fix = if facts.confinement.container.is_some() || facts.confinement.seccomp_filter {
        Fixes::new(facts).container_flags()
    } else {
        let (sudo, paths) = (Fixes::new(facts).sudo(), covered.join(" "));
        format!("# remove what is mounted there, then start again:\n{sudo}umount {paths}")
    };
    Finding::missing(
        block,
        format!("{}{more} is covered, so the kernel refuses a new one: {}", covered[0], trials.proc),
        Some(fix),
    )
}

pub(super) fn network(facts: &HostFacts) -> Finding {
    let block = Block::NetworkNamespace;
    if let Some(blocked) = blocked_by_namespaces(facts, block) {
        return blocked;
    }
    let trial = facts.namespaces.network;
    if trial.worked() {
        return Finding::available(block, "can be made");
    }
    let fix = match trial.error() {
        Some(ErrorNumber::NO_SPACE) => Fixes::new(facts).setting("user.max_net_namespaces", 15_000),
        _ => "# start a kernel built with CONFIG_NET_NS=y".to_owned(),
    };
    Finding::missing(block, format!("making one: {trial}"), Some(fix))
}

pub(super) fn terminals(facts: &HostFacts) -> Finding {
    let block = Block::Terminals;
    if let Some(blocked) = blocked_by_namespaces(facts, block) {
        return blocked;
    }
    let trials = &facts.namespaces;
    if !trials.devpts.worked() {
        return Finding::missing(
            block,
            format!("mounting a devpts: {}", trials.devpts),
            Some("# start a kernel built with CONFIG_UNIX98_PTYS=y".to_owned()),
        );
    }
    if trials.terminal.worked() {
        return Finding::available(block, "a devpts of its own");
    }
    let fix = (trials.terminal.error() == Some(ErrorNumber::NO_SPACE))
        .then(|| Fixes::new(facts).setting("kernel.pty.max", 4096));
    Finding::missing(block, format!("opening a terminal: {}", trials.terminal), fix)
}

pub(super) fn tun(facts: &HostFacts) -> Finding {
    let block = Block::Tun;
    if let Some(blocked) = blocked_by_namespaces(facts, block) {
        return blocked;
    }
    let trials = &facts.namespaces;
    if !trials.network.worked() {
        return Finding::blocked(block, Block::NetworkNamespace);
    }
    let fixes = Fixes::new(facts);
    match trials.tunnel_device {
        Trial::Worked if trials.tunnel.worked() => Finding::available(block, "interfaces can be made"),
        Trial::Worked => Finding::missing(block, format!("making an interface: {}", trials.tunnel), None),
        trial if facts.confinement.container.is_some() => {
            Finding::missing(block, format!("/dev/net/tun: {trial}"), Some(fixes.container_flags()))
        }
        trial @ Trial::Failed(ErrorNumber::ACCESS_DENIED | ErrorNumber::NOT_PERMITTED) => {
            Finding::missing(block, format!("/dev/net/tun: {trial}"), Some(fixes.open_tun_device()))
        }
        trial => Finding::missing(block, format!("/dev/net/tun: {trial}"), Some(fixes.load_module("tun"))),
    }
}
