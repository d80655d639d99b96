//! The system-call filter: everything is allowed but what is listed here. A denied call fails with
//! `EPERM`, as if the caller lacked the privilege; `clone3`, whose flags a filter can't see, fails with
//! `ENOSYS`, so that libraries fall back to `clone`.

use std::collections::BTreeMap;
use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};

/// Mounts and namespaces.
const MOUNTS: &[i64] = &[
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_open_tree,
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
/// Socket families that reach beyond the network namespace or into old kernel code.
const SOCKET_FAMILIES: [i32; 5] =
    [libc::AF_VSOCK, libc::AF_PACKET, libc::AF_ALG, libc::AF_KEY, libc::AF_TIPC];
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

/// A rule that holds when the low 32 bits of one argument have this value under this mask.
fn argument(index: u8, operator: SeccompCmpOp, value: u64) -> io::Result<SeccompRule> {
    SeccompCondition::new(index, SeccompCmpArgLen::Dword, operator, value)
        .and_then(|condition| SeccompRule::new(vec![condition]))
        .map_err(io::Error::other)
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
    let families = SOCKET_FAMILIES
        .into_iter()
        .map(|family| argument(0, SeccompCmpOp::Eq, u64::from(family.unsigned_abs())));
    rules.insert(libc::SYS_socket, families.collect::<io::Result<_>>()?);
    let privilege = u32::try_from(libc::EPERM).map_err(io::Error::other)?;
    let absent = u32::try_from(libc::ENOSYS).map_err(io::Error::other)?;
    Ok(vec![
        #[cfg(target_arch = "x86_64")]
        no_second_numbering(absent),
        compile(BTreeMap::from([(libc::SYS_clone3, Vec::new())]), SeccompAction::Errno(absent))?,
        compile(rules, SeccompAction::Errno(privilege))?,
    ])
}
