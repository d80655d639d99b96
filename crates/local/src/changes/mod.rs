//! What a sandbox changed in its workspace, and how that gets back to the host.
//!
//! The workspace of a sandbox is an overlay: the host's directory below (the *base*), a directory of
//! ours on top (the *upper*). After a run the upper holds what changed, in the overlay's own notation:
//! whole files, character devices 0/0 for deletions, and marks in extended attributes. This module
//! reads that notation directly, without mounting anything:
//!
//! - [`scan()`] lists the changes by comparing the upper with the base;
//! - [`diff()`] writes them as a patch that `git apply` takes;
//! - [`apply()`] carries them to the base, refusing to overwrite what the host changed meanwhile;
//! - [`discard()`] removes the upper.
//!
//! Every path is resolved beneath its root by the kernel (`openat2`), every file is replaced in one
//! step, and a failing entry never stops the others. All functions block; asynchronous callers put
//! them on a blocking thread and stop them through a [`Cancellation`].
//!
//! Known limits: a path longer than 4095 bytes is reported as a problem and not carried; the mode of
//! the workspace directory itself is never changed; a host file that was replaced meanwhile by moving
//! its *whole directory* away and an older one into its place is not noticed, because no change time
//! of the file tells.

mod apply;
mod attributes;
mod baseline;
mod cancellation;
mod change;
mod comparison;
mod conflict;
mod copy;
mod difference;
mod finish;
mod hunk;
mod owner;
mod place;
mod quoting;
mod relative_path;
mod remove;
mod report;
mod scan;
mod stage;
mod tree;

use std::path::PathBuf;

pub use crate::removal::remove_tree as discard;
pub use apply::{ApplyOptions, apply};
pub use baseline::{Baseline, Timestamp};
pub use cancellation::Cancellation;
pub use change::{Below, Change, ChangeKind, ChangeSet, Counts, FileType, Note, Owner, Problem};
pub use difference::{DiffOptions, diff};
pub use owner::OwnerMap;
pub use relative_path::RelativePath;
pub use report::{
    ApplyOutcome, ApplyReport, Conflict, ConflictPolicy, ConflictReason, Failure, Withheld, WithheldPart,
};
pub use scan::scan;

/// Where the changes of one sandbox are.
#[derive(Debug, Clone)]
pub struct ChangeSource {
    /// The overlay's upper directory, on the host. Its sandbox must not run while it is read.
    pub upper: PathBuf,
    /// The host's workspace directory, the overlay's lower one.
    pub base: PathBuf,
    /// The moment just before the overlay was mounted.
    pub baseline: Baseline,
    /// Whose files the upper's owners stand for.
    pub owner_map: OwnerMap,
    /// Stops the work early.
    pub cancellation: Cancellation,
}
