//! Files of the host: exposed ones, secret ones, and names that change while they are used.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

use super::{Report, argument};
use crate::calls::Argument::{Memory, Number, Text};
use crate::calls::call;

/// Arguments: a directory exposed read-only with `file` and `directory/inner` in it.
pub(super) fn read_only(report: &mut Report, arguments: &[String]) -> io::Result<()> {
    let root = Path::new(argument(arguments, 0)?);
    let file = root.join("file");
    let held = File::open(&file)?;
    report.holds("it can be read", fs::read(&file)? == b"of the host");
    let by_descriptor = format!("/proc/self/fd/{}", held.as_raw_fd());
    let write = |path: &Path| OpenOptions::new().write(true).open(path);
    report.refused("open for writing", write(&file));
    report.refused("append", OpenOptions::new().append(true).open(&file));
    report.refused("truncate", OpenOptions::new().write(true).truncate(true).open(&file));
    report.refused("open again through a descriptor", write(Path::new(&by_descriptor)));
    let text = file.to_string_lossy();
    report.refused("truncate by path", call(libc::SYS_truncate, &[Text(&text), Number(0)]));
    report.refused("remove", fs::remove_file(&file));
    report.refused("remove a directory", fs::remove_dir_all(root.join("directory")));
    report.refused("rename inside", fs::rename(&file, root.join("renamed")));
    report.refused("rename out", fs::rename(&file, "/tmp/renamed"));
    fs::write("/tmp/own", "own")?;
    report.refused("rename over", fs::rename("/tmp/own", &file));
    report.refused("hard link inside", fs::hard_link(&file, root.join("linked")));
    report.refused("hard link out", fs::hard_link(&file, "/tmp/linked"));
    report.refused("hard link in", fs::hard_link("/tmp/own", root.join("linked")));
    let from = Text(&by_descriptor);
    let here = Number(libc::AT_FDCWD.into());
    let link = [here, from, here, Text("/tmp/linked"), Number(0x400)];
    report.refused("hard link of a descriptor", call(libc::SYS_linkat, &link));
    report.refused("symbolic link", symlink("/tmp", root.join("link")));
    report.refused("make a file", File::create(root.join("made")));
    report.refused("make a directory", fs::create_dir(root.join("made")));
    report.refused("mode", fs::set_permissions(&file, fs::Permissions::from_mode(0o777)));
    report.refused(
        "mode of a descriptor",
        call(libc::SYS_fchmod, &[Number(held.as_raw_fd().into()), Number(0o777)]),
    );
    let own = rustix::process::getuid().as_raw();
    report.refused("owner", chown(&file, Some(own), None));
    report.refused("times", call(libc::SYS_utimensat, &[here, Text(&text), Number(0), Number(0)]));
    let times = [Number(held.as_raw_fd().into()), Number(0), Number(0), Number(0)];
    report.refused("times of a descriptor", call(libc::SYS_utimensat, &times));
    let attribute = [Text(&text), Text("user.attack"), Memory(b"x"), Number(1), Number(0)];
    report.refused("attribute", call(libc::SYS_setxattr, &attribute));
    let change = |name, number, flags: i64| {
        (name, call(number, &[here, Text("/tmp/own"), here, Text(&text), Number(flags)]))
    };
    for (name, result) in
        [change("exchange", libc::SYS_renameat2, 2), change("replace", libc::SYS_renameat2, 0)]
    {
        report.refused(name, result);
    }
    let inner = root.join("directory/inner");
    report.refused("write deeper", write(&inner));
    report.refused("write deeper by climbing", write(&root.join("directory/../directory/inner")));
    Ok(())
}

/// Files with secrets that every Debian host has, or may have. Arguments: the user's home.
pub(super) fn secrets(report: &mut Report, arguments: &[String]) -> io::Result<()> {
    let home = argument(arguments, 0)?;
    for path in [
        "/etc/shadow",
        "/etc/shadow-",
        "/etc/gshadow",
        "/etc/sudoers",
        "/etc/ssh/ssh_host_ed25519_key",
        "/etc/ssh/ssh_host_rsa_key",
        "/etc/ssh/ssh_host_ecdsa_key",
        "/etc/ssl/private/ssl-cert-snakeoil.key",
        "/var/lib/systemd/random-seed",
        "/var/lib/dpkg/status",
        "/var/log/auth.log",
        "/boot",
        "/var/backups",
        "/var/spool/cron",
        "/lost+found",
    ] {
        report.refused(
            format_args!("read {path}"),
            fs::metadata(path).and_then(|_| File::open(path)).and_then(|file| {
                let mut byte = [0; 1];
                io::Read::read(&mut &file, &mut byte)
            }),
        );
    }
    for directory in [home, "/root", "/home", "/mnt", "/srv", "/media", "/run", "/var/tmp", "/tmp"] {
        let names: Vec<_> = fs::read_dir(directory)
            .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
            .unwrap_or_default();
        // The attacker's own program is shown on purpose, below where tests keep things.
        let own = fs::read_link("/proc/self/exe")?;
        // The sandbox's own place for locks is empty.
        let locks = Path::new("/run/lock");
        let is_own = |path: &Path| {
            own.starts_with(path)
                || Path::new(home).starts_with(path)
                || path == locks && fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
        };
        let foreign: Vec<_> = names.iter().filter(|path| !is_own(path)).collect();
        report.holds(format_args!("{directory} holds {foreign:?}"), foreign.is_empty());
    }
    Ok(())
}

/// Leaves files where programs of the host look. Arguments: a name.
pub(super) fn host_paths(report: &mut Report, arguments: &[String]) -> io::Result<()> {
    let name = argument(arguments, 0)?;
    let mut made = 0;
    for directory in ["/tmp", "/var/tmp", "/run", "/dev/shm", "/etc", "/root", "/home", "/var/lib", "/"] {
        let path = Path::new(directory).join(name);
        if fs::write(&path, "of the sandbox").is_ok() {
            made += 1;
            report.holds(
                format_args!("{} is the sandbox's own", path.display()),
                fs::read(&path)? == b"of the sandbox",
            );
        }
    }
    report.holds(format_args!("{made} files were made"), made >= 2);
    for directory in ["/usr", "/usr/bin", "/usr/lib", "/sys", "/proc"] {
        report.refused(
            format_args!("make a file in {directory}"),
            fs::write(Path::new(directory).join(name), "x"),
        );
    }
    Ok(())
}

/// Changes what the name `swapped` means, between a directory and a link to the outside, until it is
/// killed. Arguments: a directory of the host.
pub(super) fn swap(_: &mut Report, arguments: &[String]) -> io::Result<()> {
    let outside = argument(arguments, 0)?;
    fs::create_dir("swapped")?;
    symlink(outside, "link")?;
    io::Write::write_all(&mut io::stdout(), b"ready\n")?;
    let here = Number(libc::AT_FDCWD.into());
    for round in 0_u32.. {
        // Room for the host, which works on the same directory: a kernel's lock is not always fair.
        if round % 8 == 0 {
            std::thread::sleep(std::time::Duration::from_micros(100));
        }
        let exchange = [here, Text("swapped"), here, Text("link"), Number(2)];
        // The host removes and renames what is swapped here.
        if call(libc::SYS_renameat2, &exchange).is_err() {
            let _ = fs::create_dir("swapped");
            let _ = fs::write("swapped/secret", "mine");
            let _ = symlink(outside, "link");
        }
    }
    Ok(())
}
