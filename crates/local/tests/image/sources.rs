//! Layouts, archives, and what is none.

use std::fs;
use std::path::{Path, PathBuf};

use leasehold_local::image::{
    Digest, ImageStore, ImageStoreOptions, Platform, PullPolicy, ResolveOptions, UnpackLimits,
};
use leasehold_model::{Deadline, Error, ErrorKind, ImageReference};
use serde_json::json;

use crate::fixture::{
    INDEX, Layer, MANIFEST, Packing, Place, TestImage, defaults, descriptor, gzip, index, names, reference,
    store, tagged, write_blob, write_index, zstd,
};

/// The error of an image, after which the store holds nothing of it.
async fn refused(reference: &ImageReference) -> Error {
    let store_place = Place::new();
    let store = store(&store_place).await;
    let error = store.resolve(reference, &defaults()).await.unwrap_err();
    assert_eq!(names(&store_place.join("store/temporary")), [""; 0], "{error:?}");
    assert_eq!(names(&store_place.join("store/images")), [""; 0]);
    assert_eq!(names(&store_place.join("store/layers/single")), [""; 0]);
    error
}

#[tokio::test]
async fn every_packing_of_a_layout_gives_the_same_image() {
    for packing in [Packing::Plain, Packing::Gzip, Packing::Zstd] {
        let place = Place::new();
        let bottom = Layer::new().file("a", b"lower").file("b", b"lower");
        let image = TestImage::new(vec![bottom, Layer::new().file("b", b"upper")], packing);
        let store = store(&place).await;
        let found = store.resolve(&image.write_layout(&place.join("layout")), &defaults()).await.unwrap();
        assert_eq!(found.digest, image.digest());
        assert_eq!(found.layers.len(), 2);
        assert_eq!(fs::read(found.layers[0].join("b")).unwrap(), b"upper", "top first");
        assert_eq!(fs::read(found.layers[1].join("a")).unwrap(), b"lower");
        assert_eq!(found.config.environment, [("PATH".into(), "/bin".into())]);
        assert_eq!(found.config.working_directory, Some(PathBuf::from("/w")));
        let listed = store.list().await.unwrap();
        assert_eq!(
            (listed.len(), &listed[0].digest, &listed[0].layers),
            (1, &image.digest(), &image.diff_ids)
        );
    }
}

#[tokio::test]
async fn a_layer_that_comes_twice_is_one_lower_directory() {
    let place = Place::new();
    let twice = || Layer::new().file("f", b"twice");
    let image = TestImage::new(vec![twice(), Layer::new().file("f", b"between"), twice()], Packing::Gzip);
    let found =
        store(&place).await.resolve(&image.write_layout(&place.join("layout")), &defaults()).await.unwrap();
    assert_eq!(found.layers.len(), 2);
    assert_eq!(fs::read(found.layers[0].join("f")).unwrap(), b"twice");
}

#[tokio::test]
async fn tags_and_nested_indexes_lead_to_this_platform() {
    let place = Place::new();
    let layout = place.join("layout");
    let host = Platform::host().architecture;
    let ours = TestImage::small("ours");
    let theirs = TestImage::for_platform(vec![Layer::new().file("file", b"theirs")], Packing::Gzip, "mips");
    let other = TestImage::small("other");
    for image in [&ours, &theirs, &other] {
        image.add_blobs(&layout);
    }
    let with_platform = |image: &TestImage, architecture: &str| {
        let mut entry = descriptor(&image.manifest, MANIFEST);
        entry["platform"] = json!({"os": "linux", "architecture": architecture});
        entry
    };
    let nested = index(&[with_platform(&theirs, "mips"), with_platform(&ours, &host)]);
    write_blob(&layout, &nested);
    let with_tag = |content: &[u8], kind: &str, tag: &str| {
        let mut entry = descriptor(content, kind);
        entry["annotations"] = json!({"org.opencontainers.image.ref.name": tag});
        entry
    };
    write_index(&layout, &[with_tag(&nested, INDEX, "v1"), with_tag(&other.manifest, MANIFEST, "v2")]);

    let store = store(&place).await;
    let found = store.resolve(&tagged(&layout, "v1"), &defaults()).await.unwrap();
    assert_eq!(fs::read(found.layers[0].join("file")).unwrap(), b"ours");
    let found = store.resolve(&tagged(&layout, "v2"), &defaults()).await.unwrap();
    assert_eq!(fs::read(found.layers[0].join("file")).unwrap(), b"other");
    let doubt = store.resolve(&reference(&layout), &defaults()).await.unwrap_err();
    assert!(doubt.hint().unwrap().contains("v1, v2"), "{doubt:?}");
    let missing = store.resolve(&tagged(&layout, "v3"), &defaults()).await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    let mips =
        ResolveOptions { platform: Platform { architecture: "mips".into(), variant: None }, ..defaults() };
    let found = store.resolve(&tagged(&layout, "v1"), &mips).await.unwrap();
    assert_eq!(found.digest, theirs.digest());
    theirs.write_layout(&layout);
    let foreign = store.resolve(&reference(&layout), &defaults()).await.unwrap_err();
    assert_eq!(foreign.kind(), ErrorKind::Unsupported);
}

/// Packs a directory as an archive of its files.
fn pack(directory: &Path) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    builder.append_dir_all(".", directory).unwrap();
    builder.into_inner().unwrap()
}

#[tokio::test]
async fn oci_archives_are_read_in_every_compression() {
    let place = Place::new();
    let image = TestImage::small("in an archive");
    image.write_layout(&place.join("layout"));
    let archive = pack(&place.join("layout"));
    for (name, content) in
        [("i.tar", archive.clone()), ("i.tar.gz", gzip(&archive)), ("i.tar.zst", zstd(&archive))]
    {
        let place = Place::new();
        fs::write(place.join(name), content).unwrap();
        let found = store(&place).await.resolve(&reference(&place.join(name)), &defaults()).await.unwrap();
        assert_eq!(found.digest, image.digest());
        assert_eq!(fs::read(found.layers[0].join("file")).unwrap(), b"in an archive");
    }
}

#[tokio::test]
async fn an_unchanged_archive_is_not_read_again_and_a_changed_one_is() {
    let place = Place::new();
    let path = place.join("image.tar");
    let store = store(&place).await;
    let write = |content: &str| {
        let layout = Place::new();
        TestImage::small(content).write_layout(&layout.join("layout"));
        fs::write(&path, pack(&layout.join("layout"))).unwrap();
    };
    write("one");
    let one = store.resolve(&reference(&path), &defaults()).await.unwrap();
    let again = store.resolve(&reference(&path), &defaults()).await.unwrap();
    assert_eq!(one.digest, again.digest);
    write("two");
    let two = store.resolve(&reference(&path), &defaults()).await.unwrap();
    assert_eq!(fs::read(two.layers[0].join("file")).unwrap(), b"two");
}

/// What `docker save` writes, old style: layers shared by symbolic links between members.
fn docker_archive(image: &TestImage, tags: &[&str]) -> Vec<u8> {
    let config = format!("{}.json", &Digest::of(&image.config).as_str()[7..]);
    let mut layer = Layer::new().file(&config, &image.config);
    let mut paths = Vec::new();
    for (number, blob) in image.blobs.iter().enumerate() {
        let path = format!("{number}/layer.tar");
        layer =
            layer.file(&format!("{number}/real.tar"), blob).symlink(&path, &format!("../{number}/real.tar"));
        paths.push(path);
    }
    let manifest = json!([{"Config": config, "RepoTags": tags, "Layers": paths}]);
    layer.file("manifest.json", manifest.to_string().as_bytes()).finish()
}

#[tokio::test]
async fn docker_archives_are_read() {
    let place = Place::new();
    let layers = vec![Layer::new().file("a", b"1"), Layer::new().file("b", b"2")];
    let image = TestImage::new(layers, Packing::Plain);
    let path = place.join("saved.tar");
    fs::write(&path, docker_archive(&image, &["example.org/app:v1"])).unwrap();
    let store = store(&place).await;
    for reference in [reference(&path), tagged(&path, "v1"), tagged(&path, "example.org/app:v1")] {
        let found = store.resolve(&reference, &defaults()).await.unwrap();
        assert_eq!(found.digest, Digest::of(&image.config), "Docker's image id");
        assert_eq!(fs::read(found.layers[0].join("b")).unwrap(), b"2");
    }
    let missing = store.resolve(&tagged(&path, "v2"), &defaults()).await.unwrap_err();
    assert!(missing.hint().unwrap().contains("example.org/app:v1"), "{missing:?}");

    let mut damaged = TestImage::new(vec![Layer::new().file("a", b"1")], Packing::Plain);
    damaged.blobs[0][600] ^= 1;
    fs::write(&path, docker_archive(&damaged, &[])).unwrap();
    assert_eq!(refused(&reference(&path)).await.kind(), ErrorKind::Corrupt);
}

#[tokio::test]
async fn what_is_no_image_is_said_so() {
    let place = Place::new();
    fs::create_dir_all(place.join("root/usr/bin")).unwrap();
    let root = refused(&reference(&place.join("root"))).await;
    assert!(root.hint().unwrap().contains("root file system"), "{root:?}");
    fs::write(place.join("text"), "not an archive").unwrap();
    assert!(refused(&reference(&place.join("text"))).await.kind() == ErrorKind::Corrupt);
    fs::write(place.join("root.tar"), Layer::new().file("usr/bin/x", b"").finish()).unwrap();
    let archive = refused(&reference(&place.join("root.tar"))).await;
    assert_eq!(archive.kind(), ErrorKind::InvalidInput);
    assert_eq!(refused(&reference(&place.join("missing"))).await.kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn damage_anywhere_is_found_and_nothing_is_kept() {
    // Each blob in turn: layer, configuration, manifest.
    for victim in 0..3 {
        let place = Place::new();
        let image = TestImage::small("x");
        let reference = image.write_layout(&place.join("layout"));
        let content = [&image.blobs[0], &image.config, &image.manifest][victim];
        let path = write_blob(&place.join("layout"), content);
        let mut damaged = content.clone();
        let last = damaged.len() - 1;
        damaged[last / 2] ^= 1;
        for bytes in [&damaged[..], &content[..last], &[&content[..], b" "].concat()] {
            fs::write(&path, bytes).unwrap();
            let error = refused(&reference).await;
            assert_eq!(error.kind(), ErrorKind::Corrupt, "blob {victim}: {error:?}");
        }
        fs::remove_file(&path).unwrap();
        assert_eq!(refused(&reference).await.kind(), ErrorKind::NotFound, "blob {victim}");
    }
}

#[tokio::test]
async fn a_blob_that_unpacks_right_and_has_another_digest_is_corrupt() {
    let place = Place::new();
    let image = TestImage::small("the same content");
    let reference = image.write_layout(&place.join("layout"));
    let path = write_blob(&place.join("layout"), &image.blobs[0]);
    let mut other = image.blobs[0].clone();
    // The time in the gzip header, which changes nothing else.
    other[4] ^= 1;
    fs::write(path, other).unwrap();
    let error = refused(&reference).await;
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
}

#[tokio::test]
async fn a_layer_that_is_not_what_the_configuration_names_is_corrupt() {
    let place = Place::new();
    let architecture = Platform::host().architecture;
    let archive = gzip(&Layer::new().file("a", b"real").finish());
    let kind = "application/vnd.oci.image.layer.v1.tar+gzip".to_owned();
    let wrong =
        TestImage::from_parts(vec![archive.clone()], vec![Digest::of(b"other")], kind.clone(), &architecture);
    let error = refused(&wrong.write_layout(&place.join("wrong"))).await;
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");

    // Truncated before its digest was taken: the digest is right, the stream is not.
    let cut = archive[..archive.len() - 12].to_vec();
    let cut = TestImage::from_parts(vec![cut], vec![Digest::of(b"other")], kind, &architecture);
    let error = refused(&cut.write_layout(&place.join("cut"))).await;
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
}

#[tokio::test]
async fn decompression_bombs_are_stopped() {
    let zeros = || vec![Layer::new().file("zeros", &vec![0; 8 << 20])];
    let absolute = UnpackLimits { total_bytes: 1 << 20, ..UnpackLimits::default() };
    let relative = UnpackLimits { ratio_floor: 1 << 20, ratio: 10, ..UnpackLimits::default() };
    for limits in [absolute, relative] {
        for packing in [Packing::Gzip, Packing::Zstd] {
            let place = Place::new();
            let reference = TestImage::new(zeros(), packing).write_layout(&place.join("layout"));
            let options = ImageStoreOptions { limits: limits.clone(), ..ImageStoreOptions::default() };
            let store = ImageStore::open(place.join("store"), options).await.unwrap();
            let error = store.resolve(&reference, &defaults()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error:?}");
            assert_eq!(names(&place.join("store/temporary")), [""; 0]);
        }
    }
}

#[tokio::test]
async fn a_hostile_layer_leaves_nothing_in_the_store() {
    let place = Place::new();
    let layers = vec![Layer::new().file("good", b"x"), Layer::new().symlink("a", "/").file("a/evil", b"x")];
    let reference = TestImage::new(layers, Packing::Gzip).write_layout(&place.join("layout"));
    let store = store(&place).await;
    let error = store.resolve(&reference, &defaults()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error:?}");
    assert_eq!(names(&place.join("store/temporary")), [""; 0]);
    assert_eq!(store.list().await.unwrap(), []);
    // The good layer may have been complete; no image needs it.
    store.collect_garbage(|_| false).await.unwrap();
    assert_eq!(names(&place.join("store/layers/single")), [""; 0]);
    assert_eq!(names(&place.join("store/locks")), [""; 0]);
}

#[tokio::test]
async fn a_deadline_ends_the_work() {
    let place = Place::new();
    let reference = TestImage::small("late").write_layout(&place.join("layout"));
    let store = store(&place).await;
    let past = ResolveOptions { deadline: Some(Deadline::after(std::time::Duration::ZERO)), ..defaults() };
    let error = store.resolve(&reference, &past).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    let never = ResolveOptions { policy: PullPolicy::Never, ..defaults() };
    store.resolve(&reference, &never).await.unwrap();
}
