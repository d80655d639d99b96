//! The one place that forwards every method of the traits through a layer.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use leasehold_model::{
    AttemptName, CommandSpec, Error, ExecutionId, Labels, Receipt, Result, SandboxId, SandboxInfo,
    SandboxSpec, SignalNumber, TemplateId, TerminalSize, Verdict,
};

use super::{Layer, Operation, OperationKind, Repeat};
use crate::capabilities::Capabilities;
use crate::execution::{Execution, ExecutionControl, SignalScope};
use crate::files::{FileEntry, FileReader, Files, WriteOptions};
use crate::provider::{Provider, ProviderInfo, SandboxQuery};
use crate::sandbox::{Connection, Sandbox, TemplateInfo};

/// Something inside a layer.
pub(super) struct Wrapped<I: ?Sized, L> {
    inner: Arc<I>,
    layer: Arc<L>,
    sandbox: Option<SandboxId>,
}

impl<I: ?Sized + fmt::Debug, L: Layer> fmt::Debug for Wrapped<I, L> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Wrapped").field(&self.layer).field(&&*self.inner).finish()
    }
}

impl<I: ?Sized, L: Layer> Wrapped<I, L> {
    pub(super) fn new(inner: Arc<I>, layer: Arc<L>, sandbox: Option<SandboxId>) -> Self {
        Self { inner, layer, sandbox }
    }

    fn operation(&self, name: &'static str, kind: OperationKind, repeat: Repeat) -> Operation<'_> {
        Operation { name, kind, repeat, sandbox: self.sandbox.as_ref() }
    }

    fn wrap(&self, sandbox: Arc<dyn Sandbox>) -> Arc<dyn Sandbox> {
        let id = sandbox.id().clone();
        Arc::new(Wrapped::<dyn Sandbox, L>::new(sandbox, Arc::clone(&self.layer), Some(id)))
    }
}

/// `forward!(self, "name", Kind, Repeat, call)`: one call through the layer.
macro_rules! forward {
    ($self:ident, $name:literal, $kind:ident, $repeat:ident, $call:expr) => {{
        let operation = $self.operation($name, OperationKind::$kind, Repeat::$repeat);
        $self.layer.around(operation, || $call).await
    }};
}

#[async_trait]
impl<L: Layer> Provider for Wrapped<dyn Provider, L> {
    fn info(&self) -> &ProviderInfo {
        self.inner.info()
    }

    fn capabilities(&self) -> Capabilities {
        self.layer.capabilities(self.inner.capabilities())
    }

    async fn create(&self, spec: SandboxSpec) -> Result<Arc<dyn Sandbox>> {
        let made = forward!(self, "provider.create", Create, IfNoEffect, self.inner.create(spec.clone()));
        made.map(|sandbox| self.wrap(sandbox))
    }

    async fn find(&self, query: &SandboxQuery) -> Result<Option<Arc<dyn Sandbox>>> {
        let found = forward!(self, "provider.find", Query, Harmless, self.inner.find(query));
        found.map(|found| found.map(|sandbox| self.wrap(sandbox)))
    }

    async fn list(&self, labels: &Labels) -> Result<Vec<SandboxInfo>> {
        forward!(self, "provider.list", Query, Harmless, self.inner.list(labels))
    }

    async fn list_templates(&self) -> Result<Vec<TemplateInfo>> {
        forward!(self, "provider.list_templates", Query, Harmless, self.inner.list_templates())
    }

    async fn delete_template(&self, template: &TemplateId) -> Result<()> {
        forward!(self, "provider.delete_template", Change, Harmless, self.inner.delete_template(template))
    }

    async fn destroy(&self, id: &SandboxId) -> Result<Receipt> {
        forward!(self, "provider.destroy", Change, Harmless, self.inner.destroy(id))
    }
}

#[async_trait]
impl<L: Layer> Sandbox for Wrapped<dyn Sandbox, L> {
    fn id(&self) -> &SandboxId {
        self.inner.id()
    }

    async fn refresh(&self) -> Result<SandboxInfo> {
        forward!(self, "sandbox.refresh", Query, Harmless, self.inner.refresh())
    }

    async fn exec(&self, command: CommandSpec) -> Result<Execution> {
        let started = forward!(self, "sandbox.exec", Exec, IfNoEffect, self.inner.exec(command.clone()))?;
        let control = Wrapped::<dyn ExecutionControl, L>::new(
            started.control,
            Arc::clone(&self.layer),
            self.sandbox.clone(),
        );
        let execution = Execution { control: Arc::new(control), ..started };
        Ok(self.layer.execution(&command, execution))
    }

    fn files(&self) -> Arc<dyn Files> {
        let (layer, sandbox) = (Arc::clone(&self.layer), self.sandbox.clone());
        Arc::new(Wrapped::<dyn Files, L>::new(self.inner.files(), layer, sandbox))
    }

    async fn delete(&self) -> Result<Receipt> {
        forward!(self, "sandbox.delete", Change, Harmless, self.inner.delete())
    }

    async fn stop(&self) -> Result<Receipt> {
        forward!(self, "sandbox.stop", Change, Harmless, self.inner.stop())
    }

    async fn start(&self) -> Result<()> {
        forward!(self, "sandbox.start", Change, Harmless, self.inner.start())
    }

    async fn pause(&self) -> Result<()> {
        forward!(self, "sandbox.pause", Change, Harmless, self.inner.pause())
    }

    async fn resume(&self) -> Result<()> {
        forward!(self, "sandbox.resume", Change, Harmless, self.inner.resume())
    }

    async fn archive(&self) -> Result<()> {
        forward!(self, "sandbox.archive", Snapshot, Harmless, self.inner.archive())
    }

    async fn set_expiry(&self, after: Option<Duration>) -> Result<()> {
        forward!(self, "sandbox.set_expiry", Change, Harmless, self.inner.set_expiry(after))
    }

    async fn set_idle_stop(&self, after: Option<Duration>) -> Result<()> {
        forward!(self, "sandbox.set_idle_stop", Change, Harmless, self.inner.set_idle_stop(after))
    }

    async fn capture_template(&self, template: TemplateId) -> Result<TemplateInfo> {
        let call = || self.inner.capture_template(template.clone());
        forward!(self, "sandbox.capture_template", Snapshot, IfNoEffect, call())
    }

    async fn fork(&self, name: AttemptName) -> Result<Arc<dyn Sandbox>> {
        let made = forward!(self, "sandbox.fork", Create, IfNoEffect, self.inner.fork(name.clone()));
        made.map(|sandbox| self.wrap(sandbox))
    }

    async fn connect(&self, port: u16) -> Result<Box<dyn Connection>> {
        forward!(self, "sandbox.connect", Connect, Harmless, self.inner.connect(port))
    }
}

#[async_trait]
impl<L: Layer> ExecutionControl for Wrapped<dyn ExecutionControl, L> {
    fn id(&self) -> &ExecutionId {
        self.inner.id()
    }

    async fn signal(&self, signal: SignalNumber, scope: SignalScope) -> Result<()> {
        // A handler may count its signals: a second one is an effect.
        forward!(self, "execution.signal", Control, IfNoEffect, self.inner.signal(signal, scope))
    }

    async fn cancel(&self) -> Result<()> {
        forward!(self, "execution.cancel", Control, Harmless, self.inner.cancel())
    }

    async fn resize(&self, size: TerminalSize) -> Result<()> {
        forward!(self, "execution.resize", Control, Harmless, self.inner.resize(size))
    }

    async fn verdict(&self) -> Verdict {
        self.inner.verdict().await
    }
}

#[async_trait]
impl<L: Layer> Files for Wrapped<dyn Files, L> {
    async fn read(&self, path: &Path, offset: u64) -> Result<FileReader> {
        forward!(self, "files.read", File, Harmless, self.inner.read(path, offset))
    }

    async fn write(&self, path: &Path, content: FileReader, options: WriteOptions) -> Result<u64> {
        let content = Mutex::new(Some(content));
        let call = || {
            let content = content.lock().unwrap_or_else(PoisonError::into_inner).take();
            async move {
                match content {
                    Some(content) => self.inner.write(path, content, options).await,
                    None => {
                        Err(Error::invalid("files.write", "the content of a write can be sent once only"))
                    }
                }
            }
        };
        forward!(self, "files.write", Transfer, Never, call())
    }

    async fn stat(&self, path: &Path) -> Result<FileEntry> {
        forward!(self, "files.stat", File, Harmless, self.inner.stat(path))
    }

    async fn list(&self, path: &Path) -> Result<Vec<FileEntry>> {
        forward!(self, "files.list", File, Harmless, self.inner.list(path))
    }

    async fn make_directory(&self, path: &Path, mode: u32, parents: bool) -> Result<()> {
        let call = || self.inner.make_directory(path, mode, parents);
        forward!(self, "files.make_directory", File, IfNoEffect, call())
    }

    async fn make_symlink(&self, path: &Path, target: &Path) -> Result<()> {
        forward!(self, "files.make_symlink", File, IfNoEffect, self.inner.make_symlink(path, target))
    }

    async fn remove(&self, path: &Path, recursive: bool) -> Result<()> {
        forward!(self, "files.remove", File, IfNoEffect, self.inner.remove(path, recursive))
    }

    async fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        forward!(self, "files.rename", File, IfNoEffect, self.inner.rename(from, to))
    }

    async fn set_mode(&self, path: &Path, mode: u32) -> Result<()> {
        forward!(self, "files.set_mode", File, Harmless, self.inner.set_mode(path, mode))
    }

    async fn set_modified(&self, path: &Path, modified: SystemTime) -> Result<()> {
        forward!(self, "files.set_modified", File, Harmless, self.inner.set_modified(path, modified))
    }
}
