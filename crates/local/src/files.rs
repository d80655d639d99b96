//! The files of an embedded sandbox, through a file server inside.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use leasehold_model::{BytePath, Error, ErrorKind, Result};
use leasehold_provider::{EntryKind, FileEntry, FileReader, Files, WriteOptions};
use rustix::fs::FileType;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt, Interest};
use tokio::sync::Mutex;

use crate::protocol::{FilesReply, FilesRequest, FrameReader, FrameWriter, RequestBody, StatRecord};
use crate::sandbox::Reach;
use crate::watched::watch;

/// How long one file operation may take inside. Removing a very large tree is the longest.
const OPERATION_TIME: Duration = Duration::from_secs(300);
/// A directory with more entries than this is not listed.
const MOST_ENTRIES: usize = 1 << 20;

/// The files of one sandbox. Operations follow one another on one server; it is opened when first
/// needed, and again after it was lost.
#[derive(Debug)]
pub(crate) struct LocalFiles {
    reach: Arc<Reach>,
    server: Mutex<Option<Server>>,
}

#[derive(Debug)]
struct Server {
    socket: AsyncFd<OwnedFd>,
    reader: FrameReader,
}

impl Server {
    async fn send(&self, request: &FilesRequest) -> io::Result<()> {
        let mut writer = FrameWriter::default();
        writer.push(request, Vec::new())?;
        self.socket.async_io(Interest::WRITABLE, |socket| writer.flush(socket.as_fd())).await
    }

    async fn receive(&mut self) -> io::Result<(FilesReply, Vec<OwnedFd>)> {
        loop {
            if let Some(reply) = self.reader.next()? {
                return Ok(reply);
            }
            let reader = &mut self.reader;
            if self.socket.async_io(Interest::READABLE, |socket| reader.fill(socket.as_fd())).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

fn refused(operation: &'static str, path: &Path, errno: i32) -> Error {
    let what = match operation {
        "files.read" => "read",
        "files.write" => "write",
        "files.list" => "list",
        "files.remove" => "remove",
        "files.rename" => "rename",
        "files.make_directory" | "files.make_symlink" => "make",
        "files.stat" => "look at",
        _ => "change",
    };
    let message = format!("cannot {what} `{}` in the sandbox", path.display());
    Error::io(operation, message, io::Error::from_raw_os_error(errno)).with_context("path", path.display())
}

impl LocalFiles {
    pub(crate) fn new(reach: Arc<Reach>) -> Self {
        Self { reach, server: Mutex::new(None) }
    }

    async fn open(&self, operation: &'static str) -> Result<Server> {
        let live = self.reach.live(operation).await?;
        let mut descriptors = live.link.ask(operation, RequestBody::OpenFiles).await?;
        let socket = descriptors
            .pop()
            .ok_or_else(|| Error::new(ErrorKind::Corrupt, operation, "no file server came"))?;
        let prepare = || -> io::Result<Server> {
            rustix::io::ioctl_fionbio(&socket, true)?;
            Ok(Server {
                socket: watch(socket, Interest::READABLE | Interest::WRITABLE)?,
                reader: FrameReader::default(),
            })
        };
        prepare().map_err(|error| Error::io(operation, "cannot reach the file server", error))
    }

    /// One request and all its replies. A server whose conversation was cut, by an error or by dropping
    /// this future, is not used again.
    async fn ask(
        &self,
        operation: &'static str,
        path: &Path,
        request: FilesRequest,
    ) -> Result<(Vec<FilesReply>, Option<OwnedFd>)> {
        let mut slot = self.server.lock().await;
        let mut server = match slot.take() {
            Some(server) => server,
            None => self.open(operation).await?,
        };
        let _passing = self.reach.files().read().await;
        let conversation = async {
            server.send(&request).await?;
            let mut replies = Vec::new();
            let mut descriptor = None;
            let mut count = 0;
            loop {
                let (reply, mut descriptors) = server.receive().await?;
                descriptor = descriptor.or(descriptors.pop());
                let more = matches!(&reply, FilesReply::Entries { last: false, .. });
                if let FilesReply::Entries { entries, .. } = &reply {
                    count += entries.len();
                }
                replies.push(reply);
                if !more {
                    return Ok((replies, descriptor));
                }
                if count > MOST_ENTRIES {
                    return Err(io::Error::from_raw_os_error(libc::EOVERFLOW));
                }
            }
        };
        let (replies, descriptor) = match tokio::time::timeout(OPERATION_TIME, conversation).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => {
                return Err(Error::io(
                    operation,
                    format!("the file server failed on `{}`", path.display()),
                    error,
                ));
            }
            Err(_) => {
                return Err(Error::new(
                    ErrorKind::DeadlineExceeded,
                    operation,
                    format!("the file operation on `{}` took too long", path.display()),
                ));
            }
        };
        *slot = Some(server);
        if let Some(FilesReply::Refused(refusal)) = replies.first() {
            return Err(refused(operation, path, refusal.errno));
        }
        Ok((replies, descriptor))
    }

    async fn change(&self, operation: &'static str, path: &Path, request: FilesRequest) -> Result<()> {
        self.ask(operation, path, request).await.map(drop)
    }
}

fn entry(record: StatRecord) -> FileEntry {
    let kind = match FileType::from_raw_mode(record.mode) {
        FileType::RegularFile => EntryKind::File,
        FileType::Directory => EntryKind::Directory,
        FileType::Symlink => EntryKind::Symlink {
            target: PathBuf::from(std::ffi::OsString::from_vec(record.target.unwrap_or_default())),
        },
        _ => EntryKind::Special,
    };
    let after = Duration::new(record.seconds.unsigned_abs(), 0);
    let whole = if record.seconds >= 0 {
        SystemTime::UNIX_EPOCH.checked_add(after)
    } else {
        SystemTime::UNIX_EPOCH.checked_sub(after)
    };
    let modified = whole.and_then(|time| time.checked_add(Duration::from_nanos(record.nanoseconds.into())));
    FileEntry {
        name: std::ffi::OsString::from_vec(record.name),
        kind,
        size: record.size,
        mode: record.mode & 0o7777,
        user: record.user,
        group: record.group,
        modified: modified.unwrap_or(SystemTime::UNIX_EPOCH),
    }
}

/// Seconds and nanoseconds since 1970, the nanoseconds counting up also before it.
fn since_epoch(time: SystemTime) -> (i64, u32) {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => (i64::try_from(after.as_secs()).unwrap_or(i64::MAX), after.subsec_nanos()),
        Err(before) => {
            let before = before.duration();
            let seconds = -i64::try_from(before.as_secs()).unwrap_or(i64::MAX);
            match before.subsec_nanos() {
                0 => (seconds, 0),
                nanoseconds => (seconds - 1, 1_000_000_000 - nanoseconds),
            }
        }
    }
}

#[async_trait]
impl Files for LocalFiles {
    async fn read(&self, path: &Path, offset: u64) -> Result<FileReader> {
        let request = FilesRequest::OpenRead { path: path.into() };
        let (_, descriptor) = self.ask("files.read", path, request).await?;
        let descriptor = descriptor.ok_or_else(|| refused("files.read", path, libc::EIO))?;
        let mut file = tokio::fs::File::from_std(std::fs::File::from(descriptor));
        file.seek(io::SeekFrom::Start(offset)).await.map_err(|error| {
            Error::io("files.read", format!("cannot move to byte {offset} of `{}`", path.display()), error)
        })?;
        Ok(Box::new(file))
    }

    async fn write(&self, path: &Path, mut content: FileReader, options: WriteOptions) -> Result<u64> {
        // A server of its own: the scratch file must not be shared with other writes.
        let writer = LocalFiles::new(Arc::clone(&self.reach));
        let request = FilesRequest::OpenScratch {
            path: path.into(),
            mode: options.mode,
            parents: options.create_parents,
        };
        let (_, descriptor) = writer.ask("files.write", path, request).await?;
        let descriptor = descriptor.ok_or_else(|| refused("files.write", path, libc::EIO))?;
        let mut file = tokio::fs::File::from_std(std::fs::File::from(descriptor));
        let copy = async {
            let mut buffer = vec![0; 256 << 10];
            let mut total = 0_u64;
            loop {
                let count = content.read(&mut buffer).await?;
                if count == 0 {
                    file.flush().await?;
                    return Ok::<_, io::Error>(total);
                }
                file.write_all(&buffer[..count]).await?;
                total += count as u64;
            }
        };
        match copy.await {
            Ok(total) => {
                writer.change("files.write", path, FilesRequest::CommitScratch).await?;
                Ok(total)
            }
            Err(error) => {
                // The old file stays; if the server is gone too, the scratch file goes with the sandbox.
                let _ = writer.change("files.write", path, FilesRequest::AbandonScratch).await;
                Err(Error::io(
                    "files.write",
                    format!("cannot write `{}` in the sandbox", path.display()),
                    error,
                ))
            }
        }
    }

    async fn stat(&self, path: &Path) -> Result<FileEntry> {
        let (replies, _) = self.ask("files.stat", path, FilesRequest::Stat { path: path.into() }).await?;
        match replies.into_iter().next() {
            Some(FilesReply::Entry(record)) => Ok(entry(record)),
            _ => Err(refused("files.stat", path, libc::EIO)),
        }
    }

    async fn list(&self, path: &Path) -> Result<Vec<FileEntry>> {
        let (replies, _) = self.ask("files.list", path, FilesRequest::List { path: path.into() }).await?;
        let entries = replies.into_iter().flat_map(|reply| match reply {
            FilesReply::Entries { entries, .. } => entries,
            _ => Vec::new(),
        });
        Ok(entries.map(entry).collect())
    }

    async fn make_directory(&self, path: &Path, mode: u32, parents: bool) -> Result<()> {
        let request = FilesRequest::MakeDirectory { path: path.into(), mode, parents };
        self.change("files.make_directory", path, request).await
    }

    async fn make_symlink(&self, path: &Path, target: &Path) -> Result<()> {
        let request = FilesRequest::MakeSymlink { path: path.into(), target: target.into() };
        self.change("files.make_symlink", path, request).await
    }

    async fn remove(&self, path: &Path, recursive: bool) -> Result<()> {
        self.change("files.remove", path, FilesRequest::Remove { path: path.into(), recursive }).await
    }

    async fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.change("files.rename", from, FilesRequest::Rename { from: from.into(), to: to.into() }).await
    }

    async fn set_mode(&self, path: &Path, mode: u32) -> Result<()> {
        self.change("files.set_mode", path, FilesRequest::SetMode { path: path.into(), mode }).await
    }

    async fn set_modified(&self, path: &Path, modified: SystemTime) -> Result<()> {
        let (seconds, nanoseconds) = since_epoch(modified);
        let path_inside = BytePath::from(path);
        let request = FilesRequest::SetModified { path: path_inside, seconds, nanoseconds };
        self.change("files.set_modified", path, request).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_keep_their_nanoseconds() {
        let time = SystemTime::UNIX_EPOCH - Duration::new(10, 250);
        let (seconds, nanoseconds) = since_epoch(time);
        assert_eq!((seconds, nanoseconds), (-11, 999_999_750));
        let record = StatRecord {
            name: b"x".to_vec(),
            mode: 0o100_644,
            size: 0,
            user: 0,
            group: 0,
            seconds,
            nanoseconds,
            target: None,
        };
        assert_eq!(entry(record).modified, time);
    }
}
