//! Writes changes as a patch in git's extended format.

use std::fs::File;
use std::io::{self, Read as _, Write};
use std::os::fd::AsFd as _;

use leasehold_model::{Error, ErrorKind, Result};
use rustix::io::Errno;

use super::change::{Change, ChangeKind, ChangeSet, FileType, Problem};
use super::hunk::{is_text, write_hunks};
use super::quoting::quoted;
use super::relative_path::RelativePath;
use super::tree::{Tree, names_in};
use super::{Cancellation, ChangeSource};

const OPERATION: &str = "changes.diff";

/// How a patch is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiffOptions {
    /// Larger files (in bytes) are only said to differ. Two such files are in memory at most.
    pub largest: u64,
    /// Unchanged lines around each change.
    pub context_lines: usize,
}

impl Default for DiffOptions {
    fn default() -> Self {
        Self { largest: 8 * 1024 * 1024, context_lines: 3 }
    }
}

/// Writes the changes as a patch that `git apply` takes, file by file. What git has no words for
/// (directories, times, pipes) is left out. A file that cannot be read is a problem in the result; an
/// error means that the writer failed or that the caller cancelled.
pub fn diff(
    source: &ChangeSource,
    set: &ChangeSet,
    options: &DiffOptions,
    writer: &mut dyn Write,
) -> Result<Vec<Problem>> {
    let mut patch = Patch {
        upper: Tree::open_upper(&source.upper, OPERATION)?,
        base: Tree::open_base(&source.base, OPERATION)?,
        options,
        cancellation: &source.cancellation,
        writer,
        problems: Vec::new(),
    };
    for change in &set.changes {
        patch.write_change(change).map_err(|error| {
            if Cancellation::caused(&error) {
                return Error::new(ErrorKind::Cancelled, OPERATION, "cancelled by the caller");
            }
            Error::io(OPERATION, "cannot write the patch", error)
        })?;
    }
    Ok(patch.problems)
}

/// One side of a file's difference.
struct Side {
    /// As git has it: a type and whether it can be executed.
    mode: u32,
    /// `None`: too large to show.
    content: Option<Vec<u8>>,
}

const GIT_SYMLINK: u32 = 0o120_000;

struct Patch<'a> {
    upper: Tree,
    base: Tree,
    options: &'a DiffOptions,
    cancellation: &'a Cancellation,
    writer: &'a mut dyn Write,
    problems: Vec<Problem>,
}

impl Patch<'_> {
    fn write_change(&mut self, change: &Change) -> io::Result<()> {
        self.cancellation.check()?;
        let was = change.previous_type.unwrap_or(change.file_type);
        let replaced = matches!(change.kind, ChangeKind::Deleted | ChangeKind::TypeChanged);
        if replaced && was == FileType::Directory {
            self.write_deletions_below(&change.path)?;
        }
        let old = match change.kind {
            ChangeKind::Created => Ok(None),
            _ => self.side(&self.base, &change.path),
        };
        let new = match change.kind {
            ChangeKind::Deleted => Ok(None),
            _ => self.side(&self.upper, &change.path),
        };
        match (old, new) {
            (Ok(old), Ok(new)) => self.write_file(&change.path, old.as_ref(), new.as_ref()),
            (Err(error), _) | (_, Err(error)) => {
                self.problem(&change.path, error);
                Ok(())
            }
        }
    }

    fn problem(&mut self, path: &RelativePath, error: Errno) {
        let message = format!("cannot be read: {}", io::Error::from(error));
        self.problems.push(Problem { path: Some(path.clone()), message });
    }

    /// Deletes every file below a directory of the base, in the order of their paths.
    fn write_deletions_below(&mut self, path: &RelativePath) -> io::Result<()> {
        let mut pending = vec![path.clone()];
        while let Some(next) = pending.pop() {
            self.cancellation.check()?;
            let listed = self.list_if_directory(&next);
            match listed {
                Ok(Some(children)) => pending.extend(children.into_iter().rev()),
                Ok(None) => match self.side(&self.base, &next) {
                    Ok(old) => self.write_file(&next, old.as_ref(), None)?,
                    Err(error) => self.problem(&next, error),
                },
                Err(error) => self.problem(&next, error),
            }
        }
        Ok(())
    }

    fn list_if_directory(&self, path: &RelativePath) -> rustix::io::Result<Option<Vec<RelativePath>>> {
        let Some(entry) = self.base.stat(path)? else { return Ok(None) };
        if !entry.is_directory() {
            return Ok(None);
        }
        let names = names_in(self.base.open_to_list(path)?)?;
        Ok(Some(names.iter().filter_map(|name| path.child(name)).collect()))
    }

    /// What git sees of a path: files and symbolic links.
    fn side(&self, tree: &Tree, path: &RelativePath) -> rustix::io::Result<Option<Side>> {
        let Some(entry) = tree.stat(path)? else { return Ok(None) };
        match entry.file_type {
            FileType::Symlink => {
                let (parent, name) = path.split();
                let target = rustix::fs::readlinkat(tree.open_directory(&parent)?, name, Vec::new())?;
                Ok(Some(Side { mode: GIT_SYMLINK, content: Some(target.into_bytes()) }))
            }
            FileType::Regular => {
                let mode = if entry.mode & 0o100 == 0 { 0o100_644 } else { 0o100_755 };
                let content = if entry.size > self.options.largest { None } else { self.read(tree, path)? };
                Ok(Some(Side { mode, content }))
            }
            _ => Ok(None),
        }
    }

    fn read(&self, tree: &Tree, path: &RelativePath) -> rustix::io::Result<Option<Vec<u8>>> {
        let file = tree.open_file(path)?;
        let failed = |error: io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        let descriptor = file.as_fd().try_clone_to_owned().map_err(failed)?;
        let mut content = Vec::new();
        File::from(descriptor).take(self.options.largest + 1).read_to_end(&mut content).map_err(failed)?;
        Ok((content.len() as u64 <= self.options.largest).then_some(content))
    }

    fn write_file(&mut self, path: &RelativePath, old: Option<&Side>, new: Option<&Side>) -> io::Result<()> {
        let is_link = |side: &Side| side.mode == GIT_SYMLINK;
        if let (Some(before), Some(after)) = (old, new) {
            let same_content = match (&before.content, &after.content) {
                (Some(before), Some(after)) => before == after,
                _ => self.same_large(path)?,
            };
            if same_content && before.mode == after.mode {
                return Ok(());
            }
            // Without object names git can't know that a hunk is about a link, so a link is made anew.
            if is_link(before) || is_link(after) {
                self.write_file(path, old, None)?;
                return self.write_file(path, None, new);
            }
            self.write_header(path, old, new)?;
            return if same_content { Ok(()) } else { self.write_content(path, old, new) };
        }
        if old.is_none() && new.is_none() {
            return Ok(());
        }
        self.write_header(path, old, new)?;
        let is_empty = old.or(new).and_then(|side| side.content.as_ref()).is_some_and(Vec::is_empty);
        if is_empty { Ok(()) } else { self.write_content(path, old, new) }
    }

    fn same_large(&mut self, path: &RelativePath) -> io::Result<bool> {
        let (upper, base) = (self.upper.open_file(path)?, self.base.open_file(path)?);
        super::comparison::same_content(&upper, &base, self.cancellation)
    }

    fn write_header(
        &mut self,
        path: &RelativePath,
        old: Option<&Side>,
        new: Option<&Side>,
    ) -> io::Result<()> {
        writeln!(self.writer, "diff --git {} {}", prefixed(b"a/", path), prefixed(b"b/", path))?;
        match (old, new) {
            (None, Some(new)) => writeln!(self.writer, "new file mode {:o}", new.mode),
            (Some(old), None) => writeln!(self.writer, "deleted file mode {:o}", old.mode),
            (Some(old), Some(new)) if old.mode != new.mode => {
                writeln!(self.writer, "old mode {:o}\nnew mode {:o}", old.mode, new.mode)
            }
            _ => Ok(()),
        }
    }

    fn write_content(
        &mut self,
        path: &RelativePath,
        old: Option<&Side>,
        new: Option<&Side>,
    ) -> io::Result<()> {
        let name = |side: Option<&Side>, prefix: &[u8]| match side {
            Some(_) => prefixed(prefix, path),
            None => "/dev/null".to_owned(),
        };
        let (old_name, new_name) = (name(old, b"a/"), name(new, b"b/"));
        let text = |side: Option<&Side>| -> Option<Vec<u8>> {
            let Some(side) = side else { return Some(Vec::new()) };
            side.content.clone().filter(|content| is_text(content))
        };
        match (text(old), text(new)) {
            (Some(before), Some(after)) => {
                writeln!(self.writer, "--- {}", with_end(old_name))?;
                writeln!(self.writer, "+++ {}", with_end(new_name))?;
                write_hunks(&before, &after, self.options.context_lines, self.writer)
            }
            _ => writeln!(self.writer, "Binary files {old_name} and {new_name} differ"),
        }
    }
}

fn prefixed(prefix: &[u8], path: &RelativePath) -> String {
    quoted(&[prefix, path.as_bytes()].concat())
}

/// A name with a space in it gets a tab behind it, so that readers know where it ends.
fn with_end(mut name: String) -> String {
    if name.contains(' ') && !name.starts_with('"') {
        name.push('\t');
    }
    name
}
