//! An overlay's layer as it is on disk: files, deletions and marks. Reading, building and merging layers.

mod attributes;
pub(crate) mod content;
mod merge;
mod reader;
#[cfg(test)]
pub(crate) mod sample;
mod writer;

use std::io;
use std::path::{Path, PathBuf};

use leasehold_model::{Error, Result};
use rustix::fs::Mode;

pub(crate) use attributes::{Attributes, CAPABILITY};
pub(crate) use merge::merge;
pub(crate) use reader::{Content, Node, ReadOptions, Shared, Sink, read};
pub(crate) use writer::{Writer, check_name};

/// Whose files the owners of the source are.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Owners {
    /// Everything belongs to the caller.
    Caller,
    /// Everybody keeps their number.
    Kept,
    /// Source user `start + n` is user `n` of the copy.
    ShiftedFrom(u32),
}

impl Owners {
    fn are_kept(self) -> bool {
        !matches!(self, Self::Caller)
    }

    fn read_options(self) -> ReadOptions {
        let first_owner = if let Self::ShiftedFrom(start) = self { start } else { 0 };
        ReadOptions { first_owner, names_may_vanish: false }
    }
}

/// How quiet the source of a copy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writers {
    /// Nobody writes.
    None,
    /// Its processes are frozen, but others may add, remove and rename entries.
    Outside,
}

fn cannot(what: &str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let message = format!("cannot {what} {}", path.display());
    move |error| Error::io("layer.copy", message, error)
}

/// A place beside a new layer for files that wait for further names.
fn waiting_room(layer: &Path) -> PathBuf {
    let name = layer.file_name().unwrap_or_default();
    let mut waiting = std::ffi::OsString::from(".names-");
    waiting.push(name);
    layer.with_file_name(waiting)
}

/// Copies the tree below `from` into the new directory `to`: content with its holes, links, modes,
/// times, extended attributes.
pub(crate) fn copy(from: &Path, to: &Path, owners: Owners, writers: Writers) -> Result<()> {
    let work = || -> io::Result<()> {
        rustix::fs::mkdir(to, Mode::RWXU)?;
        let mut writer = Writer::new(to, waiting_room(to), owners.are_kept())?;
        let options = ReadOptions { names_may_vanish: writers == Writers::Outside, ..owners.read_options() };
        read(from, options, &mut writer)
    };
    work().map_err(cannot(&format!("copy {} to", from.display()), to))
}

#[cfg(test)]
mod tests;
