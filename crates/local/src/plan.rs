//! From a record to what pid 1 builds.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use leasehold_model::{BytePath, Error, ErrorKind, ExposureAccess, NetworkPolicy, Result, UserSpec};

use crate::config::LocalConfig;
use crate::identity::IdentityMap;
use crate::protocol::{
    InnerUsers, Lifetime, MountPlan, NetworkOwner, OverlayPlan, SharedTree, StartPlan, TreeAccess, User,
};
use crate::record::Record;
use crate::store::Store;
use crate::toolchain;

/// The most processes in a sandbox that doesn't say: enough for the widest builds (field case F47), too
/// few for a fork bomb to hurt the host.
pub(crate) const DEFAULT_PROCESSES: u32 = 4096;

/// System directories of the host that are shown, where they exist.
const SYSTEM_DIRECTORIES: [&str; 10] =
    ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix", "/gnu"];

/// Everything that planning needs to know.
pub(crate) struct PlanInput<'a> {
    pub(crate) config: &'a LocalConfig,
    pub(crate) store: &'a Store,
    pub(crate) record: &'a Record,
    pub(crate) identity: &'a IdentityMap,

    pub(crate) user: User,
    pub(crate) listens: bool,
    pub(crate) cgroup_files: usize,
}

struct Planner<'a> {
    input: &'a PlanInput<'a>,
    mounts: MountPlan,
}

/// Plans the sandbox of a record, and makes the directories of its layers.
pub(crate) fn plan(input: &PlanInput<'_>) -> Result<StartPlan> {
    let record = input.record;
    let state = input.store.sandbox(&record.id);
    let mut planner = Planner {
        input,
        mounts: MountPlan {
            state: BytePath(state),
            mapped: Vec::new(),
            root: OverlayPlan { lower: Vec::new(), layer: "root".into(), target: "/".into() },
            system: Vec::new(),
            links: Vec::new(),
            overlays: Vec::new(),
            directories: vec![
                ("/tmp".into(), 0o1777),
                ("/run".into(), 0o755),
                ("/proc".into(), 0o555),
                ("/sys".into(), 0o555),
                ("/dev".into(), 0o755),
            ],
            files: Vec::new(),
            exposures: Vec::new(),
            disk_limit: record.limits.disk.map(|size| size.0),
        },
    };
    planner.root();
    if record.image.is_none() {
        planner.host_directories();
    }
    planner.network_files();
    planner.workspace()?;
    planner.exposures()?;
    planner.order_and_map();
    planner.make_layers()?;

    let directory = record
        .workspace
        .as_ref()
        .map(|workspace| workspace.target.clone())
        .or_else(|| record.image.as_ref().and_then(|image| image.directory.clone()))
        .unwrap_or_else(|| "/".into());
    Ok(StartPlan {
        host_name: host_name(record.name.as_str()),
        mounts: planner.mounts,
        network: if record.network == NetworkPolicy::None {
            NetworkOwner::Sandbox
        } else {
            NetworkOwner::Host
        },
        owner: input.identity.owner(),
        user: input.user.clone(),
        directory,
        users: if input.identity.has_other_users() { InnerUsers::Many } else { InnerUsers::OwnerAlone },
        lifetime: if record.bound_to_creator { Lifetime::Creator } else { Lifetime::Independent },
        expire_after: record
            .expires_at
            .map(|at| millis(at.duration_since(SystemTime::now()).unwrap_or_default())),
        idle_stop_after: record.idle_stop_after.map(millis),
        cgroup_files: u8::try_from(input.cgroup_files).unwrap_or(0),
        process_limit: record.limits.processes.unwrap_or(DEFAULT_PROCESSES),
        listens: input.listens,
    })
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A host name from a sandbox's name: at most 63 letters, digits and hyphens.
fn host_name(name: &str) -> String {
    name.chars().take(63).map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
}

/// A user as pid 1 takes it.
pub(crate) fn user(spec: &UserSpec) -> User {
    match spec {
        UserSpec::Id { user, group } => User::Id { user: *user, group: *group },
        UserSpec::Name(name) => User::Name(name.clone()),
    }
}

impl Planner<'_> {
    fn root(&mut self) {
        let frozen = self.input.record.frozen.iter();
        let mut lower: Vec<BytePath> = frozen
            .map(|template| BytePath(self.input.store.template(template.as_str()).join("root")))
            .collect();
        match &self.input.record.image {
            Some(image) => lower.extend(image.layers.iter().cloned()),
            None => lower.push(BytePath(self.input.store.skeleton())),
        }
        self.mounts.root.lower = lower;
    }

    fn host_directories(&mut self) {
        for path in SYSTEM_DIRECTORIES {
            let Ok(metadata) = fs::symlink_metadata(path) else {
                continue;
            };
            if metadata.is_symlink() {
                if let Ok(target) = fs::read_link(path) {
                    self.mounts.links.push((path.into(), target.to_string_lossy().into_owned()));
                }
            } else if metadata.is_dir() {
                self.mounts.system.push(read_only(path));
            }
        }
        self.overlay("etc", Path::new("/etc"), Path::new("/etc"));
        let Some(home) = self.input.config.home.as_deref() else {
            return;
        };
        let home = fs::canonicalize(home).unwrap_or_else(|_| home.to_path_buf());
        if home != Path::new("/") {
            self.mounts.directories.push((BytePath(home.clone()), 0o755));
        }
        let found = toolchain::find(&home, |name| std::env::var_os(name).map(PathBuf::from));
        for path in &found {
            self.overlay(&layer_name(path), path, path);
        }
    }

    fn overlay(&mut self, layer: &str, lower: &Path, target: &Path) {
        let frozen = self.input.record.frozen.iter();
        let lower = frozen
            .map(|template| self.input.store.template(template.as_str()).join(layer))
            .filter(|path| path.is_dir())
            .chain([lower.to_path_buf()])
            .map(BytePath)
            .collect();
        self.mounts.overlays.push(OverlayPlan { lower, layer: layer.into(), target: target.into() });
    }

    fn network_files(&mut self) {
        let host = &host_name(self.input.record.name.as_str());
        let shares_network = self.input.record.network == NetworkPolicy::Host;
        let from_host = |path: &str| if shares_network { fs::read(path).ok() } else { None };
        let hosts = from_host("/etc/hosts").unwrap_or_else(|| {
            format!("127.0.0.1 localhost {host}\n::1 localhost ip6-localhost\n").into_bytes()
        });
        let resolver = from_host("/etc/resolv.conf").unwrap_or_default();
        self.mounts.directories.push(("/etc".into(), 0o755));
        self.mounts.files.push(("/etc/hostname".into(), format!("{host}\n").into_bytes()));
        self.mounts.files.push(("/etc/hosts".into(), hosts));
        self.mounts.files.push(("/etc/resolv.conf".into(), resolver));
    }

    fn workspace(&mut self) -> Result<()> {
        let Some(workspace) = &self.input.record.workspace else {
            return Ok(());
        };
        let target = workspace.target.to_path_buf();
        match workspace.source.as_deref() {
            Some(source) => {
                let data = self.input.store.root();
                if data.starts_with(source) {
                    return Err(Error::invalid(
                        "sandbox.workspace",
                        format!("the workspace {} holds Leasehold's own data directory", source.display()),
                    )
                    .with_context("path", data.display())
                    .with_hint("run in a project directory, give one with --workspace, or move the data with LEASEHOLD_DATA_DIR"));
                }
                let source = source.to_path_buf();
                self.overlay("workspace", &source, &target);
            }
            None => self.mounts.directories.push((BytePath(target), 0o755)),
        }
        Ok(())
    }

    fn exposures(&mut self) -> Result<()> {
        for (path, access) in &self.input.record.exposures {
            let metadata = fs::metadata(path).map_err(|error| {
                Error::io("sandbox.expose", format!("cannot expose {}", path.display()), error)
                    .with_hint("check the path given with --expose")
            })?;
            let mut target = path.to_path_buf().into_os_string();
            if metadata.is_dir() {
                target.push("/");
            }
            self.mounts.exposures.push(SharedTree {
                source: path.clone(),
                target: BytePath(target.into()),
                access: match access {
                    ExposureAccess::ReadOnly => TreeAccess::ReadOnly,
                    ExposureAccess::ReadWrite => TreeAccess::ReadWrite,
                },
            });
        }
        Ok(())
    }

    /// Outer trees come before inner ones. With shifted ids, every tree but the system's own is mapped.
    fn order_and_map(&mut self) {
        self.mounts.overlays.sort_by_key(|overlay| overlay.target.components().count());
        self.mounts.exposures.sort_by_key(|shared| shared.target.components().count());
        if !matches!(self.input.identity, IdentityMap::Shifted { .. }) {
            return;
        }
        let mut mapped = vec![self.mounts.state.clone()];
        let overlays = std::iter::once(&self.mounts.root).chain(&self.mounts.overlays);
        let lower = overlays.flat_map(|overlay| &overlay.lower).filter(|path| path.as_os_str() != "/etc");
        // However many layers lie upon each other, the places that hold them all are few: each is a
        // descriptor in one message.
        let holders = ["templates", "images/layers"].map(|part| BytePath(self.input.store.root().join(part)));
        for path in lower.chain(self.mounts.exposures.iter().map(|shared| &shared.source)) {
            let path = holders.iter().find(|holder| path.starts_with(holder)).unwrap_or(path);
            if !mapped.contains(path) {
                mapped.push(path.clone());
            }
        }
        self.mounts.mapped = mapped;
    }

    /// The upper and work directories of every layer. With a disk limit pid 1 makes them in memory.
    fn make_layers(&self) -> Result<()> {
        if self.mounts.disk_limit.is_some() {
            return Ok(());
        }
        for overlay in std::iter::once(&self.mounts.root).chain(&self.mounts.overlays) {
            for part in ["upper", "work"] {
                let path = self.mounts.state.join(&*overlay.layer).join(part);
                let made = fs::DirBuilder::new().recursive(true).mode(0o755).create(&path);
                made.map_err(|error| {
                    Error::io("sandbox.layers", format!("cannot make {}", path.display()), error)
                })?;
            }
            copy_top_mode(overlay, &self.mounts.state)?;
        }
        Ok(())
    }
}

/// A name for the layer of a tree, the same for the same path, so that templates find it again.
fn layer_name(path: &Path) -> String {
    let hash = path.as_os_str().as_encoded_bytes().iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("tree-{hash:016x}")
}

/// The top of an overlay shows the mode and times of its upper layer, so that gets those of what lies
/// below, until something in it changes.
fn copy_top_mode(overlay: &OverlayPlan, state: &Path) -> Result<()> {
    let Some(lower) = overlay.lower.first() else {
        return Ok(());
    };
    let upper = state.join(&*overlay.layer).join("upper");
    let copy = || {
        let metadata = fs::metadata(lower)?;
        if !metadata.is_dir() {
            return Err(std::io::ErrorKind::NotADirectory.into());
        }
        fs::set_permissions(&upper, metadata.permissions())?;
        if fs::read_dir(&upper)?.next().is_none() {
            let times =
                fs::FileTimes::new().set_accessed(metadata.accessed()?).set_modified(metadata.modified()?);
            fs::File::open(&upper)?.set_times(times)?;
        }
        Ok(())
    };
    copy().map_err(|error| {
        let error = Error::io("sandbox.layers", format!("cannot use {}", lower.display()), error);
        if error.kind() == ErrorKind::NotFound { error.with_hint("check that it exists") } else { error }
    })
}

fn read_only(path: &str) -> SharedTree {
    SharedTree { source: path.into(), target: path.into(), access: TreeAccess::ReadOnly }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names_are_short_and_plain() {
        assert_eq!(host_name("run_1.x"), "run-1-x");
        assert_eq!(host_name(&"a".repeat(100)).len(), 63);
    }
}
