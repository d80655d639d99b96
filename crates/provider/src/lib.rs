//! The seam between Leasehold and whatever makes sandboxes.
//!
//! A [`Provider`] makes [`Sandbox`]es; a sandbox runs [`Execution`]s and gives [`Files`]. The required
//! methods are few; an ability that only some providers have is a method whose default answer is
//! "unsupported", and [`Capabilities`] says beforehand whether it works. Retry, deadline, concurrency
//! limit, trace and chaos are layers around the traits; a provider contains none of them.
//!
//! What this is *not*: a container runtime interface. There is no image building, no networking
//! between sandboxes and no scheduling here.

mod capabilities;
mod execution;
mod files;
pub mod layer;
pub mod memory;
mod provider;
mod sandbox;
#[cfg(feature = "suite")]
pub mod suite;

pub use capabilities::{Capabilities, Capability};
pub use execution::{
    CollectedOutput, Execution, ExecutionControl, OutputChunk, OutputSender, OutputStream, SignalScope,
    Stdin, StdinWriter, output_channel,
};
pub use files::{EntryKind, FileEntry, FileReader, Files, WriteOptions};
pub use provider::{Provider, ProviderInfo, SandboxQuery};
pub use sandbox::{Connection, Sandbox, TemplateInfo};
