//! One sandbox: its states, and the keeper that ends it in time.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use leasehold_model::{
    AttemptName, CommandSpec, EndedBy, Error, ErrorKind, Receipt, ReceiptOutcome, Result, RootSource,
    SandboxId, SandboxInfo, SandboxSpec, SandboxState, SignalNumber, TemplateId, Verdict,
};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::execution::{self, Control};
use super::files::MemoryFiles;
use super::machine::Machine;
use super::provider::{Register, handle};
use crate::execution::Execution;
use crate::files::Files;
use crate::sandbox::{Connection, Sandbox, TemplateInfo};

/// Longer than any test; added to an instant without overflow.
const FAR: Duration = Duration::from_secs(10 * 365 * 86_400);

#[derive(Debug)]
struct Inner {
    state: SandboxState,
    gone: bool,
    expires: Option<(Instant, SystemTime)>,
    idle_stop: Option<Duration>,
    idle_since: Instant,
    running: BTreeMap<u64, Arc<Control>>,
    last_execution: u64,
}

/// The sandbox itself; handles share it.
#[derive(Debug)]
pub(super) struct Core {
    id: SandboxId,
    spec: SandboxSpec,
    created_at: SystemTime,
    machine: Arc<Machine>,
    inner: Mutex<Inner>,
    /// Held by whatever changes the state, so that changes don't overlap.
    changing: tokio::sync::Mutex<()>,
    /// Tells the keeper that its times changed.
    changed: Arc<Notify>,
    register: Weak<Register>,
}

fn expiry(after: Option<Duration>) -> Option<(Instant, SystemTime)> {
    let after = after?.min(FAR);
    Some((Instant::now() + after, SystemTime::now() + after))
}

impl Core {
    pub(super) fn new(
        id: SandboxId,
        spec: SandboxSpec,
        machine: Arc<Machine>,
        register: Weak<Register>,
    ) -> Arc<Self> {
        let inner = Inner {
            state: SandboxState::Running,
            gone: false,
            expires: expiry(spec.expire_after),
            idle_stop: spec.idle_stop_after,
            idle_since: Instant::now(),
            running: BTreeMap::new(),
            last_execution: 0,
        };
        Arc::new(Self {
            id,
            spec,
            created_at: SystemTime::now(),
            machine,
            inner: Mutex::new(inner),
            changing: tokio::sync::Mutex::new(()),
            changed: Arc::new(Notify::new()),
            register,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn id(&self) -> &SandboxId {
        &self.id
    }

    pub(super) fn spec(&self) -> &SandboxSpec {
        &self.spec
    }

    /// Where relative paths start.
    pub(super) fn home(&self) -> PathBuf {
        self.spec.workspace.as_ref().map_or_else(|| PathBuf::from("/"), |workspace| workspace.target.clone())
    }

    pub(super) fn describe(&self) -> SandboxInfo {
        let inner = self.lock();
        SandboxInfo {
            id: self.id.clone(),
            name: self.spec.name.clone(),
            labels: self.spec.labels.clone(),
            state: inner.state,
            created_at: self.created_at,
            expires_at: inner.expires.map(|(_, at)| at),
            workspace: self.spec.workspace.as_ref().map(|workspace| workspace.target.clone()),
        }
    }

    fn lost(&self, operation: &'static str) -> Error {
        Error::new(ErrorKind::Lost, operation, format!("sandbox {} was destroyed", self.id))
            .with_context("sandbox", &self.id)
    }

    fn conflict(&self, operation: &'static str, state: SandboxState, hint: &str) -> Error {
        Error::new(ErrorKind::Conflict, operation, format!("sandbox {} is {}", self.id, state.as_str()))
            .with_context("sandbox", &self.id)
            .with_hint(hint)
    }

    /// The machine, as long as the sandbox exists.
    pub(super) fn machine(&self, operation: &'static str) -> Result<Arc<Machine>> {
        if self.lock().gone {
            return Err(self.lost(operation));
        }
        Ok(Arc::clone(&self.machine))
    }

    /// Registers a command while nothing else can change the state.
    pub(super) fn start(
        &self,
        make: impl FnOnce(&Arc<Machine>, u64) -> Result<Arc<Control>>,
    ) -> Result<Arc<Control>> {
        const EXEC: &str = "sandbox.exec";
        let mut inner = self.lock();
        if inner.gone {
            return Err(self.lost(EXEC));
        }
        if inner.state != SandboxState::Running {
            return Err(self.conflict(EXEC, inner.state, "start or resume it first"));
        }
        let number = inner.last_execution + 1;
        let control = make(&self.machine, number)?;
        inner.last_execution = number;
        inner.running.insert(number, Arc::clone(&control));
        drop(inner);
        self.changed.notify_one();
        Ok(control)
    }

    /// Takes a command off the list; its end restarts the idle clock (field case F50).
    pub(super) fn ended(&self, execution: u64) {
        let mut inner = self.lock();
        inner.running.remove(&execution);
        inner.idle_since = Instant::now();
        drop(inner);
        self.changed.notify_one();
    }

    /// Sets the state that refuses new commands, then ends everything that runs.
    async fn end_processes(&self, state: SandboxState) {
        let running: Vec<_> = {
            let mut inner = self.lock();
            inner.state = state;
            inner.running.values().cloned().collect()
        };
        for control in running {
            control.kill(&Verdict::SandboxStopped);
        }
        let left = self.machine.processes.pick(|_| true);
        for process in &left {
            process.signal(SignalNumber::KILL, EndedBy::Other);
        }
        for process in left {
            process.ended().await;
        }
        self.machine.processes.set_frozen(false);
    }

    pub(super) async fn destroy(&self) -> Receipt {
        let _held = self.changing.lock().await;
        let sandbox = self.id.clone();
        if self.lock().gone {
            return Receipt { sandbox, outcome: ReceiptOutcome::AlreadyGone, steps: Vec::new() };
        }
        self.end_processes(SandboxState::Destroying).await;
        self.lock().gone = true;
        if let Some(register) = self.register.upgrade() {
            register.forget(&self.id);
        }
        self.changed.notify_one();
        let steps = vec!["ended its processes".to_owned(), "dropped its file tree".to_owned()];
        Receipt { sandbox, outcome: ReceiptOutcome::Destroyed, steps }
    }

    async fn stop(&self) -> Result<Receipt> {
        let _held = self.changing.lock().await;
        self.machine("sandbox.stop")?;
        let state = self.lock().state;
        let mut steps = Vec::new();
        if !matches!(state, SandboxState::Stopped | SandboxState::Archived) {
            self.end_processes(SandboxState::Stopped).await;
            self.changed.notify_one();
            steps.push("ended its processes".to_owned());
        }
        Ok(Receipt { sandbox: self.id.clone(), outcome: ReceiptOutcome::Stopped, steps })
    }

    /// Starts the task that enforces expiry and idle stop.
    pub(super) fn keep(self: &Arc<Self>) {
        let (core, changed) = (Arc::downgrade(self), Arc::clone(&self.changed));
        tokio::spawn(async move {
            loop {
                let Some(next) = core.upgrade().and_then(|core| core.next_duty()) else { return };
                tokio::select! {
                    () = tokio::time::sleep_until(next) => {
                        let Some(core) = core.upgrade() else { return };
                        core.do_duty().await;
                    }
                    () = changed.notified() => {}
                }
            }
        });
    }

    fn idle_at(inner: &Inner) -> Option<Instant> {
        let idle = inner.idle_stop?;
        (inner.state == SandboxState::Running && inner.running.is_empty())
            .then(|| inner.idle_since + idle.min(FAR))
    }

    /// When something is to be done next; `None` once the sandbox is gone.
    fn next_duty(&self) -> Option<Instant> {
        let inner = self.lock();
        if inner.gone {
            return None;
        }
        let expires = inner.expires.map(|(at, _)| at);
        Some(expires.into_iter().chain(Self::idle_at(&inner)).min().unwrap_or_else(|| Instant::now() + FAR))
    }

    async fn do_duty(&self) {
        let (expired, idle) = {
            let inner = self.lock();
            let now = Instant::now();
            let past = |at: Option<Instant>| at.is_some_and(|at| at <= now);
            (past(inner.expires.map(|(at, _)| at)), past(Self::idle_at(&inner)))
        };
        if expired {
            self.destroy().await;
        } else if idle {
            // Gone meanwhile is as good as stopped.
            let _ = self.stop().await;
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.changed.notify_one();
    }
}

/// A handle.
#[derive(Debug)]
pub(super) struct MemorySandbox {
    core: Arc<Core>,
    register: Weak<Register>,
}

impl MemorySandbox {
    pub(super) fn new(core: Arc<Core>, register: Weak<Register>) -> Self {
        Self { core, register }
    }

    fn register(&self, operation: &'static str) -> Result<Arc<Register>> {
        self.register.upgrade().ok_or_else(|| self.core.lost(operation))
    }

    /// Waits for its turn to change the state, and answers the state.
    async fn change(
        &self,
        operation: &'static str,
    ) -> Result<(tokio::sync::MutexGuard<'_, ()>, SandboxState)> {
        let held = self.core.changing.lock().await;
        self.core.machine(operation)?;
        let state = self.core.lock().state;
        Ok((held, state))
    }
}

#[async_trait]
impl Sandbox for MemorySandbox {
    fn id(&self) -> &SandboxId {
        self.core.id()
    }

    async fn refresh(&self) -> Result<SandboxInfo> {
        self.core.machine("sandbox.refresh")?;
        Ok(self.core.describe())
    }

    async fn exec(&self, command: CommandSpec) -> Result<Execution> {
        execution::start(&self.core, &command)
    }

    fn files(&self) -> Arc<dyn Files> {
        Arc::new(MemoryFiles::new(Arc::clone(&self.core)))
    }

    async fn delete(&self) -> Result<Receipt> {
        Ok(self.core.destroy().await)
    }

    async fn stop(&self) -> Result<Receipt> {
        self.core.stop().await
    }

    async fn start(&self) -> Result<()> {
        let (_held, state) = self.change("sandbox.start").await?;
        match state {
            SandboxState::Running => return Ok(()),
            SandboxState::Stopped | SandboxState::Archived => {}
            other => return Err(self.core.conflict("sandbox.start", other, "resume it instead")),
        }
        let mut inner = self.core.lock();
        inner.state = SandboxState::Running;
        inner.idle_since = Instant::now();
        drop(inner);
        self.core.changed.notify_one();
        Ok(())
    }

    async fn pause(&self) -> Result<()> {
        let (_held, state) = self.change("sandbox.pause").await?;
        if !matches!(state, SandboxState::Running | SandboxState::Paused) {
            return Err(self.core.conflict("sandbox.pause", state, "only a running sandbox can be paused"));
        }
        self.core.lock().state = SandboxState::Paused;
        self.core.machine.processes.set_frozen(true);
        Ok(())
    }

    async fn resume(&self) -> Result<()> {
        let (_held, state) = self.change("sandbox.resume").await?;
        if !matches!(state, SandboxState::Running | SandboxState::Paused) {
            return Err(self.core.conflict("sandbox.resume", state, "start it instead"));
        }
        let mut inner = self.core.lock();
        inner.state = SandboxState::Running;
        inner.idle_since = Instant::now();
        drop(inner);
        self.core.machine.processes.set_frozen(false);
        self.core.changed.notify_one();
        Ok(())
    }

    async fn archive(&self) -> Result<()> {
        let (_held, state) = self.change("sandbox.archive").await?;
        if state != SandboxState::Archived {
            self.core.end_processes(SandboxState::Archived).await;
        }
        Ok(())
    }

    async fn set_expiry(&self, after: Option<Duration>) -> Result<()> {
        self.core.machine("sandbox.set_expiry")?;
        self.core.lock().expires = expiry(after);
        self.core.changed.notify_one();
        Ok(())
    }

    async fn set_idle_stop(&self, after: Option<Duration>) -> Result<()> {
        self.core.machine("sandbox.set_idle_stop")?;
        let mut inner = self.core.lock();
        inner.idle_stop = after;
        inner.idle_since = Instant::now();
        drop(inner);
        self.core.changed.notify_one();
        Ok(())
    }

    async fn capture_template(&self, template: TemplateId) -> Result<TemplateInfo> {
        let machine = self.core.machine("sandbox.capture_template")?;
        self.register("sandbox.capture_template")?.add_template(template, machine.tree.copy(None))
    }

    async fn fork(&self, name: AttemptName) -> Result<Arc<dyn Sandbox>> {
        let machine = self.core.machine("sandbox.fork")?;
        let register = self.register("sandbox.fork")?;
        // Its files are here already: where the first one's came from no longer matters.
        let spec = SandboxSpec { name, root: RootSource::Host, ..self.core.spec.clone() };
        let tree = machine.tree.copy(spec.limits.disk.map(|size| size.0));
        let core = register.admit(spec.clone(), Machine::around(tree, spec.limits))?;
        Ok(handle(core, self.register.clone()))
    }

    async fn connect(&self, port: u16) -> Result<Box<dyn Connection>> {
        const CONNECT: &str = "sandbox.connect";
        let machine = self.core.machine(CONNECT)?;
        let state = self.core.lock().state;
        if state != SandboxState::Running {
            return Err(self.core.conflict(CONNECT, state, "start or resume it first"));
        }
        match machine.connect(port).await {
            Some(connection) => Ok(Box::new(connection)),
            None => Err(Error::new(
                ErrorKind::Unavailable,
                CONNECT,
                format!("nothing listens on port {port} of sandbox {}", self.core.id),
            )),
        }
    }
}

/// The directory at which a command starts.
pub(super) fn start_directory(
    core: &Core,
    machine: &Machine,
    asked: Option<&Path>,
) -> std::io::Result<PathBuf> {
    machine.tree.directory(&core.home(), asked.unwrap_or(Path::new(".")))
}
