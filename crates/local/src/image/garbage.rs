//! Removing what no image and no sandbox needs.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use leasehold_model::{Error, Result};

use super::digest::Digest;
use super::lock::{FileLock, LockMode};
use super::store::StoreInner;
use super::temporary::{self, TemporaryDirectory};

/// What a collection did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GarbageReport {
    /// Images that no reference led to.
    pub images_removed: u64,
    /// Layers removed.
    pub layers_removed: u64,
    /// Layers that no image needs and that are still in use.
    pub layers_in_use: u64,
    /// Temporaries that killed processes had left.
    pub temporaries_removed: u64,
}

/// Collects under the store's lock, so that no image is recorded meanwhile; the slow removal comes after it.
pub(super) fn collect(store: &StoreInner, in_use: &dyn Fn(&Path) -> bool) -> Result<GarbageReport> {
    let unpacker = &*store.options.unpacker;
    let mut report = GarbageReport {
        temporaries_removed: temporary::sweep(&store.temporary(), unpacker)?,
        ..GarbageReport::default()
    };
    let grave = TemporaryDirectory::create(&store.temporary(), unpacker)?;
    let lock = store.lock()?;
    let needed = needed_layers(store, &mut report)?;
    for (owners, directory, diff_id) in layers(store)? {
        if needed.contains(&diff_id) {
            continue;
        }
        let path = store.layer_lock(&owners.to_string_lossy(), &diff_id);
        let free = if in_use(&directory.join("tree")) {
            None
        } else {
            FileLock::try_take(&path, LockMode::Exclusive)?
        };
        let Some(layer_lock) = free else {
            report.layers_in_use += 1;
            continue;
        };
        let target = grave.path().join(report.layers_removed.to_string());
        fs::rename(&directory, &target).map_err(|error| {
            Error::io("image.collect", format!("cannot remove the layer {}", directory.display()), error)
        })?;
        layer_lock.remove()?;
        report.layers_removed += 1;
    }
    remove_stray_locks(store)?;
    drop(lock);
    // Dropping the temporary directory removes what was moved there.
    drop(grave);
    Ok(report)
}

/// Removes lock files of layers that never came to be.
fn remove_stray_locks(store: &StoreInner) -> Result<()> {
    for path in entries(&store.directory.join("locks"))? {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Some((owners, layer)) = name.split_once('.') else { continue };
        let layer = store.directory.join("layers").join(owners).join(layer);
        if layer.exists() {
            continue;
        }
        // Held: somebody is making the layer.
        if let Some(lock) = FileLock::try_take(&path, LockMode::Exclusive)?
            && !layer.exists()
        {
            lock.remove()?;
        }
    }
    Ok(())
}

/// Removes records without a reference and gives the layers of all others.
fn needed_layers(store: &StoreInner, report: &mut GarbageReport) -> Result<HashSet<Digest>> {
    let mut needed = HashSet::new();
    for record in store.records.all()? {
        if record.summary.references.is_empty() {
            store.records.remove(&record.summary.digest)?;
            report.images_removed += 1;
        } else {
            needed.extend(record.summary.layers);
        }
    }
    Ok(needed)
}

/// All layers: whose owners, where, and which.
fn layers(store: &StoreInner) -> Result<Vec<(OsString, PathBuf, Digest)>> {
    let mut found = Vec::new();
    for owners in entries(&store.directory.join("layers"))? {
        for layer in entries(&owners)? {
            let name = layer.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if let Some(diff_id) = Digest::from_file_name(&name) {
                found.push((owners.file_name().unwrap_or_default().to_owned(), layer, diff_id));
            }
        }
    }
    Ok(found)
}

fn entries(directory: &Path) -> Result<Vec<PathBuf>> {
    let failed = |error| Error::io("image.collect", format!("cannot read {}", directory.display()), error);
    fs::read_dir(directory)
        .map_err(failed)?
        .map(|entry| entry.map(|entry| entry.path()).map_err(failed))
        .collect()
}
