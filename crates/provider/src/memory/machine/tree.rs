//! A file tree in memory: what a file system is, without a disk.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

/// The longest name of one file, in bytes, as on Linux.
const LONGEST_NAME: usize = 255;

/// How many links one path may go through, as on Linux.
const MOST_LINKS: usize = 40;

/// A file that is not data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::memory) enum Device {
    Null,
    Zero,
    Random,
}

#[derive(Debug, Clone)]
pub(in crate::memory) enum Kind {
    File(Vec<u8>),
    Device(Device),
    Directory(BTreeMap<OsString, Arc<Inode>>),
    Symlink(PathBuf),
}

#[derive(Debug, Clone)]
pub(in crate::memory) struct Attributes {
    pub(in crate::memory) kind: Kind,
    pub(in crate::memory) mode: u32,
    pub(in crate::memory) modified: SystemTime,
}

/// One file. It lives as long as a name or an open descriptor holds it.
#[derive(Debug)]
pub(in crate::memory) struct Inode(Mutex<Attributes>);

impl Inode {
    fn new(kind: Kind, mode: u32) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Attributes { kind, mode, modified: SystemTime::now() })))
    }

    pub(in crate::memory) fn lock(&self) -> MutexGuard<'_, Attributes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_directory(&self) -> bool {
        matches!(self.lock().kind, Kind::Directory(_))
    }

    fn child(&self, name: &OsStr) -> io::Result<Option<Arc<Self>>> {
        match &self.lock().kind {
            Kind::Directory(children) => Ok(children.get(name).cloned()),
            _ => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    /// A copy of everything below, sharing nothing.
    fn deep_copy(&self) -> Arc<Self> {
        let mut copy = self.lock().clone();
        if let Kind::Directory(children) = &mut copy.kind {
            for child in children.values_mut() {
                *child = child.deep_copy();
            }
        }
        Arc::new(Self(Mutex::new(copy)))
    }

    fn stored(&self) -> u64 {
        match &self.lock().kind {
            Kind::File(bytes) => bytes.len() as u64,
            Kind::Directory(children) => children.values().map(|child| child.stored()).sum(),
            _ => 0,
        }
    }
}

/// Where a path leads.
struct Place {
    /// The directories above, the root first.
    above: Vec<(OsString, Arc<Inode>)>,
    /// The last name; `None` for the root itself.
    name: Option<OsString>,
    inode: Option<Arc<Inode>>,
}

impl Place {
    fn parent(&self) -> io::Result<(&Arc<Inode>, &OsString)> {
        match (&self.name, self.above.last()) {
            (Some(name), Some((_, parent))) => Ok((parent, name)),
            _ => Err(io::ErrorKind::ResourceBusy.into()),
        }
    }

    fn existing(&self) -> io::Result<&Arc<Inode>> {
        self.inode.as_ref().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn attach(&self, inode: Arc<Inode>) -> io::Result<()> {
        let (parent, name) = self.parent()?;
        let mut parent = parent.lock();
        let Kind::Directory(children) = &mut parent.kind else {
            return Err(io::ErrorKind::NotADirectory.into());
        };
        children.insert(name.clone(), inode);
        parent.modified = SystemTime::now();
        Ok(())
    }

    fn detach(&self) -> io::Result<()> {
        let (parent, name) = self.parent()?;
        let mut parent = parent.lock();
        if let Kind::Directory(children) = &mut parent.kind {
            children.remove(name);
        }
        parent.modified = SystemTime::now();
        Ok(())
    }
}

/// A whole file system. Changes of names are serialized by its lock.
#[derive(Debug)]
pub(in crate::memory) struct Tree {
    root: Arc<Inode>,
    names: Mutex<()>,
    limit: Option<u64>,
}

fn full() -> io::Error {
    io::ErrorKind::StorageFull.into()
}

impl Tree {
    pub(in crate::memory) fn new(limit: Option<u64>) -> Self {
        Self { root: Inode::new(Kind::Directory(BTreeMap::new()), 0o755), names: Mutex::new(()), limit }
    }

    /// An independent copy with a limit of its own.
    pub(in crate::memory) fn copy(&self, limit: Option<u64>) -> Self {
        let _held = self.hold();
        Self { root: self.root.deep_copy(), names: Mutex::new(()), limit }
    }

    fn hold(&self) -> MutexGuard<'_, ()> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn walk(&self, from: &Path, path: &Path, follow: bool) -> io::Result<Place> {
        if path.as_os_str().as_bytes().contains(&0) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if path.as_os_str().is_empty() {
            return Err(io::ErrorKind::NotFound.into());
        }
        // The names still to go, the next one last.
        let mut rest: Vec<OsString> = Vec::new();
        let push = |rest: &mut Vec<OsString>, path: &Path| {
            let names = path.components().rev().filter_map(|component| match component {
                Component::Normal(name) => Some(name.to_owned()),
                Component::ParentDir => Some("..".into()),
                _ => None,
            });
            rest.extend(names);
        };
        push(&mut rest, path);
        if path.is_relative() {
            push(&mut rest, from);
        }
        let mut stack = vec![(OsString::new(), Arc::clone(&self.root))];
        let mut links = 0;
        while let Some(name) = rest.pop() {
            let directory =
                stack.last().map_or_else(|| Arc::clone(&self.root), |(_, inode)| Arc::clone(inode));
            if !directory.is_directory() {
                return Err(io::ErrorKind::NotADirectory.into());
            }
            if name == ".." {
                if stack.len() > 1 {
                    stack.pop();
                }
                continue;
            }
            if name.len() > LONGEST_NAME {
                return Err(io::ErrorKind::InvalidFilename.into());
            }
            let child = directory.child(&name)?;
            let last = rest.is_empty();
            match child {
                None if last => return Ok(Place { above: stack, name: Some(name), inode: None }),
                None => return Err(io::ErrorKind::NotFound.into()),
                Some(child) => {
                    let target = match &child.lock().kind {
                        Kind::Symlink(target) if !last || follow => Some(target.clone()),
                        _ => None,
                    };
                    match target {
                        Some(target) => {
                            links += 1;
                            if links > MOST_LINKS {
                                return Err(io::ErrorKind::InvalidInput.into());
                            }
                            if target.is_absolute() {
                                stack.truncate(1);
                            }
                            push(&mut rest, &target);
                        }
                        None => stack.push((name, child)),
                    }
                }
            }
        }
        let (name, inode) = stack.pop().unwrap_or_else(|| (OsString::new(), Arc::clone(&self.root)));
        let name = (!stack.is_empty()).then_some(name);
        Ok(Place { above: stack, name, inode: Some(inode) })
    }

    /// The file at a path.
    pub(in crate::memory) fn open(&self, from: &Path, path: &Path, follow: bool) -> io::Result<Arc<Inode>> {
        self.walk(from, path, follow)?.existing().map(Arc::clone)
    }

    /// The path of a directory, with no links and no dots in it.
    pub(in crate::memory) fn directory(&self, from: &Path, path: &Path) -> io::Result<PathBuf> {
        let place = self.walk(from, path, true)?;
        if !place.existing()?.is_directory() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        let names =
            place.above.iter().map(|(name, _)| name).chain(&place.name).filter(|name| !name.is_empty());
        Ok(Path::new("/").join(names.collect::<PathBuf>()))
    }

    /// The regular file at a path, made when there is none.
    pub(in crate::memory) fn open_or_make(
        &self,
        from: &Path,
        path: &Path,
        mode: u32,
    ) -> io::Result<Arc<Inode>> {
        let _held = self.hold();
        let place = self.walk(from, path, true)?;
        if let Some(inode) = &place.inode {
            if inode.is_directory() {
                return Err(io::ErrorKind::IsADirectory.into());
            }
            return Ok(Arc::clone(inode));
        }
        let inode = Inode::new(Kind::File(Vec::new()), mode);
        place.attach(Arc::clone(&inode))?;
        Ok(inode)
    }

    /// Puts a new content in the place of the old at once; the last link is followed.
    pub(in crate::memory) fn replace(
        &self,
        from: &Path,
        path: &Path,
        bytes: Vec<u8>,
        mode: u32,
    ) -> io::Result<()> {
        let _held = self.hold();
        let place = self.walk(from, path, true)?;
        let (mut mode, mut old) = (mode, 0);
        if let Some(inode) = &place.inode {
            if inode.is_directory() {
                return Err(io::ErrorKind::IsADirectory.into());
            }
            mode = inode.lock().mode;
            old = inode.stored();
        }
        self.reserve((bytes.len() as u64).saturating_sub(old))?;
        place.attach(Inode::new(Kind::File(bytes), mode))
    }

    /// Writes into an open file, at its end when `at` is `None`; answers where the write ended.
    pub(in crate::memory) fn write_at(
        &self,
        inode: &Inode,
        at: Option<u64>,
        bytes: &[u8],
    ) -> io::Result<u64> {
        let mut attributes = inode.lock();
        let Kind::File(content) = &mut attributes.kind else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let start = at.map_or(Ok(content.len()), usize::try_from).map_err(|_| full())?;
        let end = start.checked_add(bytes.len()).ok_or_else(full)?;
        if end > content.len() {
            let more = (end - content.len()) as u64;
            if self.limit.is_some() {
                // The sum needs this file's own lock.
                drop(attributes);
                self.reserve(more)?;
                attributes = inode.lock();
            }
        }
        let Kind::File(content) = &mut attributes.kind else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        if end > content.len() {
            content.resize(end, 0);
        }
        content[start..end].copy_from_slice(bytes);
        attributes.modified = SystemTime::now();
        Ok(end as u64)
    }

    /// Empties a regular file.
    #[expect(clippy::unused_self, reason = "the tree is what changes its files")]
    pub(in crate::memory) fn truncate(&self, inode: &Inode) {
        let mut attributes = inode.lock();
        if let Kind::File(content) = &mut attributes.kind {
            content.clear();
            attributes.modified = SystemTime::now();
        }
    }

    fn reserve(&self, more: u64) -> io::Result<()> {
        match self.limit {
            Some(limit) if self.root.stored().saturating_add(more) > limit => Err(full()),
            _ => Ok(()),
        }
    }

    /// The names in a directory with their files, sorted.
    pub(in crate::memory) fn list(
        &self,
        from: &Path,
        path: &Path,
    ) -> io::Result<Vec<(OsString, Arc<Inode>)>> {
        let inode = self.open(from, path, true)?;
        let attributes = inode.lock();
        match &attributes.kind {
            Kind::Directory(children) => {
                Ok(children.iter().map(|(name, child)| (name.clone(), Arc::clone(child))).collect())
            }
            _ => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    pub(in crate::memory) fn make_directory(
        &self,
        from: &Path,
        path: &Path,
        mode: u32,
        parents: bool,
    ) -> io::Result<()> {
        let _held = self.hold();
        if parents {
            for above in path.ancestors().skip(1).collect::<Vec<_>>().into_iter().rev() {
                if above.as_os_str().is_empty() || above == Path::new("/") {
                    continue;
                }
                let place = self.walk(from, above, true)?;
                if place.inode.is_none() {
                    place.attach(Inode::new(Kind::Directory(BTreeMap::new()), 0o755))?;
                }
            }
        }
        let place = self.walk(from, path, false)?;
        match &place.inode {
            None => place.attach(Inode::new(Kind::Directory(BTreeMap::new()), mode)),
            Some(inode) if parents && inode.is_directory() => Ok(()),
            Some(_) => Err(io::ErrorKind::AlreadyExists.into()),
        }
    }

    fn make(&self, from: &Path, path: &Path, kind: Kind, mode: u32) -> io::Result<()> {
        let _held = self.hold();
        let place = self.walk(from, path, false)?;
        if place.inode.is_some() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        place.attach(Inode::new(kind, mode))
    }

    pub(in crate::memory) fn make_symlink(&self, from: &Path, path: &Path, target: &Path) -> io::Result<()> {
        if target.as_os_str().is_empty() || target.as_os_str().as_bytes().contains(&0) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.make(from, path, Kind::Symlink(target.to_owned()), 0o777)
    }

    pub(in crate::memory) fn make_device(&self, path: &Path, device: Device) -> io::Result<()> {
        self.make(Path::new("/"), path, Kind::Device(device), 0o666)
    }

    pub(in crate::memory) fn remove(&self, from: &Path, path: &Path, recursive: bool) -> io::Result<()> {
        let _held = self.hold();
        let place = self.walk(from, path, false)?;
        if let Kind::Directory(children) = &place.existing()?.lock().kind
            && !children.is_empty()
            && !recursive
        {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        place.detach()
    }

    pub(in crate::memory) fn rename(&self, from: &Path, old: &Path, new: &Path) -> io::Result<()> {
        let _held = self.hold();
        let source = self.walk(from, old, false)?;
        let moved = Arc::clone(source.existing()?);
        let target = self.walk(from, new, false)?;
        if target.above.iter().any(|(_, above)| Arc::ptr_eq(above, &moved)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if let Some(replaced) = &target.inode {
            if Arc::ptr_eq(replaced, &moved) {
                return Ok(());
            }
            match (moved.is_directory(), &replaced.lock().kind) {
                (true, Kind::Directory(children)) if !children.is_empty() => {
                    return Err(io::ErrorKind::DirectoryNotEmpty.into());
                }
                (true, Kind::Directory(_)) => {}
                (true, _) => return Err(io::ErrorKind::NotADirectory.into()),
                (false, Kind::Directory(_)) => return Err(io::ErrorKind::IsADirectory.into()),
                (false, _) => {}
            }
        }
        source.detach()?;
        target.attach(moved)
    }
}
