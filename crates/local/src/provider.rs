//! The embedded provider.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::sync::{Mutex, OnceLock, PoisonError};

use async_trait::async_trait;
use leasehold_model::{
    AttemptName, BytePath, Error, ErrorKind, Labels, Receipt, ReceiptOutcome, ResourceLimits, Result,
    RootSource, SandboxId, SandboxInfo, SandboxSpec, SandboxState, TemplateId, UserSpec,
};
use leasehold_provider::{Capabilities, Provider, ProviderInfo, Sandbox, SandboxQuery, TemplateInfo};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::rand::GetRandomFlags;
use tokio::sync::OnceCell;

use crate::capabilities;
use crate::cgroup::{self, Cgroup};
use crate::changes::Baseline;
use crate::config::LocalConfig;
use crate::hold;
use crate::identity::{self, IdentityMap};
use crate::image::{GarbageReport, ImageStore};
use crate::launch::{LaunchRequest, launch};
use crate::link::Link;
use crate::plan::{self, PlanInput};
use crate::protocol::User;
use crate::record::Record;
use crate::root;
use crate::sandbox::{Live, LocalSandbox, Reach};
use crate::store::{Store, SweepReport, hold_as_creator, lives, lock_soon};
use crate::template::{self, Template};
use crate::workspace::{self, KeptChanges, WorkspaceChanges};

/// What every handle of one provider shares.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: LocalConfig,
    pub(crate) store: Store,
    capabilities: OnceLock<Capabilities>,
    images: OnceCell<ImageStore>,
    /// The layers of sandboxes with a disk limit, which live in memory.
    layers: Mutex<HashMap<SandboxId, Arc<OwnedFd>>>,
    /// The locks of sandboxes that are bound to this process.
    held: Mutex<HashMap<SandboxId, OwnedFd>>,
    /// What handles of this process hold of their sandboxes.
    reaches: Mutex<HashMap<SandboxId, Weak<Reach>>>,
}

/// The provider of embedded sandboxes in one data directory.
#[derive(Debug, Clone)]
pub struct LocalProvider {
    info: ProviderInfo,
    shared: Arc<Shared>,
}

/// Runs blocking work away from the runtime.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Error::new(ErrorKind::Unexpected, "local", format!("a worker failed: {error}")))?
}

/// A fresh id: time is no part of it, so nobody can guess it.
fn new_id() -> Result<SandboxId> {
    let mut bytes = [0_u8; 8];
    rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty())
        .map_err(|error| Error::io("sandbox.create", "cannot get random bytes", error.into()))?;
    SandboxId::new(format!("sb{:016x}", u64::from_le_bytes(bytes)))
}

impl LocalProvider {
    /// Opens the provider, making its data directory when it is missing.
    pub async fn open(config: LocalConfig) -> Result<Self> {
        blocking(move || {
            let store = Store::open(&config.data_directory, config.init_program.as_deref())?;
            let account = format!("local:{}", store.root().display());
            let shared = Shared {
                config,
                store,
                capabilities: OnceLock::new(),
                images: OnceCell::new(),
                layers: Mutex::default(),
                held: Mutex::default(),
                reaches: Mutex::default(),
            };
            Ok(Self { info: ProviderInfo { kind: "local", account }, shared: Arc::new(shared) })
        })
        .await
    }

    /// Removes what dead sandboxes left behind; see [`SweepReport`].
    pub async fn sweep(&self) -> Result<SweepReport> {
        let shared = Arc::clone(&self.shared);
        blocking(move || shared.store.sweep()).await
    }

    /// Ends every process of a sandbox and keeps everything else, to look at its changes before it is
    /// deleted.
    pub async fn end(&self, sandbox: &SandboxId) -> Result<()> {
        LocalSandbox::new(sandbox.clone(), Arc::clone(&self.shared), None).end_now().await
    }

    /// Where the changes of a sandbox's workspace are, once its commands have ended; `None` when the
    /// workspace is not the host's. Open it before the sandbox is deleted.
    pub async fn changes(&self, sandbox: &SandboxId) -> Result<Option<WorkspaceChanges>> {
        let Some(record) = self.shared.load(sandbox).await? else {
            return Err(Error::new(
                ErrorKind::NotFound,
                "changes.open",
                format!("there is no sandbox {sandbox}"),
            ));
        };
        let layers = self.shared.layers(sandbox);
        let shared = Arc::clone(&self.shared);
        blocking(move || {
            let (identity, _) = who(&record)?;
            workspace::of_sandbox(&shared.store, &record, &identity, layers)
        })
        .await
    }

    /// Deletes an ended sandbox but keeps the changes of its workspace, under its id.
    pub async fn keep_changes(&self, sandbox: &SandboxId) -> Result<()> {
        let layers = self.shared.layers(sandbox);
        let shared = Arc::clone(&self.shared);
        let id = sandbox.clone();
        blocking(move || {
            let path = shared.store.sandbox(&id);
            let Some(record) = Record::load(&path)? else {
                return Ok(());
            };
            let _lock = lock_soon(&path)?.ok_or_else(|| {
                Error::new(ErrorKind::Conflict, "changes.keep", format!("sandbox {id} is in use"))
                    .with_hint("end its commands first")
            })?;
            if let Some(layers) = layers {
                let (identity, _) = who(&record)?;
                workspace::copy_from_memory(&layers, &path, &identity)?;
            }
            shared.store.keep_changes(&record).map(drop)
        })
        .await
    }

    /// Every set of changes that was kept, the oldest first.
    pub async fn list_kept_changes(&self) -> Result<Vec<KeptChanges>> {
        let shared = Arc::clone(&self.shared);
        blocking(move || workspace::list_kept(&shared.store)).await
    }

    /// The changes that were kept from a sandbox; `None` when there are none.
    pub async fn find_kept_changes(&self, sandbox: &SandboxId) -> Result<Option<KeptChanges>> {
        let shared = Arc::clone(&self.shared);
        let id = sandbox.clone();
        blocking(move || workspace::find_kept(&shared.store, &id)).await
    }

    /// The store of unpacked images.
    pub async fn images(&self) -> Result<&ImageStore> {
        self.shared.images().await
    }

    /// Removes images without a reference, and layers that neither an image nor a sandbox needs.
    pub async fn collect_images(&self) -> Result<GarbageReport> {
        let shared = Arc::clone(&self.shared);
        let used = blocking(move || {
            let records = shared.store.records()?.into_iter().filter_map(|(record, _)| record.image);
            let templates = template::all(&shared.store)?.into_iter().filter_map(|template| template.image);
            Ok(records.chain(templates).flat_map(|image| image.layers).collect::<BTreeSet<_>>())
        })
        .await?;
        self.images().await?.collect_garbage(move |path| used.contains(&BytePath::from(path))).await
    }

    /// The data directory.
    pub fn data_directory(&self) -> &Path {
        self.shared.store.root()
    }

    fn handle(&self, id: SandboxId, live: Option<Live>) -> Arc<dyn Sandbox> {
        Arc::new(LocalSandbox::new(id, Arc::clone(&self.shared), live))
    }
}

impl Shared {
    /// The layers of a sandbox of this process that live in memory.
    fn layers(&self, id: &SandboxId) -> Option<Arc<OwnedFd>> {
        self.layers.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    /// What another handle of this process holds of a sandbox.
    pub(crate) fn reach(&self, id: &SandboxId) -> Option<Arc<Reach>> {
        self.reaches.lock().unwrap_or_else(PoisonError::into_inner).get(id)?.upgrade()
    }

    /// Lets later handles share what one holds.
    pub(crate) fn remember(&self, id: &SandboxId, reach: &Arc<Reach>) {
        let mut reaches = self.reaches.lock().unwrap_or_else(PoisonError::into_inner);
        reaches.retain(|_, known| known.strong_count() > 0);
        reaches.insert(id.clone(), Arc::downgrade(reach));
    }

    async fn images(&self) -> Result<&ImageStore> {
        self.images.get_or_try_init(|| root::open_images(&self.store)).await
    }

    pub(crate) async fn load(self: &Arc<Self>, id: &SandboxId) -> Result<Option<Record>> {
        let path = self.store.sandbox(id);
        blocking(move || Record::load(&path)).await
    }

    pub(crate) async fn save(self: &Arc<Self>, record: Record) -> Result<()> {
        let path = self.store.sandbox(&record.id);
        blocking(move || record.save(&path)).await
    }

    /// Removes the directory and control groups of a sandbox that has ended.
    pub(crate) async fn remove(self: &Arc<Self>, id: &SandboxId) -> Result<ReceiptOutcome> {
        self.layers.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
        let shared = Arc::clone(self);
        let id = id.clone();
        blocking(move || {
            let path = shared.store.sandbox(&id);
            if !path.is_dir() {
                return Ok(ReceiptOutcome::AlreadyGone);
            }
            let locked = lock_soon(&path);
            if !path.is_dir() {
                // Somebody else removed it while we waited.
                return Ok(ReceiptOutcome::AlreadyGone);
            }
            let lock = locked?.ok_or_else(|| {
                Error::new(ErrorKind::Conflict, "sandbox.delete", format!("sandbox {id} is in use"))
                    .with_hint("try again")
            })?;
            let mut stacks_on_templates = false;
            let mut outcome = ReceiptOutcome::Destroyed;
            if let Some(mut record) = Record::load(&path)? {
                stacks_on_templates = !record.frozen.is_empty();
                if record.is_expired() {
                    // It ended by itself before; what is removed here are its remains.
                    outcome = ReceiptOutcome::AlreadyGone;
                }
                record.state = SandboxState::Destroying;
                record.save(&path)?;
            }
            shared.store.remove(&path, lock)?;
            shared.held.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
            if stacks_on_templates {
                template::remove_unused(&shared.store)?;
            }
            Ok(outcome)
        })
        .await
    }

    /// Starts pid 1 for a record whose lock is held.
    pub(crate) async fn start(self: &Arc<Self>, mut record: Record, lock: OwnedFd) -> Result<Live> {
        let id = record.id.clone();
        let mut leased = None;
        if let (RootSource::Image(reference), None) = (&record.root, &record.image) {
            let (image, lease) = root::resolve(self.images().await?, reference).await?;
            record.image = Some(image);
            leased = Some(lease);
        }
        let shared = Arc::clone(self);
        let planned = blocking(move || {
            let (identity, user) = who(&record)?;
            let state = shared.store.sandbox(&record.id);
            if let Some(workspace) = &mut record.workspace
                && workspace.baseline.is_none()
            {
                workspace.baseline = Some(Baseline::take(&state)?);
            }
            let cgroup = cgroup::create(record.id.as_str(), &bounded(record.limits))?;
            let files = match &cgroup {
                Some(cgroup) => cgroup
                    .join_files()
                    .map_err(|error| Error::io("sandbox.limits", "cannot open the control group", error))?,
                None => Vec::new(),
            };
            let listener =
                if record.bound_to_creator { None } else { Some(listen(&shared.store, &record.id)?) };
            let plan = plan::plan(&PlanInput {
                config: &shared.config,
                store: &shared.store,
                record: &record,
                identity: &identity,

                user,
                listens: listener.is_some(),
                cgroup_files: files.len(),
            })?;
            record.state = SandboxState::Running;
            record.save(&state)?;
            let request = LaunchRequest {
                program: shared.config.init_program.clone(),
                plan,
                identity,
                cgroup_files: files,
                lock,
                listener,
            };
            Ok((request, cgroup))
        })
        .await?;
        let (request, cgroup) = planned;
        let launched = launch(request).await?;
        let layers = launched.layers.map(Arc::new);
        if let Some(layers) = &layers {
            self.layers.lock().unwrap_or_else(PoisonError::into_inner).insert(id, Arc::clone(layers));
        }
        Ok(Live {
            link: Arc::new(launched.link),
            process: Some(launched.process),
            cgroup: cgroup.map(Arc::new),
            layers,
            _leased: leased,
        })
    }

    /// Starts pid 1 for a new record. The directory and control groups are ours; a failure takes them
    /// down again.
    async fn start_new(self: &Arc<Self>, record: Record, lock: OwnedFd) -> Result<Arc<dyn Sandbox>> {
        let id = record.id.clone();
        if record.bound_to_creator {
            // While the other lock is ours, no sweep can be at work here.
            let path = self.store.sandbox(&id);
            let held = blocking(move || hold_as_creator(&path)).await?;
            self.held.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone(), held);
        }
        match self.start(record, lock).await {
            Ok(live) => Ok(Arc::new(LocalSandbox::new(id, Arc::clone(self), Some(live)))),
            Err(error) => {
                if let Err(cleanup) = self.remove(&id).await {
                    tracing::warn!(%cleanup, %id, "the next sweep removes what a failed creation left");
                }
                Err(error.with_context("attempt", &id))
            }
        }
    }

    /// Makes a sandbox like another one, on the same frozen layers.
    pub(crate) async fn create_like(
        self: &Arc<Self>,
        record: &Record,
        name: AttemptName,
    ) -> Result<Arc<dyn Sandbox>> {
        let record = record.like(new_id()?, name);
        let shared = Arc::clone(self);
        let (record, lock) = blocking(move || {
            let lock = shared.store.create_named(&record)?;
            Ok((record, lock))
        })
        .await?;
        self.start_new(record, lock).await
    }

    /// Connects to a sandbox that another process started.
    pub(crate) async fn connect(self: &Arc<Self>, record: &Record) -> Result<Live> {
        let path = self.store.sandbox(&record.id);
        let id = record.id.clone();
        let limits = bounded(record.limits);
        let record = record.clone();
        let (socket, cgroup) = blocking(move || {
            let failed = |error: std::io::Error| {
                Error::io("sandbox.connect", format!("cannot reach pid 1 of sandbox {id}"), error)
            };
            hold::thaw_forgotten(&path, &record)?;
            let cgroup: Option<Cgroup> = cgroup::create(id.as_str(), &limits)?;
            let socket =
                rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                    .map_err(|error| failed(error.into()))?;
            let address = socket_address(&path).map_err(failed)?;
            rustix::net::connect(&socket, &address.1).map_err(|error| match error {
                // Its lock is held, but not by a pid 1 that listens.
                rustix::io::Errno::CONNREFUSED | rustix::io::Errno::NOENT => Error::new(
                    ErrorKind::Conflict,
                    "sandbox.connect",
                    format!("sandbox {id} is being started, archived or removed at this moment"),
                )
                .with_hint("try again"),
                error => failed(error.into()),
            })?;
            Ok((socket, cgroup))
        })
        .await?;
        let link = Link::new(socket)
            .map_err(|error| Error::io("sandbox.connect", "cannot watch the connection to pid 1", error))?;
        Ok(Live {
            link: Arc::new(link),
            process: None,
            cgroup: cgroup.map(Arc::new),
            layers: None,
            _leased: None,
        })
    }
}

/// The address of a sandbox's socket through its directory's descriptor, since a whole path may be too
/// long for an address.
fn socket_address(directory: &Path) -> std::io::Result<(OwnedFd, SocketAddrUnix)> {
    use std::os::fd::AsFd;
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
    let descriptor = rustix::fs::openat(rustix::fs::CWD, directory, flags, rustix::fs::Mode::empty())?;
    let address =
        SocketAddrUnix::new(format!("{}/socket", crate::syscall::descriptor_path(descriptor.as_fd())))?;
    Ok((descriptor, address))
}

fn listen(store: &Store, id: &SandboxId) -> Result<OwnedFd> {
    let path = store.sandbox(id);
    let make = || -> std::io::Result<OwnedFd> {
        let _ = std::fs::remove_file(path.join("socket"));
        let (_directory, address) = socket_address(&path)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::bind(&socket, &address)?;
        rustix::net::listen(&socket, 64)?;
        Ok(socket)
    };
    make().map_err(|error| Error::io("sandbox.create", format!("cannot listen in {}", path.display()), error))
}

/// Who the caller is inside, and who commands run as.
fn who(record: &Record) -> Result<(IdentityMap, User)> {
    let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let Some(image) = &record.image else {
        // On the host's own files everybody keeps their number.
        let inside = match &record.user {
            None => own,
            Some(UserSpec::Id { user, group }) => (*user, group.unwrap_or(*user)),
            Some(UserSpec::Name(name)) => identity::lookup(name).ok_or_else(|| {
                Error::invalid("sandbox.create", format!("there is no user `{name}` on this host"))
            })?,
        };
        let map = identity::choose(record.id.as_str(), false, inside)?;
        return Ok((map, User::Id { user: inside.0, group: Some(inside.1) }));
    };
    let many = own.0 == 0 || identity::has_subordinate_ids();
    let map = identity::choose(record.id.as_str(), many, (0, 0))?;
    let user = record.user.as_ref().map_or_else(|| image.user(), plan::user);
    Ok((map, user))
}

#[async_trait]
impl Provider for LocalProvider {
    fn info(&self) -> &ProviderInfo {
        &self.info
    }

    fn capabilities(&self) -> Capabilities {
        self.shared.capabilities.get_or_init(capabilities::measure).clone()
    }

    async fn create(&self, spec: SandboxSpec) -> Result<Arc<dyn Sandbox>> {
        let shared = Arc::clone(&self.shared);
        let new = new_id()?;
        let (record, lock) = blocking(move || {
            let mut record = Record::new(new, &spec);
            if let RootSource::Template(id) = &spec.root {
                let template = template::load(&shared.store, id)?
                    .filter(|template| !template.hidden)
                    .ok_or_else(|| {
                        Error::new(
                            ErrorKind::NotFound,
                            "sandbox.create",
                            format!("there is no template `{id}`"),
                        )
                    })?;
                record.frozen = template.chain();
                record.root = template.root;
                record.image = template.image;
            }
            // A name that was made up for one run needs no search through all others.
            let lock = if record.bound_to_creator {
                shared.store.create(&record)?
            } else {
                shared.store.create_named(&record)?
            };
            Ok((record, lock))
        })
        .await?;
        self.shared.start_new(record, lock).await
    }

    async fn find(&self, query: &SandboxQuery) -> Result<Option<Arc<dyn Sandbox>>> {
        let shared = Arc::clone(&self.shared);
        let query = query.clone();
        let found = blocking(move || {
            Ok(match query {
                SandboxQuery::Id(id) => {
                    Record::load(&shared.store.sandbox(&id))?.map(|record| (record.id.clone(), record))
                }
                SandboxQuery::Name(name) => shared
                    .store
                    .records()?
                    .into_iter()
                    .map(|(record, _)| (record.id.clone(), record))
                    .find(|(_, record)| record.name == name),
            }
            .filter(|(id, record)| !record.is_expired() || lives(&shared.store.sandbox(id))))
        })
        .await?;
        Ok(found.map(|(id, _)| self.handle(id, None)))
    }

    async fn list(&self, labels: &Labels) -> Result<Vec<SandboxInfo>> {
        let shared = Arc::clone(&self.shared);
        let labels = labels.clone();
        blocking(move || {
            let records = shared.store.records()?.into_iter();
            Ok(records
                .filter(|(record, lives)| {
                    record.labels.contains_all(&labels) && (*lives || !record.is_expired())
                })
                .map(|(record, lives)| record.info(lives))
                .collect())
        })
        .await
    }

    async fn list_templates(&self) -> Result<Vec<TemplateInfo>> {
        let shared = Arc::clone(&self.shared);
        blocking(move || {
            let templates = template::all(&shared.store)?;
            Ok(templates.iter().filter(|template| !template.hidden).map(Template::info).collect())
        })
        .await
    }

    async fn delete_template(&self, template: &TemplateId) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let id = template.clone();
        blocking(move || template::delete(&shared.store, &id)).await
    }

    async fn destroy(&self, id: &SandboxId) -> Result<Receipt> {
        self.handle(id.clone(), None).delete().await
    }
}

/// Limits with the number of processes always bounded: the bound that each process carries counts per
/// user, and root of a sandbox may become many.
fn bounded(limits: ResourceLimits) -> ResourceLimits {
    ResourceLimits { processes: Some(limits.processes.unwrap_or(plan::DEFAULT_PROCESSES)), ..limits }
}
