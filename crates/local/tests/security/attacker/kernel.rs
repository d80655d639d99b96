//! Calls on the kernel itself, and other numberings of calls.

use std::io;

use super::Report;
use crate::calls::Argument::{Memory, Number, Text};
use crate::calls::{Ended, call, in_child};

/// Calls that only administrators and attackers need.
pub(super) fn calls(report: &mut Report, _: &[String]) -> io::Result<()> {
    let zero = [Number(0); 6];
    let simple: &[(&str, i64)] = &[
        ("kexec_load", libc::SYS_kexec_load),
        ("kexec_file_load", libc::SYS_kexec_file_load),
        ("init_module", libc::SYS_init_module),
        ("finit_module", libc::SYS_finit_module),
        ("acct", libc::SYS_acct),
        ("vhangup", libc::SYS_vhangup),
        ("fanotify_init", libc::SYS_fanotify_init),
        ("kcmp", libc::SYS_kcmp),
        ("userfaultfd", libc::SYS_userfaultfd),
        ("io_uring_enter", libc::SYS_io_uring_enter),
        ("io_uring_register", libc::SYS_io_uring_register),
        ("move_pages of pid 1", libc::SYS_move_pages),
        ("migrate_pages", libc::SYS_migrate_pages),
        ("nfsservctl", libc::SYS_nfsservctl),
    ];
    for (name, number) in simple {
        report.refused(name, call(*number, &zero));
    }
    let room = Memory(&[0; 256]);
    report.refused("io_uring_setup", call(libc::SYS_io_uring_setup, &[Number(8), room]));
    report.refused("delete_module", call(libc::SYS_delete_module, &[Text("overlay"), Number(0)]));
    // Only switches Ctrl-Alt-Delete off, should it succeed.
    let arguments = [Number(0xfee1_dead), Number(672_274_793), Number(0), Number(0)];
    report.refused("reboot", call(libc::SYS_reboot, &arguments));
    report.refused("syslog", call(libc::SYS_syslog, &[Number(3), room, Number(128)]));
    let map: Vec<u8> = [1_u32, 4, 4, 1].iter().flat_map(|word| word.to_ne_bytes()).collect();
    report.refused("bpf map", call(libc::SYS_bpf, &[Number(0), Memory(&map), Number(72)]));
    // `perf_event_attr`: software clock, size 112.
    let event: Vec<u8> = [1_u32, 112].iter().flat_map(|word| word.to_ne_bytes()).collect();
    let arguments = [Memory(&event), Number(0), Number(-1), Number(-1), Number(0)];
    report.refused("perf_event_open", call(libc::SYS_perf_event_open, &arguments));
    for keyring in [-1, -2, -3, -4, -5] {
        let arguments = [Text("user"), Text("attack"), Memory(b"x"), Number(1), Number(keyring)];
        report.refused(format_args!("add_key to {keyring}"), call(libc::SYS_add_key, &arguments));
        let arguments = [Number(6), Number(keyring), room, Number(256)];
        report.refused(format_args!("describe key {keyring}"), call(libc::SYS_keyctl, &arguments));
    }
    let arguments = [Text("user"), Text("attack"), Text(""), Number(0)];
    report.refused("request_key", call(libc::SYS_request_key, &arguments));

    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let now: Vec<u8> = [now.tv_sec, 0].iter().flat_map(|word| word.to_ne_bytes()).collect();
    report.refused("clock_settime", call(libc::SYS_clock_settime, &[Number(0), Memory(&now)]));
    report.refused("settimeofday", call(libc::SYS_settimeofday, &[Memory(&now), Number(0)]));
    // `timex` with ADJ_TICK of the usual length.
    let mut adjust = vec![0_u8; 208];
    adjust[..4].copy_from_slice(&0x4000_u32.to_ne_bytes());
    adjust[88..96].copy_from_slice(&10_000_i64.to_ne_bytes());
    report.refused("adjtimex", call(libc::SYS_adjtimex, &[Memory(&adjust)]));
    report.refused("clock_adjtime", call(libc::SYS_clock_adjtime, &[Number(0), Memory(&adjust)]));
    report.refused("sethostname", call(libc::SYS_sethostname, &[Text("attacked"), Number(8)]));
    report.refused("setdomainname", call(libc::SYS_setdomainname, &[Text("attacked"), Number(8)]));
    report
        .refused("quotactl", call(libc::SYS_quotactl, &[Number(0x80_0001 << 8), Text("/"), Number(0), room]));
    #[cfg(target_arch = "x86_64")]
    {
        report.refused("iopl", call(libc::SYS_iopl, &[Number(3)]));
        report.refused("ioperm", call(libc::SYS_ioperm, &[Number(0x80), Number(1), Number(1)]));
        report.refused("modify_ldt", call(libc::SYS_modify_ldt, &[Number(0), room, Number(16)]));
    }
    Ok(())
}

/// The kernel's other numberings of calls, which would pass by a filter that knows one.
pub(super) fn foreign_numbers(report: &mut Report, _: &[String]) -> io::Result<()> {
    // Without the 32-bit entry the instruction faults.
    #[cfg(target_arch = "x86_64")]
    {
        let ended = in_child(|| i32::from(crate::calls::get_pid_by_32_bit_entry() < 0))?;
        let killed = matches!(ended, Ended::Killed(libc::SIGSYS | libc::SIGSEGV) | Ended::Exited(1));
        report.holds(format_args!("a call by the 32-bit entry: {ended:?}"), killed);
        for number in [libc::SYS_getpid, libc::SYS_unshare, libc::SYS_mount, 520, 545] {
            let arguments = [Number(0); 6];
            report.refused(format_args!("call {number} of x32"), call(0x4000_0000 | number, &arguments));
        }
    }
    let ended =
        in_child(|| i32::from(call(libc::SYS_unshare, &[Number(0x1_0000_0000 | 0x1000_0000)]).is_err()))?;
    report.holds(format_args!("unshare with high bits set: {ended:?}"), ended == Ended::Exited(1));
    Ok(())
}
