//! Paths of archive entries, and reaching them without ever leaving the layer.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;

use leasehold_model::{Error, ErrorKind, Result};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, mkdirat, open, openat2};
use rustix::io::Errno;

use super::limits::UnpackLimits;

/// The longest name of one file that Linux file systems take.
const NAME_BYTES: usize = 255;

/// The mode of a directory while its layer is being unpacked; its own comes last.
pub(super) const WORKING_MODE: Mode = Mode::RWXU;

/// A checked, relative path in a layer, without `.` or doubled slashes. Empty is the layer's root.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct EntryPath(Vec<u8>);

impl EntryPath {
    /// Checks a path as the archive has it. `what` says whose path it is, for the message.
    pub(super) fn parse(raw: &[u8], what: &str, limits: &UnpackLimits) -> Result<Self> {
        let refuse = |why: &str| Err(hostile(raw, &format!("{what} {why}")));
        if raw.is_empty() {
            return refuse("is empty");
        }
        if raw[0] == b'/' {
            return refuse("is absolute");
        }
        if raw.contains(&0) {
            return refuse("holds a NUL byte");
        }
        if raw.len() > limits.path_bytes {
            return refuse("is too long");
        }
        let mut path = Vec::with_capacity(raw.len());
        let mut depth = 0;
        for component in raw.split(|byte| *byte == b'/') {
            match component {
                b"" | b"." => continue,
                b".." => return refuse("climbs with `..`"),
                long if long.len() > NAME_BYTES => return refuse("has a name of more than 255 bytes"),
                _ => {}
            }
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(component);
            depth += 1;
        }
        if depth > limits.depth {
            return refuse("is too deep");
        }
        Ok(Self(path))
    }

    /// The layer's root.
    pub(super) fn root() -> Self {
        Self(Vec::new())
    }

    pub(super) fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The last component; empty for the root.
    pub(super) fn name(&self) -> &[u8] {
        self.0.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
    }

    /// The directory that holds it.
    pub(super) fn parent(&self) -> Self {
        let end = self.0.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        Self(self.0[..end].to_vec())
    }

    /// The path of `name` in this directory.
    pub(super) fn join(&self, name: &[u8]) -> Self {
        if self.is_root() { Self(name.to_vec()) } else { Self([&self.0, name].join(&b'/')) }
    }

    /// Each directory above it, from the outermost, itself last.
    fn prefixes(&self) -> impl Iterator<Item = Self> {
        let ends = self.0.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(index, _)| index);
        ends.chain((!self.is_root()).then_some(self.0.len())).map(|end| Self(self.0[..end].to_vec()))
    }
}

/// An entry that cannot be meant well, or that this system cannot hold.
pub(super) fn hostile(path: &[u8], why: &str) -> Error {
    Error::invalid("image.unpack", format!("the archive entry `{}` is refused: {why}", path.escape_ascii()))
        .with_hint("the image is malformed or hostile; rebuild it")
}

/// The directory that a layer is unpacked into.
pub(super) struct LayerRoot {
    root: Rc<OwnedFd>,
    /// The directory used last: archives list a directory's files one after the other.
    last: Option<(EntryPath, Rc<OwnedFd>)>,
}

impl LayerRoot {
    pub(super) fn open(destination: &Path) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let root = open(destination, flags, Mode::empty()).map_err(|error| {
            Error::io(
                "image.unpack",
                format!("cannot open the directory {} to unpack into", destination.display()),
                error.into(),
            )
        })?;
        Ok(Self { root: Rc::new(root), last: None })
    }

    /// Opens a directory of the layer; `None` when there is none. `entry` is named when the way
    /// there leads through a symbolic link or a file.
    pub(super) fn directory(&mut self, path: &EntryPath, entry: &EntryPath) -> Result<Option<Rc<OwnedFd>>> {
        if path.is_root() {
            return Ok(Some(Rc::clone(&self.root)));
        }
        if let Some((last, descriptor)) = &self.last
            && last == path
        {
            return Ok(Some(Rc::clone(descriptor)));
        }
        match beneath(&self.root, path.as_bytes()) {
            Ok(descriptor) => {
                let descriptor = Rc::new(descriptor);
                self.last = Some((path.clone(), Rc::clone(&descriptor)));
                Ok(Some(descriptor))
            }
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::LOOP | Errno::XDEV) => {
                Err(hostile(entry.as_bytes(), "its way leads through a symbolic link"))
            }
            Err(Errno::NOTDIR) => Err(hostile(entry.as_bytes(), "its way leads through a file")),
            Err(error) => Err(failed("cannot open a directory of the layer", path, error)),
        }
    }

    /// Opens a directory of the layer, making those that are missing; each made one is told to `made`.
    pub(super) fn directory_or_make(
        &mut self,
        path: &EntryPath,
        entry: &EntryPath,
        mut made: impl FnMut(&EntryPath) -> Result<()>,
    ) -> Result<Rc<OwnedFd>> {
        if let Some(found) = self.directory(path, entry)? {
            return Ok(found);
        }
        let mut above = Rc::clone(&self.root);
        for prefix in path.prefixes() {
            if let Some(found) = self.directory(&prefix, entry)? {
                above = found;
                continue;
            }
            made(&prefix)?;
            mkdirat(&*above, prefix.name(), WORKING_MODE)
                .map_err(|error| failed("cannot make the directory", &prefix, error))?;
            above = self
                .directory(&prefix, entry)?
                .ok_or_else(|| failed("a directory vanished while unpacking:", &prefix, Errno::NOENT))?;
        }
        Ok(above)
    }

    /// Forgets the directory used last, because it may be gone.
    pub(super) fn forget(&mut self) {
        self.last = None;
    }
}

fn beneath(root: &OwnedFd, path: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    openat2(root.as_fd(), path, flags, Mode::empty(), resolve)
}

/// An error of a system call on an entry.
pub(super) fn failed(what: &str, path: &EntryPath, error: Errno) -> Error {
    let shown = path.as_bytes().escape_ascii();
    let error = Error::io("image.unpack", format!("{what} `{shown}`"), error.into());
    match error.kind() {
        ErrorKind::LimitExceeded => error.with_hint("free space where the image store is"),
        _ => error,
    }
}

/// Whether the kernel resolves paths as unpacking needs it (Linux 5.6, and no filter in the way).
pub(super) fn check_kernel() -> Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match openat2(CWD, ".", flags, Mode::empty(), ResolveFlags::BENEATH) {
        Err(error @ (Errno::NOSYS | Errno::PERM)) => Err(Error::unsupported(
            "image.unpack",
            "this system has no openat2, which unpacking images needs",
        )
        .with_source(std::io::Error::from(error))
        .with_hint("use Linux 5.6 or later, and a container runtime whose filter allows openat2")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(raw: &[u8]) -> Result<EntryPath> {
        EntryPath::parse(raw, "its path", &UnpackLimits::default())
    }

    #[test]
    fn paths_are_normalised() {
        for (raw, expected) in [(&b"./a//b/./c/"[..], &b"a/b/c"[..]), (b"./", b""), (b".", b""), (b"a", b"a")]
        {
            assert_eq!(parse(raw).unwrap().as_bytes(), expected);
        }
        let path = parse(b"a/b/c").unwrap();
        assert_eq!((path.name(), path.parent().as_bytes()), (&b"c"[..], &b"a/b"[..]));
        assert!(parse(b"a").unwrap().parent().is_root());
        let prefixes: Vec<_> = path.prefixes().map(|prefix| prefix.0).collect();
        assert_eq!(prefixes, [&b"a"[..], b"a/b", b"a/b/c"]);
        assert_eq!(parse(b"a").unwrap().join(b"b").as_bytes(), b"a/b");
    }

    #[test]
    fn paths_that_lead_out_or_cannot_exist_are_refused() {
        let long = [b'a'; 256];
        let deep = b"a/".repeat(257);
        for bad in [&b""[..], b"/a", b"..", b"a/../b", b"a/..", b"a\0b", &long, &deep, &b"a/".repeat(3000)] {
            let error = parse(bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{}", bad.escape_ascii());
        }
        assert!(parse(&long[..255]).is_ok());
    }
}
