//! What `/proc` and `/sys` offer.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;

use super::Report;

fn open_for_writing(path: impl AsRef<Path>) -> io::Result<File> {
    OpenOptions::new().write(true).open(path)
}

/// Files of the whole machine.
pub(super) fn kernel_files(report: &mut Report, _: &[String]) -> io::Result<()> {
    for (path, value) in [
        ("/proc/sys/kernel/core_pattern", "|/tmp/attack"),
        ("/proc/sys/kernel/hostname", "attacked"),
        ("/proc/sys/kernel/domainname", "attacked"),
        ("/proc/sys/kernel/modprobe", "/tmp/attack"),
        ("/proc/sys/kernel/shmmax", "1"),
        ("/proc/sys/kernel/pid_max", "400"),
        ("/proc/sys/kernel/ns_last_pid", "400"),
        ("/proc/sys/kernel/unprivileged_bpf_disabled", "0"),
        ("/proc/sys/kernel/yama/ptrace_scope", "0"),
        ("/proc/sys/user/max_user_namespaces", "1000"),
        ("/proc/sys/vm/overcommit_memory", "1"),
        ("/proc/sys/vm/drop_caches", "3"),
        ("/proc/sys/fs/suid_dumpable", "2"),
        ("/proc/sys/fs/protected_symlinks", "0"),
        ("/proc/sys/net/ipv4/ip_forward", "1"),
        ("/proc/sys/net/ipv4/ping_group_range", "0 0"),
        ("/proc/sysrq-trigger", "h"),
        ("/proc/irq/default_smp_affinity", "1"),
        ("/proc/mtrr", "disable=0"),
        ("/sys/kernel/mm/transparent_hugepage/enabled", "never"),
        ("/sys/power/state", "mem"),
        ("/sys/devices/system/cpu/cpu1/online", "0"),
        ("/sys/devices/system/cpu/cpufreq/boost", "0"),
        ("/sys/fs/cgroup/cgroup.procs", "0"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "-1"),
        ("/sys/fs/cgroup/pids/pids.max", "max"),
    ] {
        let write = open_for_writing(path).and_then(|_| fs::write(path, value));
        report.refused(format_args!("write {path}"), write);
    }
    for path in ["/proc/sys/attack", "/sys/attack", "/sys/fs/cgroup/attack", "/sys/devices/system/cpu/attack"]
    {
        report.refused(format_args!("make {path}"), fs::create_dir_all(path));
    }
    for path in ["/proc/kcore", "/proc/keys", "/proc/kallsyms", "/proc/timer_list", "/proc/kmsg"] {
        let shown = fs::read(path).map_or(0, |content| content.len());
        report.holds(format_args!("{path} shows {shown} bytes"), shown == 0);
    }
    for path in [
        "/sys/kernel",
        "/sys/fs",
        "/sys/firmware",
        "/sys/class",
        "/sys/block",
        "/sys/module",
        "/proc/acpi/event",
    ] {
        report.refused(format_args!("look into {path}"), fs::symlink_metadata(path));
    }
    Ok(())
}

/// Files of pid 1, which holds descriptors of the host.
pub(super) fn of_init(report: &mut Report, _: &[String]) -> io::Result<()> {
    // Its file servers are copies of it.
    let mut processes = vec!["1".to_owned()];
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let is_copy = fs::read(format!("/proc/{name}/cmdline")).is_ok_and(|line| line == b"leasehold-init\0");
        if name != "1" && name.parse::<u32>().is_ok() && is_copy {
            processes.push(name);
        }
    }
    report.holds("there is a file server to attack", processes.len() > 1);
    for process in processes {
        let path = |file: &str| format!("/proc/{process}/{file}");
        for file in [
            "mem",
            "environ",
            "maps",
            "auxv",
            "stack",
            "syscall",
            "pagemap",
            "personality",
            "io",
            "mountinfo",
        ] {
            let mut byte = [0; 1];
            let read = File::open(path(file)).and_then(|mut file| io::Read::read(&mut file, &mut byte));
            if file == "environ" || file == "maps" || file == "auxv" {
                let shown = fs::read(path(file)).map_or(0, |content| content.len());
                report.holds(format_args!("{} shows {shown} bytes", path(file)), shown == 0);
            } else if file != "mountinfo" {
                report.refused(format_args!("read {}", path(file)), read);
            }
        }
        report.refused(format_args!("write {}", path("mem")), open_for_writing(path("mem")));
        report.refused(format_args!("open {}", path("exe")), File::open(path("exe")));
        report.refused(format_args!("write {}", path("exe")), open_for_writing(path("exe")));
        // Root of a sandbox may learn which numbers are open, and nothing of what they lead to.
        for number in 0..32 {
            let link = path(&format!("fd/{number}"));
            report.refused(format_args!("follow {link}"), fs::read_link(&link));
            report.refused(format_args!("open {link}"), File::open(&link));
        }
        let mapped = fs::read_dir(path("map_files")).map_or(0, |files| files.flatten().count());
        report.holds(format_args!("{mapped} mapped files of {process} are listed"), mapped == 0);
        for directory in ["root", "cwd", "task/1/root"] {
            report.refused(format_args!("follow {}", path(directory)), fs::read_link(path(directory)));
            report.refused(format_args!("list {}", path(directory)), fs::read_dir(path(directory)).map(drop));
        }
        for file in ["uid_map", "gid_map", "setgroups"] {
            report.refused(format_args!("write {}", path(file)), fs::write(path(file), "0 0 1\n"));
        }
    }
    // Ranks a whole session in the scheduler, where the kernel has it. Pid 1 has a session of its own.
    let _ = fs::write("/proc/1/autogroup", "19");
    Ok(())
}

/// The program that runs, which is a file of the host.
pub(super) fn own_program(report: &mut Report, _: &[String]) -> io::Result<()> {
    report.refused("write /proc/self/exe", open_for_writing("/proc/self/exe"));
    let held = File::open("/proc/self/exe")?;
    let number = std::os::fd::AsRawFd::as_raw_fd(&held);
    report.refused("write it through a descriptor", open_for_writing(format!("/proc/self/fd/{number}")));
    let path = fs::read_link("/proc/self/exe")?;
    report.refused("truncate it", OpenOptions::new().write(true).truncate(true).open(&path));
    report.refused("replace it", fs::write("/tmp/new", "x").and_then(|()| fs::rename("/tmp/new", &path)));
    report.refused("remove it", fs::remove_file(&path));
    for program in ["/usr/bin/env", "/bin/sh", "/lib64/ld-linux-x86-64.so.2"] {
        if Path::new(program).exists() {
            report.refused(format_args!("write {program}"), open_for_writing(program));
        }
    }
    Ok(())
}
