//! What was seen on a host: plain data, without judgement. It can be written to JSON and read back,
//! so a host that somebody reports becomes a test.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The number of a failed system call, as in `errno.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ErrorNumber(pub i32);

impl ErrorNumber {
    /// `EPERM`: forbidden by a policy or a missing capability.
    pub const NOT_PERMITTED: Self = Self(libc::EPERM);
    /// `EACCES`: forbidden by the permissions of a path or by a security module.
    pub const ACCESS_DENIED: Self = Self(libc::EACCES);
    /// `ENOSYS`: the kernel, or a seccomp filter, does not know the call.
    pub const NO_SUCH_CALL: Self = Self(libc::ENOSYS);
    /// `ENOSPC`: for a namespace, a limit of `/proc/sys/user` was reached.
    pub const NO_SPACE: Self = Self(libc::ENOSPC);
    /// `EINVAL`: the kernel was built without the feature, or a file system refuses it.
    pub const INVALID: Self = Self(libc::EINVAL);
    /// `ENOENT`: no such path.
    pub const NOT_FOUND: Self = Self(libc::ENOENT);
    /// `ENODEV`: no such file system or device in this kernel.
    pub const NO_DEVICE: Self = Self(libc::ENODEV);
    /// `EOPNOTSUPP`: the file system has no such feature.
    pub const NOT_SUPPORTED: Self = Self(libc::EOPNOTSUPP);
    /// `ELOOP`: for an overlay, one layer lies inside another.
    pub const LOOP: Self = Self(libc::ELOOP);
    /// `EUSERS`: user namespaces are nested too deeply.
    pub const TOO_MANY_USERS: Self = Self(libc::EUSERS);
    /// `EROFS`: a read-only file system.
    pub const READ_ONLY: Self = Self(libc::EROFS);

    /// The name in `errno.h`, for the numbers that the doctor meets.
    fn name(self) -> Option<&'static str> {
        Some(match self.0 {
            libc::EPERM => "EPERM",
            libc::EACCES => "EACCES",
            libc::ENOSYS => "ENOSYS",
            libc::ENOSPC => "ENOSPC",
            libc::EINVAL => "EINVAL",
            libc::ENOENT => "ENOENT",
            libc::ENODEV => "ENODEV",
            libc::ENXIO => "ENXIO",
            libc::EOPNOTSUPP => "EOPNOTSUPP",
            libc::ELOOP => "ELOOP",
            libc::EUSERS => "EUSERS",
            libc::EROFS => "EROFS",
            libc::EBUSY => "EBUSY",
            libc::EIO => "EIO",
            libc::ENOTDIR => "ENOTDIR",
            libc::ESTALE => "ESTALE",
            libc::EXDEV => "EXDEV",
            libc::EAGAIN => "EAGAIN",
            libc::ETIMEDOUT => "ETIMEDOUT",
            _ => return None,
        })
    }
}

impl fmt::Display for ErrorNumber {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => formatter.write_str(name),
            None => write!(formatter, "error {}", self.0),
        }
    }
}

impl From<rustix::io::Errno> for ErrorNumber {
    fn from(error: rustix::io::Errno) -> Self {
        Self(error.raw_os_error())
    }
}

/// How one attempt to use a building block went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trial {
    /// An earlier step failed, or the attempt makes no sense here.
    #[default]
    NotTried,
    /// It worked.
    Worked,
    /// The kernel refused it.
    Failed(ErrorNumber),
    /// The attempt was ended by this signal; `SIGSYS` (31) is a seccomp filter that kills.
    Killed(i32),
    /// It gave no answer within the deadline, as a dead network file system does.
    Hung,
}

impl Trial {
    /// Whether it worked.
    pub fn worked(self) -> bool {
        self == Self::Worked
    }

    /// The error number, where there is one.
    pub fn error(self) -> Option<ErrorNumber> {
        match self {
            Self::Failed(error) => Some(error),
            _ => None,
        }
    }

    /// Whether it was forbidden (`EPERM`, `EACCES`, or killed by a filter) rather than unknown.
    pub fn forbidden(self) -> bool {
        matches!(
            self,
            Self::Failed(ErrorNumber::NOT_PERMITTED | ErrorNumber::ACCESS_DENIED) | Self::Killed(_)
        )
    }

    /// This trial, or the one before it when that is where things went wrong.
    #[must_use]
    pub fn after(self, earlier: Self) -> Self {
        if earlier.worked() { self } else { earlier }
    }
}

impl<T> From<Result<T, rustix::io::Errno>> for Trial {
    fn from(result: Result<T, rustix::io::Errno>) -> Self {
        match result {
            Ok(_) => Self::Worked,
            Err(error) => Self::Failed(error.into()),
        }
    }
}

impl From<&std::io::Error> for Trial {
    fn from(error: &std::io::Error) -> Self {
        Self::Failed(ErrorNumber(error.raw_os_error().unwrap_or(libc::EIO)))
    }
}

impl fmt::Display for Trial {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotTried => formatter.write_str("not tried"),
            Self::Worked => formatter.write_str("works"),
            Self::Failed(error) => error.fmt(formatter),
            Self::Killed(signal) => {
                write!(formatter, "killed by {}", leasehold_model::SignalNumber(*signal))
            }
            Self::Hung => formatter.write_str("no answer within the deadline"),
        }
    }
}

/// Everything that was seen on one host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostFacts {
    /// `uname -r`.
    pub kernel_release: String,
    /// `ID` and `ID_LIKE` of `/etc/os-release`, to name the right package manager.
    pub distribution: Vec<String>,
    /// Whether systemd is the host's init.
    pub systemd: bool,
    /// Absolute path of the program that will make sandboxes, for AppArmor profiles.
    pub program: PathBuf,
    /// Effective user id.
    pub user_id: u32,
    /// Name of that user, or its number where it has none.
    pub user_name: String,
    /// What already confines this process.
    pub confinement: Confinement,
    /// Settings that govern user namespaces.
    pub settings: NamespaceSettings,
    /// Namespaces, really made in a child process.
    pub namespaces: NamespaceTrials,
    /// Paths below `/proc` that something is mounted over; any of them forbids a new `/proc`.
    pub covered_proc_paths: Vec<String>,
    /// Subordinate ids.
    pub subordinate_ids: SubordinateIds,
    /// The overlay on the data directory.
    pub data_directory: LayerFacts,
    /// The overlay with the workspace as its lower layer.
    pub workspace: Option<LayerFacts>,
    /// Id-mapped mounts; tried as root only.
    pub id_mapped: IdMappedTrials,
    /// Control groups.
    pub cgroups: CgroupFacts,
    /// Single system calls.
    pub calls: CallTrials,
}

/// What already confines this process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Confinement {
    /// `docker`, `podman`, `kubernetes`, … when this process runs in a container that says so.
    pub container: Option<String>,
    /// Whether a seccomp filter is already in force.
    pub seccomp_filter: bool,
    /// Whether set-uid programs have lost their effect.
    pub no_new_privileges: bool,
    /// Whether the root directory is not the root of the mount namespace.
    pub changed_root: bool,
    /// How many user ids exist in this user namespace.
    pub mapped_ids: u64,
}

/// Settings that govern user namespaces. `None` means that the kernel has no such setting.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NamespaceSettings {
    /// `kernel.unprivileged_userns_clone` (Debian and its relatives).
    pub unprivileged_clone: Option<u64>,
    /// `user.max_user_namespaces`.
    pub maximum_user_namespaces: Option<u64>,
    /// `kernel.apparmor_restrict_unprivileged_userns` (Ubuntu since 23.10).
    pub apparmor_restriction: Option<u64>,
}

/// Namespaces, really made in a child process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NamespaceTrials {
    /// `unshare(CLONE_NEWUSER)`.
    pub user: Trial,
    /// Writing a one-line `uid_map` and `gid_map`.
    pub id_map: Trial,
    /// `unshare(CLONE_NEWNS)` inside.
    pub mount: Trial,
    /// Mounting a tmpfs inside: fails where the namespace is made but its capabilities are denied.
    pub tmpfs: Trial,
    /// `unshare(CLONE_NEWIPC | CLONE_NEWUTS)` inside.
    pub ipc_and_uts: Trial,
    /// `unshare(CLONE_NEWNET)` inside.
    pub network: Trial,
    /// Opening `/dev/net/tun` inside.
    pub tunnel_device: Trial,
    /// Making a tun interface inside.
    pub tunnel: Trial,
    /// Mounting a devpts of its own inside.
    pub devpts: Trial,
    /// Opening a terminal on it.
    pub terminal: Trial,
    /// `unshare(CLONE_NEWPID)` inside.
    pub pid: Trial,
    /// Mounting a new `/proc` as the first process in there.
    pub proc: Trial,
}

/// Subordinate ids.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SubordinateIds {
    /// First id and count of the user's largest entry in `/etc/subuid`.
    pub user_range: Option<(u64, u64)>,
    /// The same of `/etc/subgid`.
    pub group_range: Option<(u64, u64)>,
    /// The first id above every reserved range of both files.
    pub first_free: u64,
    /// Where `newuidmap` is.
    pub newuidmap: Option<PathBuf>,
    /// Where `newgidmap` is.
    pub newgidmap: Option<PathBuf>,
    /// Whether both are set-uid root or have the file capabilities they need.
    pub tools_privileged: bool,
    /// Mapping the range, really done on a child's user namespace.
    pub mapping: Trial,
    /// What the tools said when they failed, one line.
    pub complaint: Option<String>,
}

/// One directory that an overlay is built on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LayerFacts {
    /// The directory.
    pub directory: PathBuf,
    /// The type of its file system.
    pub file_system: String,
    /// Reading it (a workspace) or making a directory in it (the data directory).
    pub access: Trial,
    /// Mounts beneath it: the kernel refuses to hide or reveal them through an overlay.
    pub mounts_beneath: Vec<String>,
    /// Mounting the overlay in a user namespace.
    pub overlay: Trial,
    /// Changing, removing and replacing lower entries through it.
    pub changes: Trial,
    /// Setting an extended attribute `user.…`; tried on the data directory only.
    pub user_attributes: Trial,
}

/// Id-mapped mounts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IdMappedTrials {
    /// `mount_setattr(MOUNT_ATTR_IDMAP)` on the workspace, or the data directory without one.
    pub mount: Trial,
    /// An overlay over the id-mapped mount (kernel 5.19).
    pub overlay: Trial,
}

/// Which generation of control groups limits can be set with.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CgroupFacts {
    /// The unified hierarchy (v2), where it is mounted.
    pub unified: Option<UnifiedCgroup>,
    /// The v1 hierarchies that are mounted, of those that matter.
    pub legacy: Vec<LegacyCgroup>,
}

/// The unified hierarchy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UnifiedCgroup {
    /// This process's own group, as a directory.
    pub directory: PathBuf,
    /// Making a child group.
    pub create: Trial,
    /// Moving a process into the child group.
    pub enter: Trial,
    /// Opening `cgroup.subtree_control` for writing.
    pub subtree_control: Trial,
    /// Writing to the child's `cgroup.kill` (kernel 5.14).
    pub kill: Trial,
    /// Opening the child's `cgroup.freeze` for writing (kernel 5.2).
    pub freeze: Trial,
    /// `cgroup.controllers` of the own group.
    pub controllers: Vec<String>,
}

/// One v1 hierarchy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LegacyCgroup {
    /// `memory`, `pids`, `cpu` or `freezer`.
    pub controller: String,
    /// This process's own group, as a directory.
    pub directory: PathBuf,
    /// Making a child group.
    pub create: Trial,
    /// Moving a process into it.
    pub enter: Trial,
}

/// Single system calls, each really made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CallTrials {
    /// Installing a seccomp filter.
    pub seccomp: Trial,
    /// The version of the Landlock interface; `None` where the kernel has none or keeps it off.
    pub landlock_version: Option<u32>,
    /// The active security modules, where the kernel shows them.
    pub security_modules: Option<String>,
    /// Enforcing a Landlock rule set.
    pub landlock: Trial,
    /// `pidfd_open` on a child.
    pub pidfd: Trial,
    /// `waitid(P_PIDFD)` on it.
    pub wait_on_pidfd: Trial,
    /// `openat2` with `RESOLVE_BENEATH`.
    pub openat2: Trial,
    /// `clone3`.
    pub clone3: Trial,
    /// `close_range`.
    pub close_range: Trial,
    /// `memfd_create`.
    pub memfd: Trial,
}
