//! The changes of a workspace: of a sandbox that ended, or kept from one that is gone.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use leasehold_model::{AttemptName, Error, ErrorKind, Result, SandboxId, SandboxState};

use crate::changes::{Baseline, Cancellation, ChangeSource, OwnerMap};
use crate::identity::{IdentityMap, SHIFTED_LENGTH};
use crate::launch::file_work;
use crate::layer::{self, Owners, Writers};
use crate::record::Record;
use crate::scratch::Scratch;
use crate::store::Store;
use crate::syscall::descriptor_path;
use crate::template;

/// Changes that nobody has decided about, kept from a sandbox that is gone.
#[derive(Debug, Clone)]
pub struct KeptChanges {
    /// The id of the sandbox that made them.
    pub id: SandboxId,
    /// Its name.
    pub name: AttemptName,
    /// When it was made.
    pub created_at: SystemTime,
    /// The workspace that they belong to.
    pub workspace: PathBuf,
    directory: PathBuf,
    program: Option<PathBuf>,
    baseline: Baseline,
}

/// Where the changes of a sandbox are, as long as this lives.
#[derive(Debug, Clone)]
pub struct WorkspaceChanges {
    /// What the functions of [`changes`](crate::changes) take.
    pub source: ChangeSource,
    /// Keeps the layers of a sandbox with a disk limit, which live in memory.
    _layers: Option<Arc<OwnedFd>>,
    /// Keeps the layers of a sandbox that stacks on others, merged for this look at them.
    _merged: Option<Arc<Scratch>>,
}

impl KeptChanges {
    fn load(store: &Store, directory: PathBuf) -> Result<Option<Self>> {
        let program = store.program().map(Path::to_path_buf);
        let Some(record) = Record::load(&directory)? else {
            return Ok(None);
        };
        let (id, name, created_at) = (record.id, record.name, record.created_at);
        Ok(record.workspace.and_then(|workspace| {
            let baseline = workspace.baseline?;
            let workspace = workspace.source?.to_path_buf();
            Some(Self { id, name, created_at, workspace, directory, program, baseline })
        }))
    }

    /// Where they are, to look at or to apply.
    pub fn source(&self) -> ChangeSource {
        ChangeSource {
            upper: self.directory.join("upper"),
            base: self.workspace.clone(),
            baseline: self.baseline,
            owner_map: on_disk_owners(),
            cancellation: Cancellation::default(),
        }
    }

    /// Removes them for good. Blocking.
    pub fn discard(self) -> Result<()> {
        file_work::remove_tree(self.program.as_deref(), &self.directory)
    }
}

/// On disk owners have the host's own numbers; a normal user has only one.
fn on_disk_owners() -> OwnerMap {
    if rustix::process::geteuid().is_root() {
        OwnerMap::Shifted { outside_start: 0, length: SHIFTED_LENGTH }
    } else {
        OwnerMap::Single
    }
}

/// Every set of kept changes, the oldest first. What can't be understood is left out. Blocking.
pub(crate) fn list_kept(store: &Store) -> Result<Vec<KeptChanges>> {
    let directory = store.changes();
    let entries = fs::read_dir(&directory)
        .map_err(|error| Error::io("changes.list", format!("cannot list {}", directory.display()), error))?;
    let mut kept: Vec<_> =
        entries.flatten().filter_map(|entry| KeptChanges::load(store, entry.path()).ok().flatten()).collect();
    kept.sort_by_key(|left| left.created_at);
    Ok(kept)
}

/// One set of kept changes, by the sandbox's id. Blocking.
pub(crate) fn find_kept(store: &Store, id: &SandboxId) -> Result<Option<KeptChanges>> {
    KeptChanges::load(store, store.changes().join(id.as_str()))
}

/// Where the changes of an ended sandbox are; `None` when its workspace is not the host's.
pub(crate) fn of_sandbox(
    store: &Store,
    record: &Record,
    identity: &IdentityMap,
    layers: Option<Arc<OwnedFd>>,
) -> Result<Option<WorkspaceChanges>> {
    let Some(workspace) = &record.workspace else {
        return Ok(None);
    };
    let (Some(base), Some(baseline)) = (&workspace.source, workspace.baseline) else {
        return Ok(None);
    };
    if record.state == SandboxState::Archived {
        return Err(Error::new(
            ErrorKind::Conflict,
            "changes.open",
            format!("sandbox {} is archived", record.id),
        )
        .with_hint("start it first, then stop it"));
    }
    if layers.is_none() && record.limits.disk.is_some() {
        return Err(Error::new(
            ErrorKind::Lost,
            "changes.open",
            format!("the changes of sandbox {} were in memory and went with it", record.id),
        ));
    }
    let (upper, owner_map, owners) = match (&layers, identity) {
        (Some(layers), IdentityMap::Shifted { start }) => (
            in_memory(layers),
            OwnerMap::Shifted { outside_start: *start, length: SHIFTED_LENGTH },
            Owners::ShiftedFrom(*start),
        ),
        (Some(layers), _) => (in_memory(layers), OwnerMap::Single, Owners::Caller),
        (None, _) => (store.sandbox(&record.id).join("workspace/upper"), on_disk_owners(), on_disk()),
    };
    if matches!(identity, IdentityMap::Subordinate { .. }) {
        // From here on the files are only read, by a user that may not touch those of its own ids.
        match &layers {
            Some(layers) => {
                let path = Path::new("workspace/upper");
                file_work::take_over(store.program(), identity, Some(layers.as_fd()), path)?;
            }
            None => file_work::take_over(store.program(), identity, None, &upper)?,
        }
    }
    let mut source = ChangeSource {
        upper,
        base: base.to_path_buf(),
        baseline,
        owner_map,
        cancellation: Cancellation::default(),
    };
    if !has_layers_below(store, record) {
        return Ok(Some(WorkspaceChanges { source, _layers: layers, _merged: None }));
    }
    let merged = Scratch::make(store, &store.sandbox(&record.id))?;
    let own = std::mem::replace(&mut source.upper, merged.path().join("upper"));
    merge_layers(store, record, own, owners, &source.upper)?;
    source.owner_map = on_disk_owners();
    source.baseline = template::baseline(store, record)?.unwrap_or(baseline);
    Ok(Some(WorkspaceChanges { source, _layers: None, _merged: Some(Arc::new(merged)) }))
}

fn in_memory(layers: &OwnedFd) -> PathBuf {
    PathBuf::from(descriptor_path(layers.as_fd())).join("workspace/upper")
}

/// How the owners in a layer on disk are copied.
pub(crate) fn on_disk() -> Owners {
    if rustix::process::geteuid().is_root() { Owners::Kept } else { Owners::Caller }
}

/// Merges the workspace layers that a sandbox stacks on, and its own, into the new directory `to`. With
/// subordinate ids everything belongs to the caller there, who reads it. Blocking; of several processes
/// that read the same template, one after the other does.
pub(crate) fn merge_layers(
    store: &Store,
    record: &Record,
    own: PathBuf,
    owners: Owners,
    to: &Path,
) -> Result<()> {
    let mut locks = Vec::new();
    let mut frozen = Vec::new();
    // The chain has the uppermost first.
    for template in record.frozen.iter().rev() {
        let layer = store.template(template.as_str()).join("workspace");
        if layer.is_dir() {
            locks.push(template::lock(store, template)?);
            frozen.push(layer);
        }
    }
    if let Some(map) = file_work::owners_of(record) {
        file_work::merge_layers(store.program(), &map, &frozen, to)?;
    } else {
        let frozen: Vec<_> = frozen.into_iter().map(|layer| (layer, on_disk())).collect();
        layer::merge(&frozen, to)?;
    }
    drop(locks);
    if own.is_dir() { layer::merge(&[(own, owners)], to) } else { Ok(()) }
}

/// Copies the workspace layer of a sandbox with a disk limit to where others have theirs.
pub(crate) fn copy_from_memory(layers: &OwnedFd, state: &Path, identity: &IdentityMap) -> Result<()> {
    let from = PathBuf::from(descriptor_path(layers.as_fd())).join("workspace/upper");
    let to = state.join("workspace/upper");
    if !from.is_dir() || to.exists() {
        return Ok(());
    }
    let parent = state.join("workspace");
    fs::create_dir_all(&parent)
        .map_err(|error| Error::io("changes.keep", format!("cannot make {}", parent.display()), error))?;
    let owners = match identity {
        IdentityMap::Shifted { start } => Owners::ShiftedFrom(*start),
        _ => Owners::Caller,
    };
    layer::copy(&from, &to, owners, Writers::None)
}

/// Whether a sandbox stacks on changes of its workspace.
pub(crate) fn has_layers_below(store: &Store, record: &Record) -> bool {
    record.frozen.iter().any(|template| has_entries(&store.template(template.as_str()).join("workspace")))
}

/// Whether a directory holds anything; one that its owner closed to itself may.
pub(crate) fn has_entries(directory: &Path) -> bool {
    match fs::read_dir(directory) {
        Ok(mut entries) => entries.next().is_some(),
        Err(error) => error.kind() == std::io::ErrorKind::PermissionDenied,
    }
}
