//! What the store remembers of each image: one small file, replaced whole.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use leasehold_model::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use super::digest::Digest;

/// One image of the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageSummary {
    /// Its digest.
    pub digest: Digest,
    /// The names and paths that lead to it; none once others took them all.
    pub references: Vec<String>,
    /// Its layers' decompressed digests, from the bottom up.
    pub layers: Vec<Digest>,
    /// When it was recorded, or a reference to it was.
    pub recorded_at: SystemTime,
}

/// A record: the summary and the configuration as it was written.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct ImageRecord {
    pub(super) summary: ImageSummary,
    pub(super) config: String,
    /// For references to archives: what the file was when it was read ([`stamp`]). An archive with
    /// the same stamp need not be read, which for a compressed one takes long.
    #[serde(default)]
    pub(super) stamps: BTreeMap<String, String>,
}

/// A text that changes whenever a file is changed or replaced.
pub(super) fn stamp(file: &Path) -> Option<String> {
    let metadata = fs::metadata(file).ok()?;
    Some(format!(
        "{}:{}:{}:{}.{:09}",
        metadata.dev(),
        metadata.ino(),
        metadata.size(),
        metadata.ctime(),
        metadata.ctime_nsec()
    ))
}

/// The records of a store. Changes are made under the store's lock.
#[derive(Debug)]
pub(super) struct Records(pub(super) PathBuf);

impl Records {
    fn path(&self, digest: &Digest) -> PathBuf {
        self.0.join(format!("{}.json", digest.file_name()))
    }

    /// All records. One that cannot be understood (of another version, or damaged) is passed over
    /// with a warning: its image is found again at its source.
    pub(super) fn all(&self) -> Result<Vec<ImageRecord>> {
        let failed = |error| failed("read", &self.0, error);
        let mut records = Vec::new();
        for entry in fs::read_dir(&self.0).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            match read(&path) {
                Ok(Some(record)) => records.push(record),
                Ok(None) => {}
                Err(error) => tracing::warn!(%error, "an image record was passed over"),
            }
        }
        records.sort_by(|one: &ImageRecord, other| one.summary.digest.cmp(&other.summary.digest));
        Ok(records)
    }

    /// The record of an image.
    pub(super) fn get(&self, digest: &Digest) -> Result<Option<ImageRecord>> {
        read(&self.path(digest))
    }

    /// The record that a reference leads to.
    pub(super) fn by_reference(&self, reference: &str) -> Result<Option<ImageRecord>> {
        let named = |record: &ImageRecord| record.summary.references.iter().any(|known| known == reference);
        Ok(self.all()?.into_iter().find(named))
    }

    /// Whether an image is recorded under a reference already, so that nothing need be written.
    pub(super) fn has(&self, record: &ImageRecord, reference: &str) -> bool {
        let Some(known) = self.get(&record.summary.digest).unwrap_or_default() else { return false };
        // Several records with one reference never last: the writer takes it from the others.
        known.config == record.config
            && known.summary.layers == record.summary.layers
            && known.summary.references.iter().any(|text| text == reference)
            && known.stamps.get(reference) == record.stamps.get(reference)
    }

    /// Writes a record and lets its reference lead there alone.
    pub(super) fn put(&self, mut record: ImageRecord, reference: &str) -> Result<()> {
        for mut other in self.all()? {
            if other.summary.digest == record.summary.digest {
                record.summary.references = other.summary.references;
                let new = std::mem::replace(&mut record.stamps, other.stamps);
                record.stamps.remove(reference);
                record.stamps.extend(new);
            } else if other.summary.references.iter().any(|known| known == reference) {
                other.summary.references.retain(|known| known != reference);
                other.stamps.remove(reference);
                self.write(&other)?;
            }
        }
        if !record.summary.references.iter().any(|known| known == reference) {
            record.summary.references.push(reference.to_owned());
        }
        self.write(&record)
    }

    pub(super) fn write(&self, record: &ImageRecord) -> Result<()> {
        let path = self.path(&record.summary.digest);
        let text = serde_json::to_vec(record).map_err(|error| {
            Error::new(ErrorKind::Unexpected, "image.store", "cannot write an image record")
                .with_source(error)
        })?;
        // Only the holder of the store's lock writes, so the name need not be unique.
        let new = path.with_extension("new");
        let write = || {
            let mut file = fs::File::create(&new)?;
            file.write_all(&text)?;
            file.sync_data()?;
            fs::rename(&new, &path)
        };
        write().map_err(|error| failed("write", &path, error))
    }

    pub(super) fn remove(&self, digest: &Digest) -> Result<()> {
        let path = self.path(digest);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(failed("remove", &path, error)),
            _ => Ok(()),
        }
    }
}

fn read(path: &Path) -> Result<Option<ImageRecord>> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed("read", path, error)),
    };
    serde_json::from_slice(&text).map(Some).map_err(|error| {
        Error::new(ErrorKind::Corrupt, "image.store", format!("cannot understand {}", path.display()))
            .with_source(error)
    })
}

fn failed(what: &str, path: &Path, error: std::io::Error) -> Error {
    Error::io("image.store", format!("cannot {what} {}", path.display()), error)
}
