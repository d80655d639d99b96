//! Several layers as one, by the overlay's own rules: what lies higher hides what lies below.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use super::attributes::{Attributes, Status};
use super::reader::{Content, Node, Shared, Sink, read};
use super::writer::Writer;
use super::{Owners, cannot};
use leasehold_model::Result;

const OPAQUE: &[u8] = b"user.overlay.opaque";
/// Says that the overlay copied the entry up from what lies below its layer.
const ORIGIN: &[u8] = b"user.overlay.origin";
const MARKED_DELETION: &[u8] = b"user.overlay.whiteout";

/// Where a directory that a layer holds came from first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// From what lies below all layers: it may be marked as copied up.
    BelowAll,
    /// From a lower layer: to what lies below all, it is new.
    LowerLayer,
}

impl Origin {
    fn below_all_if(condition: bool) -> Self {
        if condition { Self::BelowAll } else { Self::LowerLayer }
    }
}

/// One directory on the way down.
#[derive(Debug, Clone, Copy)]
struct Level {
    /// Whether it was made for this layer, so that nothing of lower layers is in it.
    is_new: bool,
    /// Whether it hides what lies below all merged layers.
    hides: bool,
    /// Whether empty files in it may be marked as deletions.
    has_marks: bool,
    /// Where it came from first.
    origin: Origin,
}

struct Merging {
    writer: Writer,
    levels: Vec<Level>,
}

/// Merges layers, the lowest first, onto what the directory `to` holds, if it
/// exists. Deletions and the marks of directories
/// that hide what is below stay, for what lies below them all.
pub(crate) fn merge(layers: &[(PathBuf, Owners)], to: &Path) -> Result<()> {
    let work = || -> io::Result<()> {
        match rustix::fs::mkdir(to, rustix::fs::Mode::RWXU) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        for (layer, owners) in layers {
            let writer = Writer::new(to, super::waiting_room(to), owners.are_kept())?;
            let mark = |name| writer_mark(&writer, name);
            let hides = mark(OPAQUE)?.as_deref() == Some(b"y");
            let root = Level { is_new: false, hides, has_marks: false, origin: Origin::BelowAll };
            read(layer, owners.read_options(), &mut Merging { writer, levels: vec![root] })?;
        }
        Ok(())
    };
    work().map_err(cannot("merge layers into", to))
}

fn writer_mark(writer: &Writer, name: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let attributes = Status::of(writer.current())?.attributes(Some(writer.current()), 0)?;
    Ok(attributes.extended(name).map(<[u8]>::to_vec))
}

impl Merging {
    fn level(&self) -> Level {
        let root = Level { is_new: false, hides: false, has_marks: false, origin: Origin::BelowAll };
        self.levels.last().copied().unwrap_or(root)
    }

    /// Makes room for a name of this layer.
    fn replace(&self, name: &[u8]) -> io::Result<()> {
        if self.level().is_new { Ok(()) } else { self.writer.remove(name) }
    }

    fn kind(&self, name: &[u8]) -> io::Result<Option<FileType>> {
        match Status::at(self.writer.current(), name) {
            Ok(status) => Ok(Some(status.kind)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Sink for Merging {
    fn enter(&mut self, name: &[u8], attributes: &Attributes) -> io::Result<()> {
        let mark = attributes.extended(OPAQUE);
        let has_marks = mark == Some(b"x");
        let hides = mark == Some(b"y");
        let below = if self.level().is_new { None } else { self.kind(name)? };
        let level = match below {
            Some(FileType::Directory) if !hides => {
                self.writer.enter_existing(name)?;
                let hides = writer_mark(&self.writer, OPAQUE)?.as_deref() == Some(b"y");
                // What a lower layer made was copied up from there, and is new to what lies below all.
                let origin = Origin::below_all_if(writer_mark(&self.writer, ORIGIN)?.is_some());
                Level { is_new: false, hides, has_marks, origin }
            }
            below => {
                self.replace(name)?;
                self.writer.enter_new(name)?;
                // A file or a deletion below ends the way down: what lies still lower stays hidden.
                let origin = Origin::below_all_if(below.is_none());
                Level { is_new: true, hides: hides || below.is_some(), has_marks, origin }
            }
        };
        self.levels.push(level);
        Ok(())
    }

    fn leave(&mut self, attributes: &Attributes) -> io::Result<()> {
        let Some(level) = self.levels.pop() else { return Err(io::ErrorKind::InvalidData.into()) };
        let mut attributes = attributes.clone();
        // Marked deletions became plain ones.
        attributes.extended.retain(|(name, value)| name != OPAQUE || value == b"y");
        if level.origin == Origin::LowerLayer {
            attributes.extended.retain(|(name, _)| name != ORIGIN);
        }
        if level.hides && attributes.extended(OPAQUE).is_none() {
            attributes.extended.push((OPAQUE.to_vec(), b"y".to_vec()));
        }
        self.writer.leave_exactly(&attributes)
    }

    fn file(
        &mut self,
        name: &[u8],
        content: &Content<'_>,
        attributes: &Attributes,
        shared: Option<Shared>,
    ) -> io::Result<()> {
        let mut attributes = attributes.clone();
        if !self.level().is_new
            && attributes.extended(ORIGIN).is_some()
            && self.writer.made_here(name, ORIGIN)?
        {
            attributes.extended.retain(|(name, _)| name != ORIGIN);
        }
        self.replace(name)?;
        if self.level().has_marks && content.size == 0 && attributes.extended(MARKED_DELETION).is_some() {
            let plain = Attributes { mode: 0, extended: Vec::new(), ..attributes };
            return self.writer.node(name, &Node::WHITEOUT, &plain, None);
        }
        self.writer.file(name, content, &attributes, shared)
    }

    fn node(
        &mut self,
        name: &[u8],
        node: &Node,
        attributes: &Attributes,
        shared: Option<Shared>,
    ) -> io::Result<()> {
        self.replace(name)?;
        self.writer.node(name, node, attributes, shared)
    }

    fn link(&mut self, name: &[u8], number: u64) -> io::Result<()> {
        self.replace(name)?;
        self.writer.link(name, number)
    }
}
