//! Decides for each change whether the host stands in its way.

use std::collections::{HashMap, HashSet};

use rustix::io::Errno;

use super::baseline::{Baseline, Timestamp};
use super::change::{Change, ChangeKind, FileType};
use super::comparison::same_content;
use super::relative_path::RelativePath;
use super::report::{ConflictReason, WithheldPart};
use super::tree::{Entry, Tree, names_in, stat_name};
use super::{Cancellation, ChangeSet};

/// What the host has at the path of a change.
#[derive(Debug, Clone, Copy)]
pub(super) enum Finding {
    /// Nothing stands in the way. What is there now, to be checked again before it is replaced.
    Ready(Option<Entry>),
    /// The host has it already.
    AlreadyThere,
}

/// Why a change is not simply applied.
#[derive(Debug)]
pub(super) enum Obstacle {
    /// The host changed it, too; what is there now.
    Conflict(ConflictReason, Option<Entry>),
    /// It is never carried.
    Withheld(WithheldPart),
    /// The host or the sandbox's copy could not be looked at.
    Failed(String),
    /// The caller cancelled.
    Cancelled,
}

impl From<std::io::Error> for Obstacle {
    fn from(error: std::io::Error) -> Self {
        if Cancellation::caused(&error) {
            return Self::Cancelled;
        }
        Self::Failed(format!("cannot be checked: {error}"))
    }
}

impl From<Errno> for Obstacle {
    fn from(error: Errno) -> Self {
        std::io::Error::from(error).into()
    }
}

/// Tells the host's changes from our own.
#[derive(Debug)]
pub(super) struct HostChanges {
    baseline: Baseline,
    /// Change times that our own work gave to files with several names.
    own: HashMap<u64, Timestamp>,
}

impl HostChanges {
    pub(super) fn since(baseline: Baseline) -> Self {
        Self { baseline, own: HashMap::new() }
    }

    /// Whether the host changed this after the sandbox started.
    pub(super) fn include(&self, entry: &Entry) -> bool {
        // Looking into a directory that is closed to its owner changes its mode for a moment, and with
        // it its change time. The time of its names is left.
        let closed = entry.is_directory() && entry.mode & 0o500 != 0o500;
        let time = if closed { entry.mtime } else { entry.ctime };
        self.baseline.is_before(time) && !self.is_own(entry)
    }

    /// Whether the names in this directory changed after the sandbox started.
    pub(super) fn include_names(&self, directory: &Entry) -> bool {
        self.baseline.is_before(directory.mtime)
    }

    /// Remembers that this change time is our own doing.
    pub(super) fn exclude(&mut self, entry: &Entry) {
        self.own.insert(entry.inode, entry.ctime);
    }

    /// Whether what is there now is what was there before.
    pub(super) fn is_same(&self, before: &Entry, now: &Entry) -> bool {
        before.inode == now.inode
            && before.file_type == now.file_type
            && (before.ctime == now.ctime || self.is_own(now))
    }

    fn is_own(&self, entry: &Entry) -> bool {
        self.own.get(&entry.inode) == Some(&entry.ctime)
    }
}

/// What all checks of one set share.
pub(super) struct Checker<'a> {
    pub(super) upper: &'a Tree,
    pub(super) base: &'a Tree,
    pub(super) host: &'a HostChanges,
    pub(super) cancellation: &'a Cancellation,
    pub(super) allow_set_id: bool,
    /// Sizes and times of files that the sandbox deleted: what a renamed file was before.
    pub(super) deleted: HashSet<(u64, Timestamp)>,
    /// Directories that applying makes before it comes to what is in them.
    pub(super) planned: HashSet<RelativePath>,
}

impl Checker<'_> {
    /// Learns what the set as a whole says about its changes.
    pub(super) fn learn(&mut self, set: &ChangeSet) {
        let deleted = set.changes.iter().filter(|change| change.kind == ChangeKind::Deleted);
        self.deleted = deleted.map(|change| (change.size, change.mtime)).collect();
    }

    /// Takes it that this directory will be there.
    pub(super) fn plan(&mut self, change: &Change) {
        if change.file_type == FileType::Directory && change.kind != ChangeKind::Deleted {
            self.planned.insert(change.path.clone());
        }
    }

    /// Looks at the host for one change. Changes must come in the order of their paths.
    pub(super) fn check(&self, change: &Change) -> Result<Finding, Obstacle> {
        self.cancellation.check()?;
        if change.kind != ChangeKind::Deleted && !change.file_type.can_be_carried() {
            return Err(Obstacle::Withheld(match change.file_type {
                FileType::Socket => WithheldPart::Socket,
                _ => WithheldPart::Device,
            }));
        }
        let (parent_path, name) = change.path.split();
        let parent = match self.base.open_directory(&parent_path) {
            Ok(parent) => parent,
            Err(Errno::NOENT | Errno::NOTDIR) if change.kind == ChangeKind::Deleted => {
                return Ok(Finding::AlreadyThere);
            }
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                if self.planned.contains(&parent_path) {
                    return Ok(Finding::Ready(None));
                }
                return Err(Obstacle::Conflict(ConflictReason::ParentMissing, None));
            }
            Err(error) => return Err(error.into()),
        };
        match (change.kind, stat_name(&parent, name)?) {
            (ChangeKind::Deleted, None) => Ok(Finding::AlreadyThere),
            (ChangeKind::Deleted, Some(entry)) => self.check_removal(change, &entry, change.file_type),
            (ChangeKind::Created, None) if !self.deleted_on_host(change, &parent_path)? => {
                Ok(Finding::Ready(None))
            }
            (_, None) => Err(Obstacle::Conflict(ConflictReason::HostDeleted, None)),
            (_, Some(entry)) => self.check_replacement(change, &entry),
        }
    }

    fn check_removal(&self, change: &Change, entry: &Entry, was: FileType) -> Result<Finding, Obstacle> {
        if entry.file_type != was {
            return Err(Obstacle::Conflict(ConflictReason::HostChanged, Some(*entry)));
        }
        let reason = if entry.is_directory() {
            changed_below(self.base, &change.path, self.host, self.cancellation)?
        } else {
            self.host.include(entry).then_some(ConflictReason::HostChanged)
        };
        match reason {
            Some(reason) => Err(Obstacle::Conflict(reason, Some(*entry))),
            None => Ok(Finding::Ready(Some(*entry))),
        }
    }

    fn check_replacement(&self, change: &Change, entry: &Entry) -> Result<Finding, Obstacle> {
        if change.file_type == FileType::Directory && entry.is_directory() {
            // Names come and go in a directory without harm; another mode is a change of its own.
            let mode_changed = self.host.include(entry) && !self.host.include_names(entry);
            if change.kind == ChangeKind::MetadataChanged && mode_changed && entry.mode != change.mode {
                return Err(Obstacle::Conflict(ConflictReason::HostChanged, Some(*entry)));
            }
            return Ok(Finding::Ready(Some(*entry)));
        }
        let expected_type = change.previous_type.unwrap_or(change.file_type);
        let untouched = change.kind != ChangeKind::Created
            && entry.file_type == expected_type
            && !self.host.include(entry);
        if untouched && !entry.is_directory() {
            return Ok(Finding::Ready(Some(*entry)));
        }
        if self.is_already_there(change, entry)? {
            // An earlier apply may have withheld what this one is allowed to carry.
            let lacks_set_id =
                change.file_type == FileType::Regular && change.mode & !entry.mode & 0o6000 != 0;
            let wanted = lacks_set_id && self.allow_set_id;
            return Ok(if wanted { Finding::Ready(Some(*entry)) } else { Finding::AlreadyThere });
        }
        if change.kind == ChangeKind::TypeChanged && entry.is_directory() {
            return self.check_removal(change, entry, expected_type);
        }
        let reason = match change.kind {
            ChangeKind::Created => ConflictReason::HostCreated,
            _ => ConflictReason::HostChanged,
        };
        Err(Obstacle::Conflict(reason, Some(*entry)))
    }

    /// Whether the host made the same change itself (or it was applied before).
    fn is_already_there(&self, change: &Change, entry: &Entry) -> Result<bool, Obstacle> {
        const WITHOUT_SET_ID: u32 = 0o1777;
        if entry.file_type != change.file_type || entry.size != change.size {
            return Ok(false);
        }
        match change.file_type {
            FileType::Symlink => {
                let target = |tree: &Tree| -> rustix::io::Result<_> {
                    let (parent, name) = change.path.split();
                    rustix::fs::readlinkat(tree.open_directory(&parent)?, name, Vec::new())
                };
                Ok(target(self.upper)? == target(self.base)?)
            }
            _ if (entry.mode ^ change.mode) & WITHOUT_SET_ID != 0 => Ok(false),
            FileType::Regular => {
                let ours = self.upper.open_file(&change.path)?;
                match self.base.open_file(&change.path) {
                    Ok(theirs) => Ok(same_content(&ours, &theirs, self.cancellation)?),
                    // What can't be compared is the same when it was last written at the same nanosecond.
                    Err(Errno::ACCESS) => Ok(entry.mtime == change.mtime),
                    Err(Errno::STALE | Errno::NOENT) => Ok(false),
                    Err(error) => Err(error.into()),
                }
            }
            _ => Ok(true),
        }
    }

    /// Whether a path that the sandbox has from the workspace is gone there because the host removed
    /// it, rather than because the sandbox gave it this name.
    fn deleted_on_host(&self, change: &Change, parent: &RelativePath) -> Result<bool, Obstacle> {
        if !change.copied_up {
            return Ok(false);
        }
        if change.file_type == FileType::Directory {
            // The overlay can't rename directories of the base.
            return Ok(true);
        }
        let parent_changed = self.base.stat(parent)?.is_some_and(|parent| self.host.include(&parent));
        Ok(parent_changed && !self.deleted.contains(&(change.size, change.mtime)))
    }
}

/// Whether the host changed a directory or anything below it.
pub(super) fn changed_below(
    base: &Tree,
    path: &RelativePath,
    host: &HostChanges,
    cancellation: &Cancellation,
) -> std::io::Result<Option<ConflictReason>> {
    let mut count = 0;
    let mut example = None;
    let is_changed = |path: &RelativePath, entry: &Entry| host.include(entry) && !base.has_opened_up(path);
    let itself = base.stat(path)?.is_some_and(|entry| is_changed(path, &entry));
    let mut pending = vec![path.clone()];
    while let Some(directory) = pending.pop() {
        let opened = match base.open_to_list(&directory) {
            Err(Errno::NOENT) => continue,
            result => result?,
        };
        for name in names_in(&opened)? {
            cancellation.check()?;
            let Some(entry) = stat_name(&opened, &name)? else { continue };
            let child = directory.child(&name).ok_or(Errno::NAMETOOLONG)?;
            if is_changed(&child, &entry) {
                count += 1;
                example.get_or_insert_with(|| child.clone());
            }
            if entry.is_directory() {
                pending.push(child);
            }
        }
    }
    Ok(match example {
        Some(example) => Some(ConflictReason::HostChangedBelow { count, example }),
        None => itself.then_some(ConflictReason::HostChanged),
    })
}
