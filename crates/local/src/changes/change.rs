//! What a sandbox changed, as data.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::baseline::Timestamp;
use super::relative_path::RelativePath;

/// What a path is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileType {
    /// A file with content.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    CharacterDevice,
    /// A block device.
    BlockDevice,
}

impl FileType {
    /// The type as words for messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Regular => "file",
            Self::Directory => "directory",
            Self::Symlink => "symbolic link",
            Self::Fifo => "named pipe",
            Self::Socket => "socket",
            Self::CharacterDevice => "character device",
            Self::BlockDevice => "block device",
        }
    }

    /// Whether applying can make one: sockets mean nothing without their process, and devices are
    /// never carried to a host.
    pub(super) fn can_be_carried(self) -> bool {
        matches!(self, Self::Regular | Self::Directory | Self::Symlink | Self::Fifo)
    }
}

/// In which way a path changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// It did not exist.
    Created,
    /// Its content (or a symbolic link's target) differs.
    Modified,
    /// It exists no more. A directory stands for all that was below it.
    Deleted,
    /// Only its mode, times, owner or extended attributes differ.
    MetadataChanged,
    /// It became something else: a directory a file, a file a symbolic link.
    TypeChanged,
}

impl ChangeKind {
    /// The one letter that `changes show` prints.
    pub fn letter(self) -> char {
        match self {
            Self::Created => 'A',
            Self::Modified => 'M',
            Self::Deleted => 'D',
            Self::MetadataChanged => 'm',
            Self::TypeChanged => 'T',
        }
    }
}

/// Something worth knowing about one change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Note {
    /// Nothing but the modification time differs.
    TimesOnly,
    /// The host's file could not be read, so it is assumed to differ.
    NotCompared,
    /// On the host the file has other names (hard links); they keep the old content.
    OtherNamesOnHost,
    /// It has set-user-id or set-group-id bits, which applying withholds unless told otherwise.
    SetId,
    /// It is a socket or a device and is never carried to the host.
    NotCarried,
    /// Another file system is mounted there on the host; the sandbox saw what lies beneath.
    MountPoint,
}

/// What a deleted or replaced directory held.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Below {
    /// Entries that are not directories.
    pub files: u64,
    /// Directories, not counting the one itself.
    pub directories: u64,
    /// Sizes of the regular files, in bytes.
    pub bytes: u64,
}

/// Who owns a file, in host ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// User id.
    pub user: u32,
    /// Group id.
    pub group: u32,
}

/// One changed path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Where, relative to the workspace.
    pub path: RelativePath,
    /// In which way.
    pub kind: ChangeKind,
    /// What it is now; what it was, when deleted.
    pub file_type: FileType,
    /// What it was, when that differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous_type: Option<FileType>,
    /// Its size in bytes (a symbolic link's: of its target's name).
    pub size: u64,
    /// Its permission bits, set-id and sticky bits included.
    pub mode: u32,
    /// When its content was last modified.
    pub mtime: Timestamp,
    /// Its owner in host ids, where the sandbox has ids of its own. `None`: the workspace's owner, or
    /// whoever applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// Another path of the workspace that is the same file (a hard link).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub same_file_as: Option<RelativePath>,
    /// What a deleted or replaced directory held on the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub below: Option<Below>,
    /// The overlay copied it up from the workspace, so it once existed on the host under this or
    /// another name.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub copied_up: bool,
    /// What else is worth knowing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
}

/// A place that could not be looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// Where; `None` is the workspace itself.
    pub path: Option<RelativePath>,
    /// What happened.
    pub message: String,
}

/// How many changes of each kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Paths that did not exist.
    pub created: u64,
    /// Paths with other content.
    pub modified: u64,
    /// Paths that exist no more, what deleted directories held included.
    pub deleted: u64,
    /// Paths that became something else.
    pub type_changed: u64,
    /// Paths with another mode, owner or extended attribute.
    pub metadata_changed: u64,
    /// Paths with nothing but another modification time.
    pub touched: u64,
    /// Bytes of created and modified files.
    pub bytes: u64,
}

impl Counts {
    pub(super) fn of<'a>(changes: impl IntoIterator<Item = &'a Change>) -> Self {
        let mut counts = Self::default();
        for change in changes {
            counts.add(change);
        }
        counts
    }

    pub(super) fn add(&mut self, change: &Change) {
        let below = change.below.unwrap_or_default();
        match change.kind {
            ChangeKind::Created => self.created += 1,
            ChangeKind::Modified => self.modified += 1,
            ChangeKind::Deleted => self.deleted += 1 + below.files + below.directories,
            ChangeKind::TypeChanged => {
                self.type_changed += 1;
                self.deleted += below.files + below.directories;
            }
            ChangeKind::MetadataChanged if change.notes.contains(&Note::TimesOnly) => self.touched += 1,
            ChangeKind::MetadataChanged => self.metadata_changed += 1,
        }
        let carries_content =
            matches!(change.kind, ChangeKind::Created | ChangeKind::Modified | ChangeKind::TypeChanged);
        if carries_content && change.file_type == FileType::Regular && change.same_file_as.is_none() {
            self.bytes += change.size;
        }
    }
}

/// `3 created, 1 modified, 2 deleted`, or `no changes`.
impl fmt::Display for Counts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            (self.created, "created"),
            (self.modified, "modified"),
            (self.deleted, "deleted"),
            (self.type_changed, "changed in type"),
            (self.metadata_changed, "changed in metadata"),
            (self.touched, "touched"),
        ];
        let mut separator = "";
        for (count, word) in parts.into_iter().filter(|(count, _)| *count > 0) {
            write!(formatter, "{separator}{count} {word}")?;
            separator = ", ";
        }
        if separator.is_empty() { formatter.write_str("no changes") } else { Ok(()) }
    }
}

/// All that a sandbox changed in its workspace, sorted by path.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeSet {
    /// How many of each kind.
    pub counts: Counts,
    /// The changes, a directory directly before what it holds.
    pub changes: Vec<Change>,
    /// Places that could not be looked at, so that changes there are missing above.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<Problem>,
}

impl ChangeSet {
    /// Whether nothing changed and everything could be looked at.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.problems.is_empty()
    }

    /// The line for people: `3 created, 1 modified, 2 deleted`.
    pub fn summary(&self) -> String {
        match self.problems.len() {
            0 => self.counts.to_string(),
            1 => format!("{}, 1 place could not be read", self.counts),
            count => format!("{}, {count} places could not be read", self.counts),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_leaves_out_what_did_not_happen() {
        assert_eq!(Counts::default().to_string(), "no changes");
        let counts = Counts { created: 3, modified: 1, deleted: 2, ..Counts::default() };
        assert_eq!(counts.to_string(), "3 created, 1 modified, 2 deleted");
    }
}
