//! One embedded sandbox.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use leasehold_model::{
    AttemptName, CommandSpec, Error, ErrorKind, ExecutionId, Receipt, ReceiptOutcome, Result, SandboxId,
    SandboxInfo, SandboxState, TemplateId,
};
use leasehold_provider::{Connection, Execution, Files, Sandbox, TemplateInfo};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, OwnedRwLockWriteGuard, RwLock};

use crate::archive;
use crate::cgroup::Cgroup;
use crate::execution::{self, Surroundings};
use crate::files::LocalFiles;
use crate::hold::Hold;
use crate::image::Image;
use crate::launch::InitProcess;
use crate::link::Link;
use crate::protocol::RequestBody;
use crate::provider::{Shared, blocking};
use crate::record::Record;
use crate::root;
use crate::store::{lives, lock_soon};
use crate::template;

/// How long processes may take to end by themselves when a sandbox stops.
const STOP_GRACE: Duration = Duration::from_secs(5);
/// How long the end of a killed pid 1 may take.
const END_TIME: Duration = Duration::from_secs(10);

/// A sandbox that runs, with what this process holds of it.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) link: Arc<Link>,
    /// Its pid 1, when this process started it.
    pub(crate) process: Option<InitProcess>,
    pub(crate) cgroup: Option<Arc<Cgroup>>,
    pub(crate) layers: Option<Arc<OwnedFd>>,
    /// Keeps the image's layers in the store.
    pub(crate) _leased: Option<Image>,
}

/// What every handle on one sandbox shares: the way to its pid 1, found again after a stop and start.
#[derive(Debug)]
pub(crate) struct Reach {
    id: SandboxId,
    shared: Arc<Shared>,
    live: Mutex<Option<Arc<Live>>>,
    /// Held shared by file operations, alone by whoever needs the files quiet.
    files: Arc<RwLock<()>>,
}

/// A handle on one embedded sandbox.
#[derive(Debug)]
pub(crate) struct LocalSandbox {
    pub(crate) id: SandboxId,
    pub(crate) shared: Arc<Shared>,
    pub(crate) reach: Arc<Reach>,
    next_execution: AtomicU64,
}

fn millis(span: Option<Duration>) -> Option<u64> {
    span.map(|span| u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
}

fn not_running(operation: &'static str, id: &SandboxId) -> Error {
    Error::new(ErrorKind::Conflict, operation, format!("sandbox {id} is not running"))
        .with_hint("start it first")
}

fn lost(operation: &'static str, id: &SandboxId) -> Error {
    Error::new(ErrorKind::Lost, operation, format!("sandbox {id} does not exist any more"))
}

impl Reach {
    async fn record(&self, operation: &'static str) -> Result<Record> {
        self.shared.load(&self.id).await?.ok_or_else(|| lost(operation, &self.id))
    }

    /// What this process holds of the running sandbox, connecting to it when another process started
    /// it.
    pub(crate) async fn live(&self, operation: &'static str) -> Result<Arc<Live>> {
        let mut slot = self.live.lock().await;
        if let Some(live) = slot.as_ref().filter(|live| !live.link.is_closed()) {
            return Ok(Arc::clone(live));
        }
        *slot = None;
        let record = self.record(operation).await?;
        if !lives(&self.shared.store.sandbox(&self.id)) {
            return Err(not_running(operation, &self.id));
        }
        let live = Arc::new(self.shared.connect(&record).await?);
        *slot = Some(Arc::clone(&live));
        Ok(live)
    }

    /// Goes on with a pid 1 that was just started.
    pub(crate) async fn replace(&self, live: Live) {
        *self.live.lock().await = Some(Arc::new(live));
    }

    /// The lock that file operations of this process hold shared.
    pub(crate) fn files(&self) -> &RwLock<()> {
        &self.files
    }

    /// Waits for the file operations of this process and keeps later ones waiting.
    pub(crate) async fn keep_files_quiet(&self) -> OwnedRwLockWriteGuard<()> {
        Arc::clone(&self.files).write_owned().await
    }
}

impl LocalSandbox {
    pub(crate) fn new(id: SandboxId, shared: Arc<Shared>, live: Option<Live>) -> Self {
        let reach = match (live, shared.reach(&id)) {
            // Handles of one process share what it holds of a sandbox.
            (None, Some(reach)) => reach,
            (live, _) => {
                let live = Mutex::new(live.map(Arc::new));
                let reach = Arc::new(Reach {
                    id: id.clone(),
                    shared: Arc::clone(&shared),
                    live,
                    files: Arc::default(),
                });
                shared.remember(&id, &reach);
                reach
            }
        };
        Self { id, shared, reach, next_execution: AtomicU64::new(1) }
    }

    pub(crate) async fn record(&self, operation: &'static str) -> Result<Record> {
        self.reach.record(operation).await
    }

    pub(crate) async fn live(&self, operation: &'static str) -> Result<Arc<Live>> {
        self.reach.live(operation).await
    }

    /// Ends every process at once and keeps everything else.
    pub(crate) async fn end_now(&self) -> Result<()> {
        self.end("sandbox.end", Duration::ZERO).await
    }

    /// Ends every process and waits until pid 1 is gone.
    async fn end(&self, operation: &'static str, grace: Duration) -> Result<()> {
        let live = match self.live(operation).await {
            Ok(live) => live,
            Err(error) if error.kind() == ErrorKind::Conflict && !lives(&self.state()) => return Ok(()),
            Err(error) => return Err(error),
        };
        // A frozen process would not end.
        if let Some(cgroup) = live.cgroup.as_ref().filter(|cgroup| cgroup.can_freeze()) {
            let _ = cgroup.set_frozen(false);
        }
        let millis = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        // An answer is not needed: the end itself is the proof.
        let _ = live.link.ask_within(operation, RequestBody::Stop { grace: millis }, grace + END_TIME).await;
        self.wait_until_ended(operation, &live).await
    }

    pub(crate) async fn wait_until_ended(&self, operation: &'static str, live: &Live) -> Result<()> {
        if let Some(process) = &live.process {
            if tokio::time::timeout(END_TIME, live.link.closed()).await.is_err() {
                process.kill();
            }
            process.ended().await;
        }
        let path = self.shared.store.sandbox(&self.id);
        for _ in 0..1000 {
            if !lives(&path) {
                *self.reach.live.lock().await = None;
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Err(Error::new(ErrorKind::DeadlineExceeded, operation, format!("sandbox {} does not end", self.id)))
    }

    /// Where its state is on disk.
    pub(crate) fn state(&self) -> PathBuf {
        self.shared.store.sandbox(&self.id)
    }

    /// Waits for the right to change its state.
    pub(crate) async fn hold(&self) -> Result<Hold> {
        let path = self.state();
        blocking(move || Hold::take(&path)).await
    }

    pub(crate) fn in_use(&self, operation: &'static str) -> Error {
        Error::new(ErrorKind::Conflict, operation, format!("sandbox {} is in use", self.id))
            .with_hint("try again")
    }

    /// Asks pid 1 to do something; a sandbox that is stopped learns it from its record when it starts.
    async fn tell_if_running(&self, operation: &'static str, body: RequestBody) -> Result<()> {
        match self.live(operation).await {
            Ok(live) => live.link.ask(operation, body).await.map(drop),
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn save_state(&self, operation: &'static str, state: SandboxState) -> Result<()> {
        let mut record = self.record(operation).await?;
        record.state = state;
        self.shared.save(record).await
    }
}

#[async_trait]
impl Sandbox for LocalSandbox {
    fn id(&self) -> &SandboxId {
        &self.id
    }

    async fn refresh(&self) -> Result<SandboxInfo> {
        let record = self.record("sandbox.refresh").await?;
        let lives = lives(&self.state());
        if !lives && record.is_expired() {
            return Err(lost("sandbox.refresh", &self.id));
        }
        Ok(record.info(lives))
    }

    async fn exec(&self, command: CommandSpec) -> Result<Execution> {
        let live = self.live("sandbox.exec").await?;
        let record = self.record("sandbox.exec").await?;
        if record.state == SandboxState::Paused {
            return Err(Error::new(
                ErrorKind::Conflict,
                "sandbox.exec",
                format!("sandbox {} is paused", self.id),
            )
            .with_hint("resume it first"));
        }
        let number = self.next_execution.fetch_add(1, Ordering::Relaxed);
        let image = record.image.iter().flat_map(|image| &image.environment);
        let environment = image.chain(&record.environment).map(root::raw).collect();
        let surroundings = Surroundings {
            link: Arc::clone(&live.link),
            cgroup: live.cgroup.clone(),
            environment,
            disk: live.layers.clone().zip(record.limits.disk.map(|size| size.0)),
            id: ExecutionId::new(format!("{}-{}-{number}", self.id, std::process::id()))?,
        };
        execution::start(surroundings, command).await
    }

    fn files(&self) -> Arc<dyn Files> {
        Arc::new(LocalFiles::new(Arc::clone(&self.reach)))
    }

    async fn delete(&self) -> Result<Receipt> {
        let mut steps = Vec::new();
        match self.end("sandbox.delete", Duration::ZERO).await {
            Ok(()) => steps.push("ended every process".to_owned()),
            Err(error) if error.kind() == ErrorKind::Lost => {
                return Ok(Receipt { sandbox: self.id.clone(), outcome: ReceiptOutcome::AlreadyGone, steps });
            }
            Err(error) => return Err(error),
        }
        let outcome = self.shared.remove(&self.id).await?;
        steps.push("removed its files and control groups".to_owned());
        Ok(Receipt { sandbox: self.id.clone(), outcome, steps })
    }

    async fn stop(&self) -> Result<Receipt> {
        let _hold = self.hold().await?;
        let record = self.record("sandbox.stop").await?;
        if record.limits.disk.is_some() {
            return Err(Error::unsupported(
                "sandbox.stop",
                "a sandbox with a disk limit keeps its files in memory, so stopping it would lose them",
            )
            .with_hint("pause it instead, or delete it"));
        }
        if record.state == SandboxState::Archived {
            let steps = Vec::new();
            return Ok(Receipt { sandbox: self.id.clone(), outcome: ReceiptOutcome::Stopped, steps });
        }
        self.end("sandbox.stop", STOP_GRACE).await?;
        self.save_state("sandbox.stop", SandboxState::Stopped).await?;
        let steps = vec!["ended every process".to_owned()];
        Ok(Receipt { sandbox: self.id.clone(), outcome: ReceiptOutcome::Stopped, steps })
    }

    async fn start(&self) -> Result<()> {
        let _hold = self.hold().await?;
        let mut slot = self.reach.live.lock().await;
        let mut record = self.record("sandbox.start").await?;
        let path = self.state();
        let Some(lock) = blocking(move || lock_soon(&path)).await? else {
            // It runs already, or somebody is starting it at this moment.
            return Ok(());
        };
        // The lock goes along, so that a caller who goes away does not let others in too early.
        let shared = Arc::clone(&self.shared);
        let (record, lock) = blocking(move || {
            archive::tidy(&shared.store, &record)?;
            if record.state == SandboxState::Archived {
                archive::restore(&shared.store, &mut record)?;
            }
            Ok((record, lock))
        })
        .await?;
        *slot = Some(Arc::new(self.shared.start(record, lock).await?));
        Ok(())
    }

    async fn archive(&self) -> Result<()> {
        const ARCHIVE: &str = "sandbox.archive";
        let hold = self.hold().await?;
        let record = self.record(ARCHIVE).await?;
        if record.limits.disk.is_some() {
            return Err(Error::unsupported(
                ARCHIVE,
                "a sandbox with a disk limit keeps its files in memory, so stopping it would lose them",
            )
            .with_hint("pause it instead, or delete it"));
        }
        if record.state == SandboxState::Archived {
            return Ok(());
        }
        self.end(ARCHIVE, STOP_GRACE).await?;
        self.save_state(ARCHIVE, SandboxState::Stopped).await?;
        let mut record = self.record(ARCHIVE).await?;
        let path = self.state();
        let lock = blocking(move || lock_soon(&path)).await?.ok_or_else(|| self.in_use(ARCHIVE))?;
        let shared = Arc::clone(&self.shared);
        blocking(move || {
            let _held = (hold, lock);
            archive::archive(&shared.store, &mut record)
        })
        .await
    }

    async fn pause(&self) -> Result<()> {
        let _hold = self.hold().await?;
        let live = self.live("sandbox.pause").await?;
        freeze(&live, true)?;
        self.save_state("sandbox.pause", SandboxState::Paused).await
    }

    async fn resume(&self) -> Result<()> {
        let _hold = self.hold().await?;
        let live = self.live("sandbox.resume").await?;
        freeze(&live, false)?;
        self.save_state("sandbox.resume", SandboxState::Running).await
    }

    async fn set_expiry(&self, after: Option<Duration>) -> Result<()> {
        let _hold = self.hold().await?;
        let mut record = self.record("sandbox.set_expiry").await?;
        record.expires_at = after.and_then(|after| SystemTime::now().checked_add(after));
        self.tell_if_running("sandbox.set_expiry", RequestBody::SetExpiry { after: millis(after) }).await?;
        self.shared.save(record).await
    }

    async fn set_idle_stop(&self, after: Option<Duration>) -> Result<()> {
        let _hold = self.hold().await?;
        let mut record = self.record("sandbox.set_idle_stop").await?;
        record.idle_stop_after = after;
        self.tell_if_running("sandbox.set_idle_stop", RequestBody::SetIdleStop { after: millis(after) })
            .await?;
        self.shared.save(record).await
    }

    async fn capture_template(&self, template: TemplateId) -> Result<TemplateInfo> {
        self.capture("sandbox.capture_template", template, false).await.map(|made| made.template.info())
    }

    async fn fork(&self, name: AttemptName) -> Result<Arc<dyn Sandbox>> {
        let number = self.next_execution.fetch_add(1, Ordering::Relaxed);
        let template = TemplateId::new(format!("fork-{}-{}-{number}", self.id, std::process::id()))?;
        let captured = self.capture("sandbox.fork", template, true).await?;
        let mut record = self.record("sandbox.fork").await?;
        record.frozen = captured.template.chain();
        let made = self.shared.create_like(&record, name).await;
        drop(captured);
        if made.is_err() {
            let shared = Arc::clone(&self.shared);
            blocking(move || template::remove_unused(&shared.store)).await?;
        }
        made
    }

    async fn connect(&self, port: u16) -> Result<Box<dyn Connection>> {
        let live = self.live("sandbox.connect").await?;
        let failed = |error| {
            Error::io(
                "sandbox.connect",
                format!("cannot connect to port {port} in sandbox {}", self.id),
                error,
            )
            .with_hint("check that a program listens on it on the loopback inside")
        };
        let mut descriptors = live.link.ask("sandbox.connect", RequestBody::Connect { port }).await?;
        let socket = descriptors
            .pop()
            .ok_or_else(|| Error::new(ErrorKind::Corrupt, "sandbox.connect", "no connection came"))?;
        let stream = TcpStream::from_std(std::net::TcpStream::from(socket)).map_err(failed)?;
        let standing = tokio::time::timeout(END_TIME, stream.writable()).await;
        standing
            .map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))
            .and_then(|ready| ready)
            .map_err(failed)?;
        match stream.take_error().map_err(failed)? {
            Some(error) => Err(failed(error)),
            None => Ok(Box::new(stream)),
        }
    }
}

fn freeze(live: &Live, frozen: bool) -> Result<()> {
    let operation = if frozen { "sandbox.pause" } else { "sandbox.resume" };
    let Some(cgroup) = live.cgroup.as_ref().filter(|cgroup| cgroup.can_freeze()) else {
        return Err(Error::unsupported(operation, "this host gives no control group that can be frozen")
            .with_hint("run `leasehold doctor`; it prints how to delegate control groups to this user"));
    };
    cgroup
        .set_frozen(frozen)
        .map_err(|error| Error::io(operation, "cannot write the freezer's control file", error))
}
