//! Puts one new or changed thing in its place on the host.

use std::ffi::OsStr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use super::apply::{Applier, Ready, Trouble};
use super::attributes::{self, DescriptorPath};
use super::change::{Change, ChangeKind, FileType, Owner};
use super::copy::copy_content;
use super::finish::Finishing;
use super::relative_path::RelativePath;
use super::report::{ConflictReason, WithheldPart};
use super::stage::Staged;
use super::tree::{Entry, stat_descriptor, stat_name};

/// Opens a name as a place only: no device is woken, no link followed.
pub(super) fn open_place(directory: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(directory, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

impl<'a> Applier<'a> {
    pub(super) fn place(&mut self, ready: &Ready<'a>) -> Result<(), Trouble> {
        let change = ready.change;
        let now = self.upper.stat(&change.path).map_err(Trouble::from_call("look at the sandbox's copy"))?;
        let as_scanned = now.is_some_and(|now| {
            now.file_type == change.file_type
                && now.mtime == change.mtime
                && (now.size == change.size || now.is_directory())
        });
        if !as_scanned {
            return Err(Trouble::Failed("the sandbox changed it after it was listed; list again".to_owned()));
        }
        let parent = self.open_parent(&change.path)?;
        if change.file_type == FileType::Directory {
            return self.place_directory(ready, &parent);
        }
        if let Some(leader) = &change.same_file_as
            && self.place_as_link(ready, leader, &parent)?
        {
            return Ok(());
        }
        let in_place = change.kind == ChangeKind::MetadataChanged
            && ready
                .expected
                .is_some_and(|there| there.file_type == change.file_type && !self.host.include(&there));
        match change.file_type {
            _ if in_place => self.adjust(ready, &parent)?,
            FileType::Regular => self.place_regular(ready, &parent)?,
            FileType::Symlink => self.place_symlink(ready, &parent)?,
            FileType::Fifo => self.place_fifo(ready, &parent)?,
            _ => return Err(Trouble::Failed(format!("a {} is never carried", change.file_type.as_str()))),
        }
        let first_name = change.same_file_as.as_ref().unwrap_or(&change.path).clone();
        self.linked.insert(first_name, change.path.clone());
        Ok(())
    }

    fn place_directory(&mut self, ready: &Ready<'a>, parent: &OwnedFd) -> Result<(), Trouble> {
        let (_, name) = ready.change.path.split();
        let failed = Trouble::from_call("make the directory");
        let mut before = stat_name(parent, name).map_err(&failed)?;
        if let Some(entry) = before.filter(|entry| !entry.is_directory()) {
            self.verify(parent.as_fd(), name, ready)?;
            self.unlink(parent.as_fd(), name, &entry)?;
            before = None;
        }
        if before.is_none() {
            match rustix::fs::mkdirat(parent, name, Mode::RWXU) {
                Ok(()) => {}
                Err(Errno::EXIST) => return Err(Trouble::Conflict(ConflictReason::HostChangedDuringApply)),
                Err(error) => return Err(failed(error)),
            }
        }
        let finishing = Finishing::target(before, ready.change);
        self.finishing.insert(ready.change.path.clone(), finishing);
        Ok(())
    }

    /// Makes a path another name of a file that is in its place already; false when that can't be done
    /// and a copy has to do.
    fn place_as_link(
        &mut self,
        ready: &Ready<'a>,
        leader: &RelativePath,
        parent: &OwnedFd,
    ) -> Result<bool, Trouble> {
        let source = match self.linked.get(leader) {
            Some(path) => path.clone(),
            None if self.changed.contains(leader) => return Ok(false),
            None => leader.clone(),
        };
        let unchanged = !self.linked.contains_key(leader);
        let (source_parent, source_name) = source.split();
        let Ok(directory) = self.base.open_directory(&source_parent) else { return Ok(false) };
        let Ok(Some(entry)) = stat_name(&directory, source_name) else { return Ok(false) };
        if entry.file_type != ready.change.file_type || (unchanged && self.host.include(&entry)) {
            return Ok(false);
        }
        if ready.expected.is_some_and(|expected| expected.inode == entry.inode) {
            return Ok(true);
        }
        let link = |name: &OsStr| rustix::fs::linkat(&directory, source_name, parent, name, AtFlags::empty());
        // Refused for files of others (`protected_hardlinks`) and beyond the largest count.
        let Ok(staged) = Staged::named(parent.as_fd(), link) else { return Ok(false) };
        let linked = staged.name().map(|name| stat_name(parent, name)).transpose();
        match linked.map_err(Trouble::from_call("look at the new link"))?.flatten() {
            Some(linked) if linked.inode == entry.inode => self.host.exclude(&linked),
            _ => return Ok(false),
        }
        self.move_in(staged, ready, parent)?;
        self.linked.insert(leader.clone(), source);
        Ok(true)
    }

    fn place_regular(&mut self, ready: &Ready<'a>, parent: &OwnedFd) -> Result<(), Trouble> {
        let change = ready.change;
        let (_, name) = change.path.split();
        let source =
            self.upper.open_file(&change.path).map_err(Trouble::from_call("open the sandbox's copy"))?;
        let staged =
            Staged::regular(parent.as_fd()).map_err(Trouble::from_call("make a file in its directory"))?;
        let Some(target) = staged.descriptor() else {
            return Err(Trouble::Failed("a new file has no descriptor".to_owned()));
        };
        let cancellation = &self.source.cancellation;
        copy_content(source.as_fd(), target, change.size, cancellation)
            .map_err(Trouble::from_call("copy its content"))?;
        self.carry_attributes(change, source.as_fd(), target, true)?;
        let replaced = ready.expected.filter(|entry| entry.file_type == FileType::Regular);
        if replaced.is_some()
            && let Ok(old) = open_place(parent.as_fd(), name)
        {
            // Not every file system has access lists; the mode bits are set below in any case.
            let _ = attributes::keep_access_list(&old, target);
        }
        self.carry_owner(change, replaced.as_ref(), target)?;
        let mode = self.permitted_mode(change, ready.expected.as_ref());
        attributes::set_mode(target, mode).map_err(Trouble::from_call("set its mode"))?;
        rustix::fs::futimens(target, &change.mtime.as_modification())
            .map_err(Trouble::from_call("set its time"))?;
        if self.options.durable {
            rustix::fs::fsync(target).map_err(Trouble::from_call("write it to the disk"))?;
        }
        self.move_in(staged, ready, parent)
    }

    fn place_symlink(&mut self, ready: &Ready<'a>, parent: &OwnedFd) -> Result<(), Trouble> {
        let (upper_parent, name) = ready.change.path.split();
        let failed = Trouble::from_call("read the sandbox's link");
        let directory = self.upper.open_directory(&upper_parent).map_err(&failed)?;
        let target = rustix::fs::readlinkat(directory, name, Vec::new()).map_err(&failed)?;
        let staged = Staged::named(parent.as_fd(), |name| rustix::fs::symlinkat(&target, parent, name))
            .map_err(Trouble::from_call("make the link"))?;
        if let Some(name) = staged.name() {
            set_link_metadata(ready.change, parent.as_fd(), name)?;
        }
        self.move_in(staged, ready, parent)
    }

    fn place_fifo(&mut self, ready: &Ready<'a>, parent: &OwnedFd) -> Result<(), Trouble> {
        let failed = Trouble::from_call("make the named pipe");
        let staged =
            Staged::named(parent.as_fd(), |name| rustix::fs::mkfifoat(parent, name, Mode::RUSR | Mode::WUSR))
                .map_err(&failed)?;
        if let Some(name) = staged.name() {
            let place = open_place(parent.as_fd(), name).map_err(&failed)?;
            if stat_descriptor(&place).map_err(&failed)?.file_type != FileType::Fifo {
                return Err(Trouble::Conflict(ConflictReason::HostChangedDuringApply));
            }
            self.set_metadata(ready, place.as_fd())?;
        }
        self.move_in(staged, ready, parent)
    }

    /// Changes the metadata of what is in place already.
    fn adjust(&mut self, ready: &Ready<'a>, parent: &OwnedFd) -> Result<(), Trouble> {
        let change = ready.change;
        let (_, name) = change.path.split();
        let place = open_place(parent.as_fd(), name).map_err(Trouble::from_call("open it"))?;
        let now = stat_descriptor(&place).map_err(Trouble::from_call("look at it"))?;
        let as_checked = ready.expected.is_some_and(|expected| self.host.is_same(&expected, &now));
        if !as_checked {
            return Err(Trouble::Conflict(ConflictReason::HostChangedDuringApply));
        }
        match change.file_type {
            FileType::Symlink => set_link_metadata(change, parent.as_fd(), name)?,
            FileType::Regular => {
                let source = self
                    .upper
                    .open_file(&change.path)
                    .map_err(Trouble::from_call("open the sandbox's copy"))?;
                self.carry_attributes(change, source.as_fd(), place.as_fd(), false)?;
                self.set_metadata(ready, place.as_fd())?;
            }
            _ => self.set_metadata(ready, place.as_fd())?,
        }
        if let Ok(after) = stat_descriptor(&place) {
            self.host.exclude(&after);
        }
        Ok(())
    }

    fn set_metadata(&mut self, ready: &Ready<'a>, place: BorrowedFd<'_>) -> Result<(), Trouble> {
        let change = ready.change;
        self.carry_owner(change, ready.expected.as_ref(), place)?;
        let mode = self.permitted_mode(change, ready.expected.as_ref());
        attributes::set_mode(place, mode).map_err(Trouble::from_call("set its mode"))?;
        let path = DescriptorPath::of(place);
        let times = change.mtime.as_modification();
        rustix::fs::utimensat(rustix::fs::CWD, path.as_path(), &times, AtFlags::empty())
            .map_err(Trouble::from_call("set its time"))
    }

    fn carry_attributes(
        &mut self,
        change: &Change,
        source: BorrowedFd<'_>,
        target: BorrowedFd<'_>,
        target_is_new: bool,
    ) -> Result<(), Trouble> {
        let wanted = attributes::user_attributes(source)
            .map_err(Trouble::from_call("read the attributes of the sandbox's copy"))?;
        if target_is_new && wanted.is_empty() {
            return Ok(());
        }
        match attributes::set_user_attributes(target, &wanted) {
            Ok(()) => Ok(()),
            Err(Errno::NOTSUP | Errno::NOSPC | Errno::TOOBIG | Errno::RANGE | Errno::ACCESS) => {
                self.withhold(&change.path, WithheldPart::ExtendedAttributes);
                Ok(())
            }
            Err(error) => Err(Trouble::from_call("set its attributes")(error)),
        }
    }

    /// Gives a file to the owner that the sandbox meant, else to the one that the host's file had.
    pub(super) fn carry_owner(
        &mut self,
        change: &Change,
        replaced: Option<&Entry>,
        target: BorrowedFd<'_>,
    ) -> Result<(), Trouble> {
        let before = replaced.map(|entry| Owner { user: entry.user, group: entry.group });
        let Some(wanted) = change.owner.or(before) else { return Ok(()) };
        let now = stat_descriptor(target).map_err(Trouble::from_call("look at it"))?;
        if wanted == (Owner { user: now.user, group: now.group }) {
            return Ok(());
        }
        match attributes::set_owner(target, wanted.user, wanted.group) {
            Err(Errno::PERM | Errno::INVAL) => {
                self.withhold(&change.path, WithheldPart::Owner);
                Ok(())
            }
            result => result.map_err(Trouble::from_call("set its owner")),
        }
    }

    /// Moves a finished file into its place, after a last look at what is there.
    fn move_in(
        &mut self,
        mut staged: Staged<'_>,
        ready: &Ready<'a>,
        parent: &OwnedFd,
    ) -> Result<(), Trouble> {
        let (_, name) = ready.change.path.split();
        let failed = Trouble::from_call("move it into its place");
        let there = stat_name(parent, name).map_err(&failed)?;
        let Some(there) = there else {
            if ready.expected.is_some() && !ready.overwrite {
                return Err(Trouble::Conflict(ConflictReason::HostChangedDuringApply));
            }
            return match staged.move_to_free(name) {
                Err(Errno::EXIST) => Err(Trouble::Conflict(ConflictReason::HostChangedDuringApply)),
                result => result.map_err(failed),
            };
        };
        if there.is_directory() {
            self.verify(parent.as_fd(), name, ready)?;
            self.remove_directory(&ready.change.path, ready.overwrite)?;
            return staged.move_to_free(name).map_err(failed);
        }
        let old = (there.links > 1).then(|| open_place(parent.as_fd(), name)).transpose().map_err(&failed)?;
        staged.make_visible().map_err(&failed)?;
        self.verify(parent.as_fd(), name, ready)?;
        staged.move_over(name).map_err(failed)?;
        self.exclude_other_names(old.as_ref());
        Ok(())
    }

    /// Checks that a name still is what it was when all changes were checked.
    pub(super) fn verify(
        &self,
        parent: BorrowedFd<'_>,
        name: &OsStr,
        ready: &Ready<'_>,
    ) -> Result<(), Trouble> {
        if ready.overwrite {
            return Ok(());
        }
        let now = stat_name(parent, name).map_err(Trouble::from_call("look at it"))?;
        let same = match (&ready.expected, &now) {
            (None, None) => true,
            (Some(expected), Some(now)) => {
                self.host.is_same(expected, now)
                    || (expected.inode == now.inode && self.base.has_opened_up(&ready.change.path))
            }
            _ => false,
        };
        if same { Ok(()) } else { Err(Trouble::Conflict(ConflictReason::HostChangedDuringApply)) }
    }

    /// Removes one name, remembering what that does to the file's other names.
    pub(super) fn unlink(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &OsStr,
        entry: &Entry,
    ) -> Result<(), Trouble> {
        let failed = Trouble::from_call("remove it");
        let old = (entry.links > 1).then(|| open_place(parent, name)).transpose().map_err(&failed)?;
        rustix::fs::unlinkat(parent, name, AtFlags::empty()).map_err(&failed)?;
        self.exclude_other_names(old.as_ref());
        Ok(())
    }

    fn exclude_other_names(&mut self, old: Option<&OwnedFd>) {
        if let Some(Ok(after)) = old.map(stat_descriptor) {
            self.host.exclude(&after);
        }
    }
}

fn set_link_metadata(change: &Change, parent: BorrowedFd<'_>, name: &OsStr) -> Result<(), Trouble> {
    if let Some(owner) = change.owner {
        let (user, group) = (Some(Uid::from_raw(owner.user)), Some(Gid::from_raw(owner.group)));
        rustix::fs::chownat(parent, name, user, group, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(Trouble::from_call("set its owner"))?;
    }
    let times = change.mtime.as_modification();
    rustix::fs::utimensat(parent, name, &times, AtFlags::SYMLINK_NOFOLLOW)
        .map_err(Trouble::from_call("set its time"))
}
