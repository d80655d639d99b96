//! Packing the layers of a stopped sandbox into one file, and bringing them back.
//!
//! Every step can be the last one. While the record does not say `Archived`, the layers are what counts
//! and an archive is only left over; once it does, the archive counts and layers are left over. The
//! archive is on disk before the record says so, the layers are on disk before it no longer does, and
//! only then is the other side removed.

mod format;
mod pack;
#[cfg(test)]
mod tests;
mod unpack;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use leasehold_model::{Error, ErrorKind, Result, SandboxState};
use serde::{Deserialize, Serialize};

use crate::launch::file_work::{self, remove_tree};
use crate::record::Record;
use crate::store::Store;

/// The packed layers, in the sandbox's state directory.
const FILE: &str = "layers.archive";
/// The archive while it is being written.
const SCRATCH: &str = ".layers.archive";
/// The layers while they are being unpacked.
const UNPACKING: &str = ".unpacking";

/// What is known of an archive that was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Archive {
    /// Its SHA-256 digest, in hexadecimal digits.
    pub(crate) digest: String,
    /// Its length in bytes.
    pub(crate) bytes: u64,
}

fn cannot(operation: &'static str, what: &str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let message = format!("cannot {what} {}", path.display());
    move |error| Error::io(operation, message, error)
}

fn synced(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// The layers of a state directory: their names and where they are.
pub(crate) fn layers(state: &Path) -> io::Result<Vec<PathBuf>> {
    use std::os::unix::ffi::OsStrExt as _;
    let mut found = Vec::new();
    for entry in fs::read_dir(state)? {
        let entry = entry?;
        let is_layer = !entry.file_name().as_bytes().starts_with(b".");
        if is_layer && entry.path().join("upper").symlink_metadata().is_ok_and(|upper| upper.is_dir()) {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

/// Packs the layers of a stopped sandbox away. The caller holds its lock. On an error the layers are as
/// they were.
pub(crate) fn archive(store: &Store, record: &mut Record) -> Result<()> {
    let state = &store.sandbox(&record.id);
    let packed = match file_work::owners_of(record) {
        Some(map) => file_work::pack_layers(store.program(), &map, state),
        None => write(state),
    };
    let packed = packed.inspect_err(|_| {
        // A failure to tidy up is met again by the next sweep.
        let _ = fs::remove_file(state.join(SCRATCH));
    })?;
    record.archive = Some(packed);
    record.state = SandboxState::Archived;
    record.save_for_good(state)?;
    remove_layers(store.program(), state)
}

/// Writes the archive of the layers in a state directory, as the user that this process is.
pub(crate) fn write(state: &Path) -> Result<Archive> {
    const OPERATION: &str = "sandbox.archive";
    let target = state.join(FILE);
    let work = || -> io::Result<Archive> {
        let scratch = state.join(SCRATCH);
        let file = File::create(&scratch)?;
        let archive = pack::pack(&layers(state)?, &file)?;
        file.sync_all()?;
        fs::rename(&scratch, &target)?;
        synced(state)?;
        Ok(archive)
    };
    work().map_err(|error| match error.kind() {
        io::ErrorKind::Unsupported => {
            Error::unsupported(OPERATION, format!("the sandbox can't be archived: {error}"))
                .with_hint("it stays stopped, with all its files; root can archive it")
        }
        _ => cannot(OPERATION, "write", &target)(error),
    })
}

/// Unpacks the archive in a state directory beside it, as the user that this process is.
pub(crate) fn unpack(state: &Path) -> Result<()> {
    let path = state.join(FILE);
    let work = || -> io::Result<()> {
        let file = File::open(&path)?;
        unpack::unpack(&file, &state.join(UNPACKING))?;
        // On disk before the record says that they are there.
        Ok(rustix::fs::syncfs(&file)?)
    };
    work().map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
            corrupt(&path, &format!("can't be understood: {error}"))
        }
        _ => cannot("sandbox.start", "unpack", &path)(error),
    })
}

fn corrupt(path: &Path, what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, "sandbox.start", format!("the archive {} {what}", path.display()))
        .with_hint("nothing was removed; put the file back from a backup, or delete the sandbox")
}

/// Removes the layers that an archive holds.
fn remove_layers(program: Option<&Path>, state: &Path) -> Result<()> {
    for layer in layers(state).map_err(cannot("sandbox.archive", "list", state))? {
        // The upper goes last: without it, the rest would not be found again.
        remove_tree(program, &layer.join("work"))?;
        remove_tree(program, &layer)?;
    }
    Ok(())
}

/// Brings the layers of an archived sandbox back, and makes it a stopped one. The caller holds its lock.
/// On an error the archive is as it was.
pub(crate) fn restore(store: &Store, record: &mut Record) -> Result<()> {
    const OPERATION: &str = "sandbox.start";
    let state = &store.sandbox(&record.id);
    let program = store.program();
    let path = state.join(FILE);
    let Some(archive) = record.archive.clone() else {
        return Err(corrupt(&path, "is not described in the sandbox's record"));
    };
    let file = File::open(&path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => corrupt(&path, "is missing"),
        _ => cannot(OPERATION, "open", &path)(error),
    })?;
    if unpack::measure(&file).map_err(cannot(OPERATION, "read", &path))? != archive {
        return Err(corrupt(&path, "is not what was written: its digest differs"));
    }
    let unpacking = state.join(UNPACKING);
    remove_tree(program, &unpacking)?;
    let unpacked = match file_work::owners_of(record) {
        Some(map) => file_work::unpack_layers(program, &map, state),
        None => unpack(state),
    };
    unpacked.inspect_err(|_| {
        // A failure to tidy up is met again by the next start.
        let _ = remove_tree(program, &unpacking);
    })?;
    put_in_place(program, state)?;
    record.archive = None;
    record.state = SandboxState::Stopped;
    record.save_for_good(state)?;
    remove_file(&path)
}

/// Moves unpacked layers to where they belong. Repeating it after an interruption is fine as long as the
/// archive is there: what was moved is unpacked again.
fn put_in_place(program: Option<&Path>, state: &Path) -> Result<()> {
    let unpacking = &state.join(UNPACKING);
    let failed = || cannot("sandbox.start", "put the layers back into", state);
    for layer in layers(unpacking).map_err(failed())? {
        let target = state.join(layer.file_name().unwrap_or_default());
        remove_tree(program, &target)?;
        fs::rename(&layer, &target).map_err(failed())?;
    }
    remove_tree(program, unpacking)?;
    synced(state).map_err(failed())
}

fn remove_file(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(cannot("sandbox.archive", "remove", path)(error))
        }
        _ => Ok(()),
    }
}

/// Removes what an interrupted archiving or restoring left. The caller holds the sandbox's lock.
pub(crate) fn tidy(store: &Store, record: &Record) -> Result<()> {
    let state = &store.sandbox(&record.id);
    remove_file(&state.join(SCRATCH))?;
    remove_tree(store.program(), &state.join(UNPACKING))?;
    let archive = state.join(FILE);
    let Ok(found) = archive.symlink_metadata() else {
        return Ok(());
    };
    match &record.archive {
        Some(known) if known.bytes == found.len() => remove_layers(store.program(), state),
        None if layers(state).is_ok_and(|layers| !layers.is_empty()) => remove_file(&archive),
        // Something is wrong with it or with the record; starting the sandbox says what.
        _ => Ok(()),
    }
}
