//! Mounts, namespaces, and ways out of the root directory.

use std::io;

use super::{Report, argument};
use crate::calls::Argument::{Memory, Number, Text};
use crate::calls::{Argument, call, clone_with};

fn mount(source: &str, target: &str, kind: &str, flags: u64) -> io::Result<i64> {
    let flags = Number(flags.cast_signed());
    call(libc::SYS_mount, &[Text(source), Text(target), Text(kind), flags, Number(0)])
}

/// By `mount` and its relatives.
pub(super) fn classic(report: &mut Report, _: &[String]) -> io::Result<()> {
    std::fs::create_dir_all("/tmp/place")?;
    for kind in ["tmpfs", "proc", "sysfs", "cgroup2", "devpts", "mqueue", "bpf", "overlay", "ext4"] {
        report.refused(format_args!("mount {kind}"), mount("none", "/tmp/place", kind, 0));
    }
    for source in ["/usr", "/proc", "/dev", "/"] {
        let flags = libc::MS_BIND | libc::MS_REC;
        report.refused(format_args!("bind {source}"), mount(source, "/tmp/place", "none", flags));
    }
    for target in ["/usr", "/proc/sys", "/proc/sysrq-trigger", "/sys", "/etc", "/"] {
        for flags in [libc::MS_REMOUNT, libc::MS_REMOUNT | libc::MS_BIND, libc::MS_SHARED, libc::MS_MOVE] {
            let what = format!("change the mount of {target} ({flags:#x})");
            report.refused(what, mount("none", target, "none", flags));
        }
        for flags in [0, libc::MNT_DETACH, libc::MNT_FORCE] {
            let result = call(libc::SYS_umount2, &[Text(target), Number(flags.into())]);
            report.refused(format_args!("unmount {target} ({flags:#x})"), result);
        }
    }
    report.refused("pivot_root", call(libc::SYS_pivot_root, &[Text("/tmp"), Text("/tmp/place")]));
    report.refused("swapon", call(libc::SYS_swapon, &[Text("/tmp/place"), Number(0)]));
    Ok(())
}

/// By the calls on descriptors.
pub(super) fn by_descriptor(report: &mut Report, _: &[String]) -> io::Result<()> {
    const OPEN_TREE_ATTR: i64 = 467;
    const CLEAR_READ_ONLY: [u64; 4] = [0, 1, 0, 0];
    let here = Number(libc::AT_FDCWD.into());
    let request: Vec<u8> = CLEAR_READ_ONLY.iter().flat_map(|word| word.to_ne_bytes()).collect();
    for path in ["/", "/usr", "/proc"] {
        for recursive in [0, 0x8000] {
            let flags = Number(1 | recursive);
            report.refused(
                format_args!("clone the tree of {path}"),
                call(libc::SYS_open_tree, &[here, Text(path), flags]),
            );
            let arguments = [here, Text(path), flags, Memory(&request), Number(32)];
            report.refused(format_args!("clone and change {path}"), call(OPEN_TREE_ATTR, &arguments));
            let arguments = [here, Text(path), Number(recursive), Memory(&request), Number(32)];
            report.refused(format_args!("make {path} writable"), call(libc::SYS_mount_setattr, &arguments));
        }
        report.refused(format_args!("pick {path}"), call(libc::SYS_fspick, &[here, Text(path), Number(0)]));
        let arguments = [here, Text(path), here, Text("/tmp"), Number(0)];
        report.refused(format_args!("move {path}"), call(libc::SYS_move_mount, &arguments));
    }
    for kind in ["tmpfs", "proc", "overlay", "cgroup2"] {
        report.refused(format_args!("open a new {kind}"), call(libc::SYS_fsopen, &[Text(kind), Number(0)]));
    }
    report.refused("fsmount", call(libc::SYS_fsmount, &[Number(0), Number(0), Number(0)]));
    let arguments = [Number(0), Number(6), Number(0), Number(0), Number(0)];
    report.refused("fsconfig", call(libc::SYS_fsconfig, &arguments));
    // `file_handle`: length, type, handle. Needs a capability that reads past every directory.
    let handle = [8_u32, 1, 2, 0].iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
    let arguments = [Number(0), Memory(&handle), Number(0)];
    report.refused("open by handle", call(libc::SYS_open_by_handle_at, &arguments));
    Ok(())
}

/// New namespaces, and those of others.
pub(super) fn namespaces(report: &mut Report, _: &[String]) -> io::Result<()> {
    let flags = [
        ("user", libc::CLONE_NEWUSER),
        ("mnt", libc::CLONE_NEWNS),
        ("pid", libc::CLONE_NEWPID),
        ("net", libc::CLONE_NEWNET),
        ("ipc", libc::CLONE_NEWIPC),
        ("uts", libc::CLONE_NEWUTS),
        ("cgroup", libc::CLONE_NEWCGROUP),
        ("time", 0x80),
    ];
    for (name, flag) in flags {
        for (with, more) in [("", 0), (" and a user namespace", libc::CLONE_NEWUSER)] {
            report.refused(
                format_args!("unshare {name}{with}"),
                call(libc::SYS_unshare, &[Number((flag | more).into())]),
            );
            report.refused(format_args!("clone into {name}{with}"), clone_with(flag | more));
            // `clone_args`: flags, then pid descriptor, child and parent ids, signal, stack.
            let mut request = [0_u64; 11];
            request[0] = u64::from((flag | more).unsigned_abs());
            let request: Vec<u8> = request.iter().flat_map(|word| word.to_ne_bytes()).collect();
            report.refused(
                format_args!("clone3 into {name}{with}"),
                call(libc::SYS_clone3, &[Memory(&request), Number(88)]),
            );
        }
        let path = format!("/proc/self/ns/{name}");
        if let Ok(own) = std::fs::File::open(&path) {
            let number = Number(std::os::fd::AsRawFd::as_raw_fd(&own).into());
            report.refused(format_args!("enter own {name}"), call(libc::SYS_setns, &[number, Number(0)]));
        }
        report
            .refused(format_args!("open {name} of pid 1"), std::fs::File::open(format!("/proc/1/ns/{name}")));
    }
    let init = call(libc::SYS_pidfd_open, &[Number(1), Number(0)])?;
    let all = flags.iter().take(7).fold(0, |all, (_, flag)| all | flag);
    report.refused("enter all of pid 1", call(libc::SYS_setns, &[Number(init), Number(all.into())]));
    let limit = std::fs::read_to_string("/proc/sys/user/max_user_namespaces")?;
    report.holds("no user namespace is allowed below this one", limit.trim() == "0");
    for file in ["uid_map", "gid_map", "setgroups"] {
        let write = std::fs::write(format!("/proc/self/{file}"), "0 0 4294967295\n");
        report.refused(format_args!("write own {file}"), write);
    }
    Ok(())
}

/// Ways out of the root directory. Arguments: a file of the host.
pub(super) fn root_directory(report: &mut Report, arguments: &[String]) -> io::Result<()> {
    let secret = argument(arguments, 0)?.trim_start_matches('/').to_owned();
    let climb = "../".repeat(64);
    report.refused("climb from the root", std::fs::read(format!("/{climb}{secret}")));
    for root in ["/proc/1/root", "/proc/self/root", "/proc/self/cwd", "/proc/thread-self/root"] {
        report.refused(format_args!("through {root}"), std::fs::read(format!("{root}/{climb}{secret}")));
    }
    // The classic: hold a directory above a new root, then climb from it.
    let held = std::fs::File::open("/")?;
    std::fs::create_dir_all("/tmp/jail")?;
    if call(libc::SYS_chroot, &[Text("/tmp/jail")]).is_ok() {
        rustix::process::fchdir(&held)?;
        for _ in 0..64 {
            rustix::process::chdir("..")?;
        }
        call(libc::SYS_chroot, &[Text(".")])?;
        report.refused("climb out of a chroot", std::fs::read(format!("/{secret}")));
    }
    let arguments: [Argument<'_>; 3] =
        [Number(std::os::fd::AsRawFd::as_raw_fd(&held).into()), Text(&format!("{climb}{secret}")), Number(0)];
    report.refused("climb from a held descriptor", call(libc::SYS_openat, &arguments));
    Ok(())
}
