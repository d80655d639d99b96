//! Control groups: limits on a sandbox's commands, and the kernel's own evidence of which one was hit.
//!
//! Pid 1 stays outside, so that a sandbox out of memory can still say so. Each command writes itself into
//! the group through descriptors that the host opened, whose rights are those of the host.

mod unified;
mod version1;

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use leasehold_model::{Error, ResourceLimits, Result};

/// Where the hierarchies are mounted.
const ROOT: &str = "/sys/fs/cgroup";

/// The group of one sandbox's commands.
#[derive(Debug)]
pub(crate) struct Cgroup {
    directories: Vec<PathBuf>,
    memory: Option<MemoryEvidence>,
    freezer: Option<Freezer>,
    memory_limit: Option<u64>,
}

/// The file in which the kernel counts kills for memory.
#[derive(Debug, Clone)]
struct MemoryEvidence {
    file: PathBuf,
}

/// How a group is frozen.
#[derive(Debug, Clone)]
struct Freezer {
    file: PathBuf,
    frozen: &'static str,
    thawed: &'static str,
    /// The file in which the kernel says that all of it is frozen, and the line that says so.
    evidence: (PathBuf, &'static str),
}

fn group_name(id: &str) -> String {
    format!("leasehold-{id}")
}

/// Makes the group of a sandbox with its limits. `Ok(None)` when this user can't have one and no limit
/// needs it; an error that names the limit when one does (invariant 15).
pub(crate) fn create(id: &str, limits: &ResourceLimits) -> Result<Option<Cgroup>> {
    let name = group_name(id);
    let wanted = [("--memory", limits.memory.is_some()), ("--cpus", limits.cpus.is_some())];
    let made = match unified::create(&name, limits) {
        Ok(Some(group)) => Ok(Some(group)),
        Ok(None) => version1::create(&name, limits),
        Err(error) => Err(error),
    };
    match made {
        Ok(Some(group)) => Ok(Some(group)),
        other => {
            let reason = other.err();
            remove(id);
            match wanted.iter().find(|(_, is_wanted)| *is_wanted) {
                None => Ok(None),
                Some((flag, _)) => {
                    let error = Error::unsupported(
                        "sandbox.limits",
                        format!("{flag} can't be kept on this host: no control group can be made"),
                    )
                    .with_hint(
                        "run `leasehold doctor`; it prints how to delegate control groups to this user",
                    );
                    Err(match reason {
                        Some(reason) => error.with_source(reason),
                        None => error,
                    })
                }
            }
        }
    }
}

/// Whether this user can limit memory and processor time here.
pub(crate) fn is_available() -> bool {
    let id = format!("probe-{}", std::process::id());
    let made = create(&id, &ResourceLimits::default());
    remove(&id);
    matches!(made, Ok(Some(_)))
}

/// Removes the groups of a sandbox, wherever they are. Groups that still hold a dying process are tried
/// again a few times; what stays is found by the next sweep.
pub(crate) fn remove(id: &str) {
    let name = group_name(id);
    for parent in unified::parents().into_iter().chain(version1::parents()) {
        let path = parent.join(&name);
        for _ in 0..50 {
            match fs::remove_dir(&path) {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                    std::thread::sleep(std::time::Duration::from_millis(2));
                }
                _ => break,
            }
        }
    }
}

impl Cgroup {
    /// The files by which a command joins.
    pub(crate) fn join_files(&self) -> io::Result<Vec<OwnedFd>> {
        self.directories
            .iter()
            .map(|directory| Ok(File::options().write(true).open(directory.join("cgroup.procs"))?.into()))
            .collect()
    }

    /// How often the kernel has killed a process of this group for memory.
    pub(crate) fn memory_kills(&self) -> u64 {
        let Some(evidence) = &self.memory else {
            return 0;
        };
        let text = fs::read_to_string(&evidence.file).unwrap_or_default();
        text.lines()
            .find_map(|line| line.strip_prefix("oom_kill "))
            .and_then(|number| number.trim().parse().ok())
            .unwrap_or(0)
    }

    /// The memory limit that was set.
    pub(crate) fn memory_limit(&self) -> Option<u64> {
        self.memory_limit
    }

    /// Whether it can be frozen.
    pub(crate) fn can_freeze(&self) -> bool {
        self.freezer.is_some()
    }

    /// Whether every process in it is frozen now.
    pub(crate) fn is_frozen(&self) -> io::Result<bool> {
        let freezer = self.freezer.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        let (file, frozen) = &freezer.evidence;
        Ok(fs::read_to_string(file)?.lines().any(|line| line == *frozen))
    }

    /// Freezes or thaws every process in it. Freezing takes its time; see [`Cgroup::is_frozen`].
    pub(crate) fn set_frozen(&self, frozen: bool) -> io::Result<()> {
        let freezer = self.freezer.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        fs::write(&freezer.file, if frozen { freezer.frozen } else { freezer.thawed })
    }
}

/// Writes one control file, saying which.
fn control(directory: &Path, file: &str, value: &str) -> Result<()> {
    let path = directory.join(file);
    fs::write(&path, value).map_err(|error| {
        Error::io("sandbox.limits", format!("cannot write `{value}` to {}", path.display()), error)
    })
}

/// Makes a group's directory; one that exists is fine.
fn make(path: &Path) -> Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(Error::io(
            "sandbox.limits",
            format!("cannot make the control group {}", path.display()),
            error,
        )),
        _ => Ok(()),
    }
}

/// The lines of `/proc/self/cgroup`: controllers and path.
fn own_groups() -> Vec<(String, String)> {
    let text = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    text.lines()
        .filter_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            Some((fields.next()?.to_owned(), fields.next()?.to_owned()))
        })
        .collect()
}
