//! Lists what an upper directory changes in its base.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use leasehold_model::{Error, ErrorKind, Result};
use rustix::io::Errno;

use super::attributes::{self, Attributes, Opacity};
use super::change::{Below, Change, ChangeKind, ChangeSet, Counts, FileType, Note, Owner, Problem};
use super::comparison::same_content;
use super::relative_path::RelativePath;
use super::tree::{Entry, ReadableFile, Restricted, Tree, names_in, stat_name};
use super::{Cancellation, ChangeSource};

const OPERATION: &str = "changes.scan";

/// Lists the changes. A place that cannot be looked at becomes a problem in the result; an error means
/// that nothing could be listed, or that the caller cancelled.
pub fn scan(source: &ChangeSource) -> Result<ChangeSet> {
    let upper = Tree::open_upper(&source.upper, OPERATION)?;
    let base = Tree::open_base(&source.base, OPERATION)?;
    let failed = |error: Errno| Error::io(OPERATION, "cannot look at the workspace directory", error.into());
    let root = base.stat(&RelativePath::root()).map_err(failed)?;
    let workspace =
        root.map_or(Owner { user: 0, group: 0 }, |root| Owner { user: root.user, group: root.group });
    let mut scanner = Scanner {
        source,
        upper,
        base,
        workspace,
        changes: Vec::new(),
        problems: Vec::new(),
        linked: HashMap::new(),
        pending: vec![Pending {
            path: RelativePath::root(),
            both: None,
            base_shows: true,
            hides_base: false,
        }],
    };
    while let Some(directory) = scanner.pending.pop() {
        source.cancellation.check_operation(OPERATION)?;
        let path = directory.path.clone();
        if let Err(error) = scanner.visit(directory) {
            if Cancellation::caused(&error) {
                return Err(Error::new(ErrorKind::Cancelled, OPERATION, "cancelled by the caller"));
            }
            if path.is_root() {
                return Err(Error::io(OPERATION, "cannot read the sandbox's changes", error));
            }
            scanner.problem(Some(path), format!("cannot be read: {error}"));
        }
    }
    Ok(scanner.finish())
}

/// An upper directory still to be visited.
struct Pending {
    path: RelativePath,
    /// What it is in the upper and in the base, when it is a directory in both.
    both: Option<(Entry, Entry)>,
    /// Whether entries of the base can exist below it.
    base_shows: bool,
    /// Whether it lies in an opaque directory, which hides the base at every depth without a mark on
    /// the directories below it.
    hides_base: bool,
}

/// One name of an upper file that has several.
struct LinkedName {
    path: RelativePath,
    entry: Entry,
    base: Option<Entry>,
    copied_up: bool,
    changed: bool,
}

struct Scanner<'a> {
    source: &'a ChangeSource,
    upper: Tree,
    base: Tree,
    workspace: Owner,
    changes: Vec<Change>,
    problems: Vec<Problem>,
    linked: HashMap<u64, Vec<LinkedName>>,
    pending: Vec<Pending>,
}

/// The two directories of one visit.
struct Sides<'a> {
    upper: BorrowedFd<'a>,
    base: Option<BorrowedFd<'a>>,
}

impl Sides<'_> {
    fn base_entry(&self, name: &OsStr) -> std::io::Result<Option<Entry>> {
        Ok(self.base.map(|base| stat_name(base, name)).transpose()?.flatten())
    }

    fn is_marked_deletion(&self, name: &OsStr, entry: &Entry, opacity: Opacity) -> std::io::Result<bool> {
        if opacity != Opacity::MarkedDeletions || entry.file_type != FileType::Regular || entry.size != 0 {
            return Ok(false);
        }
        Ok(attributes::is_marked_deletion(ReadableFile::open_in(self.upper, name, Restricted::OpenUp)?)?)
    }
}

impl Scanner<'_> {
    fn problem(&mut self, path: Option<RelativePath>, message: impl Into<String>) {
        self.problems.push(Problem { path, message: message.into() });
    }

    fn visit(&mut self, directory: Pending) -> std::io::Result<()> {
        let Pending { path, both, base_shows, hides_base } = directory;
        let upper = self.upper.open_to_list(&path)?;
        let opacity = if hides_base { Opacity::Opaque } else { attributes::opacity(&upper)? };
        let names = names_in(&upper)?;
        let base = self.open_base(&path, base_shows)?;
        let sides = Sides { upper: upper.as_fd(), base: base.as_ref().map(OwnedFd::as_fd) };
        let mut names_changed = false;
        for name in &names {
            self.source.cancellation.check()?;
            let Some(child) = path.child(name) else {
                self.problem(
                    Some(path.clone()),
                    "it holds paths longer than 4095 bytes, which are not carried",
                );
                continue;
            };
            match self.visit_name(&sides, name, &child, opacity) {
                Ok(changed) => names_changed |= changed,
                Err(error) if Cancellation::caused(&error) => return Err(error),
                Err(error) => self.problem(Some(child), format!("cannot be compared: {error}")),
            }
        }
        if opacity == Opacity::Opaque && base.is_some() {
            let present: HashSet<_> = names.iter().map(OsString::as_os_str).collect();
            for name in names_in(self.base.open_to_list(&path)?)? {
                if present.contains(name.as_os_str()) {
                    continue;
                }
                if let (Some(child), Some(base)) = (path.child(&name), sides.base_entry(&name)?) {
                    self.push_deleted(child, &base);
                    names_changed = true;
                }
            }
        }
        if let Some((entry, base_entry)) = both {
            self.compare_directory(&path, &sides, &entry, &base_entry, names_changed)?;
        }
        Ok(())
    }

    fn open_base(&self, path: &RelativePath, base_shows: bool) -> std::io::Result<Option<OwnedFd>> {
        if !base_shows {
            return Ok(None);
        }
        match self.base.open_directory(path) {
            Ok(directory) => Ok(Some(directory)),
            // It was removed or replaced since its parent was looked at.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Looks at one name; says whether the directory gained or lost a name, or one changed its type.
    fn visit_name(
        &mut self,
        sides: &Sides<'_>,
        name: &OsStr,
        path: &RelativePath,
        opacity: Opacity,
    ) -> std::io::Result<bool> {
        let Some(entry) = stat_name(sides.upper, name)? else { return Ok(false) };
        let base = sides.base_entry(name)?;
        if entry.is_whiteout() || sides.is_marked_deletion(name, &entry, opacity)? {
            if let Some(base) = &base {
                self.push_deleted(path.clone(), base);
            }
            return Ok(base.is_some());
        }
        if entry.is_directory() {
            return self.visit_directory(path, entry, base.as_ref(), opacity);
        }
        let file = match entry.file_type {
            FileType::Regular => Some(ReadableFile::open_in(sides.upper, name, Restricted::OpenUp)?),
            _ => None,
        };
        let copied_up = file.as_ref().map(attributes::is_copied_up).transpose()?.unwrap_or(false);
        let found = match &base {
            None => Some((ChangeKind::Created, Vec::new())),
            Some(base) if base.file_type != entry.file_type => Some((ChangeKind::TypeChanged, Vec::new())),
            Some(base) => self.compare(sides, name, (&entry, base), file.as_ref())?,
        };
        if entry.links > 1 && entry.file_type.can_be_carried() {
            self.linked.entry(entry.inode).or_default().push(LinkedName {
                path: path.clone(),
                entry,
                base,
                copied_up,
                changed: found.is_some(),
            });
        }
        let Some((kind, notes)) = found else { return Ok(false) };
        let mut change = self.change(path.clone(), kind, &entry, notes);
        change.copied_up = copied_up;
        self.push_with_base(change, base.as_ref());
        Ok(matches!(kind, ChangeKind::Created | ChangeKind::TypeChanged))
    }

    fn visit_directory(
        &mut self,
        path: &RelativePath,
        entry: Entry,
        base: Option<&Entry>,
        opacity_of_parent: Opacity,
    ) -> std::io::Result<bool> {
        let merged = base.filter(|base| base.is_directory());
        self.pending.push(Pending {
            path: path.clone(),
            both: merged.filter(|base| !base.mount_root).map(|base| (entry, *base)),
            base_shows: merged.is_some_and(|base| !base.mount_root),
            hides_base: opacity_of_parent == Opacity::Opaque,
        });
        if merged.is_some() {
            return Ok(false);
        }
        let kind = if base.is_some() { ChangeKind::TypeChanged } else { ChangeKind::Created };
        let mut change = self.change(path.clone(), kind, &entry, Vec::new());
        // Without its mark an upper directory is one with the base's: the base must have had it.
        let directory = self.upper.open_to_list(path)?;
        change.copied_up =
            attributes::is_copied_up(&directory)? && attributes::opacity(&directory)? != Opacity::Opaque;
        self.push_with_base(change, base);
        Ok(true)
    }

    fn compare(
        &self,
        sides: &Sides<'_>,
        name: &OsStr,
        (entry, base): (&Entry, &Entry),
        file: Option<&ReadableFile>,
    ) -> std::io::Result<Option<(ChangeKind, Vec<Note>)>> {
        let Some(base_directory) = sides.base else { return Ok(None) };
        let mut attributes_differ = false;
        match (entry.file_type, file) {
            (FileType::Regular, Some(file)) => {
                if entry.size != base.size {
                    return Ok(Some((ChangeKind::Modified, Vec::new())));
                }
                let base_file = match ReadableFile::open_in(base_directory, name, Restricted::Respect) {
                    Ok(base_file) => base_file,
                    // What can't be compared is the same when it was last written at the same nanosecond.
                    Err(Errno::ACCESS) if entry.mtime == base.mtime => {
                        let differs = self.mode_or_owner_differs(entry, base);
                        return Ok(differs.then_some((ChangeKind::MetadataChanged, Vec::new())));
                    }
                    Err(Errno::ACCESS) => return Ok(Some((ChangeKind::Modified, vec![Note::NotCompared]))),
                    Err(error) => return Err(error.into()),
                };
                if !same_content(file, &base_file, &self.source.cancellation)? {
                    return Ok(Some((ChangeKind::Modified, Vec::new())));
                }
                attributes_differ =
                    attributes::user_attributes(file)? != attributes::user_attributes(&base_file)?;
            }
            (FileType::Symlink, _) => {
                let target = |directory| rustix::fs::readlinkat(directory, name, Vec::new());
                if target(sides.upper)? != target(base_directory)? {
                    return Ok(Some((ChangeKind::Modified, Vec::new())));
                }
            }
            _ => {}
        }
        let substantial = attributes_differ || self.mode_or_owner_differs(entry, base);
        Ok(match (substantial, entry.mtime != base.mtime) {
            (true, _) => Some((ChangeKind::MetadataChanged, Vec::new())),
            (false, true) => Some((ChangeKind::MetadataChanged, vec![Note::TimesOnly])),
            (false, false) => None,
        })
    }

    fn mode_or_owner_differs(&self, entry: &Entry, base: &Entry) -> bool {
        let owner = self.source.owner_map.translate(entry.user, entry.group, self.workspace);
        entry.mode != base.mode
            || owner.is_some_and(|owner| owner != Owner { user: base.user, group: base.group })
    }

    fn compare_directory(
        &mut self,
        path: &RelativePath,
        sides: &Sides<'_>,
        entry: &Entry,
        base: &Entry,
        names_changed: bool,
    ) -> std::io::Result<()> {
        // A base directory that may not be read can't have had its attributes changed unseen.
        let of_base = |base| match attributes::user_attributes(base) {
            Err(Errno::ACCESS) => Ok(None),
            result => result.map(Some),
        };
        let of_base: Option<Attributes> = sides.base.map(of_base).transpose()?.flatten();
        let attributes_differ = match of_base {
            Some(of_base) => of_base != attributes::user_attributes(sides.upper)?,
            None => false,
        };
        // The time of a directory follows from the names in it, and from what the host did there.
        let touched =
            !names_changed && entry.mtime != base.mtime && !self.source.baseline.is_before(base.ctime);
        let substantial = attributes_differ || self.mode_or_owner_differs(entry, base);
        if substantial || touched {
            let notes = if substantial { Vec::new() } else { vec![Note::TimesOnly] };
            let change = self.change(path.clone(), ChangeKind::MetadataChanged, entry, notes);
            self.changes.push(change);
        }
        Ok(())
    }

    fn change(&self, path: RelativePath, kind: ChangeKind, entry: &Entry, mut notes: Vec<Note>) -> Change {
        if !entry.file_type.can_be_carried() {
            notes.push(Note::NotCarried);
        }
        if entry.file_type == FileType::Regular && entry.mode & 0o6000 != 0 {
            notes.push(Note::SetId);
        }
        Change {
            path,
            kind,
            file_type: entry.file_type,
            previous_type: None,
            size: entry.size,
            mode: entry.mode,
            mtime: entry.mtime,
            owner: self.source.owner_map.translate(entry.user, entry.group, self.workspace),
            same_file_as: None,
            below: None,
            copied_up: false,
            notes,
        }
    }

    fn push_with_base(&mut self, mut change: Change, base: Option<&Entry>) {
        if let Some(base) = base {
            if base.file_type != change.file_type {
                change.previous_type = Some(base.file_type);
            }
            if base.is_directory() {
                change.below = Some(self.count_below(&change.path));
            } else if base.links > 1 && change.kind == ChangeKind::Modified {
                change.notes.push(Note::OtherNamesOnHost);
            }
        }
        self.changes.push(change);
    }

    fn push_deleted(&mut self, path: RelativePath, base: &Entry) {
        let mut change = self.change(path, ChangeKind::Deleted, base, Vec::new());
        change.notes.clear();
        change.owner = None;
        if base.mount_root {
            change.notes.push(Note::MountPoint);
        } else if base.is_directory() {
            change.below = Some(self.count_below(&change.path));
        }
        self.changes.push(change);
    }

    /// Counts what a directory of the base holds; what cannot be looked at is a problem of its own.
    fn count_below(&mut self, path: &RelativePath) -> Below {
        let mut below = Below::default();
        let mut pending = vec![path.clone()];
        while let Some(directory) = pending.pop() {
            let counted = (|| -> rustix::io::Result<()> {
                let opened = self.base.open_to_list(&directory)?;
                for name in names_in(&opened)? {
                    let Some(entry) = stat_name(&opened, &name)? else { continue };
                    if entry.is_directory() {
                        below.directories += 1;
                        pending.extend(directory.child(&name));
                    } else {
                        below.files += 1;
                        below.bytes += if entry.file_type == FileType::Regular { entry.size } else { 0 };
                    }
                }
                Ok(())
            })();
            if let Err(error) = counted {
                self.problem(Some(directory), format!("cannot be counted: {error}"));
            }
        }
        below
    }

    fn finish(mut self) -> ChangeSet {
        let groups: Vec<_> = std::mem::take(&mut self.linked).into_values().collect();
        let mut same_file: HashMap<RelativePath, RelativePath> = HashMap::new();
        for mut group in groups {
            group.sort_by(|left, right| left.path.cmp(&right.path));
            // An unchanged name is there already; the others are linked to it.
            let leader = group.iter().position(|name| !name.changed).unwrap_or(0);
            let leader_path = group[leader].path.clone();
            let leader_inode = group[leader].base.map(|base| base.inode);
            for (index, name) in group.into_iter().enumerate() {
                if index == leader {
                    continue;
                }
                if !name.changed {
                    if name.base.map(|base| base.inode) == leader_inode {
                        continue;
                    }
                    // The same bytes as before, but now one file with the leader.
                    let mut change =
                        self.change(name.path.clone(), ChangeKind::Modified, &name.entry, Vec::new());
                    change.copied_up = name.copied_up;
                    self.push_with_base(change, name.base.as_ref());
                }
                same_file.insert(name.path, leader_path.clone());
            }
        }
        for change in &mut self.changes {
            change.same_file_as = same_file.remove(&change.path);
        }
        self.changes.sort_by(|left, right| left.path.cmp(&right.path));
        ChangeSet { counts: Counts::of(&self.changes), changes: self.changes, problems: self.problems }
    }
}
