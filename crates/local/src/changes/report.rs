//! What applying did, as data.

use std::fmt::{self, Write as _};

use serde::{Deserialize, Serialize};

use super::change::Counts;
use super::relative_path::RelativePath;

/// What to do with a path that the host changed meanwhile.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConflictPolicy {
    /// Write nothing at all when there is one, and list them all.
    #[default]
    Refuse,
    /// Leave those paths as the host has them, and apply the rest.
    Skip,
    /// Let the sandbox's version win.
    Overwrite,
}

/// Why a change cannot simply be applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum ConflictReason {
    /// The host changed the file after the sandbox started.
    HostChanged,
    /// The host made something at the path, too.
    HostCreated,
    /// The host removed it.
    HostDeleted,
    /// The host changed what is below a directory that the sandbox removed or replaced.
    HostChangedBelow {
        /// How many entries.
        count: u64,
        /// One of them.
        example: RelativePath,
    },
    /// The directory that holds it is no directory on the host any more.
    ParentMissing,
    /// The directory that holds it is in conflict itself and was left alone.
    ParentSkipped,
    /// The host changed it while it was being applied.
    HostChangedDuringApply,
}

impl fmt::Display for ConflictReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HostChanged => formatter.write_str("changed on the host after the sandbox started"),
            Self::HostCreated => formatter.write_str("created on the host as well"),
            Self::HostDeleted => formatter.write_str("deleted on the host meanwhile"),
            Self::HostChangedBelow { count: 1, example } => {
                write!(formatter, "removed in the sandbox, but the host changed {example} in it")
            }
            Self::HostChangedBelow { count, example } => write!(
                formatter,
                "removed in the sandbox, but the host changed {count} entries in it, such as {example}"
            ),
            Self::ParentMissing => formatter.write_str("the host's directory for it is gone"),
            Self::ParentSkipped => formatter.write_str("its directory is in conflict and was left alone"),
            Self::HostChangedDuringApply => formatter.write_str("changed on the host while it was applied"),
        }
    }
}

/// One path that the host and the sandbox both changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conflict {
    /// Where.
    pub path: RelativePath,
    /// In which way.
    #[serde(flatten)]
    pub reason: ConflictReason,
    /// Whether the sandbox's version was written all the same.
    pub overwritten: bool,
}

/// A part of a change that is not carried to the host on purpose.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Withheld {
    /// Where.
    pub path: RelativePath,
    /// What.
    pub what: WithheldPart,
}

/// Which part of a change was not carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WithheldPart {
    /// Set-user-id and set-group-id bits that the host's file did not have.
    SetIdBits,
    /// A socket.
    Socket,
    /// A device.
    Device,
    /// The owner: only root can give files away.
    Owner,
    /// An extended attribute that the host's file system does not take.
    ExtendedAttributes,
}

impl fmt::Display for WithheldPart {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Socket => "a socket",
            Self::Device => "a device",
            Self::SetIdBits => "set-user-id or set-group-id bits that the host's file did not have",
            Self::Owner => "its owner: only root can give files away",
            Self::ExtendedAttributes => "an extended attribute that the host's file system does not take",
        })
    }
}

/// One change that could not be applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Where.
    pub path: RelativePath,
    /// What failed.
    pub message: String,
}

/// How applying ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApplyOutcome {
    /// Every change is on the host now.
    Applied,
    /// Some changes are not: see the conflicts and failures.
    Incomplete,
    /// There were conflicts, and nothing was written.
    Refused,
    /// Only the checks were asked for, and they found nothing in the way.
    Checked,
}

/// What applying did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApplyReport {
    /// How it ended.
    pub outcome: ApplyOutcome,
    /// Changes that were written, by kind.
    pub applied: Counts,
    /// Changes that the host had already.
    pub already_there: u64,
    /// Paths that the host changed, too.
    pub conflicts: Vec<Conflict>,
    /// What was not carried on purpose.
    pub withheld: Vec<Withheld>,
    /// What failed.
    pub failures: Vec<Failure>,
}

impl ApplyReport {
    /// The lines for people.
    pub fn summary(&self) -> String {
        let mut text = match self.outcome {
            ApplyOutcome::Applied => format!("applied: {}", self.applied),
            ApplyOutcome::Incomplete => format!("applied in part: {}", self.applied),
            ApplyOutcome::Refused => "nothing was written".to_owned(),
            ApplyOutcome::Checked => "nothing stands in the way".to_owned(),
        };
        for (count, one, many) in [
            (self.conflicts.len(), "conflict", "conflicts"),
            (self.failures.len(), "failure", "failures"),
            (self.withheld.len(), "part withheld", "parts withheld"),
        ] {
            if count > 0 {
                let _ = write!(text, ", {count} {}", if count == 1 { one } else { many });
            }
        }
        text
    }
}
