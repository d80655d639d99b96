//! What the host says of itself: read, not tried.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use crate::doctor::facts::{Confinement, NamespaceSettings};

/// One line of `/proc/self/mountinfo`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MountEntry {
    /// Which directory of the file system is shown.
    pub(super) root: PathBuf,
    /// Where it is shown.
    pub(super) target: PathBuf,
    /// The type of the file system.
    pub(super) kind: String,
    /// The options of the file system itself.
    pub(super) options: String,
}

/// The mounts that this process sees, in mounting order.
pub(super) fn mounts() -> Vec<MountEntry> {
    let text = fs::read("/proc/self/mountinfo").unwrap_or_default();
    text.split(|byte| *byte == b'\n').filter_map(parse_mount).collect()
}

fn parse_mount(line: &[u8]) -> Option<MountEntry> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let separator = fields.iter().position(|field| *field == b"-")?;
    let text = |index: usize| fields.get(index).map(|field| String::from_utf8_lossy(field).into_owned());
    Some(MountEntry {
        root: unescape(fields.get(3)?),
        target: unescape(fields.get(4)?),
        kind: text(separator + 1)?,
        options: text(separator + 3)?,
    })
}

/// Undoes the kernel's octal escapes of space, tab, newline and backslash.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        if let (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..]) = (first, tail) {
            bytes.push((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'));
            rest = after;
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// The type of the file system that a path lies on; `unknown` where nothing says so.
pub(super) fn file_system_of(path: &Path, mounts: &[MountEntry]) -> String {
    mounts
        .iter()
        .filter(|mount| path.starts_with(&mount.target))
        // Of equals the last: it covers the others.
        .max_by_key(|mount| mount.target.components().count())
        .map_or_else(|| "unknown".to_owned(), |mount| mount.kind.clone())
}

/// Mount points strictly beneath a path.
pub(super) fn mounts_beneath(path: &Path, mounts: &[MountEntry]) -> Vec<String> {
    let mut beneath: Vec<String> = mounts
        .iter()
        .filter(|mount| mount.target != path && mount.target.starts_with(path))
        .map(|mount| mount.target.to_string_lossy().into_owned())
        .collect();
    beneath.dedup();
    beneath
}

/// Paths below `/proc` that something is mounted over, in order. `binfmt_misc` and its automount
/// don't count: the kernel lets an empty directory be covered.
pub(super) fn covered_proc_paths(mounts: &[MountEntry]) -> Vec<String> {
    let mut paths: Vec<String> = mounts
        .iter()
        .filter(|mount| mount.target.starts_with("/proc") && mount.target != Path::new("/proc"))
        .filter(|mount| mount.target != Path::new("/proc/sys/fs/binfmt_misc"))
        .map(|mount| mount.target.to_string_lossy().into_owned())
        .collect();
    paths.dedup();
    paths
}

/// `uname -r`.
pub(super) fn kernel_release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// `ID` and `ID_LIKE` of `/etc/os-release`.
pub(super) fn distribution() -> Vec<String> {
    let text = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let value = |key: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
            .unwrap_or_default()
            .trim_matches(['"', '\''])
            .to_owned()
    };
    [value("ID"), value("ID_LIKE")].join(" ").split_whitespace().map(str::to_owned).collect()
}

/// The name of the effective user, or its number.
pub(super) fn user_name() -> String {
    let user_id = rustix::process::geteuid().as_raw().to_string();
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    users
        .lines()
        .find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            (fields.nth(1)? == user_id).then(|| name.to_owned())
        })
        .unwrap_or(user_id)
}

/// What confines this process.
pub(super) fn confinement(mounts: &[MountEntry]) -> Confinement {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap_or_default().trim()
    };
    Confinement {
        container: container(),
        seccomp_filter: field("Seccomp") == "2",
        no_new_privileges: field("NoNewPrivs") == "1",
        changed_root: !mounts.is_empty() && !mounts.iter().any(|mount| mount.target == Path::new("/")),
        mapped_ids: mapped_ids(&fs::read_to_string("/proc/self/uid_map").unwrap_or_default()),
    }
}

/// How many ids a map holds.
fn mapped_ids(map: &str) -> u64 {
    map.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok()).sum()
}

/// The kind of container that we run in, where it says so by its customary marks. A virtual machine
/// made from a container's image has the marks, but its processes are in the first namespaces.
fn container() -> Option<String> {
    const MARKS: [(&str, &str); 3] = [
        ("/var/run/secrets/kubernetes.io", "kubernetes"),
        ("/run/.containerenv", "podman"),
        ("/.dockerenv", "docker"),
    ];
    if in_first_namespaces() {
        return None;
    }
    MARKS.iter().find(|(path, _)| Path::new(path).exists()).map(|(_, name)| (*name).to_owned()).or_else(
        || {
            let named = fs::read_to_string("/run/systemd/container").ok()?;
            Some(named.trim().to_owned()).filter(|name| !name.is_empty())
        },
    )
}

/// Whether this process's pid, uts and ipc namespaces are those of the kernel's start, which have
/// fixed numbers (`include/linux/proc_ns.h`).
fn in_first_namespaces() -> bool {
    const FIRST: [(&str, u32); 3] = [("pid", 0xEFFF_FFFC), ("uts", 0xEFFF_FFFE), ("ipc", 0xEFFF_FFFF)];
    FIRST.iter().all(|(kind, number)| {
        fs::read_link(format!("/proc/self/ns/{kind}"))
            .is_ok_and(|link| link == Path::new(&format!("{kind}:[{number}]")))
    })
}

/// The settings that govern user namespaces.
pub(super) fn settings() -> NamespaceSettings {
    let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse().ok();
    NamespaceSettings {
        unprivileged_clone: number("/proc/sys/kernel/unprivileged_userns_clone"),
        maximum_user_namespaces: number("/proc/sys/user/max_user_namespaces"),
        apparmor_restriction: number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(line: &str) -> MountEntry {
        parse_mount(line.as_bytes()).unwrap()
    }

    #[test]
    fn mount_lines_are_read_with_escapes_and_optional_fields() {
        let mount = entry(
            "36 35 98:0 /a\\040b /mnt\\134x rw,noatime master:1 shared:2 - ext4 /dev/root rw,errors=continue",
        );
        assert_eq!(mount.root, Path::new("/a b"));
        assert_eq!(mount.target, Path::new("/mnt\\x"));
        assert_eq!((mount.kind.as_str(), mount.options.as_str()), ("ext4", "rw,errors=continue"));
        assert_eq!(parse_mount(b""), None);
    }

    #[test]
    fn the_deepest_and_latest_mount_names_the_file_system() {
        let mounts = [
            entry("1 0 8:1 / / rw - ext4 /dev/sda rw"),
            entry("2 1 8:2 / /home rw - nfs4 server:/home rw"),
            entry("3 1 8:3 / /home rw - xfs /dev/sdb rw"),
        ];
        assert_eq!(file_system_of(Path::new("/home/user"), &mounts), "xfs");
        assert_eq!(file_system_of(Path::new("/homely"), &mounts), "ext4");
        assert_eq!(file_system_of(Path::new("/x"), &[]), "unknown");
    }

    #[test]
    fn covered_paths_are_those_that_hide_something() {
        let mounts = [
            entry("1 0 0:5 / /proc rw - proc proc rw"),
            entry("2 1 0:6 / /proc/sys/fs/binfmt_misc rw - autofs systemd-1 rw"),
            entry("3 1 0:7 / /proc/kcore rw - tmpfs tmpfs rw"),
        ];
        assert_eq!(covered_proc_paths(&mounts), ["/proc/kcore"]);
    }

    #[test]
    fn ids_of_all_lines_are_added_up() {
        assert_eq!(mapped_ids("         0       1000          1\n 1 100000 65536\n"), 65537);
        assert_eq!(mapped_ids(""), 0);
    }
}
