//! The words of Leasehold as types.
//!
//! Everything here is plain data: identifiers, durations and sizes as users write them, the one
//! error shape, secrets that cannot be printed, what a sandbox is asked to be ([`SandboxSpec`]),
//! what a command is asked to be ([`CommandSpec`]) and how it ended ([`Verdict`]).
//! There is no I/O and no runtime in this crate, so every floor of the house may use it.

mod command;
mod deadline;
mod error;
mod id;
mod limits;
mod path;
mod quantity;
mod receipt;
mod sandbox;
mod secret;
mod verdict;

pub use command::{CommandSpec, EnvironmentName, StdinMode, StreamKind, TerminalSize, UserSpec};
pub use deadline::Deadline;
pub use error::{Error, ErrorKind, Result, Retry};
pub use id::{AttemptName, ExecutionId, Label, Labels, SandboxId, TemplateId};
pub use limits::ResourceLimits;
pub use path::BytePath;
pub use quantity::{ByteOffset, ByteSize, CpuQuota, Span};
pub use receipt::{Receipt, ReceiptOutcome};
pub use sandbox::{
    Exposure, ExposureAccess, ImageReference, NetworkPolicy, RootSource, SandboxInfo, SandboxSpec,
    SandboxState, WorkspaceSpec,
};
pub use secret::Secret;
pub use verdict::{EndedBy, SignalNumber, Verdict};
