//! Removes what the sandbox deleted from the host.

use std::ffi::OsStr;
use std::os::fd::{AsFd as _, OwnedFd};

use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::apply::{Applier, Ready, Trouble};
use super::conflict::changed_below;
use super::relative_path::RelativePath;
use super::report::ConflictReason;
use super::tree::{names_in, stat_name};

impl<'a> Applier<'a> {
    pub(super) fn remove(&mut self, ready: &Ready<'a>) -> Result<(), Trouble> {
        let path = &ready.change.path;
        let (_, name) = path.split();
        let parent = match self.open_parent(path) {
            Err(Trouble::Conflict(ConflictReason::ParentMissing)) if ready.overwrite => return Ok(()),
            result => result?,
        };
        let Some(entry) = stat_name(&parent, name).map_err(Trouble::from_call("look at it"))? else {
            return Ok(());
        };
        self.verify(parent.as_fd(), name, ready)?;
        if entry.is_directory() {
            return self.remove_directory(path, ready.overwrite);
        }
        self.unlink(parent.as_fd(), name, &entry)
    }

    /// Removes a directory with all that it holds. Unless it is to go in any case, everything is
    /// looked at before the first removal, and every file once more before its own.
    pub(super) fn remove_directory(&mut self, path: &RelativePath, in_any_case: bool) -> Result<(), Trouble> {
        if !in_any_case {
            let changed = changed_below(&self.base, path, &self.host, &self.source.cancellation)
                .map_err(Trouble::from_call("look at what it holds"))?;
            if let Some(reason) = changed {
                return Err(Trouble::Conflict(reason));
            }
        }
        let mut directories = vec![path.clone()];
        let mut next = 0;
        while next < directories.len() {
            let directory = directories[next].clone();
            next += 1;
            self.remove_files_in(&directory, in_any_case, &mut directories)?;
        }
        // Every directory comes after the one that holds it, so backwards they are empty.
        for directory in directories.iter().rev() {
            let (parent_path, name) = directory.split();
            let parent =
                self.base.open_to_change(&parent_path).map_err(Trouble::from_call("open its directory"))?;
            remove_empty(&parent, name)?;
            self.base.keep_mode(directory);
        }
        Ok(())
    }

    fn remove_files_in(
        &mut self,
        directory: &RelativePath,
        in_any_case: bool,
        directories: &mut Vec<RelativePath>,
    ) -> Result<(), Trouble> {
        let failed = Trouble::from_call("open a directory below it");
        // First for permission to change it, then to list it with that permission.
        let opened = self.base.open_to_change(directory).map_err(&failed)?;
        let names = names_in(self.base.open_to_list(directory).map_err(&failed)?).map_err(&failed)?;
        for name in names {
            self.source.cancellation.check().map_err(Trouble::from_call("go on"))?;
            let entry = stat_name(&opened, &name).map_err(Trouble::from_call("look at what it holds"))?;
            let Some(entry) = entry else { continue };
            let child = directory.child(&name).ok_or(Errno::NAMETOOLONG);
            let child = child.map_err(Trouble::from_call("remove a path longer than 4095 bytes"))?;
            if entry.is_directory() {
                directories.push(child);
                continue;
            }
            if !in_any_case && self.host.include(&entry) {
                return Err(Trouble::Conflict(ConflictReason::HostChangedBelow { count: 1, example: child }));
            }
            self.unlink(opened.as_fd(), &name, &entry)?;
        }
        Ok(())
    }
}

fn remove_empty(parent: &OwnedFd, name: &OsStr) -> Result<(), Trouble> {
    match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {
            Err(Trouble::Conflict(ConflictReason::HostChangedDuringApply))
        }
        Err(error) => Err(Trouble::from_call("remove the directory")(error)),
    }
}
