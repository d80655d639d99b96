//! Devices: making them, opening the machine's, changing the shared ones, typing into a terminal.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{PermissionsExt, chown};

use super::Report;
use crate::calls::Argument::{Memory, Number, Text};
use crate::calls::call;

/// Making nodes, and opening those of the machine. Arguments: paths of block devices of the host.
pub(super) fn nodes(report: &mut Report, arguments: &[String]) -> io::Result<()> {
    let device = |major: u32, minor: u32| Number(rustix::fs::makedev(major, minor).cast_signed());
    for directory in ["/tmp", "/dev", "/dev/shm", "/run"] {
        for (name, kind, number) in [
            ("mem", libc::S_IFCHR, device(1, 1)),
            ("null", libc::S_IFCHR, device(1, 3)),
            ("kmsg", libc::S_IFCHR, device(1, 11)),
            ("disk", libc::S_IFBLK, device(8, 0)),
            ("virtual-disk", libc::S_IFBLK, device(254, 0)),
            ("loop", libc::S_IFBLK, device(7, 0)),
        ] {
            let path = format!("{directory}/made-{name}");
            let arguments =
                [Number(libc::AT_FDCWD.into()), Text(&path), Number((kind | 0o666).into()), number];
            report.refused(format_args!("make {path}"), call(libc::SYS_mknodat, &arguments));
        }
    }
    let known = [
        "/dev/mem",
        "/dev/port",
        "/dev/kmsg",
        "/dev/kvm",
        "/dev/fuse",
        "/dev/net/tun",
        "/dev/loop-control",
        "/dev/sda",
        "/dev/vda",
        "/dev/nvme0",
        "/dev/dm-0",
        "/dev/console",
        "/dev/tty0",
        "/dev/ttyS0",
        "/dev/vcs",
        "/dev/uinput",
        "/dev/input",
        "/dev/dri",
        "/dev/snd",
        "/dev/vsock",
        "/dev/hpet",
        "/dev/userfaultfd",
        "/dev/cuse",
        "/dev/bus",
        "/dev/mapper/control",
    ];
    for path in known.iter().copied().chain(arguments.iter().map(String::as_str)) {
        report.refused(format_args!("open {path}"), File::open(path));
    }
    Ok(())
}

/// The nodes that the host's other programs use too.
pub(super) fn shared(report: &mut Report, _: &[String]) -> io::Result<()> {
    for path in ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"] {
        report.refused(
            format_args!("mode of {path}"),
            fs::set_permissions(path, fs::Permissions::from_mode(0o600)),
        );
        let own = rustix::process::getuid().as_raw();
        report.refused(format_args!("owner of {path}"), chown(path, Some(own), None));
        let arguments = [Number(libc::AT_FDCWD.into()), Text(path), Number(0), Number(0)];
        report.refused(format_args!("times of {path}"), call(libc::SYS_utimensat, &arguments));
    }
    // They still are what programs expect.
    let mut null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    io::Write::write_all(&mut null, b"x")?;
    let mut byte = [1_u8; 4];
    io::Read::read_exact(&mut File::open("/dev/zero")?, &mut byte)?;
    report.holds("devices work", byte == [0; 4]);
    // `RNDADDENTROPY` with a claim of entropy.
    let random = OpenOptions::new().write(true).open("/dev/urandom")?;
    let claim: Vec<u8> = [64_i32, 8, 0, 0].iter().flat_map(|word| word.to_ne_bytes()).collect();
    let arguments = [Number(random.as_raw_fd().into()), Number(0x4008_5203), Memory(&claim)];
    report.refused("claim entropy", call(libc::SYS_ioctl, &arguments));
    Ok(())
}

/// Typing into the own terminal, for whoever reads it next.
pub(super) fn terminal(report: &mut Report, _: &[String]) -> io::Result<()> {
    let own = OpenOptions::new().read(true).write(true).open("/dev/tty")?;
    for descriptor in [0, 1, 2, own.as_raw_fd()] {
        for high in [0, 0x1_0000_0000_i64] {
            let push = [Number(descriptor.into()), Number(high | 0x5412), Memory(b"x")];
            report.refused(format_args!("TIOCSTI on {descriptor}"), call(libc::SYS_ioctl, &push));
            let paste = [Number(descriptor.into()), Number(high | 0x541c), Memory(&[3])];
            report.refused(format_args!("TIOCLINUX on {descriptor}"), call(libc::SYS_ioctl, &paste));
        }
        let console = [Number(descriptor.into()), Number(0x541d)];
        report.refused(format_args!("take the console by {descriptor}"), call(libc::SYS_ioctl, &console));
    }
    Ok(())
}
