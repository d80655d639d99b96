//! What makes sandboxes.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use leasehold_model::{
    AttemptName, Error, Labels, Receipt, Result, SandboxId, SandboxInfo, SandboxSpec, TemplateId,
};

use crate::capabilities::Capabilities;
use crate::sandbox::{Sandbox, TemplateInfo};

/// Who a provider is. Fixed for its lifetime; layers never change it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderInfo {
    /// The kind: `memory`, `local`, `daytona`, `opensandbox`.
    pub kind: &'static str,
    /// A stable fingerprint of the account or data directory. Cleanup checks it before it destroys
    /// anything (invariant 3). Holds no secret.
    pub account: String,
}

/// How to look for one sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SandboxQuery {
    /// By the provider's id. A not-found for an id once observed is proof that it is gone.
    Id(SandboxId),
    /// By the name of the attempt. A not-found is *no* proof: it may still appear.
    Name(AttemptName),
}

/// Something that can make sandboxes.
///
/// Cancellation: dropping any returned future is safe for the provider's own state, but an effect that
/// was on its way may still happen; that is why a name and labels are set before the call.
#[async_trait]
pub trait Provider: fmt::Debug + Send + Sync {
    /// Who this is.
    fn info(&self) -> &ProviderInfo;

    /// What it can do here and now.
    fn capabilities(&self) -> Capabilities;

    /// Makes a sandbox and waits until it takes commands. A failure leaves nothing behind, or names
    /// the attempt in the error's context under `attempt`.
    ///
    /// Errors: `AlreadyExists` when the name is taken, `Unsupported` for a demand the provider can't
    /// keep, `InvalidInput` for a bad spec.
    async fn create(&self, spec: SandboxSpec) -> Result<Arc<dyn Sandbox>>;

    /// Looks for one sandbox. `None` **only** when the provider said so explicitly (invariant 2); any
    /// doubt is an error.
    async fn find(&self, query: &SandboxQuery) -> Result<Option<Arc<dyn Sandbox>>>;

    /// Every sandbox that carries all of these labels, whatever its state.
    async fn list(&self, labels: &Labels) -> Result<Vec<SandboxInfo>>;

    /// The templates of this account.
    async fn list_templates(&self) -> Result<Vec<TemplateInfo>> {
        Err(Error::unsupported("provider.list_templates", "this provider has no templates"))
    }

    /// Removes a template. Sandboxes made from it live on. Removing one that is gone is success.
    async fn delete_template(&self, template: &TemplateId) -> Result<()> {
        let _ = template;
        Err(Error::unsupported("provider.delete_template", "this provider has no templates"))
    }

    /// Destroys a sandbox that can't be opened as a handle, by id. Idempotent.
    async fn destroy(&self, id: &SandboxId) -> Result<Receipt>;
}
