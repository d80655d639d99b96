//! The files API on the tree in memory.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::SystemTime;

use async_trait::async_trait;
use leasehold_model::{Error, Result};
use tokio::io::{AsyncRead, AsyncReadExt as _, ReadBuf};

use super::machine::Machine;
use super::machine::descriptor::read_at;
use super::machine::tree::{Attributes, Inode, Kind};
use super::sandbox::Core;
use crate::files::{EntryKind, FileEntry, FileReader, Files, WriteOptions};

#[derive(Debug)]
pub(super) struct MemoryFiles {
    core: Arc<Core>,
}

fn failed(operation: &'static str, what: &str, path: &Path, source: io::Error) -> Error {
    Error::io(operation, format!("cannot {what} {}", path.display()), source)
        .with_context("path", path.display())
}

fn entry(name: OsString, attributes: &Attributes) -> FileEntry {
    let (kind, size) = match &attributes.kind {
        Kind::File(bytes) => (EntryKind::File, bytes.len() as u64),
        Kind::Directory(_) => (EntryKind::Directory, 0),
        Kind::Symlink(target) => (EntryKind::Symlink { target: target.clone() }, 0),
        Kind::Device(_) => (EntryKind::Special, 0),
    };
    FileEntry { name, kind, size, mode: attributes.mode, user: 0, group: 0, modified: attributes.modified }
}

/// A file being read; a later replacement of its name doesn't change it.
struct Reader {
    inode: Arc<Inode>,
    position: u64,
}

impl AsyncRead for Reader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let piece = read_at(&self.inode, self.position, buffer.remaining())?;
        buffer.put_slice(&piece);
        self.position += piece.len() as u64;
        Poll::Ready(Ok(()))
    }
}

impl MemoryFiles {
    pub(super) fn new(core: Arc<Core>) -> Self {
        Self { core }
    }

    /// Does one thing with the tree; relative paths start at the workspace.
    fn with<T>(
        &self,
        operation: &'static str,
        what: &str,
        path: &Path,
        action: impl FnOnce(&Machine, &Path) -> io::Result<T>,
    ) -> Result<T> {
        let machine = self.core.machine(operation)?;
        action(&machine, &self.core.home()).map_err(|source| failed(operation, what, path, source))
    }
}

#[async_trait]
impl Files for MemoryFiles {
    async fn read(&self, path: &Path, offset: u64) -> Result<FileReader> {
        self.with("files.read", "read", path, |machine, home| {
            let inode = machine.tree.open(home, path, true)?;
            match inode.lock().kind {
                Kind::File(_) => {}
                Kind::Directory(_) => return Err(io::ErrorKind::IsADirectory.into()),
                _ => return Err(io::ErrorKind::InvalidInput.into()),
            }
            Ok(Box::new(Reader { inode, position: offset }) as FileReader)
        })
    }

    async fn write(&self, path: &Path, mut content: FileReader, options: WriteOptions) -> Result<u64> {
        const WRITE: &str = "files.write";
        let mut bytes = Vec::new();
        content
            .read_to_end(&mut bytes)
            .await
            .map_err(|source| failed(WRITE, "take the content of", path, source))?;
        let length = bytes.len() as u64;
        self.with(WRITE, "write", path, |machine, home| {
            if let Some(parent) =
                path.parent().filter(|parent| options.create_parents && *parent != Path::new(""))
            {
                machine.tree.make_directory(home, parent, 0o755, true)?;
            }
            machine.tree.replace(home, path, bytes, options.mode & 0o7777)
        })?;
        Ok(length)
    }

    async fn stat(&self, path: &Path) -> Result<FileEntry> {
        self.with("files.stat", "look at", path, |machine, home| {
            let inode = machine.tree.open(home, path, false)?;
            let attributes = inode.lock();
            Ok(entry(path.file_name().unwrap_or_default().to_owned(), &attributes))
        })
    }

    async fn list(&self, path: &Path) -> Result<Vec<FileEntry>> {
        self.with("files.list", "list", path, |machine, home| {
            let names = machine.tree.list(home, path)?;
            Ok(names.into_iter().map(|(name, inode)| entry(name, &inode.lock())).collect())
        })
    }

    async fn make_directory(&self, path: &Path, mode: u32, parents: bool) -> Result<()> {
        self.with("files.make_directory", "make the directory", path, |machine, home| {
            machine.tree.make_directory(home, path, mode & 0o7777, parents)
        })
    }

    async fn make_symlink(&self, path: &Path, target: &Path) -> Result<()> {
        self.with("files.make_symlink", "make the link", path, |machine, home| {
            machine.tree.make_symlink(home, path, target)
        })
    }

    async fn remove(&self, path: &Path, recursive: bool) -> Result<()> {
        self.with("files.remove", "remove", path, |machine, home| machine.tree.remove(home, path, recursive))
    }

    async fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let renamed =
            self.with("files.rename", "rename", from, |machine, home| machine.tree.rename(home, from, to));
        renamed.map_err(|error| error.with_context("to", to.display()))
    }

    async fn set_mode(&self, path: &Path, mode: u32) -> Result<()> {
        self.with("files.set_mode", "change the mode of", path, |machine, home| {
            machine.tree.open(home, path, true)?.lock().mode = mode & 0o7777;
            Ok(())
        })
    }

    async fn set_modified(&self, path: &Path, modified: SystemTime) -> Result<()> {
        self.with("files.set_modified", "change the time of", path, |machine, home| {
            machine.tree.open(home, path, true)?.lock().modified = modified;
            Ok(())
        })
    }
}
