//! The provider: a register of sandboxes and templates.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::SystemTime;

use async_trait::async_trait;
use leasehold_model::{
    Error, ErrorKind, Labels, NetworkPolicy, Receipt, ReceiptOutcome, Result, RootSource, SandboxId,
    SandboxInfo, SandboxSpec, TemplateId, UserSpec,
};

use super::capabilities::capabilities;
use super::machine::Machine;
use super::machine::tree::Tree;
use super::sandbox::{Core, MemorySandbox};
use crate::capabilities::{Capabilities, Capability};
use crate::provider::{Provider, ProviderInfo, SandboxQuery};
use crate::sandbox::{Sandbox, TemplateInfo};

/// Sandboxes in this process's memory. Clones share them; they are gone with the last clone.
#[derive(Debug, Clone)]
pub struct MemoryProvider(Arc<Register>);

#[derive(Debug)]
pub(super) struct Register {
    info: ProviderInfo,
    sandboxes: Mutex<BTreeMap<SandboxId, Arc<Core>>>,
    templates: Mutex<BTreeMap<TemplateId, (TemplateInfo, Tree)>>,
    last_id: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Default for MemoryProvider {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryProvider {
    /// A provider without sandboxes. Its sandboxes need a tokio runtime with time.
    pub fn new() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let account = format!("memory-{}", LAST.fetch_add(1, Ordering::Relaxed) + 1);
        Self(Arc::new(Register {
            info: ProviderInfo { kind: "memory", account },
            sandboxes: Mutex::default(),
            templates: Mutex::default(),
            last_id: AtomicU64::new(0),
        }))
    }
}

/// Refuses what can't be kept, before anything is made.
fn check(spec: &SandboxSpec) -> Result<()> {
    const CREATE: &str = "provider.create";
    let able = capabilities();
    if matches!(spec.root, RootSource::Image(_)) {
        able.require(Capability::Images, CREATE)?;
    }
    if let Some(workspace) = &spec.workspace {
        if workspace.source.is_some() {
            able.require(Capability::HostWorkspace, CREATE)?;
        }
        if !workspace.target.is_absolute() {
            let message = format!("the workspace target {} is not absolute", workspace.target.display());
            return Err(Error::invalid(CREATE, message));
        }
    }
    if spec.limits.cpus.is_some() {
        able.require(Capability::CpuLimit, CREATE)?;
    }
    if !matches!(&spec.user, None | Some(UserSpec::Id { user: 0, .. })) {
        able.require(Capability::OtherUsers, CREATE)?;
    }
    if !spec.exposures.is_empty() {
        return Err(Error::unsupported(CREATE, "memory can't show paths of this machine"));
    }
    if spec.network != NetworkPolicy::None {
        return Err(Error::unsupported(CREATE, "memory has no network"));
    }
    Ok(())
}

impl Register {
    /// Makes a sandbox around a file tree and starts its keeper.
    pub(super) fn admit(self: &Arc<Self>, spec: SandboxSpec, machine: Arc<Machine>) -> Result<Arc<Core>> {
        let mut sandboxes = lock(&self.sandboxes);
        if sandboxes.values().any(|core| core.spec().name == spec.name) {
            let message = format!("a sandbox named {} exists already", spec.name);
            return Err(Error::new(ErrorKind::AlreadyExists, "provider.create", message)
                .with_context("attempt", &spec.name));
        }
        let id = SandboxId::new(format!("memory-{}", self.last_id.fetch_add(1, Ordering::Relaxed) + 1))?;
        let core = Core::new(id.clone(), spec, machine, Arc::downgrade(self));
        sandboxes.insert(id, Arc::clone(&core));
        drop(sandboxes);
        core.keep();
        Ok(core)
    }

    pub(super) fn forget(&self, id: &SandboxId) {
        lock(&self.sandboxes).remove(id);
    }

    pub(super) fn add_template(&self, id: TemplateId, tree: Tree) -> Result<TemplateInfo> {
        let mut templates = lock(&self.templates);
        if templates.contains_key(&id) {
            let message = format!("a template named {id} exists already");
            return Err(Error::new(ErrorKind::AlreadyExists, "sandbox.capture_template", message));
        }
        let info = TemplateInfo { id: id.clone(), created_at: SystemTime::now() };
        templates.insert(id, (info.clone(), tree));
        Ok(info)
    }

    fn machine(&self, spec: &SandboxSpec) -> Result<Arc<Machine>> {
        let failed = |source| Error::io("provider.create", "cannot make the file tree", source);
        let machine = match &spec.root {
            RootSource::Template(id) => {
                let templates = lock(&self.templates);
                let (_, tree) = templates.get(id).ok_or_else(|| {
                    Error::new(ErrorKind::NotFound, "provider.create", format!("there is no template {id}"))
                })?;
                Machine::around(tree.copy(spec.limits.disk.map(|size| size.0)), spec.limits)
            }
            _ => Machine::new(spec.limits).map_err(failed)?,
        };
        if let Some(workspace) = &spec.workspace {
            machine.tree.make_directory(Path::new("/"), &workspace.target, 0o755, true).map_err(failed)?;
        }
        Ok(machine)
    }
}

pub(super) fn handle(core: Arc<Core>, register: Weak<Register>) -> Arc<dyn Sandbox> {
    Arc::new(MemorySandbox::new(core, register))
}

#[async_trait]
impl Provider for MemoryProvider {
    fn info(&self) -> &ProviderInfo {
        &self.0.info
    }

    fn capabilities(&self) -> Capabilities {
        capabilities()
    }

    async fn create(&self, spec: SandboxSpec) -> Result<Arc<dyn Sandbox>> {
        check(&spec)?;
        let machine = self.0.machine(&spec)?;
        let core = self.0.admit(spec, machine)?;
        Ok(handle(core, Arc::downgrade(&self.0)))
    }

    async fn find(&self, query: &SandboxQuery) -> Result<Option<Arc<dyn Sandbox>>> {
        let sandboxes = lock(&self.0.sandboxes);
        let found = match query {
            SandboxQuery::Id(id) => sandboxes.get(id),
            SandboxQuery::Name(name) => sandboxes.values().find(|core| core.spec().name == *name),
        };
        Ok(found.map(|core| handle(Arc::clone(core), Arc::downgrade(&self.0))))
    }

    async fn list(&self, labels: &Labels) -> Result<Vec<SandboxInfo>> {
        let sandboxes = lock(&self.0.sandboxes);
        let carrying = sandboxes.values().filter(|core| core.spec().labels.contains_all(labels));
        Ok(carrying.map(|core| core.describe()).collect())
    }

    async fn list_templates(&self) -> Result<Vec<TemplateInfo>> {
        Ok(lock(&self.0.templates).values().map(|(info, _)| info.clone()).collect())
    }

    async fn delete_template(&self, template: &TemplateId) -> Result<()> {
        lock(&self.0.templates).remove(template);
        Ok(())
    }

    async fn destroy(&self, id: &SandboxId) -> Result<Receipt> {
        let core = lock(&self.0.sandboxes).get(id).cloned();
        match core {
            Some(core) => Ok(core.destroy().await),
            None => {
                Ok(Receipt { sandbox: id.clone(), outcome: ReceiptOutcome::AlreadyGone, steps: Vec::new() })
            }
        }
    }
}
