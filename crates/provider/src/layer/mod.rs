//! Layers: what may stand around any provider, and belongs to none.
//!
//! A layer sees every call of a provider, of its sandboxes, their files and their commands, through one
//! hook, [`Layer::around`]. So deadline, retry, limit, trace and chaos are a page each, and a new method
//! of the traits is forwarded in one place only.
//!
//! ```
//! # use std::sync::Arc;
//! # use leasehold_provider::{Provider, memory::MemoryProvider};
//! use leasehold_provider::layer::{DeadlineLayer, Layered, LimitLayer, RetryLayer, TraceLayer};
//!
//! let provider: Arc<dyn Provider> = Layered::new(Arc::new(MemoryProvider::new()))
//!     .with(DeadlineLayer::default()) // innermost: each attempt has its own deadline
//!     .with(LimitLayer::new(64, 1024))
//!     .with(RetryLayer::default())
//!     .with(TraceLayer)
//!     .build();
//! ```

mod chaos;
mod deadline;
mod limit;
mod retry;
mod trace;
mod wrapped;

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use leasehold_model::{CommandSpec, Result, SandboxId};

pub use chaos::{ChaosLayer, ChaosRates};
pub use deadline::{CallDeadlines, DeadlineLayer};
pub use limit::LimitLayer;
pub use retry::{Backoff, RetryLayer, may_repeat};
pub use trace::TraceLayer;

use crate::capabilities::Capabilities;
use crate::execution::Execution;
use crate::provider::Provider;
use wrapped::Wrapped;

/// What kind of work a call is; calls of one kind take about as long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OperationKind {
    /// Making a sandbox: create, fork.
    Create,
    /// Asking what is there: find, list, refresh.
    Query,
    /// Changing a sandbox's state: destroy, stop, start, pause, resume, expiry.
    Change,
    /// Moving a whole file system: archive, template.
    Snapshot,
    /// Starting a command. What it then does has a bound of its own.
    Exec,
    /// Acting on a running command: signal, cancel, resize.
    Control,
    /// One step on the file tree.
    File,
    /// The content of a file.
    Transfer,
    /// Opening a connection.
    Connect,
}

/// Whether a call can be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Repeat {
    /// Reads, and writes whose second time changes nothing.
    Harmless,
    /// Only when the error proves that the first had no effect: a second command or sandbox is a fault.
    IfNoEffect,
    /// Its input is used up.
    Never,
}

/// One call, as a layer sees it.
#[derive(Debug, Clone, Copy)]
pub struct Operation<'a> {
    /// Its stable name, such as `sandbox.exec`.
    pub name: &'static str,
    /// Its kind of work.
    pub kind: OperationKind,
    /// Whether it can be sent again.
    pub repeat: Repeat,
    /// The sandbox that it is about, where it is known.
    pub sandbox: Option<&'a SandboxId>,
}

/// One concern around every call.
pub trait Layer: fmt::Debug + Send + Sync + 'static {
    /// Does one call, in its own way. Each time `call` is called, the call is made anew.
    fn around<T, F, C>(&self, operation: Operation<'_>, call: C) -> impl Future<Output = Result<T>> + Send
    where
        T: Send,
        F: Future<Output = Result<T>> + Send,
        C: Fn() -> F + Send + Sync;

    /// What is left of the provider's capabilities. A layer can take some away, never add.
    fn capabilities(&self, inner: Capabilities) -> Capabilities {
        inner
    }

    /// May stand between a started command and its caller.
    fn execution(&self, command: &CommandSpec, execution: Execution) -> Execution {
        let _ = command;
        execution
    }
}

/// A provider being wrapped. Each layer goes around all that were added before it.
#[derive(Debug)]
pub struct Layered(Arc<dyn Provider>);

impl Layered {
    /// Starts with a bare provider.
    pub fn new(provider: Arc<dyn Provider>) -> Self {
        Self(provider)
    }

    /// Adds one layer around everything so far.
    #[must_use]
    pub fn with(self, layer: impl Layer) -> Self {
        Self(Arc::new(Wrapped::new(self.0, Arc::new(layer), None)))
    }

    /// The provider with its layers.
    pub fn build(self) -> Arc<dyn Provider> {
        self.0
    }
}
