//! Proof that a sandbox is stopped or destroyed.

use serde::{Deserialize, Serialize};

use crate::id::SandboxId;

/// What was observed when something was taken down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// The sandbox that it is about.
    pub sandbox: SandboxId,
    /// What is now known to be true of it.
    pub outcome: ReceiptOutcome,
    /// The steps that were done, in order, each with what it removed.
    pub steps: Vec<String>,
}

/// What a receipt proves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ReceiptOutcome {
    /// No process runs; the file system is kept.
    Stopped,
    /// Nothing is left of it.
    Destroyed,
    /// It was gone before, by an explicit not-found for an id once observed.
    AlreadyGone,
}
