//! What every source of images gives: a configuration, and layers that can be read.

use std::io::Read;
use std::sync::Arc;

use leasehold_model::Result;

use super::digest::Digest;

/// Where one blob lies in its source.
#[derive(Debug, Clone)]
pub(super) enum BlobAddress {
    /// Named by its content.
    Digest { digest: Digest, size: u64 },
    /// A member of a Docker archive, which names layers by path; the diff id alone proves it.
    Member(String),
}

impl BlobAddress {
    pub(super) fn digest(&self) -> Option<&Digest> {
        match self {
            Self::Digest { digest, .. } => Some(digest),
            Self::Member(_) => None,
        }
    }

    pub(super) fn size(&self) -> Option<u64> {
        match self {
            Self::Digest { size, .. } => Some(*size),
            Self::Member(_) => None,
        }
    }
}

/// One layer as its source has it.
#[derive(Debug, Clone)]
pub(super) struct LayerBlob {
    /// The digest of the decompressed archive, by which the store knows it.
    pub(super) diff_id: Digest,
    pub(super) address: BlobAddress,
}

/// Something that blobs can be read from. Opening and reading may block.
pub(super) trait BlobSource: Send + Sync {
    fn open(&self, address: &BlobAddress) -> Result<Box<dyn Read + Send>>;
}

/// An image that was found and chosen, its layers not yet unpacked.
pub(super) struct FoundImage {
    /// The manifest's digest; of a Docker archive, which has none, the configuration's.
    pub(super) digest: Digest,
    /// The configuration as it was written.
    pub(super) config: Vec<u8>,
    /// From the bottom up.
    pub(super) layers: Vec<LayerBlob>,
    pub(super) source: Arc<dyn BlobSource>,
}
