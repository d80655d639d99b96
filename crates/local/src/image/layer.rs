//! One layer's way from a blob to a checked tree.

use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use leasehold_model::{Error, ErrorKind, Result};

use super::cancel::Cancellation;
use super::decompress::decompressed;
use super::digest::{Digest, Hasher};
use super::limits::UnpackLimits;
use super::note::UnpackReport;
use super::owner::OwnerMap;
use super::source::{BlobAddress, LayerBlob};
use super::store::LayerUnpacker;

/// Unpacks a blob into an empty directory and checks both its digests. On an error the directory's
/// content means nothing.
pub(super) fn unpack_checked(
    reader: Box<dyn Read + Send>,
    layer: &LayerBlob,
    destination: &Path,
    unpacker: &dyn LayerUnpacker,
    owners: &OwnerMap,
    limits: &UnpackLimits,
    cancellation: &Cancellation,
) -> Result<UnpackReport> {
    let compressed_bytes = AtomicU64::new(0);
    let mut blob = BlobReader {
        reader,
        hasher: layer.address.digest().map(Digest::hasher),
        limit: layer.address.size(),
        read: &compressed_bytes,
        cancellation,
        failure: None,
    };
    let outcome =
        unpack_decompressed(&mut blob, &compressed_bytes, layer, destination, unpacker, owners, limits);
    // What went wrong on the way here explains what the decoders made of it.
    let outcome = match blob.failure.take() {
        Some(error) => Err(error),
        None => outcome,
    };
    let may_be_damage = outcome
        .as_ref()
        .err()
        .is_none_or(|error| matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::InvalidInput));
    if may_be_damage {
        // A wrong digest is the better explanation for an archive that makes no sense.
        check_blob(blob, layer)?;
    }
    let (report, found) = outcome?;
    if found != layer.diff_id {
        return Err(Error::new(
            ErrorKind::Corrupt,
            "image.unpack",
            "a layer does not unpack to what the image's configuration names",
        )
        .with_context("expected", &layer.diff_id)
        .with_context("found", found));
    }
    Ok(report)
}

fn unpack_decompressed(
    blob: &mut BlobReader<'_>,
    compressed_bytes: &AtomicU64,
    layer: &LayerBlob,
    destination: &Path,
    unpacker: &dyn LayerUnpacker,
    owners: &OwnerMap,
    limits: &UnpackLimits,
) -> Result<(UnpackReport, Digest)> {
    let mut archive = ArchiveReader {
        reader: decompressed(blob).map_err(damaged)?,
        hasher: layer.diff_id.hasher(),
        read: 0,
        compressed_bytes,
        limits,
    };
    let report = unpacker.unpack(&mut archive, destination, owners, limits)?;
    // The digest covers what follows the archive's end, too.
    std::io::copy(&mut archive, &mut std::io::sink()).map_err(damaged)?;
    Ok((report, archive.hasher.finish()))
}

/// Reads the rest of a blob and compares size and digest with what was promised.
fn check_blob(mut blob: BlobReader<'_>, layer: &LayerBlob) -> Result<()> {
    let drained = std::io::copy(&mut blob, &mut std::io::sink());
    if let Some(error) = blob.failure.take() {
        return Err(error);
    }
    drained.map_err(damaged)?;
    let BlobAddress::Digest { digest, size } = &layer.address else { return Ok(()) };
    let corrupt = |message: &str| {
        Error::new(ErrorKind::Corrupt, "image.unpack", message)
            .with_context("blob", digest)
            .with_hint("the image is damaged; build, save or pull it again")
    };
    let read = blob.read.load(Ordering::Relaxed);
    if read != *size {
        return Err(corrupt("a layer's blob has another size than its manifest says")
            .with_context("expected bytes", size)
            .with_context("found bytes", read));
    }
    match blob.hasher.map(Hasher::finish) {
        Some(found) if found != *digest => {
            Err(corrupt("a layer's blob does not have the digest that its manifest names")
                .with_context("found", found))
        }
        _ => Ok(()),
    }
}

fn damaged(error: std::io::Error) -> Error {
    match error.downcast::<Error>() {
        Ok(error) => error,
        Err(error) => Error::new(ErrorKind::Corrupt, "image.unpack", "a layer cannot be decompressed")
            .with_source(error),
    }
}

/// The blob as stored: hashed, counted, bounded by its promised size, and stopped when the caller goes.
struct BlobReader<'run> {
    reader: Box<dyn Read + Send>,
    hasher: Option<Hasher>,
    limit: Option<u64>,
    read: &'run AtomicU64,
    cancellation: &'run Cancellation,
    /// The first failure of this reader, kept apart because decoders wrap or replace errors.
    failure: Option<Error>,
}

impl Read for BlobReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if let Err(error) = self.cancellation.check() {
            self.failure = Some(error);
            return Err(std::io::Error::other("cancelled"));
        }
        let count = match self.reader.read(buffer) {
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => return Err(error),
            Err(error) => {
                let error = match error.downcast::<Error>() {
                    Ok(error) => error,
                    Err(error) => Error::io("image.unpack", "cannot read a layer's blob", error),
                };
                self.failure = Some(error);
                return Err(std::io::Error::other("the source failed"));
            }
        };
        let read = self.read.fetch_add(count as u64, Ordering::Relaxed) + count as u64;
        if self.limit.is_some_and(|limit| read > limit) {
            self.failure = Some(Error::new(
                ErrorKind::Corrupt,
                "image.unpack",
                "a layer's blob is larger than its manifest says",
            ));
            return Err(std::io::Error::other("the blob is too large"));
        }
        if let Some(hasher) = &mut self.hasher {
            hasher.update(&buffer[..count]);
        }
        Ok(count)
    }
}

/// The tar archive inside: hashed, and bounded absolutely and against the compressed size.
struct ArchiveReader<'run> {
    reader: Box<dyn Read + Send + 'run>,
    hasher: Hasher,
    read: u64,
    compressed_bytes: &'run AtomicU64,
    limits: &'run UnpackLimits,
}

impl Read for ArchiveReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.reader.read(buffer)?;
        self.hasher.update(&buffer[..count]);
        self.read += count as u64;
        let by_ratio = self.compressed_bytes.load(Ordering::Relaxed).saturating_mul(self.limits.ratio);
        let allowed = self.limits.total_bytes.min(by_ratio.max(self.limits.ratio_floor));
        if self.read > allowed {
            return Err(std::io::Error::other(too_large(allowed)));
        }
        Ok(count)
    }
}

fn too_large(allowed: u64) -> Error {
    Error::new(
        ErrorKind::LimitExceeded,
        "image.unpack",
        format!("a layer unpacks to more than {}", leasehold_model::ByteSize(allowed)),
    )
    .with_hint("this is how decompression bombs look; raise the limit if the image is to be trusted")
}
