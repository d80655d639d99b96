//! What unpacking left out or changed, and why.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The most notes kept of one layer; the rest are counted.
const NOTES_KEPT: usize = 1_000;

/// One thing that is not in the unpacked layer as the archive had it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnpackNote {
    /// The entry's path, with unprintable bytes escaped.
    pub path: String,
    /// What happened to it.
    pub reason: NoteReason,
}

impl fmt::Display for UnpackNote {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "`{}`: {}", self.path, self.reason)
    }
}

/// Why an entry is not as it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NoteReason {
    /// A device node: it could not work in a user namespace, and the sandbox has its own `/dev`.
    DeviceSkipped,
    /// A hard link to something that was skipped.
    LinkToSkipped,
    /// A kind of entry that is no part of the image format.
    UnknownKindSkipped(u8),
    /// Bookkeeping of the old aufs driver.
    AufsMetadataSkipped,
    /// An extended attribute that may not or cannot be set here.
    AttributeSkipped(String),
    /// The owner has no id outside; the overflow owner took its place, and set-id bits are gone.
    OwnerUnmapped {
        /// User id in the image.
        user: u64,
        /// Group id in the image.
        group: u64,
    },
    /// A directory that the archive needs and does not hold: made with mode 0755.
    ParentAssumed,
}

impl fmt::Display for NoteReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DeviceSkipped => formatter.write_str("device node skipped"),
            Self::LinkToSkipped => formatter.write_str("hard link to a skipped entry skipped"),
            Self::UnknownKindSkipped(kind) => {
                write!(formatter, "entry of unknown kind `{}` skipped", kind.escape_ascii())
            }
            Self::AufsMetadataSkipped => formatter.write_str("aufs bookkeeping skipped"),
            Self::AttributeSkipped(name) => write!(formatter, "extended attribute `{name}` not set"),
            Self::OwnerUnmapped { user, group } => {
                write!(formatter, "owner {user}:{group} has no id here; given to the overflow owner")
            }
            Self::ParentAssumed => formatter.write_str("directory missing in the archive; made as 0755"),
        }
    }
}

/// What unpacking one layer did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnpackReport {
    /// Entries of the archive, and directories made for them that it left out.
    pub entries: u64,
    /// Bytes of file content written.
    pub bytes: u64,
    /// What was left out or changed; at most a thousand.
    pub notes: Vec<UnpackNote>,
    /// How many more notes there were.
    pub notes_omitted: u64,
}

impl UnpackReport {
    pub(super) fn note(&mut self, path: &[u8], reason: NoteReason) {
        if self.notes.len() < NOTES_KEPT {
            self.notes.push(UnpackNote { path: path.escape_ascii().to_string(), reason });
        } else {
            self.notes_omitted += 1;
        }
    }
}
