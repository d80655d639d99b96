//! What a sandbox is asked to be, and what is known of one.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::command::UserSpec;
use crate::error::{Error, Result};
use crate::id::{AttemptName, Labels, SandboxId, TemplateId};
use crate::limits::ResourceLimits;

/// Where a sandbox's root file system comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RootSource {
    /// The provider's own: for the embedded one, the host's system directories, read-only.
    #[default]
    Host,
    /// A container image.
    Image(ImageReference),
    /// A template captured from a sandbox of the same provider.
    Template(TemplateId),
}

/// A container image by path or by name: an OCI layout directory, an OCI or Docker archive, or a
/// registry reference such as `docker.io/library/alpine:3`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ImageReference(pub String);

impl fmt::Display for ImageReference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// The tree that the agent works on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkspaceSpec {
    /// A directory of this machine, seen copy-on-write. `None` is an empty workspace.
    pub source: Option<PathBuf>,
    /// Where it appears in the sandbox: an absolute path.
    pub target: PathBuf,
}

/// Whether an exposed path can be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExposureAccess {
    /// The sandbox sees it and can't change it.
    ReadOnly,
    /// The sandbox changes the host's own files. The user asked for it by name.
    ReadWrite,
}

/// A path of this machine shown in the sandbox at the same place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exposure {
    /// An absolute path.
    pub path: PathBuf,
    /// What the sandbox may do with it.
    pub access: ExposureAccess,
}

impl FromStr for Exposure {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (path, access) = match text.rsplit_once(':') {
            Some((path, "ro")) => (path, ExposureAccess::ReadOnly),
            Some((path, "rw")) => (path, ExposureAccess::ReadWrite),
            _ => (text, ExposureAccess::ReadOnly),
        };
        if path.is_empty() {
            return Err(Error::invalid("expose.parse", "an exposed path is empty")
                .with_hint("write it as PATH, PATH:ro or PATH:rw"));
        }
        Ok(Self { path: PathBuf::from(path), access })
    }
}

/// What a sandbox can reach over the network.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NetworkPolicy {
    /// Nothing but its own loopback.
    #[default]
    None,
    /// All that this host can reach, its loopback included.
    Host,
}

impl FromStr for NetworkPolicy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "none" => Ok(Self::None),
            "host" => Ok(Self::Host),
            _ => Err(Error::invalid("network.parse", format!("`{text}` is not a network policy"))
                .with_hint("choose none or host")),
        }
    }
}

/// The request for one sandbox.
#[derive(Debug, Clone)]
pub struct SandboxSpec {
    /// The attempt's own name, unique per try.
    pub name: AttemptName,
    /// Kept with the sandbox from the first moment.
    pub labels: Labels,
    /// Its root file system.
    pub root: RootSource,
    /// Its workspace.
    pub workspace: Option<WorkspaceSpec>,
    /// Paths of this machine to show.
    pub exposures: Vec<Exposure>,
    /// What it may use.
    pub limits: ResourceLimits,
    /// What it can reach.
    pub network: NetworkPolicy,
    /// The environment that every command gets.
    pub environment: Vec<(OsString, OsString)>,
    /// The user that commands run as when they don't say.
    pub user: Option<UserSpec>,
    /// Destroyed by the provider after this time, whatever happens to us.
    pub expire_after: Option<Duration>,
    /// Stopped by the provider after this time without a running command.
    pub idle_stop_after: Option<Duration>,
    /// Destroyed by the provider when the process that made it is gone.
    pub bound_to_creator: bool,
}

impl SandboxSpec {
    /// A sandbox with the provider's root, no workspace, no network and no bounds of its own.
    pub fn new(name: AttemptName) -> Self {
        Self {
            name,
            labels: Labels::default(),
            root: RootSource::Host,
            workspace: None,
            exposures: Vec::new(),
            limits: ResourceLimits::default(),
            network: NetworkPolicy::None,
            environment: Vec::new(),
            user: None,
            expire_after: None,
            idle_stop_after: None,
            bound_to_creator: false,
        }
    }
}

/// What a sandbox is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SandboxState {
    /// Being made.
    Creating,
    /// Ready for commands.
    Running,
    /// Frozen in memory.
    Paused,
    /// No process runs; the file system is kept.
    Stopped,
    /// Stopped, and the file system packed away.
    Archived,
    /// Being taken down.
    Destroying,
    /// Something is wrong that only a person or `recover` can mend.
    Failed,
    /// A state of the provider's that we don't know (tolerated, never guessed at).
    Unknown,
}

impl SandboxState {
    /// The state as a stable lower-case word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Stopped => "stopped",
            Self::Archived => "archived",
            Self::Destroying => "destroying",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
        }
    }
}

/// What is known of one sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxInfo {
    /// The provider's id.
    pub id: SandboxId,
    /// The attempt that made it.
    pub name: AttemptName,
    /// Its labels.
    pub labels: Labels,
    /// Its state when last seen.
    pub state: SandboxState,
    /// When it was made.
    pub created_at: SystemTime,
    /// When the provider will destroy it.
    pub expires_at: Option<SystemTime>,
    /// Where its workspace is, inside.
    pub workspace: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exposures_are_read_only_unless_asked() {
        let read = "/data".parse::<Exposure>().unwrap();
        assert_eq!(read.access, ExposureAccess::ReadOnly);
        let write = "/da:ta:rw".parse::<Exposure>().unwrap();
        assert_eq!((write.path.to_str().unwrap(), write.access), ("/da:ta", ExposureAccess::ReadWrite));
        assert!(":rw".parse::<Exposure>().is_err());
    }
}
