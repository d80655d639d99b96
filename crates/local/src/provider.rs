//! The embedded provider.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::OnceLock;

use async_trait::async_trait;
use leasehold_model::{
    AttemptName, Error, ErrorKind, Labels, Receipt, ReceiptOutcome, ResourceLimits, Result, RootSource,
    SandboxId, SandboxInfo, SandboxSpec, SandboxState, TemplateId, UserSpec,
};
use leasehold_provider::{Capabilities, Provider, ProviderInfo, Sandbox, SandboxQuery, TemplateInfo};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::rand::GetRandomFlags;

use crate::capabilities;
use crate::cgroup::{self, Cgroup};
use crate::config::LocalConfig;
use crate::identity::{self, IdentityMap};
use crate::launch::{LaunchRequest, launch};
use crate::link::Link;
use crate::plan::{self, ImageRoot, PlanInput};
use crate::protocol::User;
use crate::record::Record;
use crate::sandbox::{Live, LocalSandbox};
use crate::store::{Store, SweepReport, lives, try_lock};
use crate::template::{self, Template};

/// What every handle of one provider shares.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: LocalConfig,
    pub(crate) store: Store,
    capabilities: OnceLock<Capabilities>,
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
            let store = Store::open(&config.data_directory)?;
            let account = format!("local:{}", store.root().display());
            let shared = Shared { config, store, capabilities: OnceLock::new() };
            Ok(Self { info: ProviderInfo { kind: "local", account }, shared: Arc::new(shared) })
        })
        .await
    }

    /// Removes what dead sandboxes left behind; see [`SweepReport`].
    pub async fn sweep(&self) -> Result<SweepReport> {
        let shared = Arc::clone(&self.shared);
        blocking(move || shared.store.sweep()).await
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
        let shared = Arc::clone(self);
        let id = id.clone();
        blocking(move || {
            let path = shared.store.sandbox(&id);
            if !path.is_dir() {
                return Ok(ReceiptOutcome::AlreadyGone);
            }
            let lock = try_lock(&path)?.ok_or_else(|| {
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
            if stacks_on_templates {
                template::remove_unused(&shared.store)?;
            }
            Ok(outcome)
        })
        .await
    }

    /// Starts pid 1 for a record whose lock is held.
    pub(crate) async fn start(self: &Arc<Self>, mut record: Record, lock: OwnedFd) -> Result<Live> {
        let image = match &record.root {
            RootSource::Host => None,
            RootSource::Image(image) => {
                return Err(Error::unsupported("sandbox.create", format!("image {image} can't be used yet")));
            }
            RootSource::Template(template) => {
                return Err(Error::new(
                    ErrorKind::Corrupt,
                    "sandbox.start",
                    format!("the record names template {template} instead of what it stacks on"),
                ));
            }
        };
        let shared = Arc::clone(self);
        let planned = blocking(move || {
            let (identity, user) = who(&record, image.as_ref())?;
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
                image: image.as_ref(),
                user,
                listens: listener.is_some(),
                cgroup_files: files.len(),
            })?;
            record.state = SandboxState::Running;
            record.save(&shared.store.sandbox(&record.id))?;
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
        Ok(Live {
            link: Arc::new(launched.link),
            process: Some(launched.process),
            cgroup: cgroup.map(Arc::new),
            layers: launched.layers.map(Arc::new),
        })
    }

    /// Starts pid 1 for a new record. The directory and control groups are ours; a failure takes them
    /// down again.
    async fn start_new(self: &Arc<Self>, record: Record, lock: OwnedFd) -> Result<Arc<dyn Sandbox>> {
        let id = record.id.clone();
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
        let (socket, cgroup) = blocking(move || {
            let failed = |error: std::io::Error| {
                Error::io("sandbox.connect", format!("cannot reach pid 1 of sandbox {id}"), error)
            };
            let cgroup: Option<Cgroup> = cgroup::create(id.as_str(), &limits)?;
            let socket =
                rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                    .map_err(|error| failed(error.into()))?;
            let address = socket_address(&path).map_err(failed)?;
            rustix::net::connect(&socket, &address.1).map_err(|error| failed(error.into()))?;
            Ok((socket, cgroup))
        })
        .await?;
        let link = Link::new(socket)
            .map_err(|error| Error::io("sandbox.connect", "cannot watch the connection to pid 1", error))?;
        Ok(Live { link: Arc::new(link), process: None, cgroup: cgroup.map(Arc::new), layers: None })
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
fn who(record: &Record, image: Option<&ImageRoot>) -> Result<(IdentityMap, User)> {
    let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    if image.is_none() {
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
    }
    let many = own.0 == 0 || identity::has_subordinate_ids();
    let map = identity::choose(record.id.as_str(), many, (0, 0))?;
    let user = record.user.as_ref().map_or(User::Id { user: 0, group: None }, plan::user);
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
            let mut record = Record::new(new, &spec, baseline());
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

/// The host's clock as file systems stamp files.
fn baseline() -> (i64, u32) {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    (now.tv_sec, u32::try_from(now.tv_nsec).unwrap_or(0))
}
