//! One sandbox.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use leasehold_model::{
    AttemptName, CommandSpec, Error, Receipt, Result, SandboxId, SandboxInfo, SandboxState, TemplateId,
};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::execution::Execution;
use crate::files::Files;

/// A byte stream to a port in a sandbox.
pub trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

/// What is known of one template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateInfo {
    /// Its id.
    pub id: TemplateId,
    /// When it was captured.
    pub created_at: SystemTime,
}

fn unsupported<T>(operation: &'static str, what: &str) -> Result<T> {
    Err(Error::unsupported(operation, format!("this provider can't {what} a sandbox")))
}

/// A handle on one sandbox. Dropping it changes nothing about the sandbox.
#[async_trait]
pub trait Sandbox: fmt::Debug + Send + Sync {
    /// The provider's id.
    fn id(&self) -> &SandboxId;

    /// What the provider says of it now. `Lost` only when it is proven gone.
    async fn refresh(&self) -> Result<SandboxInfo>;

    /// Starts a command. An error means that the command never ran, except for kind `Unavailable` and
    /// `DeadlineExceeded`, where that is unknown.
    ///
    /// Errors: `NotFound` when the program or directory does not exist inside, `PermissionDenied` when
    /// it can't be executed, `Conflict` when the sandbox is not running.
    async fn exec(&self, command: CommandSpec) -> Result<Execution>;

    /// The files inside, seen as the sandbox's user.
    fn files(&self) -> Arc<dyn Files>;

    /// Destroys it and everything it holds. Idempotent: a second call answers `AlreadyGone`.
    async fn delete(&self) -> Result<Receipt>;

    /// Ends every process and keeps the file system.
    async fn stop(&self) -> Result<Receipt> {
        unsupported("sandbox.stop", "stop")
    }

    /// Makes a stopped or archived sandbox take commands again.
    async fn start(&self) -> Result<()> {
        unsupported("sandbox.start", "start")
    }

    /// Freezes every process in memory.
    async fn pause(&self) -> Result<()> {
        unsupported("sandbox.pause", "pause")
    }

    /// Thaws a paused sandbox.
    async fn resume(&self) -> Result<()> {
        unsupported("sandbox.resume", "resume")
    }

    /// Stops it and packs its file system away; `start` brings it back.
    async fn archive(&self) -> Result<()> {
        unsupported("sandbox.archive", "archive")
    }

    /// Replaces the time after which the provider destroys it; `None` removes the expiry.
    async fn set_expiry(&self, after: Option<Duration>) -> Result<()> {
        let _ = after;
        unsupported("sandbox.set_expiry", "set an expiry on")
    }

    /// Replaces the time without a running command after which the provider stops it.
    async fn set_idle_stop(&self, after: Option<Duration>) -> Result<()> {
        let _ = after;
        unsupported("sandbox.set_idle_stop", "set an idle stop on")
    }

    /// Freezes the file system as a template that other sandboxes are made from. The sandbox goes on.
    async fn capture_template(&self, template: TemplateId) -> Result<TemplateInfo> {
        let _ = template;
        unsupported("sandbox.capture_template", "capture a template from")
    }

    /// Makes another sandbox with the same spec and a copy of the file system as it is now.
    async fn fork(&self, name: AttemptName) -> Result<Arc<dyn Sandbox>> {
        let _ = name;
        unsupported("sandbox.fork", "fork")
    }

    /// Connects to a TCP port on the loopback of the sandbox.
    async fn connect(&self, port: u16) -> Result<Box<dyn Connection>> {
        let _ = port;
        unsupported("sandbox.connect", "connect into")
    }

    /// The state, for callers that need nothing else.
    async fn state(&self) -> Result<SandboxState> {
        Ok(self.refresh().await?.state)
    }
}
