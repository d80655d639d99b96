//! Random layers for tests, and what a layer looks like from outside.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::{self, File, Permissions};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};

/// One thing in a directory.
#[derive(Debug, Clone)]
pub(crate) enum Thing {
    File { pieces: Vec<(u32, Vec<u8>)>, size: u32, mode: u32, mark: Option<Vec<u8>> },
    Directory { entries: BTreeMap<Vec<u8>, Thing>, mode: u32, mark: Option<Vec<u8>>, opaque: bool },
    Symlink(Vec<u8>),
    Pipe(u32),
    Deletion,
}

/// A layer: the things in its root, the modification times that entries get in turn, and which files get
/// a second name beside the first.
#[derive(Debug, Clone)]
pub(crate) struct Tree {
    pub(crate) entries: BTreeMap<Vec<u8>, Thing>,
    pub(crate) times: Vec<(i64, u32)>,
    pub(crate) second_names: bool,
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => "[a-e]".prop_map(String::into_bytes),
        1 => proptest::collection::vec(
            any::<u8>().prop_filter("a name", |byte| !matches!(byte, 0 | b'/')), 1..20)
            .prop_filter("a name", |name| name != b"." && name != b".."),
        1 => Just(vec![b'n'; 255]),
    ]
}

fn mark() -> impl Strategy<Value = Option<Vec<u8>>> {
    proptest::option::of(proptest::collection::vec(any::<u8>(), 0..50))
}

fn leaf() -> impl Strategy<Value = Thing> {
    let piece = (0..300_000_u32, proptest::collection::vec(any::<u8>(), 1..200));
    prop_oneof![
        3 => (proptest::collection::vec(piece, 0..3), 0..400_000_u32, 0..0o10000_u32, mark())
            .prop_map(|(pieces, size, mode, mark)| Thing::File { pieces, size, mode, mark }),
        1 => proptest::collection::vec(1..=255_u8, 1..100).prop_map(Thing::Symlink),
        1 => (0..0o1000_u32).prop_map(Thing::Pipe),
        1 => Just(Thing::Deletion),
    ]
}

/// Any layer of a few dozen entries.
pub(crate) fn tree() -> impl Strategy<Value = Tree> {
    let thing = leaf().prop_recursive(4, 40, 6, |inner| {
        let entries = proptest::collection::btree_map(name(), inner, 0..6);
        (entries, 0..0o10000_u32, mark(), any::<bool>())
            .prop_map(|(entries, mode, mark, opaque)| Thing::Directory { entries, mode, mark, opaque })
    });
    let times = proptest::collection::vec((-4_000_000_000..8_000_000_000_i64, 0..1_000_000_000_u32), 1..9);
    (proptest::collection::btree_map(name(), thing, 0..8), times, any::<bool>())
        .prop_map(|(entries, times, second_names)| Tree { entries, times, second_names })
}

fn join(directory: &Path, name: &[u8]) -> PathBuf {
    directory.join(OsStr::from_bytes(name))
}

fn set_mark(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::setxattr(path, name, value, XattrFlags::empty()).unwrap();
}

/// Makes a layer at a path where nothing is.
pub(crate) fn build(tree: &Tree, root: &Path) {
    fs::create_dir(root).unwrap();
    let mut times = tree.times.iter().copied().cycle();
    fill(&tree.entries, root, None, &mut times, tree.second_names);
}

fn fill(
    entries: &BTreeMap<Vec<u8>, Thing>,
    directory: &Path,
    above: Option<&Path>,
    times: &mut impl Iterator<Item = (i64, u32)>,
    second_names: bool,
) {
    for (name, thing) in entries {
        let path = join(directory, name);
        match thing {
            Thing::File { pieces, size, mode, mark } => {
                let file = File::create(&path).unwrap();
                file.set_len(u64::from(*size)).unwrap();
                for (offset, bytes) in pieces {
                    file.write_all_at(bytes, u64::from(*offset)).unwrap();
                }
                if let Some(mark) = mark {
                    set_mark(&path, "user.mark", mark);
                }
                fs::set_permissions(&path, Permissions::from_mode(*mode)).unwrap();
            }
            Thing::Directory { entries, mark, opaque, .. } => {
                fs::create_dir(&path).unwrap();
                if let Some(mark) = mark {
                    set_mark(&path, "user.mark", mark);
                }
                if *opaque {
                    set_mark(&path, "user.overlay.opaque", b"y");
                }
                fill(entries, &path, Some(directory), times, second_names);
            }
            Thing::Symlink(target) => std::os::unix::fs::symlink(OsStr::from_bytes(target), &path).unwrap(),
            Thing::Pipe(mode) => {
                rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(*mode), 0).unwrap();
            }
            Thing::Deletion => {
                rustix::fs::mknodat(CWD, &path, FileType::CharacterDevice, Mode::empty(), 0).unwrap();
            }
        }
        if second_names && matches!(thing, Thing::File { .. } | Thing::Symlink(_) | Thing::Pipe(_)) {
            // In its own directory and in the one above it; a name that would be too long is left out.
            let second = [name.as_slice(), b"~second"].concat();
            for directory in std::iter::once(directory).chain(above) {
                let _ = rustix::fs::linkat(CWD, &path, CWD, join(directory, &second), AtFlags::empty());
            }
        }
    }
    // What is in a directory comes before its own time and mode.
    for (name, thing) in entries {
        let path = join(directory, name);
        let (seconds, nanoseconds) = times.next().unwrap();
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
            last_modification: Timespec { tv_sec: seconds, tv_nsec: i64::from(nanoseconds) },
        };
        rustix::fs::utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
        if let Thing::Directory { mode, .. } = thing {
            fs::set_permissions(&path, Permissions::from_mode(*mode)).unwrap();
        }
    }
}

/// What a layer looks like: one line an entry. Closed directories are opened for good.
pub(crate) fn look(root: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let mut groups = BTreeMap::new();
    describe(root, "", &mut lines, &mut groups);
    lines
}

fn describe(path: &Path, shown: &str, lines: &mut Vec<String>, groups: &mut BTreeMap<u64, usize>) {
    let status = path.symlink_metadata().unwrap();
    let mut line = format!(
        "{shown} {:o} {}:{} {}.{}",
        status.mode(),
        status.uid(),
        status.gid(),
        status.mtime(),
        status.mtime_nsec()
    );
    if status.is_dir() || status.is_file() {
        let openable = Permissions::from_mode(if status.is_dir() { 0o700 } else { 0o600 });
        fs::set_permissions(path, openable).unwrap();
        for name in ["user.mark", "user.overlay.opaque"] {
            let mut value = Vec::with_capacity(100);
            if rustix::fs::getxattr(path, name, rustix::buffer::spare_capacity(&mut value)).is_ok() {
                let _ = write!(line, " {name}={}", value.escape_ascii());
            }
        }
    }
    if status.is_file() {
        let content = fs::read(path).unwrap();
        let sum = content.iter().fold(0_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
        let _ = write!(line, " {} bytes {sum:x}", content.len());
    } else if status.is_symlink() {
        let _ = write!(line, " -> {}", fs::read_link(path).unwrap().as_os_str().as_bytes().escape_ascii());
    }
    if !status.is_dir() && status.nlink() > 1 {
        let next = groups.len();
        let group = groups.entry(status.ino()).or_insert(next);
        let _ = write!(line, " one of {} names of file {group}", status.nlink());
    }
    lines.push(line);
    if status.is_dir() {
        let mut names: Vec<_> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        for name in names {
            let shown = format!("{shown}/{}", name.as_bytes().escape_ascii());
            describe(&path.join(&name), &shown, lines, groups);
        }
    }
}
