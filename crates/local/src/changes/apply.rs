//! Carries changes to the host: first all checks, then all writes.

use std::collections::{BTreeMap, HashMap, HashSet};

use leasehold_model::{Error, ErrorKind, Result};
use rustix::io::Errno;

use super::change::{Change, ChangeKind, ChangeSet, Counts, FileType};
use super::conflict::{Checker, Finding, HostChanges, Obstacle};
use super::finish::Finishing;
use super::relative_path::RelativePath;
use super::report::{
    ApplyOutcome, ApplyReport, Conflict, ConflictPolicy, ConflictReason, Failure, Withheld, WithheldPart,
};
use super::tree::{Entry, Tree};
use super::{Cancellation, ChangeSource};

pub(super) const OPERATION: &str = "changes.apply";

/// How changes are carried to the host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ApplyOptions {
    /// What to do with paths that the host changed, too.
    pub conflicts: ConflictPolicy,
    /// Carry set-user-id and set-group-id bits that the host's files did not have.
    pub allow_set_id: bool,
    /// Wait until everything written is on the disk.
    pub durable: bool,
    /// Make the checks only.
    pub check_only: bool,
}

/// Carries a set of changes, as [`scan`](super::scan()) listed it, to the host.
///
/// The report says what became of each change. An error means that nothing was written, except when
/// the caller cancelled: then the changes up to that moment are on the host, and applying the same set
/// again does the rest.
pub fn apply(source: &ChangeSource, set: &ChangeSet, options: &ApplyOptions) -> Result<ApplyReport> {
    let upper = Tree::open_upper(&source.upper, OPERATION)?;
    let base = Tree::open_base(&source.base, OPERATION)?;
    let host = HostChanges::since(source.baseline);
    let mut report = ApplyReport {
        outcome: ApplyOutcome::Checked,
        applied: Counts::default(),
        already_there: 0,
        conflicts: Vec::new(),
        withheld: Vec::new(),
        failures: Vec::new(),
    };
    let mut checker = Checker {
        upper: &upper,
        base: &base,
        host: &host,
        cancellation: &source.cancellation,
        allow_set_id: options.allow_set_id,
        deleted: HashSet::new(),
        planned: HashSet::new(),
    };
    checker.learn(set);
    let (ready, linked) = check_all(checker, set, options.conflicts, &mut report)?;
    let refused = options.conflicts == ConflictPolicy::Refuse && !report.conflicts.is_empty();
    if refused || options.check_only {
        report.outcome = match (refused, report.failures.is_empty() && report.conflicts.is_empty()) {
            (true, _) => ApplyOutcome::Refused,
            (false, true) => ApplyOutcome::Checked,
            (false, false) => ApplyOutcome::Incomplete,
        };
        return Ok(report);
    }
    let mut applier = Applier {
        source,
        options,
        upper,
        base,
        host,
        changed: set.changes.iter().map(|change| &change.path).collect(),
        linked,
        finishing: BTreeMap::new(),
        root_names_changed: false,
        report,
    };
    applier.write_all(&ready)?;
    let mut report = applier.report;
    let skipped = report.conflicts.iter().any(|conflict| !conflict.overwritten);
    let complete = report.failures.is_empty() && !skipped && set.problems.is_empty();
    report.outcome = if complete { ApplyOutcome::Applied } else { ApplyOutcome::Incomplete };
    report.conflicts.sort_by(|left, right| left.path.cmp(&right.path));
    Ok(report)
}

/// A change that nothing stands in the way of (any more).
pub(super) struct Ready<'a> {
    pub(super) change: &'a Change,
    /// What the host has there now.
    pub(super) expected: Option<Entry>,
    /// The policy lets it win, whatever the host has there by then.
    pub(super) overwrite: bool,
}

fn check_all<'a>(
    mut checker: Checker<'_>,
    set: &'a ChangeSet,
    policy: ConflictPolicy,
    report: &mut ApplyReport,
) -> Result<(Vec<Ready<'a>>, HashMap<RelativePath, RelativePath>)> {
    let mut ready = Vec::with_capacity(set.changes.len());
    let mut left_out: HashSet<&RelativePath> = HashSet::new();
    let mut linked = HashMap::new();
    for change in &set.changes {
        match checker.check(change) {
            Ok(Finding::AlreadyThere) => {
                report.already_there += 1;
                if change.kind != ChangeKind::Deleted {
                    let first_name = change.same_file_as.as_ref().unwrap_or(&change.path);
                    linked.entry(first_name.clone()).or_insert_with(|| change.path.clone());
                }
            }
            Ok(Finding::Ready(expected)) => {
                checker.plan(change);
                ready.push(Ready { change, expected, overwrite: policy == ConflictPolicy::Overwrite });
            }
            Err(Obstacle::Conflict(mut reason, entry)) => {
                let (parent, _) = change.path.split();
                let because_of_parent = left_out.contains(&parent);
                if because_of_parent && reason == ConflictReason::ParentMissing {
                    reason = ConflictReason::ParentSkipped;
                }
                let overwritten =
                    policy == ConflictPolicy::Overwrite && reason != ConflictReason::ParentMissing;
                if overwritten {
                    checker.plan(change);
                    ready.push(Ready { change, expected: entry, overwrite: true });
                } else {
                    left_out.insert(&change.path);
                }
                report.conflicts.push(Conflict { path: change.path.clone(), reason, overwritten });
            }
            Err(Obstacle::Withheld(what)) => {
                report.withheld.push(Withheld { path: change.path.clone(), what });
            }
            Err(Obstacle::Failed(message)) => {
                left_out.insert(&change.path);
                report.failures.push(Failure { path: change.path.clone(), message });
            }
            Err(Obstacle::Cancelled) => return Err(cancelled()),
        }
    }
    Ok((ready, linked))
}

fn cancelled() -> Error {
    Error::new(ErrorKind::Cancelled, OPERATION, "cancelled by the caller")
}

/// Why one change did not get to the host.
#[derive(Debug)]
pub(super) enum Trouble {
    Conflict(ConflictReason),
    Failed(String),
    Cancelled,
}

impl Trouble {
    /// Wraps a failed system call; `what` completes "cannot …".
    pub(super) fn from_call<E: Into<std::io::Error>>(what: &'static str) -> impl Fn(E) -> Self {
        move |error| {
            let error = error.into();
            if Cancellation::caused(&error) {
                return Self::Cancelled;
            }
            Self::Failed(format!("cannot {what}: {error}"))
        }
    }
}

/// The writing phase.
pub(super) struct Applier<'a> {
    pub(super) source: &'a ChangeSource,
    pub(super) options: &'a ApplyOptions,
    pub(super) upper: Tree,
    pub(super) base: Tree,
    pub(super) host: HostChanges,
    /// Every path of the set.
    pub(super) changed: HashSet<&'a RelativePath>,
    /// For each first name of a file with several: the name under which the host has it now.
    pub(super) linked: HashMap<RelativePath, RelativePath>,
    pub(super) finishing: BTreeMap<RelativePath, Finishing<'a>>,
    /// Whether names came or went in the workspace directory itself.
    pub(super) root_names_changed: bool,
    pub(super) report: ApplyReport,
}

impl<'a> Applier<'a> {
    /// New things first, deletions last: whatever fails, the host never has less than either side had.
    fn write_all(&mut self, ready: &[Ready<'a>]) -> Result<()> {
        let (deletions, rest): (Vec<_>, Vec<_>) =
            ready.iter().partition(|ready| ready.change.kind == ChangeKind::Deleted);
        let mut outcome = Ok(());
        for ready in rest.into_iter().chain(deletions) {
            let result = match ready.change.kind {
                ChangeKind::Deleted => self.remove(ready),
                _ => self.place(ready),
            };
            match result {
                Ok(()) => {
                    self.note_names(ready.change);
                    self.report.applied.add(ready.change);
                }
                Err(Trouble::Conflict(reason)) => self.report.conflicts.push(Conflict {
                    path: ready.change.path.clone(),
                    reason,
                    overwritten: false,
                }),
                Err(Trouble::Failed(message)) => self.fail(&ready.change.path, message),
                Err(Trouble::Cancelled) => {
                    outcome = Err(cancelled());
                    break;
                }
            }
        }
        self.finish_directories();
        outcome
    }

    pub(super) fn fail(&mut self, path: &RelativePath, message: String) {
        self.report.failures.push(Failure { path: path.clone(), message });
    }

    pub(super) fn withhold(&mut self, path: &RelativePath, what: WithheldPart) {
        self.report.withheld.push(Withheld { path: path.clone(), what });
    }

    /// The directory that holds a path, to change something in it. Its times are seen to at the end.
    pub(super) fn open_parent(&mut self, path: &RelativePath) -> Result<std::os::fd::OwnedFd, Trouble> {
        let (parent, _) = path.split();
        if !self.finishing.contains_key(&parent) {
            let before = self.base.stat(&parent).map_err(Trouble::from_call("look at its directory"))?;
            if let Some(before) = before.filter(Entry::is_directory) {
                self.finishing.insert(parent.clone(), Finishing::visited(before));
            }
        }
        match self.base.open_to_change(&parent) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                Err(Trouble::Conflict(ConflictReason::ParentMissing))
            }
            result => result.map_err(Trouble::from_call("open its directory")),
        }
    }

    /// The mode that a file gets: set-id bits only where the host had them or the caller allows them.
    pub(super) fn permitted_mode(&mut self, change: &Change, expected: Option<&Entry>) -> u32 {
        const SET_ID: u32 = 0o6000;
        if self.options.allow_set_id || change.file_type != FileType::Regular {
            return change.mode;
        }
        let had = expected.filter(|entry| entry.file_type == FileType::Regular).map_or(0, |entry| entry.mode);
        let withheld = change.mode & SET_ID & !had;
        if withheld != 0 {
            self.withhold(&change.path, WithheldPart::SetIdBits);
        }
        change.mode & !withheld
    }
}
