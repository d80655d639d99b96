//! What a layer becomes on disk.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};

use leasehold_local::image::{NoteReason, OwnerMap, OwnerRange, UnpackLimits, unpack_layer};
use leasehold_model::ErrorKind;
use tar::EntryType;

use crate::fixture::{Layer, MTIME, Place, is_root, unpack};

fn attribute(path: &std::path::Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 256];
    let length = rustix::fs::lgetxattr(path, name, &mut value[..]).ok()?;
    value.truncate(length);
    Some(value)
}

fn reasons(notes: &[leasehold_local::image::UnpackNote]) -> Vec<(&str, &NoteReason)> {
    notes.iter().map(|note| (note.path.as_str(), &note.reason)).collect()
}

#[test]
fn deletions_take_the_form_that_an_unprivileged_overlay_reads() {
    let place = Place::new();
    let layer = Layer::new()
        .directory("etc", 0o755)
        .file("etc/.wh.gone", b"")
        .directory("var", 0o755)
        .file("var/.wh..wh..opq", b"")
        .file("var/new", b"n")
        .file(".wh..wh.plnk", b"");
    let (tree, report) = unpack(&place, layer).unwrap();
    let whiteout = fs::symlink_metadata(tree.join("etc/gone")).unwrap();
    assert!(whiteout.file_type().is_char_device());
    assert_eq!(whiteout.rdev(), 0);
    assert_eq!(attribute(&tree.join("var"), "user.overlay.opaque").as_deref(), Some(&b"y"[..]));
    assert_eq!(attribute(&tree.join("etc"), "user.overlay.opaque"), None);
    assert!(!tree.join("etc/.wh.gone").exists() && !tree.join("var/.wh..wh..opq").exists());
    assert_eq!(reasons(&report.notes), [(".wh..wh.plnk", &NoteReason::AufsMetadataSkipped)]);
}

#[test]
fn a_whiteout_beside_its_own_replacement_hides_the_lower_one_in_either_order() {
    for whiteout_first in [true, false] {
        let place = Place::new();
        let mut layer = Layer::new();
        if whiteout_first {
            layer = layer.file(".wh.d", b"").file(".wh.f", b"");
        }
        layer = layer.directory("d", 0o755).file("d/x", b"1").file("f", b"2");
        if !whiteout_first {
            layer = layer.file(".wh.d", b"").file(".wh.f", b"");
        }
        let (tree, _) = unpack(&place, layer).unwrap();
        assert_eq!(attribute(&tree.join("d"), "user.overlay.opaque").as_deref(), Some(&b"y"[..]));
        assert_eq!(fs::read(tree.join("d/x")).unwrap(), b"1");
        assert_eq!(fs::read(tree.join("f")).unwrap(), b"2");
    }
}

#[test]
fn modes_times_links_and_kinds_are_kept() {
    let place = Place::new();
    let file =
        |layer: Layer, name: &str, mode| layer.entry(EntryType::Regular, name.as_bytes(), mode, b"", b"x");
    let mut layer =
        Layer::new().directory("./", 0o711).directory("sticky", 0o1777).directory("locked", 0o555);
    for (name, mode) in [("setuid", 0o4755), ("setgid", 0o2755), ("none", 0), ("plain", 0o640)] {
        layer = file(layer, name, mode);
    }
    layer = file(layer, "locked/inside", 0o400)
        .hard_link("hard", "setuid")
        .symlink("soft", "/etc/../no//where")
        .entry(EntryType::Fifo, b"fifo", 0o620, b"", b"")
        .full(&[("mtime", b"-1.25")], EntryType::Regular, b"old", 0o644, b"", b"")
        .full(&[("mtime", b"-100")], EntryType::Symlink, b"oldlink", 0o777, b"t", b"");
    let (tree, report) = unpack(&place, layer).unwrap();
    assert_eq!(report.notes, []);
    let mode = |name: &str| fs::symlink_metadata(tree.join(name)).unwrap().permissions().mode() & 0o7777;
    for (name, expected) in [
        ("", 0o711),
        ("sticky", 0o1777),
        ("locked", 0o555),
        ("setuid", 0o4755),
        ("none", 0),
        ("plain", 0o640),
        ("locked/inside", 0o400),
        ("fifo", 0o620),
    ] {
        assert_eq!(mode(name), expected, "{name}");
    }
    assert!(fs::symlink_metadata(tree.join("fifo")).unwrap().file_type().is_fifo());
    assert_eq!(fs::read_link(tree.join("soft")).unwrap().as_os_str(), "/etc/../no//where");
    let stat = |name: &str| fs::symlink_metadata(tree.join(name)).unwrap();
    assert_eq!(stat("hard").ino(), stat("setuid").ino());
    assert_eq!((stat("old").mtime(), stat("old").mtime_nsec()), (-2, 750_000_000));
    assert_eq!(stat("oldlink").mtime(), -100);
    // Filled after they were made, and yet with the archive's time.
    assert_eq!((stat("locked").mtime(), stat("").mtime()), (MTIME, MTIME));
}

#[test]
fn f66_names_that_are_no_text_are_kept() {
    let place = Place::new();
    let long = [b'n'; 255];
    let names: Vec<&[u8]> = vec![
        b"with space",
        b"tab\there",
        b"new\nline",
        b"\"a.py\"",
        b"-dash",
        b"%2F",
        b"caf\xC3\xA9",
        b"cafe\xCC\x81",
        b"\xFF\xFE",
        &long,
        "🦀".as_bytes(),
        b"Case",
        b"case",
        b"back\\slash",
    ];
    let mut layer = Layer::new();
    for name in &names {
        layer = layer.full(&[("path", name)], EntryType::Regular, b"short", 0o644, b"", name);
    }
    layer = layer.full(&[("linkpath", b"new\nline")], EntryType::Symlink, b"link", 0o777, b"short", b"");
    let (tree, _) = unpack(&place, layer).unwrap();
    for name in &names {
        assert_eq!(fs::read(tree.join(OsStr::from_bytes(name))).unwrap(), *name, "{}", name.escape_ascii());
    }
    assert_eq!(fs::read_link(tree.join("link")).unwrap().as_os_str().as_bytes(), b"new\nline");
    assert_eq!(fs::read_dir(&tree).unwrap().count(), names.len() + 1);
}

#[test]
fn attributes_are_set_where_they_may_be_and_noted_where_not() {
    let place = Place::new();
    let capability = [&0x0200_0001_u32.to_le_bytes()[..], &[0; 16]].concat();
    let records: &[(&str, &[u8])] = &[
        ("SCHILY.xattr.user.plain", b"a\n=\0b"),
        ("SCHILY.xattr.user.overlay.redirect", b"/etc"),
        ("SCHILY.xattr.trusted.overlay.opaque", b"y"),
        ("SCHILY.xattr.security.capability", &capability),
    ];
    let layer = Layer::new().full(records, EntryType::Regular, b"f", 0o755, b"", b"x").full(
        &[("SCHILY.xattr.user.d", b"1")],
        EntryType::Directory,
        b"d",
        0o555,
        b"",
        b"",
    );
    let (tree, report) = unpack(&place, layer).unwrap();
    assert_eq!(attribute(&tree.join("f"), "user.plain").as_deref(), Some(&b"a\n=\0b"[..]));
    assert_eq!(attribute(&tree.join("d"), "user.d").as_deref(), Some(&b"1"[..]));
    assert_eq!(attribute(&tree.join("f"), "user.overlay.redirect"), None, "it would redirect lookups");
    let skipped = |name: &str| ("f", NoteReason::AttributeSkipped(name.to_owned()));
    let noted: Vec<_> =
        reasons(&report.notes).into_iter().map(|(path, reason)| (path, reason.clone())).collect();
    assert!(
        noted.contains(&skipped("user.overlay.redirect"))
            && noted.contains(&skipped("trusted.overlay.opaque"))
    );
    let set = attribute(&tree.join("f"), "security.capability").is_some();
    assert_ne!(set, noted.contains(&skipped("security.capability")), "set, or noted as not set");
}

#[test]
fn devices_are_skipped_and_links_to_them_too() {
    let place = Place::new();
    let layer = Layer::new()
        .entry(EntryType::Char, b"dev/null", 0o666, b"", b"")
        .entry(EntryType::Block, b"dev/sda", 0o660, b"", b"")
        .hard_link("dev/zero", "dev/null")
        .entry(EntryType::new(b'V'), b"volume", 0o644, b"", b"label")
        .file("after", b"a");
    let (tree, report) = unpack(&place, layer).unwrap();
    assert_eq!(
        reasons(&report.notes),
        [
            ("dev/null", &NoteReason::DeviceSkipped),
            ("dev/sda", &NoteReason::DeviceSkipped),
            ("dev/zero", &NoteReason::LinkToSkipped),
            ("volume", &NoteReason::UnknownKindSkipped(b'V')),
        ]
    );
    assert_eq!(fs::read(tree.join("after")).unwrap(), b"a");
    assert!(!tree.join("dev").exists());
}

#[test]
fn later_entries_replace_earlier_ones_of_any_kind() {
    let place = Place::new();
    let layer = Layer::new()
        .file("a", b"1")
        .directory("b", 0o555)
        .file("b/deep/er", b"1")
        .symlink("c", "elsewhere")
        .directory("a", 0o750)
        .file("a/in", b"2")
        .file("b", b"3")
        .directory("c", 0o700)
        .file("c/in", b"4")
        .directory("c", 0o711)
        .file("d", b"5")
        .hard_link("d", "d");
    let (tree, _) = unpack(&place, layer).unwrap();
    assert_eq!(fs::read(tree.join("a/in")).unwrap(), b"2");
    assert_eq!(fs::read(tree.join("b")).unwrap(), b"3");
    assert_eq!(fs::read(tree.join("c/in")).unwrap(), b"4");
    assert_eq!(fs::read(tree.join("d")).unwrap(), b"5");
    let mode = |name: &str| fs::metadata(tree.join(name)).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode("a"), mode("c")), (0o750, 0o711));
}

#[test]
fn missing_parents_are_made_and_noted() {
    let place = Place::new();
    let (tree, report) = unpack(&place, Layer::new().file("a/b/c", b"1")).unwrap();
    assert_eq!(
        reasons(&report.notes),
        [("a", &NoteReason::ParentAssumed), ("a/b", &NoteReason::ParentAssumed)]
    );
    let metadata = fs::metadata(tree.join("a/b")).unwrap();
    assert_eq!((metadata.permissions().mode() & 0o7777, metadata.mtime()), (0o755, 0));
}

#[test]
fn holes_stay_holes_in_both_sparse_formats() {
    let place = Place::new();
    let mut old = tar::Header::new_gnu();
    old.set_entry_type(EntryType::GNUSparse);
    old.set_path("old").unwrap();
    old.set_mode(0o644);
    old.set_uid(0);
    old.set_gid(0);
    old.set_mtime(0);
    old.set_size(512);
    let fields = old.as_gnu_mut().unwrap();
    fields.sparse[0].offset.copy_from_slice(b"00004000000\0");
    fields.sparse[0].numbytes.copy_from_slice(b"00000001000\0");
    fields.realsize.copy_from_slice(b"00010000000\0");
    old.set_cksum();
    let mut map = b"1\n1048576\n512\n".to_vec();
    map.resize(512, 0);
    let new: &[(&str, &[u8])] = &[
        ("GNU.sparse.major", b"1"),
        ("GNU.sparse.minor", b"0"),
        ("GNU.sparse.name", b"new"),
        ("GNU.sparse.realsize", b"2097152"),
    ];
    let layer = Layer::new()
        .bytes(old.as_bytes())
        .bytes(&[7; 512])
        .full(new, EntryType::Regular, b"GNUSparseFile/new", 0o644, b"", &[map, vec![7; 512]].concat())
        .file("after", b"a");
    let (tree, _) = unpack(&place, layer).unwrap();
    let mut expected = vec![0; 2 << 20];
    expected[1 << 20..(1 << 20) + 512].fill(7);
    for name in ["old", "new"] {
        assert!(fs::read(tree.join(name)).unwrap() == expected, "{name}");
        assert!(fs::metadata(tree.join(name)).unwrap().blocks() * 512 < 1 << 20, "{name} has no holes");
    }
    assert_eq!(fs::read(tree.join("after")).unwrap(), b"a");
}

#[test]
fn owners_go_through_the_map_or_the_lack_of_rights_is_said() {
    let place = Place::new();
    let tree = place.join("tree");
    fs::create_dir(&tree).unwrap();
    let ranges = vec![OwnerRange { inside: 0, outside: 100_000, length: 65_536 }];
    let owners = OwnerMap::Ranges { users: ranges.clone(), groups: ranges };
    let owned: &[(&str, &[u8])] = &[("uid", b"5"), ("gid", b"6")];
    let foreign: &[(&str, &[u8])] = &[("uid", b"70000"), ("gid", b"0")];
    let archive = Layer::new()
        .full(owned, EntryType::Directory, b"d", 0o2755, b"", b"")
        .full(owned, EntryType::Regular, b"d/f", 0o4755, b"", b"x")
        .full(owned, EntryType::Symlink, b"d/l", 0o777, b"f", b"")
        .full(foreign, EntryType::Regular, b"foreign", 0o4755, b"", b"x")
        .finish();
    let result = unpack_layer(archive.as_slice(), &tree, &owners, &UnpackLimits::default());
    if !is_root() {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error:?}");
        assert!(error.hint().is_some());
        return;
    }
    let report = result.unwrap();
    let found = |name: &str| {
        let metadata = fs::symlink_metadata(tree.join(name)).unwrap();
        (metadata.uid(), metadata.gid(), metadata.mode() & 0o7777)
    };
    assert_eq!(found("d"), (100_005, 100_006, 0o2755));
    assert_eq!(found("d/f"), (100_005, 100_006, 0o4755));
    assert_eq!(found("d/l").0, 100_005);
    assert_eq!(found("foreign"), (165_534, 100_000, 0o755), "set-id bits go with the owner");
    assert_eq!(reasons(&report.notes), [("foreign", &NoteReason::OwnerUnmapped { user: 70_000, group: 0 })]);
}
