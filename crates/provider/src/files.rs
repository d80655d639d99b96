//! The files in a sandbox, seen as its user.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use async_trait::async_trait;
use leasehold_model::Result;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncRead;

/// What a directory entry is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link, with its target verbatim.
    Symlink {
        /// The target.
        target: PathBuf,
    },
    /// A named pipe, socket or device.
    Special,
}

/// What is known of one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// The last component of its path; any bytes but `/` and NUL.
    pub name: OsString,
    /// What it is.
    #[serde(flatten)]
    pub kind: EntryKind,
    /// Bytes, for files.
    pub size: u64,
    /// Permission bits, set-id and sticky bits included.
    pub mode: u32,
    /// Owner, inside.
    pub user: u32,
    /// Group, inside.
    pub group: u32,
    /// When it was last written.
    pub modified: SystemTime,
}

/// A file being read.
pub type FileReader = Box<dyn AsyncRead + Send + Unpin>;

/// How a file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteOptions {
    /// Permission bits of a new file; an existing file keeps its own.
    pub mode: u32,
    /// Whether missing parent directories are made.
    pub create_parents: bool,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self { mode: 0o644, create_parents: false }
    }
}

/// The files of one sandbox. Relative paths start at the workspace. Symbolic links are followed inside
/// the sandbox only: its root is the root (invariant 11).
///
/// Errors: `NotFound`, `PermissionDenied` (as the sandbox's user would get it), `InvalidInput` for a
/// path of the wrong type, `LimitExceeded` when the disk is full, `Conflict` for a directory not empty.
#[async_trait]
pub trait Files: fmt::Debug + Send + Sync {
    /// Opens a regular file for reading from `offset` bytes on.
    async fn read(&self, path: &Path, offset: u64) -> Result<FileReader>;

    /// Replaces a file's content atomically: readers see the old or the new file, never half; a
    /// cancelled write leaves the old one. Answers the number of bytes written.
    async fn write(&self, path: &Path, content: FileReader, options: WriteOptions) -> Result<u64>;

    /// What is known of a path, the last component not followed.
    async fn stat(&self, path: &Path) -> Result<FileEntry>;

    /// The entries of a directory, sorted by name bytes.
    async fn list(&self, path: &Path) -> Result<Vec<FileEntry>>;

    /// Makes a directory, with its parents when asked; one that exists is an error unless
    /// `parents` is set.
    async fn make_directory(&self, path: &Path, mode: u32, parents: bool) -> Result<()>;

    /// Makes a symbolic link at `path` that points to `target`, verbatim.
    async fn make_symlink(&self, path: &Path, target: &Path) -> Result<()>;

    /// Removes a file, a link, or (with `recursive`) a tree. Never follows a link.
    async fn remove(&self, path: &Path, recursive: bool) -> Result<()>;

    /// Renames, replacing a target of the same type.
    async fn rename(&self, from: &Path, to: &Path) -> Result<()>;

    /// Changes the permission bits of a file or directory.
    async fn set_mode(&self, path: &Path, mode: u32) -> Result<()>;

    /// Changes the time of last write.
    async fn set_modified(&self, path: &Path, modified: SystemTime) -> Result<()>;
}
