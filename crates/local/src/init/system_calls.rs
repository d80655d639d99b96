//! The system-call filter: everything is allowed but what is listed here. A denied call fails with
//! `EPERM`, as if the caller lacked the privilege. `clone3`, whose flags a filter can't see, fails with
//! `ENOSYS`, so that libraries fall back to `clone`; a socket family that is not for sandboxes fails with
//! `EAFNOSUPPORT`, as on a kernel without it.

use std::collections::BTreeMap;
use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};

/// `open_tree_attr` (Linux 6.15), the same number on every architecture.
const OPEN_TREE_ATTR: i64 = 467;

/// Mounts and namespaces.
const MOUNTS: &[i64] = &[
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_open_tree,
    OPEN_TREE_ATTR,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
];
/// The kernel itself.
const KERNEL: &[i64] = &[
    libc::SYS_reboot,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_syslog,
    libc::SYS_acct,
    libc::SYS_vhangup,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_nfsservctl,
    libc::SYS_lookup_dcookie,
];
/// Large kernel interfaces that are mostly of use to attackers, and keyrings, which have no namespace.
const SURFACE: &[i64] = &[
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_open_by_handle_at,
    libc::SYS_fanotify_init,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_kcmp,
    libc::SYS_move_pages,
    libc::SYS_migrate_pages,
];
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: &[i64] = &[
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_modify_ldt,
    libc::SYS_uselib,
    libc::SYS_ustat,
    libc::SYS_sysfs,
];
#[cfg(not(target_arch = "x86_64"))]
const ARCHITECTURE: &[i64] = &[];

/// Terminal requests that type into a terminal or paste from a console.
const TERMINAL_REQUESTS: [u64; 2] = [libc::TIOCSTI, 0x541C /* TIOCLINUX */];
/// The socket families that exist inside. All others reach beyond the network namespace, or make the
/// kernel load old code.
const SOCKET_FAMILIES: [i32; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];
/// Calls that take a process as their first argument and change how the kernel treats it. Pid 1 has the
/// same user as the commands; without its descriptors or its share of the processor it could not end
/// them at their deadline.
const ON_A_PROCESS: [i64; 5] = [
    libc::SYS_prlimit64,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setattr,
    libc::SYS_sched_setparam,
    libc::SYS_sched_setscheduler,
];
/// Calls that take a kind (a process, its group, a user) and a number of that kind, for the same; and the
/// kind that means every process of a user, pid 1 among them.
const ON_A_KIND: [(i64, u64); 2] = [(libc::SYS_setpriority, 2), (libc::SYS_ioprio_set, 3)];
const NAMESPACE_FLAGS: [i32; 8] = [
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWCGROUP,
    0x80, /* CLONE_NEWTIME */
];

/// A condition on the low 32 bits of one argument.
fn condition(index: u8, operator: SeccompCmpOp, value: u64) -> io::Result<SeccompCondition> {
    SeccompCondition::new(index, SeccompCmpArgLen::Dword, operator, value).map_err(io::Error::other)
}

/// A rule that holds when the low 32 bits of one argument compare so.
fn argument(index: u8, operator: SeccompCmpOp, value: u64) -> io::Result<SeccompRule> {
    SeccompRule::new(vec![condition(index, operator, value)?]).map_err(io::Error::other)
}

fn compile(rules: BTreeMap<i64, Vec<SeccompRule>>, denied: SeccompAction) -> io::Result<BpfProgram> {
    let architecture = TargetArch::try_from(std::env::consts::ARCH).map_err(io::Error::other)?;
    SeccompFilter::new(rules, SeccompAction::Allow, denied, architecture)
        .and_then(BpfProgram::try_from)
        .map_err(io::Error::other)
}

/// Refuses the second numbering of system calls that x86-64 kernels may offer (x32), which would pass
/// by every rule of the other filters.
#[cfg(target_arch = "x86_64")]
fn no_second_numbering(denied: u32) -> BpfProgram {
    const LOAD_NUMBER: u16 = 0x20;
    const JUMP_IF_AT_LEAST: u16 = 0x35;
    const RETURN: u16 = 0x06;
    let instruction = |code, jt, jf, k| seccompiler::sock_filter { code, jt, jf, k };
    vec![
        instruction(LOAD_NUMBER, 0, 0, 0),
        instruction(JUMP_IF_AT_LEAST, 0, 1, 0x4000_0000),
        instruction(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | denied),
        instruction(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ]
}

/// The filters as the kernel takes them; all of them hold.
pub(super) fn filters() -> io::Result<Vec<BpfProgram>> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for number in [MOUNTS, KERNEL, SURFACE, ARCHITECTURE].concat() {
        rules.insert(number, Vec::new());
    }
    let flags = NAMESPACE_FLAGS
        .into_iter()
        .map(|flag| {
            let flag = u64::from(flag.unsigned_abs());
            argument(0, SeccompCmpOp::MaskedEq(flag), flag)
        })
        .collect::<io::Result<Vec<_>>>()?;
    rules.insert(libc::SYS_clone, flags);
    let requests = TERMINAL_REQUESTS.into_iter().map(|request| argument(1, SeccompCmpOp::Eq, request));
    rules.insert(libc::SYS_ioctl, requests.collect::<io::Result<_>>()?);
    for number in ON_A_PROCESS {
        rules.insert(number, vec![argument(0, SeccompCmpOp::Eq, 1)?]);
    }
    for (number, user) in ON_A_KIND {
        let everybody = argument(0, SeccompCmpOp::Eq, user)?;
        rules.insert(number, vec![argument(1, SeccompCmpOp::Eq, 1)?, everybody]);
    }
    let other_family = || -> io::Result<Vec<SeccompRule>> {
        let differs = |family: i32| condition(0, SeccompCmpOp::Ne, u64::from(family.unsigned_abs()));
        let conditions = SOCKET_FAMILIES.into_iter().map(differs).collect::<io::Result<_>>()?;
        Ok(vec![SeccompRule::new(conditions).map_err(io::Error::other)?])
    };
    let families =
        BTreeMap::from([(libc::SYS_socket, other_family()?), (libc::SYS_socketpair, other_family()?)]);
    let privilege = u32::try_from(libc::EPERM).map_err(io::Error::other)?;
    let no_family = u32::try_from(libc::EAFNOSUPPORT).map_err(io::Error::other)?;
    let absent = u32::try_from(libc::ENOSYS).map_err(io::Error::other)?;
    Ok(vec![
        #[cfg(target_arch = "x86_64")]
        no_second_numbering(absent),
        compile(BTreeMap::from([(libc::SYS_clone3, Vec::new())]), SeccompAction::Errno(absent))?,
        compile(families, SeccompAction::Errno(no_family))?,
        compile(rules, SeccompAction::Errno(privilege))?,
    ])
}
