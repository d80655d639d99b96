//! The embedded sandbox: namespaces, an overlay root and a pid 1 of our own, without a daemon, a
//! container engine or root rights.
//!
//! [`LocalProvider`] is the provider. A program that uses it calls [`run_if_asked`] first thing in `main`,
//! because the program itself is started again as pid 1 of each sandbox. `ARCHITECTURE.md` tells the
//! order of start-up; the threat model says what is promised and what is not.

mod archive;
mod capabilities;
mod capture;
mod cgroup;
pub mod changes;
mod config;
mod descent;
pub mod doctor;
mod execution;
mod files;
mod hold;
mod identity;
pub mod image;
mod init;
mod launch;
mod layer;
mod link;
mod plan;
mod protocol;
mod provider;
mod record;
mod removal;
mod root;
mod sandbox;
mod scratch;
mod store;
mod syscall;
mod template;
mod toolchain;
mod watched;
mod workspace;

pub use config::LocalConfig;
pub use init::run_if_asked;
pub use link::START_PROGRAM;
pub use provider::LocalProvider;
pub use store::SweepReport;
pub use toolchain::TOOLCHAIN_VARIABLES;
pub use workspace::{KeptChanges, WorkspaceChanges};
