//! One store, many users: leases, garbage, crashes.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::SystemTime;

use leasehold_local::image::{GarbageReport, ImageStore, ImageStoreOptions, OwnerMap, OwnerRange};
use leasehold_model::{ErrorKind, ImageReference};
use tar::EntryType;

use crate::fixture::{
    Layer, Packing, Place, TASK, TestImage, again, defaults, is_root, names, reference, store,
};

fn nothing(_: &Path) -> bool {
    false
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_image_at_once_is_unpacked_once() {
    let place = Place::new();
    let layers =
        (0..4).map(|number| Layer::new().file(&format!("file{number}"), &vec![number; 200_000])).collect();
    let reference = TestImage::new(layers, Packing::Gzip).write_layout(&place.join("layout"));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        // Stores opened apart lock one another as processes do.
        let store = store(&place).await;
        let reference = reference.clone();
        tasks.spawn(async move { store.resolve(&reference, &defaults()).await.unwrap() });
    }
    let images = tasks.join_all().await;
    let inode = |path: &Path| fs::metadata(path.join("file3")).unwrap().ino();
    for image in &images {
        assert_eq!(image.layers, images[0].layers);
        assert_eq!(inode(&image.layers[0]), inode(&images[0].layers[0]));
    }
    assert_eq!(names(&place.join("store/layers/single")).len(), 4);
    assert_eq!(names(&place.join("store/temporary")), [""; 0]);
}

#[tokio::test]
async fn who_waited_for_an_unpacker_does_not_wait_for_the_end_of_its_lease() {
    use rustix::fs::{FlockOperation, flock};

    let place = Place::new();
    let reference = TestImage::small("waited for").write_layout(&place.join("layout"));
    let store = store(&place).await;
    let layer = store.resolve(&reference, &defaults()).await.unwrap().layers[0].parent().unwrap().to_owned();
    let locks = place.join("store/locks");
    let lock = fs::File::open(locks.join(&names(&locks)[0])).unwrap();

    // Another process unpacks: the layer is not there yet, and its lock is held.
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    fs::rename(&layer, place.join("aside")).unwrap();
    let waiter = tokio::spawn(async move { store.resolve(&reference, &defaults()).await.unwrap() });
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    assert!(!waiter.is_finished());
    // It is done, and goes on to use the image.
    fs::rename(place.join("aside"), &layer).unwrap();
    flock(&lock, FlockOperation::LockShared).unwrap();
    let image =
        tokio::time::timeout(std::time::Duration::from_secs(60), waiter).await.expect("it waits").unwrap();
    assert!(image.layers[0].starts_with(&layer));
}

#[tokio::test]
async fn images_share_layers_and_garbage_takes_only_what_nobody_needs() {
    let place = Place::new();
    let shared = || Layer::new().directory("locked", 0o555).file("locked/base", b"base");
    let one = TestImage::new(vec![shared(), Layer::new().file("one", b"1")], Packing::Gzip);
    let two = TestImage::new(vec![shared(), Layer::new().file("two", b"2")], Packing::Gzip);
    let first = one.write_layout(&place.join("one"));
    let second = two.write_layout(&place.join("two"));
    let store = store(&place).await;
    let image = store.resolve(&first, &defaults()).await.unwrap();
    let other = store.resolve(&second, &defaults()).await.unwrap();
    assert_eq!(image.layers[1], other.layers[1], "the base is shared");
    let base = image.layers[1].clone();
    let top = image.layers[0].clone();
    drop(other);

    assert_eq!(store.collect_garbage(nothing).await.unwrap(), GarbageReport::default());
    store.remove(&first).await.unwrap();
    assert_eq!(store.remove(&first).await.unwrap_err().kind(), ErrorKind::NotFound);
    let report = store.collect_garbage(nothing).await.unwrap();
    assert_eq!((report.layers_removed, report.layers_in_use), (0, 1), "leased");
    assert!(top.exists());
    drop(image);
    let kept = top.clone();
    let report = store.collect_garbage(move |path| path == kept).await.unwrap();
    assert_eq!((report.layers_removed, report.layers_in_use), (0, 1), "said to be in use");
    let report = store.collect_garbage(nothing).await.unwrap();
    assert_eq!((report.layers_removed, report.layers_in_use), (1, 0));
    assert!(!top.exists() && base.join("locked/base").exists());

    store.remove(&ImageReference(two.digest().to_string())).await.unwrap();
    let report = store.collect_garbage(nothing).await.unwrap();
    assert_eq!(report.layers_removed, 2);
    for directory in ["layers/single", "locks", "temporary", "images"] {
        assert_eq!(names(&place.join("store").join(directory)), [""; 0], "{directory}");
    }
}

#[tokio::test]
async fn a_reference_that_moves_leaves_garbage_behind() {
    let place = Place::new();
    let layout = place.join("layout");
    let store = store(&place).await;
    TestImage::small("one").write_layout(&layout);
    store.resolve(&reference(&layout), &defaults()).await.unwrap();
    TestImage::small("two").write_layout(&layout);
    store.resolve(&reference(&layout), &defaults()).await.unwrap();
    assert_eq!(store.list().await.unwrap().len(), 2);
    let report = store.collect_garbage(nothing).await.unwrap();
    assert_eq!((report.images_removed, report.layers_removed), (1, 1));
    assert_eq!(store.list().await.unwrap()[0].digest, TestImage::small("two").digest());
}

#[tokio::test]
async fn an_image_that_is_known_is_not_recorded_again() {
    let place = Place::new();
    let reference = TestImage::small("known").write_layout(&place.join("layout"));
    let store = store(&place).await;
    let record = || {
        let directory = place.join("store/images");
        let path = directory.join(&names(&directory)[0]);
        let metadata = fs::metadata(path).unwrap();
        (metadata.ino(), metadata.mtime(), metadata.mtime_nsec())
    };
    store.resolve(&reference, &defaults()).await.unwrap();
    let before = record();
    store.resolve(&reference, &defaults()).await.unwrap();
    assert_eq!(record(), before);
}

#[tokio::test]
async fn what_a_crash_left_is_removed_and_live_work_is_not() {
    let place = Place::new();
    drop(store(&place).await);
    let temporary = place.join("store/temporary");
    let leftover = temporary.join("99999-1-1");
    fs::create_dir_all(leftover.join("layer/tree/locked")).unwrap();
    fs::write(leftover.join("layer/tree/locked/file"), "x").unwrap();
    fs::set_permissions(leftover.join("layer/tree/locked"), fs::Permissions::from_mode(0o000)).unwrap();
    fs::write(temporary.join("99999-1-1.lock"), "").unwrap();
    fs::create_dir(temporary.join("live")).unwrap();
    let lock = fs::File::create(temporary.join("live.lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let store = store(&place).await;
    assert_eq!(names(&temporary), ["live", "live.lock"]);
    drop(lock);
    assert_eq!(store.collect_garbage(nothing).await.unwrap().temporaries_removed, 1);
    assert_eq!(names(&temporary), [""; 0]);
}

#[tokio::test]
async fn a_meddled_store_heals() {
    let place = Place::new();
    let image = TestImage::small("healed");
    let reference = image.write_layout(&place.join("layout"));
    let store = store(&place).await;
    let tree = store.resolve(&reference, &defaults()).await.unwrap().layers[0].clone();
    fs::remove_file(tree.parent().unwrap().join("report.json")).unwrap();
    fs::remove_file(tree.join("file")).unwrap();
    for record in fs::read_dir(place.join("store/images")).unwrap() {
        fs::write(record.unwrap().path(), "nonsense").unwrap();
    }
    let found = store.resolve(&reference, &defaults()).await.unwrap();
    assert_eq!(fs::read(found.layers[0].join("file")).unwrap(), b"healed");
    assert_eq!(store.list().await.unwrap().len(), 1);
}

#[tokio::test]
async fn the_store_is_closed_to_others() {
    let place = Place::new();
    fs::create_dir(place.join("store")).unwrap();
    fs::set_permissions(place.join("store"), fs::Permissions::from_mode(0o755)).unwrap();
    drop(store(&place).await);
    assert_eq!(fs::metadata(place.join("store")).unwrap().mode() & 0o777, 0o700);
    if is_root() {
        std::os::unix::fs::chown(place.join("store"), Some(12_345), None).unwrap();
        let error = ImageStore::open(place.join("store"), ImageStoreOptions::default()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    }
}

#[tokio::test]
async fn two_owner_maps_have_two_trees() {
    let place = Place::new();
    let records: &[(&str, &[u8])] = &[("uid", b"7"), ("gid", b"8")];
    let layer = Layer::new().full(records, EntryType::Regular, b"file", 0o644, b"", b"x");
    let reference = TestImage::new(vec![layer], Packing::Gzip).write_layout(&place.join("layout"));
    let single = store(&place).await.resolve(&reference, &defaults()).await.unwrap();
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    // A normal user can give files to itself alone.
    let range = |inside, own, many| {
        vec![OwnerRange { inside, outside: if is_root() { many } else { own }, length: 1 }]
    };
    let mut users = range(7, user, 100_007);
    let mut groups = range(8, group, 100_008);
    if is_root() {
        users.extend(range(0, 0, 100_000));
        groups.extend(range(0, 0, 100_000));
    } else {
        users = range(0, user, 0);
        groups = range(0, group, 0);
    }
    let owners = OwnerMap::Ranges { users, groups };
    let options = ImageStoreOptions { owners, ..ImageStoreOptions::default() };
    let mapped = ImageStore::open(place.join("store"), options).await.unwrap();
    let mapped = mapped.resolve(&reference, &defaults()).await.unwrap();
    assert_ne!(single.layers, mapped.layers);
    let owner = |tree: &Path| {
        let metadata = fs::metadata(tree.join("file")).unwrap();
        (metadata.uid(), metadata.gid())
    };
    assert_eq!(owner(&single.layers[0]), (user, group));
    let expected = if is_root() { (100_007, 100_008) } else { (user, group) };
    assert_eq!(owner(&mapped.layers[0]), expected);
    assert!(single.notes.is_empty());
    assert_eq!(mapped.notes.is_empty(), is_root(), "a foreign owner is noted: {:?}", mapped.notes);
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_a_resolution_stops_it_and_leaves_the_store_usable() {
    let place = Place::new();
    let layers = (0..3).map(|number| Layer::new().file("file", &vec![number; 3 << 20])).collect();
    let reference = TestImage::new(layers, Packing::Plain).write_layout(&place.join("layout"));
    let store = store(&place).await;
    let options = defaults();
    for turn in 0..20_u64 {
        let work = store.resolve(&reference, &options);
        let _ = tokio::time::timeout(std::time::Duration::from_micros(turn * 300), work).await;
    }
    let image = store.resolve(&reference, &defaults()).await.unwrap();
    assert_eq!(image.layers.len(), 3);
    assert!(store.list().await.unwrap()[0].recorded_at <= SystemTime::now());
}

/// A store with an image whose only layer takes a while.
fn slow_image(place: &Place) -> ImageReference {
    let mut layer = Layer::new();
    for number in 0..3_000 {
        layer = layer.directory(&format!("d{number}"), 0o555).file(&format!("d{number}/f"), &[b'x'; 3_000]);
    }
    TestImage::new(vec![layer], Packing::Gzip).write_layout(&place.join("layout"))
}

#[tokio::test]
async fn a_killed_process_leaves_only_temporaries_and_the_next_opening_removes_them() {
    if let Ok(task) = std::env::var(TASK) {
        let (directory, layout) = task.split_once('|').unwrap();
        let store = ImageStore::open(directory.into(), ImageStoreOptions::default()).await.unwrap();
        store.resolve(&ImageReference(layout.to_owned()), &defaults()).await.unwrap();
        return;
    }
    let place = Place::new();
    let reference = slow_image(&place);
    let temporary = place.join("store/temporary");
    let task = format!("{}|{}", place.join("store").display(), reference.0);
    let name = "sharing::a_killed_process_leaves_only_temporaries_and_the_next_opening_removes_them";
    let mut child = again(name, &task).stdout(std::process::Stdio::null()).spawn().unwrap();
    // Killed as soon as it has begun to unpack.
    let begun = || names(&temporary).iter().any(|name| temporary.join(name).join("layer/tree/d9").exists());
    while !begun() {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it could be killed");
        std::thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_ne!(names(&temporary), [""; 0]);
    let store = store(&place).await;
    assert_eq!(names(&temporary), [""; 0]);
    assert_eq!(names(&place.join("store/layers/single")), [""; 0]);
    let image = store.resolve(&reference, &defaults()).await.unwrap();
    assert_eq!(fs::read(image.layers[0].join("d2999/f")).unwrap().len(), 3_000);
}

#[tokio::test]
async fn several_processes_unpack_a_layer_once() {
    if let Ok(task) = std::env::var(TASK) {
        let (directory, layout) = task.split_once('|').unwrap();
        let store = ImageStore::open(directory.into(), ImageStoreOptions::default()).await.unwrap();
        let image = store.resolve(&ImageReference(layout.to_owned()), &defaults()).await.unwrap();
        println!("inode {}", fs::metadata(image.layers[0].join("d7/f")).unwrap().ino());
        return;
    }
    let place = Place::new();
    let reference = slow_image(&place);
    let task = format!("{}|{}", place.join("store").display(), reference.0);
    let spawn = |_| {
        let mut command = again("sharing::several_processes_unpack_a_layer_once", &task);
        command.stdout(std::process::Stdio::piped()).spawn().unwrap()
    };
    let children: Vec<_> = (0..4).map(spawn).collect();
    let mut inodes: Vec<_> = children
        .into_iter()
        .map(|child| {
            let output = child.wait_with_output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            assert!(output.status.success(), "{text}");
            text.lines().find(|line| line.contains("inode ")).unwrap().rsplit(' ').next().unwrap().to_owned()
        })
        .collect();
    inodes.dedup();
    assert_eq!(inodes.len(), 1, "{inodes:?}");
    assert_eq!(names(&place.join("store/temporary")), [""; 0]);
}
