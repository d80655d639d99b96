//! Archives that attack (field case F62), and archives that are broken.

use std::fs;

use leasehold_local::image::{OwnerMap, UnpackLimits, unpack_layer};
use leasehold_model::ErrorKind;
use tar::EntryType;

use crate::fixture::{Layer, Place, refusal, unpack, unpack_with};

#[test]
fn f62_a_file_through_an_earlier_symbolic_link_is_refused_by_name() {
    let outside = Place::new();
    let target = outside.join(".").to_str().unwrap().to_owned();
    for link in [target.as_str(), ".", "..", "d", "/"] {
        let layers = [
            Layer::new().directory("d", 0o755).symlink("a", link).file("a/planted", b"x"),
            Layer::new().directory("d", 0o755).symlink("a", link).directory("a/planted", 0o755),
            Layer::new().directory("d", 0o755).symlink("a", link).symlink("a/planted", "x"),
            Layer::new().directory("d", 0o755).symlink("a", link).file("a/.wh.planted", b""),
            Layer::new().directory("d", 0o755).symlink("a", link).file("a/.wh..wh..opq", b""),
            Layer::new().file("f", b"x").symlink("a", link).hard_link("a/planted", "f"),
            Layer::new().symlink("a", link).file("a/b/planted", b"x"),
            Layer::new().directory("x", 0o755).symlink("x/y", link).file("x/y/z/planted", b"x"),
        ];
        for layer in layers {
            let error = refusal(layer);
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error:?}");
            assert!(error.message().contains("symbolic link"), "{error:?}");
        }
    }
    assert_eq!(fs::read_dir(outside.join(".")).unwrap().count(), 0);
}

#[test]
fn a_symbolic_link_is_replaced_and_its_target_left_alone() {
    let outside = Place::new();
    fs::write(outside.join("victim"), "untouched").unwrap();
    let place = Place::new();
    let target = outside.join("victim");
    let layer = Layer::new().symlink("a", target.to_str().unwrap()).file("a", b"mine");
    let (tree, _) = unpack(&place, layer).unwrap();
    assert_eq!(fs::read(tree.join("a")).unwrap(), b"mine");
    assert_eq!(fs::read(target).unwrap(), b"untouched");
}

#[test]
fn paths_that_leave_the_layer_are_refused() {
    let long_name = [b'n'; 256];
    let long_path = b"d/".repeat(2_500);
    let bad: [&[u8]; 9] =
        [b"../x", b"a/../../x", b"a/..", b"/etc/x", b"//x", b"..", b"nul\0byte", &long_name, &long_path];
    for path in bad {
        for kind in
            [EntryType::Regular, EntryType::Directory, EntryType::Symlink, EntryType::Fifo, EntryType::Char]
        {
            let error = refusal(Layer::new().full(&[("path", path)], kind, b"short", 0o644, b"t", b""));
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{}: {error:?}", path.escape_ascii());
        }
    }
    assert_eq!(refusal(Layer::new().file("", b"x")).kind(), ErrorKind::InvalidInput);
    assert_eq!(refusal(Layer::new().file("./", b"x")).kind(), ErrorKind::InvalidInput);
    for whiteout in [".wh.", ".wh..", ".wh...", "a/.wh..."] {
        assert_eq!(refusal(Layer::new().file(whiteout, b"")).kind(), ErrorKind::InvalidInput, "{whiteout}");
    }
    assert_eq!(refusal(Layer::new().file("f", b"x").file("f/x", b"y")).kind(), ErrorKind::InvalidInput);
}

#[test]
fn hard_links_are_confined() {
    let outside = Place::new();
    fs::write(outside.join("secret"), "s").unwrap();
    let secret = outside.join("secret").to_str().unwrap().to_owned();
    let directory = outside.join(".").to_str().unwrap().to_owned();
    for layer in [
        Layer::new().hard_link("a", &secret),
        Layer::new().hard_link("a", "../secret"),
        Layer::new().hard_link("a", "missing"),
        Layer::new().hard_link("a", "missing/deeper"),
        Layer::new().hard_link("a", ""),
        Layer::new().hard_link("a", "./"),
        Layer::new().directory("d", 0o755).hard_link("a", "d"),
        Layer::new().file(".wh.w", b"").hard_link("a", "w"),
        Layer::new().symlink("l", &directory).hard_link("a", "l/secret"),
    ] {
        let error = refusal(layer);
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error:?}");
    }
    // A link to a symbolic link is one, and is not followed.
    let place = Place::new();
    let (tree, _) = unpack(&place, Layer::new().symlink("l", &secret).hard_link("a", "l")).unwrap();
    assert!(fs::symlink_metadata(tree.join("a")).unwrap().is_symlink());
}

#[test]
fn symbolic_link_targets_that_cannot_exist_are_refused() {
    let long = b"t".repeat(5_000);
    for target in [&b""[..], b"nul\0byte", &long] {
        let layer = Layer::new().full(&[("linkpath", target)], EntryType::Symlink, b"l", 0o777, b"", b"");
        assert_eq!(refusal(layer).kind(), ErrorKind::InvalidInput);
    }
}

#[test]
fn every_limit_bites_and_says_so() {
    let limits =
        UnpackLimits { entries: 5, attribute_bytes: 8, header_bytes: 4_096, ..UnpackLimits::default() };
    let mut many = Layer::new();
    for number in 0..6 {
        many = many.file(&number.to_string(), b"");
    }
    // Six directories for the price of one entry.
    let nested = Layer::new().file("1/2/3/4/5/6", b"");
    let attribute: &[(&str, &[u8])] = &[("SCHILY.xattr.user.a", b"123456789")];
    let large = Layer::new().full(attribute, EntryType::Regular, b"f", 0o644, b"", b"");
    let header = Layer::new().full(&[("comment", &[b'c'; 5_000])], EntryType::Regular, b"f", 0o644, b"", b"");
    let mut endless = tar::Header::new_gnu();
    endless.set_entry_type(EntryType::GNULongName);
    endless.set_size(1 << 40);
    endless.set_cksum();
    for layer in [many, nested, large, header, Layer::new().bytes(endless.as_bytes())] {
        let place = Place::new();
        let error = unpack_with(&place, layer, &limits).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error:?}");
    }
}

#[test]
fn what_must_be_remembered_is_bounded() {
    let limits = UnpackLimits { memory_bytes: 1_000, ..UnpackLimits::default() };
    let mut directories = Layer::new();
    let mut deletions = Layer::new();
    let mut devices = Layer::new();
    for number in 0..20 {
        directories = directories.directory(&number.to_string(), 0o755);
        deletions = deletions.file(&format!(".wh.{number}"), b"");
        devices = devices.entry(EntryType::Char, number.to_string().as_bytes(), 0o644, b"", b"");
    }
    for layer in [directories, deletions, devices] {
        let place = Place::new();
        let error = unpack_with(&place, layer, &limits).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error:?}");
    }
}

#[test]
fn broken_archives_are_corrupt() {
    let whole = Layer::new().file("a", &[7; 2_000]).finish();
    for cut in [1, 511, 513, 1_000, 2_000] {
        let place = Place::new();
        fs::create_dir(place.join("tree")).unwrap();
        let result =
            unpack_layer(&whole[..cut], &place.join("tree"), &OwnerMap::Single, &UnpackLimits::default());
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Corrupt, "cut at {cut}");
    }
    let mut flipped = whole.clone();
    flipped[10] ^= 1;
    let mut header = [0; 512];
    header.copy_from_slice(&flipped[..512]);
    assert_eq!(refusal(Layer::new().bytes(&header)).kind(), ErrorKind::Corrupt);
    let records: &[(&str, &[u8])] = &[("size", b"not a number")];
    let bad_size = Layer::new().full(records, EntryType::Regular, b"f", 0o644, b"", b"");
    assert_eq!(refusal(bad_size).kind(), ErrorKind::Corrupt);
    let bad_sparse: &[(&str, &[u8])] = &[("GNU.sparse.size", b"10"), ("GNU.sparse.map", b"5,9")];
    let bad_sparse = Layer::new().full(bad_sparse, EntryType::Regular, b"f", 0o644, b"", b"123456789");
    assert_eq!(refusal(bad_sparse).kind(), ErrorKind::Corrupt);
}
