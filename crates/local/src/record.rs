//! What is kept on disk about one sandbox, written before anything that it describes exists.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, SystemTime};

use leasehold_model::{
    AttemptName, BytePath, Error, ErrorKind, ExposureAccess, Labels, NetworkPolicy, ResourceLimits, Result,
    RootSource, SandboxId, SandboxInfo, SandboxSpec, SandboxState, TemplateId, UserSpec,
};
use serde::{Deserialize, Serialize};

use crate::archive::Archive;
use crate::changes::Baseline;
use crate::root::ImageRoot;

/// The newest form of the record that this program writes. It refuses newer ones.
const FORMAT: u32 = 1;
const FILE: &str = "record.json";

/// One sandbox on disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    format: u32,
    pub(crate) id: SandboxId,
    pub(crate) name: AttemptName,
    pub(crate) labels: Labels,
    pub(crate) created_at: SystemTime,
    pub(crate) expires_at: Option<SystemTime>,
    /// What it is meant to be; whether pid 1 lives is told by the lock.
    pub(crate) state: SandboxState,
    pub(crate) bound_to_creator: bool,
    pub(crate) idle_stop_after: Option<Duration>,
    pub(crate) root: RootSource,
    /// What it needs of its image.
    pub(crate) image: Option<ImageRoot>,
    /// Templates between its own layers and the root, the uppermost first.
    pub(crate) frozen: Vec<TemplateId>,
    pub(crate) workspace: Option<StoredWorkspace>,
    pub(crate) exposures: Vec<(BytePath, ExposureAccess)>,
    pub(crate) limits: ResourceLimits,
    pub(crate) network: NetworkPolicy,
    /// Names and values as bytes.
    pub(crate) environment: Vec<(BytePath, BytePath)>,
    pub(crate) user: Option<UserSpec>,
    /// Why the sandbox can't be used, when it can't.
    pub(crate) fault: Option<String>,
    /// Where its layers are while it is archived.
    #[serde(default)]
    pub(crate) archive: Option<Archive>,
}

/// The workspace of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredWorkspace {
    pub(crate) source: Option<BytePath>,
    pub(crate) target: BytePath,
    /// The moment just before the workspace was first mounted. A host file changed later than this is in
    /// conflict with a change of the sandbox.
    pub(crate) baseline: Option<Baseline>,
}

fn bytes(text: std::ffi::OsString) -> BytePath {
    BytePath::from(std::path::PathBuf::from(text))
}

impl Record {
    /// The record of a new sandbox.
    pub(crate) fn new(id: SandboxId, spec: &SandboxSpec) -> Self {
        let created_at = SystemTime::now();
        Self {
            format: FORMAT,
            id,
            name: spec.name.clone(),
            labels: spec.labels.clone(),
            created_at,
            expires_at: spec.expire_after.and_then(|after| created_at.checked_add(after)),
            state: SandboxState::Creating,
            bound_to_creator: spec.bound_to_creator,
            idle_stop_after: spec.idle_stop_after,
            root: spec.root.clone(),
            image: None,
            frozen: Vec::new(),
            workspace: spec.workspace.as_ref().map(|workspace| StoredWorkspace {
                source: workspace.source.clone().map(BytePath),
                target: BytePath(workspace.target.clone()),
                baseline: None,
            }),
            exposures: spec.exposures.iter().map(|one| (BytePath(one.path.clone()), one.access)).collect(),
            limits: spec.limits,
            network: spec.network,
            environment: spec
                .environment
                .iter()
                .cloned()
                .map(|(name, value)| (bytes(name), bytes(value)))
                .collect(),
            user: spec.user.clone(),
            fault: None,
            archive: None,
        }
    }

    /// The record of a new sandbox that is like this one.
    pub(crate) fn like(&self, id: SandboxId, name: AttemptName) -> Self {
        let created_at = SystemTime::now();
        let lifetime = self.expires_at.and_then(|at| at.duration_since(self.created_at).ok());
        Self {
            id,
            name,
            created_at,
            expires_at: lifetime.and_then(|lifetime| created_at.checked_add(lifetime)),
            state: SandboxState::Creating,
            archive: None,
            ..self.clone()
        }
    }

    /// What others see of it, given whether its pid 1 lives.
    pub(crate) fn info(&self, lives: bool) -> SandboxInfo {
        let state = match self.state {
            // It was meant to run and does not: it ended by itself, by expiry or by a crash of the host.
            SandboxState::Running | SandboxState::Paused if !lives => SandboxState::Stopped,
            other => other,
        };
        SandboxInfo {
            id: self.id.clone(),
            name: self.name.clone(),
            labels: self.labels.clone(),
            state,
            created_at: self.created_at,
            expires_at: self.expires_at,
            workspace: self.workspace.as_ref().map(|workspace| workspace.target.to_path_buf()),
        }
    }

    /// Whether its time is up.
    pub(crate) fn is_expired(&self) -> bool {
        self.expires_at.is_some_and(|instant| instant <= SystemTime::now())
    }

    /// Reads the record of a directory; `None` when there is none.
    pub(crate) fn load(directory: &Path) -> Result<Option<Self>> {
        let path = directory.join(FILE);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(Error::io("record.load", format!("cannot read {}", path.display()), error));
            }
        };
        let corrupt = |error: serde_json::Error| {
            Error::new(ErrorKind::Corrupt, "record.load", format!("{} can't be understood", path.display()))
                .with_source(error)
        };
        let record: Self = serde_json::from_slice(&text).map_err(corrupt)?;
        if record.format > FORMAT {
            return Err(Error::unsupported(
                "record.load",
                format!("{} was written by a newer version of Leasehold", path.display()),
            )
            .with_hint("use that version, or another data directory"));
        }
        Ok(Some(record))
    }

    /// Writes the record whole: a reader sees the old or the new one.
    pub(crate) fn save(&self, directory: &Path) -> Result<()> {
        self.write(directory, false)
    }

    /// The same, and waits until it would survive a loss of power: what is removed next can't be had again.
    pub(crate) fn save_for_good(&self, directory: &Path) -> Result<()> {
        self.write(directory, true)
    }

    fn write(&self, directory: &Path, for_good: bool) -> Result<()> {
        let path = directory.join(FILE);
        let scratch = directory.join(".record.json");
        let write = || -> std::io::Result<()> {
            let mut file = fs::File::create(&scratch)?;
            file.write_all(&serde_json::to_vec(self)?)?;
            if for_good {
                file.sync_all()?;
            }
            fs::rename(&scratch, &path)?;
            if for_good { fs::File::open(directory)?.sync_all() } else { Ok(()) }
        };
        write().map_err(|error| Error::io("record.save", format!("cannot write {}", path.display()), error))
    }
}
