//! The host doctor: which building blocks of the embedded sandbox work on this machine, what is
//! lost without the others, and the exact fix.
//!
//! Two halves that know nothing of each other: `probe` really tries every block and writes down
//! what it saw ([`HostFacts`]); `judgement` turns facts into findings and fixes. Hosts that are not
//! at hand are tested by their facts (field case F84).

mod diagnosis;
mod facts;
mod fixes;
mod judgement;
mod probe;
mod render;

use std::path::{Path, PathBuf};

pub use diagnosis::{Block, Diagnosis, Finding, Necessity, Rung, Status};
pub use facts::{
    CallTrials, CgroupFacts, Confinement, ErrorNumber, HostFacts, IdMappedTrials, LayerFacts, LegacyCgroup,
    NamespaceSettings, NamespaceTrials, SubordinateIds, Trial, UnifiedCgroup,
};

/// An examination to be made.
#[derive(Debug, Clone)]
pub struct Doctor {
    /// Where sandboxes are kept. Where it does not exist, its nearest existing ancestor is tried:
    /// it will lie on the same file system.
    pub data_directory: PathBuf,
    /// The directory that is to be a workspace; without one that block is not examined.
    pub workspace: Option<PathBuf>,
    /// The program that will make sandboxes, as AppArmor profiles name it.
    pub program: PathBuf,
}

impl Doctor {
    /// An examination for this program's own executable, without a workspace.
    pub fn new(data_directory: impl Into<PathBuf>) -> Self {
        let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("/usr/local/bin/leasehold"));
        Self { data_directory: data_directory.into(), workspace: None, program }
    }

    /// The same examination with a workspace.
    #[must_use]
    pub fn with_workspace(mut self, workspace: impl AsRef<Path>) -> Self {
        self.workspace = Some(workspace.as_ref().to_owned());
        self
    }

    /// Tries every block. Blocks the thread for some tens of milliseconds; a trial that hangs is
    /// given up after two seconds. Nothing of it stays: namespaces and mounts vanish with the forked
    /// children that made them, the scratch directory and the trial cgroups are removed.
    pub fn examine(&self) -> Diagnosis {
        Diagnosis::of(probe::collect(self))
    }
}
