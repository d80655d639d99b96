//! Gives directories their final modes and times, after everything in them is in place.

use std::os::fd::AsFd as _;

use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::apply::{Applier, Trouble};
use super::attributes::{self, DescriptorPath};
use super::baseline::Timestamp;
use super::change::{Change, ChangeKind};
use super::relative_path::RelativePath;
use super::report::WithheldPart;
use super::tree::Entry;

/// A directory that was written to.
#[derive(Debug)]
pub(super) struct Finishing<'a> {
    /// What it was on the host; `None` when it is new.
    before: Option<Entry>,
    /// What it is to become, when it is a change itself.
    target: Option<&'a Change>,
}

impl<'a> Finishing<'a> {
    /// A directory in which something changes.
    pub(super) fn visited(before: Entry) -> Self {
        Self { before: Some(before), target: None }
    }

    /// A directory that changes itself.
    pub(super) fn target(before: Option<Entry>, change: &'a Change) -> Self {
        Self { before, target: Some(change) }
    }
}

impl Applier<'_> {
    pub(super) fn finish_directories(&mut self) {
        // Backwards, so that what is inside comes before what may close the way to it.
        while let Some((path, finishing)) = self.finishing.pop_last() {
            if let Err(trouble) = self.finish_directory(&path, &finishing) {
                let message = match trouble {
                    Trouble::Failed(message) => message,
                    Trouble::Conflict(reason) => reason.to_string(),
                    Trouble::Cancelled => continue,
                };
                self.fail(&path, message);
            }
        }
    }

    fn finish_directory(&mut self, path: &RelativePath, finishing: &Finishing<'_>) -> Result<(), Trouble> {
        let directory = match self.base.open_directory(path) {
            // Gone again: it was deleted itself, or the host moved it away.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
            result => result.map_err(Trouble::from_call("open the directory"))?,
        };
        if self.options.durable {
            let listed = self.base.open_to_list(path).map_err(Trouble::from_call("open the directory"))?;
            rustix::fs::fsync(listed).map_err(Trouble::from_call("write the directory to the disk"))?;
        }
        if let Some(change) = finishing.target {
            let upper =
                self.upper.open_to_list(path).map_err(Trouble::from_call("open the sandbox's directory"))?;
            let wanted = attributes::user_attributes(&upper)
                .map_err(Trouble::from_call("read the attributes of the sandbox's directory"))?;
            if attributes::set_user_attributes(directory.as_fd(), &wanted).is_err() {
                self.withhold(path, WithheldPart::ExtendedAttributes);
            }
            self.carry_owner(change, finishing.before.as_ref(), directory.as_fd())?;
            // Before the mode: afterwards the way through /proc may be closed to its owner.
            self.set_directory_time(path, finishing)?;
            attributes::set_mode(directory.as_fd(), change.mode)
                .map_err(Trouble::from_call("set its mode"))?;
            self.base.keep_mode(path);
            return Ok(());
        }
        self.set_directory_time(path, finishing)
    }

    fn set_directory_time(&self, path: &RelativePath, finishing: &Finishing<'_>) -> Result<(), Trouble> {
        let Some(time) = self.time_of(path, finishing) else { return Ok(()) };
        let directory = self.base.open_directory(path).map_err(Trouble::from_call("open the directory"))?;
        let place = DescriptorPath::of(directory.as_fd());
        rustix::fs::utimensat(rustix::fs::CWD, place.as_path(), &time.as_modification(), AtFlags::empty())
            .map_err(Trouble::from_call("set the time of the directory"))
    }

    /// The time that a directory gets: the sandbox's, unless the host changed names in it meanwhile.
    fn time_of(&self, path: &RelativePath, finishing: &Finishing<'_>) -> Option<Timestamp> {
        if finishing
            .before
            .is_some_and(|before| self.host.include(&before) && self.host.include_names(&before))
        {
            return None;
        }
        if let Some(change) = finishing.target {
            return Some(change.mtime);
        }
        let before = finishing.before.map(|before| before.mtime);
        if path.is_root() && !self.root_names_changed {
            // The upper's own root was made by us, its time means nothing yet.
            return before;
        }
        match self.upper.stat(path) {
            Ok(Some(upper)) if upper.is_directory() => Some(upper.mtime),
            _ => before,
        }
    }

    /// Notes when a name of the workspace directory itself comes or goes.
    pub(super) fn note_names(&mut self, change: &Change) {
        let names_change =
            matches!(change.kind, ChangeKind::Created | ChangeKind::Deleted | ChangeKind::TypeChanged);
        self.root_names_changed |= names_change && change.path.split().0.is_root();
    }
}
