//! Any tree: to an archive, through unpacking, and compared.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use tar::EntryType;

use crate::fixture::{Layer, Place, unpack};

#[derive(Debug, Clone, PartialEq)]
enum Node {
    File { data: Vec<u8>, mode: u32, seconds: i64, nanoseconds: u32 },
    Symlink(Vec<u8>),
    Directory { mode: u32, seconds: i64, children: BTreeMap<Vec<u8>, Node> },
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>().prop_filter("not in names", |byte| !matches!(byte, 0 | b'/')), 1..24)
        .prop_filter("special", |name| name != b"." && name != b".." && !name.starts_with(b".wh."))
}

fn node() -> impl Strategy<Value = Node> {
    let seconds = -2_000_000_000_i64..4_000_000_000;
    let file =
        (prop::collection::vec(any::<u8>(), 0..2_000), 0..0o2000_u32, seconds.clone(), 0..1_000_000_000_u32)
            .prop_map(|(data, mode, seconds, nanoseconds)| Node::File { data, mode, seconds, nanoseconds });
    let symlink = prop::collection::vec(1..=255_u8, 1..150).prop_map(Node::Symlink);
    prop_oneof![4 => file, 1 => symlink].prop_recursive(4, 40, 6, move |inner| {
        (0..0o2000_u32, seconds.clone(), prop::collection::btree_map(name(), inner, 0..6))
            .prop_map(|(mode, seconds, children)| Node::Directory { mode, seconds, children })
    })
}

fn time(seconds: i64, nanoseconds: u32) -> String {
    if seconds >= 0 || nanoseconds == 0 {
        return format!("{seconds}.{nanoseconds:09}");
    }
    format!("-{}.{:09}", -(seconds + 1), 1_000_000_000 - nanoseconds)
}

fn write(mut layer: Layer, path: &[u8], node: &Node) -> Layer {
    match node {
        Node::File { data, mode, seconds, nanoseconds } => {
            let time = time(*seconds, *nanoseconds);
            let records: &[(&str, &[u8])] = &[("path", path), ("mtime", time.as_bytes())];
            layer.full(records, EntryType::Regular, b"short", *mode, b"", data)
        }
        Node::Symlink(target) => {
            layer.full(&[("path", path), ("linkpath", target)], EntryType::Symlink, b"short", 0o777, b"", b"")
        }
        Node::Directory { mode, seconds, children } => {
            let time = time(*seconds, 0);
            let records: &[(&str, &[u8])] = &[("path", path), ("mtime", time.as_bytes())];
            layer = layer.full(records, EntryType::Directory, b"short", *mode, b"", b"");
            for (name, child) in children {
                layer = write(layer, &[path, b"/", name].concat(), child);
            }
            layer
        }
    }
}

/// Reads a tree back, making what its modes forbid readable on the way.
fn read(path: &Path) -> Node {
    let metadata = fs::symlink_metadata(path).unwrap();
    let mode = metadata.mode() & 0o7777;
    let open = |bits| fs::set_permissions(path, fs::Permissions::from_mode(bits)).unwrap();
    if metadata.is_symlink() {
        return Node::Symlink(fs::read_link(path).unwrap().into_os_string().into_vec());
    }
    if metadata.is_file() {
        open(0o600);
        let nanoseconds = u32::try_from(metadata.mtime_nsec()).unwrap();
        return Node::File { data: fs::read(path).unwrap(), mode, seconds: metadata.mtime(), nanoseconds };
    }
    open(0o700);
    let children = fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().as_bytes().to_vec(), read(&entry.path())))
        .collect();
    Node::Directory { mode, seconds: metadata.mtime(), children }
}

/// The other side: the archives of the tool that everybody has.
#[test]
fn what_gnu_tar_writes_in_any_format_comes_out_as_it_went_in() {
    let place = Place::new();
    let source = place.join("source");
    fs::create_dir_all(source.join("deep/er")).unwrap();
    let long = "long-name-".repeat(20);
    let longer = source.join("deep").join(&long).join(&long);
    fs::create_dir_all(&longer).unwrap();
    fs::write(longer.join(&long), "long").unwrap();
    fs::write(source.join("deep/er/file"), vec![3; 70_000]).unwrap();
    std::os::unix::fs::symlink(longer.join("target"), source.join("link")).unwrap();
    fs::hard_link(source.join("deep/er/file"), source.join("hard")).unwrap();
    let sparse = fs::File::create(source.join("sparse")).unwrap();
    sparse.set_len(4 << 20).unwrap();
    for piece in 0..30 {
        std::os::unix::fs::FileExt::write_all_at(&sparse, b"data", piece * 131_072 + 5).unwrap();
    }
    sparse.set_modified(std::time::SystemTime::UNIX_EPOCH - std::time::Duration::from_secs(7)).unwrap();
    fs::set_permissions(source.join("deep/er"), fs::Permissions::from_mode(0o555)).unwrap();

    for format in ["--format=gnu", "--format=oldgnu", "--format=posix"] {
        for version in ["0.0", "0.1", "1.0"] {
            let output = std::process::Command::new("tar")
                .args([format, "--sparse", "--sparse-version", version, "-c", "-C"])
                .arg(&source)
                .arg(".")
                .output()
                .unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let place = Place::new();
            let (tree, report) = unpack(&place, Layer::new().bytes(&output.stdout)).unwrap();
            assert_eq!(report.notes, []);
            assert!(
                fs::metadata(tree.join("sparse")).unwrap().blocks() * 512 < 2 << 20,
                "{format} {version}"
            );
            let inode = |path: &str| fs::metadata(tree.join(path)).unwrap().ino();
            assert_eq!(inode("hard"), inode("deep/er/file"));
            // Only the PAX format keeps fractions of seconds.
            let found = whole_seconds(read(&tree));
            // Reading changes modes, so what is compared against is read from a copy.
            let copy = place.join("copy");
            let status = std::process::Command::new("cp").arg("-a").args([&source, &copy]).status().unwrap();
            assert!(status.success());
            assert!(found == whole_seconds(read(&copy)), "{format} {version}");
        }
    }
}

fn whole_seconds(node: Node) -> Node {
    match node {
        Node::File { data, mode, seconds, .. } => Node::File { data, mode, seconds, nanoseconds: 0 },
        Node::Directory { mode, seconds, children } => {
            let children = children.into_iter().map(|(name, child)| (name, whole_seconds(child))).collect();
            Node::Directory { mode, seconds, children }
        }
        link @ Node::Symlink(_) => link,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_tree_comes_out_as_it_went_in(children in prop::collection::btree_map(name(), node(), 0..6)) {
        let place = Place::new();
        let mut layer = Layer::new();
        for (name, child) in &children {
            layer = write(layer, name, child);
        }
        let (tree, report) = unpack(&place, layer).unwrap();
        prop_assert_eq!(report.notes, vec![]);
        let Node::Directory { children: found, .. } = read(&tree) else { panic!("no directory") };
        prop_assert_eq!(found, children);
    }

    #[test]
    fn no_bytes_crash_the_reader_or_leave_the_tree(bytes in prop::collection::vec(any::<u8>(), 0..3_000), path in name()) {
        let place = Place::new();
        let layer = Layer::new().entry(EntryType::new(bytes.first().copied().unwrap_or(0)), &path, 0o644, &bytes[..bytes.len().min(90)], &bytes);
        let _ = unpack(&place, layer.bytes(&bytes));
        let outside: Vec<OsString> = fs::read_dir(place.join(".")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        prop_assert_eq!(outside, vec![PathBuf::from("tree").into_os_string()]);
    }
}
