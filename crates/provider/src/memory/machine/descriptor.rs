//! What a simulated process reads and writes.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use super::pipe::{PipeReader, PipeWriter};
use super::terminal::Terminal;
use super::tree::{Device, Inode, Kind, Tree};

/// A piece of this size is read or written at a time.
pub(in crate::memory) const PIECE: usize = 65_536;

static ZEROS: [u8; PIECE] = [0; PIECE];

/// An open regular file with its own position, shared by copies of the descriptor.
#[derive(Debug)]
pub(in crate::memory) struct OpenFile {
    pub(in crate::memory) inode: Arc<Inode>,
    pub(in crate::memory) position: Mutex<u64>,
    pub(in crate::memory) append: bool,
}

#[derive(Debug, Clone)]
pub(in crate::memory) enum Descriptor {
    Device(Device),
    Input(Arc<PipeReader>),
    Output(Arc<PipeWriter>),
    File(Arc<OpenFile>),
    /// The terminal, with the pipe to its master.
    Terminal(Arc<Terminal>, Arc<PipeWriter>),
}

/// The open descriptors of one process by number.
pub(in crate::memory) type Descriptors = BTreeMap<u32, Descriptor>;

fn noise(length: usize) -> Bytes {
    use std::hash::{BuildHasher as _, Hasher as _};
    // The standard library's random keys are the only source of chance at hand.
    let mut state = std::collections::hash_map::RandomState::new().build_hasher().finish() | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes.into()
}

impl Descriptor {
    pub(in crate::memory) fn file(inode: Arc<Inode>, append: bool) -> Self {
        if let Kind::Device(device) = inode.lock().kind {
            return Self::Device(device);
        }
        Self::File(Arc::new(OpenFile { inode, position: Mutex::new(0), append }))
    }

    pub(in crate::memory) fn is_terminal(&self) -> bool {
        matches!(self, Self::Terminal(..))
    }

    /// At most `most` bytes; empty at the end.
    pub(in crate::memory) async fn read(&self, most: usize) -> io::Result<Bytes> {
        let most = most.min(PIECE);
        match self {
            Self::Device(Device::Null) => Ok(Bytes::new()),
            Self::Device(Device::Zero) => {
                // A real read of a device is a chance for others to run.
                tokio::task::yield_now().await;
                Ok(Bytes::from_static(&ZEROS[..most]))
            }
            Self::Device(Device::Random) => {
                tokio::task::yield_now().await;
                Ok(noise(most))
            }
            Self::Input(pipe) => Ok(pipe.read(most).await),
            Self::Output(_) => Err(io::ErrorKind::InvalidInput.into()),
            Self::Terminal(terminal, _) => Ok(terminal.read(most).await),
            Self::File(file) => {
                let mut position = file.position.lock().unwrap_or_else(PoisonError::into_inner);
                let bytes = read_at(&file.inode, *position, most)?;
                *position += bytes.len() as u64;
                Ok(bytes)
            }
        }
    }

    /// Writes all bytes.
    pub(in crate::memory) async fn write(&self, tree: &Tree, bytes: Bytes) -> io::Result<()> {
        match self {
            Self::Device(_) => Ok(()),
            Self::Input(_) => Err(io::ErrorKind::InvalidInput.into()),
            Self::Output(pipe) => pipe.write(bytes).await,
            Self::Terminal(terminal, output) => output.write(terminal.processed(&bytes)).await,
            Self::File(file) => {
                let mut position = file.position.lock().unwrap_or_else(PoisonError::into_inner);
                *position = tree.write_at(&file.inode, (!file.append).then_some(*position), &bytes)?;
                Ok(())
            }
        }
    }
}

/// A piece of a regular file.
pub(in crate::memory) fn read_at(inode: &Inode, position: u64, most: usize) -> io::Result<Bytes> {
    match &inode.lock().kind {
        Kind::File(content) => {
            let start = usize::try_from(position).map_or(content.len(), |start| start.min(content.len()));
            let end = start.saturating_add(most).min(content.len());
            Ok(Bytes::copy_from_slice(&content[start..end]))
        }
        Kind::Directory(_) => Err(io::ErrorKind::IsADirectory.into()),
        _ => Ok(Bytes::new()),
    }
}
