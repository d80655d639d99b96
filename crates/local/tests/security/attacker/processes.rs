//! Pid 1, other processes inside, and processes outside.

use std::io;
use std::path::Path;

use super::{Report, argument};
use crate::calls::Argument::{Memory, Number};
use crate::calls::call;

fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Looking into a process and taking it over.
fn take_over(report: &mut Report, process: i64) -> io::Result<()> {
    let target = Number(process);
    for (name, request) in [("attach", 16), ("seize", 0x4206)] {
        let arguments = [Number(request), target, Number(0), Number(0)];
        report.refused(format_args!("{name} to {process}"), call(libc::SYS_ptrace, &arguments));
    }
    // `iovec` to this process's own memory on both sides; the other side has none of its own there.
    let here = [0_u8; 16];
    let vector = bytes(&[here.as_ptr().expose_provenance() as u64, 16]);
    for (name, number) in [("read", libc::SYS_process_vm_readv), ("write", libc::SYS_process_vm_writev)] {
        let arguments = [target, Memory(&vector), Number(1), Memory(&vector), Number(1), Number(0)];
        report.refused(format_args!("{name} memory of {process}"), call(number, &arguments));
    }
    match call(libc::SYS_pidfd_open, &[target, Number(0)]) {
        Ok(descriptor) => {
            for number in 0..10 {
                let arguments = [Number(descriptor), Number(number), Number(0)];
                report.refused(
                    format_args!("take descriptor {number} of {process}"),
                    call(libc::SYS_pidfd_getfd, &arguments),
                );
            }
        }
        Err(error) => report.refused(format_args!("open {process}"), Err::<(), _>(error)),
    }
    Ok(())
}

/// Pid 1. Signals may be sent and must have no effect, which the host sees.
pub(super) fn init(report: &mut Report, _: &[String]) -> io::Result<()> {
    take_over(report, 1)?;
    for signal in 1..=64 {
        let _ = call(libc::SYS_kill, &[Number(1), Number(signal)]);
        let _ = call(libc::SYS_tgkill, &[Number(1), Number(1), Number(signal)]);
    }
    Ok(())
}

/// What the kernel lets one process of a user do to another: bounds and ranks.
pub(super) fn init_scheduling(report: &mut Report, _: &[String]) -> io::Result<()> {
    let user = i64::from(rustix::process::getuid().as_raw());
    for (name, resource) in
        [("descriptors", libc::RLIMIT_NOFILE), ("processes", libc::RLIMIT_NPROC), ("time", libc::RLIMIT_CPU)]
    {
        let limit = bytes(&[1, 1]);
        let arguments = [Number(1), Number(i64::from(resource)), Memory(&limit), Number(0)];
        report.refused(format_args!("bound the {name} of pid 1"), call(libc::SYS_prlimit64, &arguments));
    }
    let one = bytes(&[1]);
    report.refused(
        "bind pid 1 to a processor",
        call(libc::SYS_sched_setaffinity, &[Number(1), Number(8), Memory(&one)]),
    );
    let zero = Memory(&[0; 16]);
    report.refused("idle pid 1", call(libc::SYS_sched_setscheduler, &[Number(1), Number(5), zero]));
    report.refused("parameters of pid 1", call(libc::SYS_sched_setparam, &[Number(1), zero]));
    // `sched_attr`: size and policy first.
    let attributes: Vec<u8> = [56_u32, 5].iter().flat_map(|word| word.to_ne_bytes()).collect();
    report.refused(
        "attributes of pid 1",
        call(libc::SYS_sched_setattr, &[Number(1), Memory(&attributes), Number(0)]),
    );
    for (name, kind, number) in
        [("pid 1", 0, 1), ("the group of pid 1", 1, 1), ("everybody", 2, user), ("everybody", 2, 0)]
    {
        let arguments = [Number(kind), Number(number), Number(19)];
        report.refused(format_args!("lower the rank of {name}"), call(libc::SYS_setpriority, &arguments));
    }
    for (name, kind, number) in [("pid 1", 1, 1), ("the group of pid 1", 2, 1), ("everybody", 3, user)] {
        let arguments = [Number(kind), Number(number), Number(3 << 13)];
        report.refused(format_args!("idle the disk of {name}"), call(libc::SYS_ioprio_set, &arguments));
    }
    Ok(())
}

/// Processes of the host and of other sandboxes. Arguments: their numbers outside.
pub(super) fn outside(report: &mut Report, arguments: &[String]) -> io::Result<()> {
    argument(arguments, 0)?;
    for text in arguments {
        let number: i64 = text.parse().map_err(io::Error::other)?;
        // A process of this sandbox may have the same number by chance.
        if Path::new(&format!("/proc/{number}")).exists() {
            continue;
        }
        report.refused(format_args!("signal {number}"), call(libc::SYS_kill, &[Number(number), Number(9)]));
        let group = call(libc::SYS_kill, &[Number(-number), Number(9)]);
        report.refused(format_args!("signal group {number}"), group);
        take_over(report, number)?;
        let limit = bytes(&[1, 1]);
        let arguments = [Number(number), Number(7), Memory(&limit), Number(0)];
        report.refused(format_args!("bound {number}"), call(libc::SYS_prlimit64, &arguments));
    }
    let most = std::fs::read_dir("/proc")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u64>().ok())
        .count();
    report.holds(format_args!("{most} processes are seen"), most <= 8);
    Ok(())
}

/// Every process that can be signalled. The host looks at who lives.
pub(super) fn everybody(report: &mut Report, _: &[String]) -> io::Result<()> {
    let _ = call(libc::SYS_kill, &[Number(-1), Number(9)]);
    report.holds("the one who asked lives", true);
    Ok(())
}
