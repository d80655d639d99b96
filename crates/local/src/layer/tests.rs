use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use proptest::prelude::*;
use rustix::fs::{CWD, FileType, XattrFlags};

use super::sample::{build, look, tree};
use super::*;

fn place() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("leasehold-layer-").tempdir_in("/var/tmp").unwrap()
}

fn delete(path: &Path) {
    rustix::fs::mknodat(CWD, path, FileType::CharacterDevice, Mode::empty(), 0).unwrap();
}

fn make_opaque(path: &Path) {
    rustix::fs::setxattr(path, "user.overlay.opaque", b"y", XattrFlags::empty()).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_copy_is_the_layer_again_and_leaves_it_as_it_was(tree in tree()) {
        let place = place();
        let [from, to, reference] = ["from", "to", "reference"].map(|name| place.path().join(name));
        build(&tree, &from);
        build(&tree, &reference);
        let owners = if rustix::process::geteuid().is_root() { Owners::Kept } else { Owners::Caller };
        copy(&from, &to, owners, Writers::None).unwrap();
        let expected = look(&reference);
        prop_assert_eq!(&look(&to)[1..], &expected[1..]);
        prop_assert_eq!(&look(&from)[1..], &expected[1..]);
        // Nothing is left beside it.
        prop_assert_eq!(fs::read_dir(place.path()).unwrap().count(), 3);
        crate::removal::remove_tree(place.path()).unwrap();
    }
}

#[test]
fn holes_stay_holes() {
    let place = place();
    let from = place.path().join("from");
    fs::create_dir(&from).unwrap();
    let file = fs::File::create(from.join("sparse")).unwrap();
    file.set_len(1 << 30).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"end", (1 << 30) - 3).unwrap();
    copy(&from, &place.path().join("to"), Owners::Caller, Writers::None).unwrap();
    let copied = place.path().join("to/sparse").metadata().unwrap();
    assert_eq!(copied.len(), 1 << 30);
    assert!(copied.blocks() * 512 < 1 << 20, "{} blocks", copied.blocks());
}

struct Depth(u32);
impl Sink for Depth {
    fn enter(&mut self, _: &[u8], attributes: &Attributes) -> std::io::Result<()> {
        assert_eq!((attributes.mode, attributes.modified), (0o750, (1, 2)));
        self.0 += 1;
        Ok(())
    }
    fn leave(&mut self, _: &Attributes) -> std::io::Result<()> {
        Ok(())
    }
    fn file(&mut self, _: &[u8], _: &Content<'_>, _: &Attributes, _: Option<Shared>) -> std::io::Result<()> {
        Ok(())
    }
    fn node(&mut self, _: &[u8], _: &Node, _: &Attributes, _: Option<Shared>) -> std::io::Result<()> {
        Ok(())
    }
    fn link(&mut self, _: &[u8], _: u64) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn depth_does_not_run_out_of_descriptors() {
    let place = place();
    let from = place.path().join("from");
    fs::create_dir(&from).unwrap();
    let mut writer = Writer::new(&from, place.path().join("waiting"), false).unwrap();
    let plain = Attributes { mode: 0o750, owner: (0, 0), modified: (1, 2), extended: Vec::new() };
    for _ in 0..2_000 {
        writer.enter_new(b"deep").unwrap();
    }
    for _ in 0..2_000 {
        writer.leave(&plain).unwrap();
    }
    drop(writer);
    copy(&from, &place.path().join("to"), Owners::Caller, Writers::None).unwrap();
    let mut depth = Depth(0);
    read(&place.path().join("to"), ReadOptions::default(), &mut depth).unwrap();
    assert_eq!(depth.0, 2_000);
    // The temporary directory's own removal would run out of descriptors.
    crate::removal::remove_tree(place.path()).unwrap();
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    let place = place();
    let root = place.path().join("root");
    fs::create_dir(&root).unwrap();
    symlink("..", root.join("link")).unwrap();
    let mut writer = Writer::new(&root, place.path().join("waiting"), false).unwrap();
    let plain = Attributes { mode: 0o700, owner: (0, 0), modified: (0, 0), extended: Vec::new() };
    let long = [b'a'; 256];
    for bad in [&b""[..], b".", b"..", b"a/b", b"/etc", b"a\0b", &long] {
        assert!(writer.enter_new(bad).is_err(), "{}", bad.escape_ascii());
        assert!(writer.create(bad).is_err(), "{}", bad.escape_ascii());
        assert!(writer.node(bad, &Node::Pipe, &plain, None).is_err(), "{}", bad.escape_ascii());
        assert!(writer.link(bad, 0).is_err(), "{}", bad.escape_ascii());
    }
    for what in [writer.enter_new(b"link"), writer.enter_existing(b"link"), writer.create(b"link").map(drop)]
    {
        assert!(what.is_err());
    }
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
}

#[test]
fn what_lies_higher_hides_what_lies_below() {
    let place = place();
    let path = |name: &str| place.path().join(name);
    let (low, high) = (path("low"), path("high"));
    for directory in ["low/kept/deep", "low/replaced/inner", "low/emptied", "low/was-directory"] {
        fs::create_dir_all(path(directory)).unwrap();
    }
    for file in ["low/file", "low/gone", "low/kept/old", "low/kept/deep/gone", "low/replaced/inner/old"] {
        fs::write(path(file), "low").unwrap();
    }
    fs::write(path("low/was-file"), "low").unwrap();
    delete(&path("low/was-deleted"));
    delete(&path("low/still-deleted"));
    make_opaque(&path("low/emptied"));
    fs::set_permissions(path("low/kept"), fs::Permissions::from_mode(0o000)).unwrap();

    for directory in ["high/kept/deep", "high/replaced", "high/emptied", "high/was-file", "high/was-deleted"]
    {
        fs::create_dir_all(path(directory)).unwrap();
    }
    make_opaque(&path("high/replaced"));
    fs::write(path("high/file"), "high").unwrap();
    fs::write(path("high/was-directory"), "high").unwrap();
    fs::write(path("high/was-file/new"), "high").unwrap();
    fs::write(path("high/was-deleted/new"), "high").unwrap();
    fs::hard_link(path("high/file"), path("high/kept/new")).unwrap();
    delete(&path("high/gone"));
    delete(&path("high/kept/deep/gone"));
    fs::set_permissions(path("high/kept"), fs::Permissions::from_mode(0o711)).unwrap();

    merge(&[(low.clone(), Owners::Caller), (high, Owners::Caller)], &path("merged")).unwrap();
    let read = |name: &str| fs::read_to_string(path(name)).unwrap();
    let is_deleted = |name: &str| {
        let status = fs::symlink_metadata(path(name)).unwrap();
        status.mode() & 0o170_000 == 0o020_000 && status.rdev() == 0
    };
    let hides_base = |name: &str| {
        let mut value = [0; 8];
        rustix::fs::getxattr(path(name), "user.overlay.opaque", &mut value[..]).is_ok()
    };
    assert_eq!((read("merged/file"), read("merged/kept/new")), ("high".into(), "high".into()));
    assert_eq!((read("merged/kept/old"), read("merged/was-directory")), ("low".into(), "high".into()));
    assert_eq!(fs::metadata(path("merged/file")).unwrap().nlink(), 2);
    assert_eq!(fs::metadata(path("merged/kept")).unwrap().mode() & 0o7777, 0o711);
    assert_eq!(fs::metadata(path("low/kept")).unwrap().mode() & 0o7777, 0, "a lower layer stays closed");
    for name in ["merged/gone", "merged/kept/deep/gone", "merged/still-deleted"] {
        assert!(is_deleted(name), "{name}");
    }
    assert!(!path("merged/replaced/inner").exists());
    for name in ["merged/replaced", "merged/emptied", "merged/was-file", "merged/was-deleted"] {
        assert!(hides_base(name), "{name}");
    }
    assert!(!hides_base("merged/kept"));
    fs::set_permissions(low.join("kept"), fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(read("low/kept/old"), "low");
}

#[test]
fn only_what_lies_below_all_layers_counts_as_copied_up() {
    let place = place();
    let path = |name: &str| place.path().join(name);
    let copy_up = |name: &str| {
        rustix::fs::setxattr(path(name), "user.overlay.origin", b"handle", XattrFlags::empty()).unwrap();
    };
    for layer in ["low", "high"] {
        for directory in ["base-directory", "made-directory"] {
            fs::create_dir_all(path(layer).join(directory)).unwrap();
        }
        for file in ["base-directory/base", "made-directory/made", "made"] {
            fs::write(path(layer).join(file), layer).unwrap();
        }
    }
    fs::write(path("high/base-directory/only-high"), "high").unwrap();
    copy_up("low/base-directory");
    copy_up("low/base-directory/base");
    for name in [
        "base-directory",
        "base-directory/base",
        "base-directory/only-high",
        "made-directory",
        "made-directory/made",
        "made",
    ] {
        copy_up(&format!("high/{name}"));
    }
    fs::set_permissions(path("low/made"), fs::Permissions::from_mode(0o000)).unwrap();
    let layers = ["low", "high"].map(|layer| (path(layer), Owners::Caller));
    merge(&layers, &path("merged")).unwrap();
    let is_copied_up = |name: &str| {
        rustix::fs::getxattr(path("merged").join(name), "user.overlay.origin", &mut [0; 16][..]).is_ok()
    };
    for name in ["base-directory", "base-directory/base", "base-directory/only-high"] {
        assert!(is_copied_up(name), "{name}");
    }
    for name in ["made-directory", "made-directory/made", "made"] {
        assert!(!is_copied_up(name), "{name}");
        assert!(path("merged").join(name).exists());
    }
    fs::set_permissions(path("low/made"), fs::Permissions::from_mode(0o600)).unwrap();
}
