//! OCI layout directories.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use leasehold_model::{Error, ErrorKind, Result};

use super::config::ConfigDocument;
use super::manifest::{DOCUMENT_BYTES, Descriptor, Document, Index, Manifest, NESTING, json};
use super::platform::Platform;
use super::source::{BlobAddress, BlobSource, FoundImage};

/// Something with the files of an OCI layout: a directory or an archive.
pub(super) trait LayoutFiles: BlobSource {
    /// Opens one file by its path in the layout.
    fn file(&self, path: &str) -> Result<Box<dyn Read + Send>>;
}

/// A layout on disk.
pub(super) struct LayoutDirectory(pub(super) PathBuf);

impl LayoutFiles for LayoutDirectory {
    fn file(&self, path: &str) -> Result<Box<dyn Read + Send>> {
        Ok(Box::new(open(&self.0.join(path))?))
    }
}

impl BlobSource for LayoutDirectory {
    fn open(&self, address: &BlobAddress) -> Result<Box<dyn Read + Send>> {
        self.file(&blob_path(address))
    }
}

/// Where a layout keeps a blob.
pub(super) fn blob_path(address: &BlobAddress) -> String {
    match address {
        BlobAddress::Digest { digest, .. } => {
            let (algorithm, digits) = digest.parts();
            format!("blobs/{algorithm}/{digits}")
        }
        BlobAddress::Member(path) => path.clone(),
    }
}

fn open(path: &Path) -> Result<File> {
    let file = File::open(path)
        .map_err(|error| Error::io("image.resolve", format!("cannot open {}", path.display()), error))?;
    // Not a FIFO or device, on which reading could hang.
    if file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return Ok(file);
    }
    Err(Error::invalid("image.resolve", format!("{} is no file", path.display())))
}

/// Reads a small file of a layout whole.
pub(super) fn read_document(reader: impl Read, what: &str) -> Result<Vec<u8>> {
    let mut content = Vec::new();
    reader
        .take(DOCUMENT_BYTES + 1)
        .read_to_end(&mut content)
        .map_err(|error| Error::io("image.resolve", format!("cannot read {what}"), error))?;
    if content.len() as u64 > DOCUMENT_BYTES {
        let message = format!("{what} has more than {DOCUMENT_BYTES} bytes");
        return Err(Error::new(ErrorKind::LimitExceeded, "image.resolve", message));
    }
    Ok(content)
}

/// Finds the image of a tag and platform in a layout.
pub(super) fn find<L: LayoutFiles + 'static>(
    layout: L,
    tag: Option<&str>,
    platform: &Platform,
) -> Result<FoundImage> {
    let index: Index = json(&read_document(layout.file("index.json")?, "index.json")?, "index.json")?;
    let (descriptor, manifest) = follow(&layout, &index, tag, platform)?;
    manifest.check_is_image()?;
    let config = blob(&layout, &manifest.config, "the image's configuration")?;
    let document = ConfigDocument::parse(&config)?;
    document.check_platform(platform)?;
    let layers = manifest.layers(&document.diff_ids)?;
    Ok(FoundImage { digest: descriptor.digest, config, layers, source: Arc::new(layout) })
}

/// Goes from the top index to a manifest.
fn follow(
    layout: &impl LayoutFiles,
    top: &Index,
    tag: Option<&str>,
    platform: &Platform,
) -> Result<(Descriptor, Manifest)> {
    let mut descriptor = top.choose(tag, platform)?.clone();
    for _ in 0..NESTING {
        let content = blob(layout, &descriptor, "the manifest")?;
        match Document::parse(&content)? {
            Document::Manifest(manifest) => return Ok((descriptor, manifest)),
            Document::Index(index) => descriptor = index.choose(None, platform)?.clone(),
        }
    }
    Err(Error::invalid("image.resolve", format!("indexes are nested more than {NESTING} deep")))
}

/// Reads and checks a small blob.
fn blob(layout: &impl LayoutFiles, descriptor: &Descriptor, what: &str) -> Result<Vec<u8>> {
    descriptor.check_size(what)?;
    let address = BlobAddress::Digest { digest: descriptor.digest.clone(), size: descriptor.size };
    let content = read_document(layout.open(&address)?, what)?;
    descriptor.check(&content, what)?;
    Ok(content)
}
