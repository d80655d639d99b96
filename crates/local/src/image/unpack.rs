//! Unpacking one layer's tar archive into a directory, in the overlay's own form.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::rc::Rc;

use leasehold_model::{Error, ErrorKind, Result};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, linkat, makedev, mkdirat, mknodat, openat, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;

use super::confine::{self, EntryPath, LayerRoot, WORKING_MODE, failed, hostile};
use super::limits::UnpackLimits;
use super::metadata::{Applier, Metadata};
use super::note::{NoteReason, UnpackReport};
use super::owner::OwnerMap;
use super::tarball::{Entry, EntryKind, Streamed, Tarball};
use super::whiteout::{self, Marker, Placed};
use crate::removal;

/// What one remembered path costs beside its bytes, about.
const PER_ENTRY: usize = 128;

/// Longer targets are refused by the kernel.
const LINK_BYTES: usize = 4_095;

/// Unpacks a layer (a tar archive, not compressed) into an empty directory that exists.
///
/// Blocking, and plain: a helper inside a user namespace can run it where the ids of the owner map
/// are to be had. Whatever the archive holds, nothing outside `destination` is touched. Modes and
/// times of directories are set last, so an unwritable directory can still be filled. On an error
/// the directory is left half full: remove it with [`crate::removal::remove_tree`].
pub fn unpack_layer(
    reader: impl Read,
    destination: &Path,
    owners: &OwnerMap,
    limits: &UnpackLimits,
) -> Result<UnpackReport> {
    owners.check()?;
    confine::check_kernel()?;
    let mut unpacker = Unpacker {
        root: LayerRoot::open(destination)?,
        applier: Applier { owners, limits },
        directories: BTreeMap::new(),
        hidden: HashSet::new(),
        skipped: HashSet::new(),
        report: UnpackReport::default(),
        memory: Memory(limits.memory_bytes),
        buffer: vec![0; 128 << 10],
    };
    let mut tarball = Tarball::new(Streamed(reader), limits.header_bytes);
    while let Some(entry) = tarball.next()? {
        unpacker.entry(entry, &mut tarball)?;
    }
    unpacker.finish()
}

struct Unpacker<'run> {
    root: LayerRoot,
    applier: Applier<'run>,
    /// What each directory gets at the end.
    directories: BTreeMap<EntryPath, Metadata>,
    /// Paths whose lower counterpart is hidden by a whiteout.
    hidden: HashSet<EntryPath>,
    /// Entries left out, to which hard links may point.
    skipped: HashSet<EntryPath>,
    report: UnpackReport,
    memory: Memory,
    buffer: Vec<u8>,
}

/// What may still be remembered of a layer until its end.
struct Memory(usize);

impl Memory {
    fn take(&mut self, bytes: usize) -> Result<()> {
        match self.0.checked_sub(bytes + PER_ENTRY) {
            Some(left) => {
                self.0 = left;
                Ok(())
            }
            None => Err(Error::new(
                ErrorKind::LimitExceeded,
                "image.unpack",
                "the paths of the layer's directories and deletions need too much memory",
            )
            .with_hint("raise the limit if the image is to be trusted")),
        }
    }
}

impl Unpacker<'_> {
    fn entry<R: Read>(&mut self, mut entry: Entry, tarball: &mut Tarball<Streamed<R>>) -> Result<()> {
        count(&mut self.report, self.applier.limits)?;
        let path = EntryPath::parse(&entry.path, "its path", self.applier.limits)?;
        if path.is_root() {
            if entry.kind != EntryKind::Directory {
                return Err(hostile(&entry.path, "the root of a layer is a directory"));
            }
            self.directories.insert(path, Metadata::of(&mut entry));
            return Ok(());
        }
        match Marker::of(path.name()) {
            Marker::None => {}
            Marker::Aufs => {
                self.report.note(path.as_bytes(), NoteReason::AufsMetadataSkipped);
                return Ok(());
            }
            Marker::Bad => return Err(hostile(&entry.path, "it is a whiteout of nothing")),
            Marker::Opaque => {
                let directory = self.parent(&path)?;
                return whiteout::make_opaque(directory.as_fd(), path.parent().as_bytes());
            }
            Marker::Hides(name) => return self.hide(&path.parent().join(name)),
        }
        match entry.kind {
            EntryKind::Directory => self.directory(path, Metadata::of(&mut entry)),
            EntryKind::File => self.file(&path, &mut entry, tarball),
            EntryKind::Symlink => self.symlink(&path, &mut entry),
            EntryKind::HardLink => self.hard_link(path, &entry),
            EntryKind::Fifo => self.fifo(&path, &mut entry),
            EntryKind::Device => self.skip(path, NoteReason::DeviceSkipped),
            EntryKind::Unknown(kind) => self.skip(path, NoteReason::UnknownKindSkipped(kind)),
        }
    }

    /// Leaves an entry out, which later hard links to it must know.
    fn skip(&mut self, path: EntryPath, reason: NoteReason) -> Result<()> {
        self.report.note(path.as_bytes(), reason);
        self.memory.take(path.as_bytes().len())?;
        self.skipped.insert(path);
        Ok(())
    }

    /// The directory that holds an entry, made where the archive left it out.
    fn parent(&mut self, path: &EntryPath) -> Result<Rc<OwnedFd>> {
        let Self { root, directories, report, applier, memory, .. } = self;
        root.directory_or_make(&path.parent(), path, |made| {
            count(report, applier.limits)?;
            report.note(made.as_bytes(), NoteReason::ParentAssumed);
            memory.take(made.as_bytes().len())?;
            directories.insert(made.clone(), Metadata::assumed());
            Ok(())
        })
    }

    fn directory(&mut self, path: EntryPath, metadata: Metadata) -> Result<()> {
        let parent = self.parent(&path)?;
        match mkdirat(&*parent, path.name(), WORKING_MODE) {
            Ok(()) => {}
            Err(Errno::EXIST) => {
                let stat = statat(&*parent, path.name(), AtFlags::SYMLINK_NOFOLLOW)
                    .map_err(|error| failed("cannot examine", &path, error))?;
                if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
                    self.clear(&parent, &path)?;
                    mkdirat(&*parent, path.name(), WORKING_MODE)
                        .map_err(|error| failed("cannot make the directory", &path, error))?;
                }
            }
            Err(error) => return Err(failed("cannot make the directory", &path, error)),
        }
        if self.hidden.contains(&path) {
            self.opaque(&path)?;
        }
        self.memory.take(path.as_bytes().len() + metadata.attribute_bytes())?;
        self.directories.insert(path, metadata);
        Ok(())
    }

    fn file<R: Read>(
        &mut self,
        path: &EntryPath,
        entry: &mut Entry,
        tarball: &mut Tarball<Streamed<R>>,
    ) -> Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = self.make(path, "cannot make the file", |parent, name| {
            openat(parent, name, flags, Mode::RUSR | Mode::WUSR)
        })?;
        let file = File::from(file);
        let writing = |error: std::io::Error| {
            let error = Error::io(
                "image.unpack",
                format!("cannot write the file `{}`", path.as_bytes().escape_ascii()),
                error,
            );
            if error.kind() == ErrorKind::LimitExceeded {
                return error.with_hint("free space where the image store is");
            }
            error
        };
        let whole = [(0, entry.size)];
        let pieces = entry.sparse.as_ref().map_or(&whole[..], |map| &map.pieces);
        for (offset, length) in pieces {
            let (mut offset, mut left) = (*offset, *length);
            while left > 0 {
                let want = usize::try_from(left).unwrap_or(usize::MAX).min(self.buffer.len());
                let read = tarball.read(&mut self.buffer[..want])?;
                if read == 0 {
                    return Err(hostile(&entry.path, "its data ends early"));
                }
                file.write_all_at(&self.buffer[..read], offset).map_err(writing)?;
                offset += read as u64;
                left -= read as u64;
                self.report.bytes += read as u64;
            }
        }
        if entry.sparse.is_some() {
            file.set_len(entry.size).map_err(writing)?;
        }
        self.applier.apply(file.as_fd(), path, &Metadata::of(entry), &mut self.report)
    }

    fn symlink(&mut self, path: &EntryPath, entry: &mut Entry) -> Result<()> {
        let target = std::mem::take(&mut entry.link);
        if target.is_empty() || target.len() > LINK_BYTES || target.contains(&0) {
            return Err(hostile(&entry.path, "its link target is empty, too long or holds a NUL byte"));
        }
        self.make(path, "cannot make the symbolic link", |parent, name| {
            symlinkat(target.as_slice(), parent, name)
        })?;
        let parent = self.parent(path)?;
        self.applier.apply_to_symlink(parent.as_fd(), path, &Metadata::of(entry), &mut self.report)
    }

    fn hard_link(&mut self, path: EntryPath, entry: &Entry) -> Result<()> {
        let target = EntryPath::parse(&entry.link, "its link target", self.applier.limits)?;
        if target.is_root() {
            return Err(hostile(&entry.path, "its link target is a directory"));
        }
        if self.skipped.contains(&target) {
            return self.skip(path, NoteReason::LinkToSkipped);
        }
        let missing = || hostile(&entry.path, "its link target is not in the archive before it");
        let Some(directory) = self.root.directory(&target.parent(), &path)? else { return Err(missing()) };
        let stat = match statat(&*directory, target.name(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Err(missing()),
            Err(error) => return Err(failed("cannot examine the link target", &target, error)),
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile | FileType::Symlink | FileType::Fifo => {}
            _ => return Err(hostile(&entry.path, "its link target is no file")),
        }
        if target == path {
            return Ok(());
        }
        self.make(&path, "cannot make the hard link", |parent, name| {
            linkat(&*directory, target.name(), parent, name, AtFlags::empty())
        })
    }

    fn fifo(&mut self, path: &EntryPath, entry: &mut Entry) -> Result<()> {
        let mode = Mode::RUSR | Mode::WUSR;
        self.make(path, "cannot make the FIFO", |parent, name| {
            mknodat(parent, name, FileType::Fifo, mode, makedev(0, 0))
        })?;
        let parent = self.parent(path)?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fifo = openat(&*parent, path.name(), flags, Mode::empty())
            .map_err(|error| failed("cannot open the FIFO", path, error))?;
        self.applier.apply(fifo.as_fd(), path, &Metadata::of(entry), &mut self.report)
    }

    /// Makes something that is no directory, in the place of whatever the layer had there.
    fn make<T>(
        &mut self,
        path: &EntryPath,
        what: &str,
        mut call: impl FnMut(&OwnedFd, &[u8]) -> rustix::io::Result<T>,
    ) -> Result<T> {
        let parent = self.parent(path)?;
        self.skipped.remove(path);
        match call(&parent, path.name()) {
            Err(Errno::EXIST) => {
                self.clear(&parent, path)?;
                call(&parent, path.name()).map_err(|error| failed(what, path, error))
            }
            result => result.map_err(|error| failed(what, path, error)),
        }
    }

    /// Removes what an earlier entry of this layer, or a whiteout, put at a path.
    fn clear(&mut self, parent: &OwnedFd, path: &EntryPath) -> Result<()> {
        match unlinkat(parent, path.name(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::ISDIR) => {}
            Err(error) => return Err(failed("cannot replace", path, error)),
        }
        self.root.forget();
        removal::remove_at(parent.as_fd(), path.name())?;
        // A replaced directory takes its contents along.
        let prefix = [path.as_bytes(), b"/"].concat();
        let gone = |known: &EntryPath| known == path || known.as_bytes().starts_with(&prefix);
        self.directories.retain(|known, _| !gone(known));
        self.hidden.retain(|known| known == path || !gone(known));
        Ok(())
    }

    fn hide(&mut self, path: &EntryPath) -> Result<()> {
        let parent = self.parent(path)?;
        if whiteout::place(parent.as_fd(), path.name())? == Placed::DirectoryThere {
            self.opaque(path)?;
        }
        self.memory.take(path.as_bytes().len())?;
        self.hidden.insert(path.clone());
        Ok(())
    }

    fn opaque(&mut self, path: &EntryPath) -> Result<()> {
        let Some(directory) = self.root.directory(path, path)? else {
            return Err(failed("cannot find the directory", path, Errno::NOENT));
        };
        whiteout::make_opaque(directory.as_fd(), path.as_bytes())
    }

    /// Sets what directories get, the inner ones first: after its turn one may no longer be entered.
    fn finish(mut self) -> Result<UnpackReport> {
        self.directories.entry(EntryPath::root()).or_insert_with(Metadata::assumed);
        while let Some((path, metadata)) = self.directories.pop_last() {
            let Some(directory) = self.root.directory(&path, &path)? else {
                return Err(failed("cannot find the directory", &path, Errno::NOENT));
            };
            self.applier.apply(directory.as_fd(), &path, &metadata, &mut self.report)?;
        }
        Ok(self.report)
    }
}

fn count(report: &mut UnpackReport, limits: &UnpackLimits) -> Result<()> {
    report.entries += 1;
    if report.entries > limits.entries {
        return Err(Error::new(
            ErrorKind::LimitExceeded,
            "image.unpack",
            format!("the layer has more than {} entries", limits.entries),
        )
        .with_hint("raise the limit if the image is to be trusted"));
    }
    Ok(())
}
