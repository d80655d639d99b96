//! The seam between Leasehold and whatever makes sandboxes.
//!
//! A [`Provider`] makes [`Sandbox`]es; a sandbox runs [`Execution`]s and gives [`Files`]. The required
//! methods are few; an ability that only some providers have is a method whose default answer is
//! "unsupported", and [`Capabilities`] says beforehand whether it works. Retry, deadline, concurrency
//! limit, trace and chaos are layers around the traits; a provider contains none of them.
//!
//! # For people who write a provider
//!
//! Implement the traits, then let the behaviour suite judge. It is in this crate, behind the feature
//! `suite`; its list of cases is computed from your [`Capabilities`], so you are tested for all that you
//! claim and for nothing else. Add a test target that is only a `main`:
//!
//! ```toml
//! [dev-dependencies]
//! leasehold-provider = { version = "…", features = ["suite"] }
//!
//! [[test]]
//! name = "behaviour"
//! harness = false
//! ```
//!
//! ```no_run
//! # #[cfg(feature = "suite")] mod behaviour {
//! // tests/behaviour.rs
//! use std::{process::ExitCode, sync::Arc};
//! use leasehold_provider::{Provider, suite};
//! # use leasehold_provider::memory::MemoryProvider as MyProvider;
//!
//! fn main() -> ExitCode {
//!     suite::main(async { Ok(Arc::new(MyProvider::new()) as Arc<dyn Provider>) })
//! }
//! # }
//! ```
//!
//! `cargo test --test behaviour` runs every case as a named test; a part of a name runs some of them
//! (`-- f39`), `-- --test-threads=1` one after the other. The names that begin with `f` and a number are
//! field cases: faults that users of such systems met. The suite needs a POSIX `sh` and GNU coreutils in
//! the sandbox, asserts no speeds, labels all that it makes with `leasehold-suite`, and fails when
//! something with that label is left. Where a case and your provider disagree about what is right, the
//! [`memory`] provider is the reference.
//!
//! A provider contains no retry, no deadline of calls, no limit and no trace: those are in [`layer`].
//!
//! # What this is not
//!
//! A container runtime interface: there is no image building, no networking
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
