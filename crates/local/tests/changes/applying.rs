use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::process::Command;

use leasehold_local::changes::{
    ApplyOptions, ApplyOutcome, ConflictPolicy, Counts, DiffOptions, OwnerMap, WithheldPart, apply, diff,
    discard, scan,
};

use super::layer::{Layer, find, list, short};

/// Applies and compares the host with what the sandbox saw.
fn carried(host: &str, inside: &str) {
    let Some(layer) = Layer::over(host) else { return };
    layer.inside(inside);
    let seen = layer.inside_listed(":");
    let report = layer.apply();
    assert_eq!(
        (report.outcome, &report.failures[..], &report.withheld[..]),
        (ApplyOutcome::Applied, &[][..], &[][..])
    );
    assert_eq!(layer.listed(), seen);
    assert!(layer.scan().is_empty(), "{:?}", short(&layer.scan()));
}

#[test]
fn f56_modes_and_times_arrive_exactly() {
    carried(
        "echo a > kept; chmod 640 kept; mkdir closed; echo x > closed/x; chmod 555 closed; mkdir d; echo y > d/y",
        "for mode in 0755 0640 0400 0000 1777 0111; do echo $mode > f$mode; chmod $mode f$mode
           mkdir d$mode; echo in > d$mode/in; touch -d '1969-12-31 23:59:58.123456789' d$mode/in
           chmod $mode d$mode; done
         touch -d '2001-02-03 04:05:06.123456789' f0400; touch -d '1960-01-01 00:00:00.987654321' f0000
         touch -d @-1.5 d0000 d0755; ln -s /nowhere link; touch -h -d @77.000000007 link
         mkfifo pipe; chmod 620 pipe; touch -d @99 pipe
         echo b >> kept; chmod 751 kept; touch -d @5 kept; echo n > closed/n; rm closed/x; touch -d @6 closed
         touch -d @7 d",
    );
}

#[test]
fn directories_take_the_times_that_the_sandbox_saw() {
    carried(
        "mkdir -p a/b/c; echo 1 > a/b/c/f; touch -d @1000 a/b/c a/b a",
        "echo 2 > a/b/c/f; echo 3 > a/b/new; touch -d @2000 a/b",
    );
}

#[test]
fn a_renamed_directory_arrives_under_its_new_name() {
    carried(
        "mkdir -p old/sub; echo 1 > old/one; echo 2 > old/sub/two; ln -s one old/link",
        "mv old new; mkdir other; mv new/sub other/moved; echo 3 >> other/moved/two",
    );
}

#[test]
fn types_change_in_every_direction() {
    carried(
        "echo f > file-dir; echo f > file-link; mkdir -p dir-file/deep/er; echo x > dir-file/deep/er/x
         mkdir dir-link; ln -s a link-file; ln -s a link-dir; mkdir dir-pipe; ln -s b link-link",
        "rm -rf *; mkdir -p file-dir/sub; echo 1 > file-dir/sub/f; ln -s t file-link; echo f > dir-file
         ln -s t dir-link; echo f > link-file; mkdir link-dir; echo g > link-dir/g; mkfifo dir-pipe
         ln -s c link-link",
    );
}

#[test]
fn deep_and_closed_trees_are_removed() {
    carried(
        "mkdir -p a/b/c/d/e; echo 1 > a/b/c/d/e/f; echo 2 > a/b/g; chmod 555 a/b/c/d a/b; mkdir keep; chmod 555 keep",
        "chmod -R u+w a; rm -rf a; mkdir keep/x",
    );
}

#[test]
fn extended_attributes_arrive_without_the_overlays_own() {
    let Some(layer) = Layer::over("echo a > a; mkdir d") else { return };
    layer.inside("echo b >> a; echo n > n; mkdir e; touch d/x");
    let set_attribute = |name: &str, key: &str| {
        let path = layer.path("upper").join(name);
        rustix::fs::setxattr(path, key, b"value", rustix::fs::XattrFlags::empty()).unwrap();
    };
    for name in ["a", "n", "d", "e"] {
        set_attribute(name, "user.test");
        set_attribute(name, "user.overlay.something");
    }
    let report = layer.apply();
    assert_eq!((report.outcome, report.withheld), (ApplyOutcome::Applied, vec![]));
    for name in ["a", "n", "d", "e"] {
        let mut names = Vec::with_capacity(4096);
        rustix::fs::listxattr(layer.base(name), rustix::buffer::spare_capacity(&mut names)).unwrap();
        let text = String::from_utf8(names).unwrap();
        assert!(text.contains("user.test") && !text.contains("overlay"), "{name}: {text:?}");
    }
}

#[test]
fn hard_links_stay_one_file() {
    let Some(layer) = Layer::over("echo host > host; echo same > twin; cp -p twin twin2; echo c > changed")
    else {
        return;
    };
    layer.inside(
        "ln host again; mkdir d; echo n > n1; ln n1 d/n2; ln n1 d/n3; ln -f twin twin2
         echo more >> changed; ln changed changed2; chmod 600 n1",
    );
    let seen = layer.inside_listed(":");
    let before = fs::metadata(layer.base("host")).unwrap().ino();
    let report = layer.apply();
    assert_eq!((report.outcome, report.failures), (ApplyOutcome::Applied, vec![]));
    let inode = |name: &str| fs::metadata(layer.base(name)).unwrap().ino();
    assert_eq!((inode("again"), inode("host")), (before, before));
    assert_eq!((inode("n1"), inode("n1")), (inode("d/n2"), inode("d/n3")));
    assert_eq!(inode("twin"), inode("twin2"));
    assert_eq!(inode("changed"), inode("changed2"));
    assert_eq!(layer.listed(), seen);
}

#[test]
fn names_of_one_host_file_can_all_change_or_go() {
    let Some(layer) = Layer::over("echo 1 > a; ln a b; ln a c; mkdir d; ln a d/a; ln a d/b; ln a e; ln a f")
    else {
        return;
    };
    layer.inside("echo 2 > a; echo 3 > b; rm c; rm -r d; chmod 600 e; touch -d @5 f");
    let report = layer.apply();
    assert_eq!((report.outcome, report.conflicts, report.failures), (ApplyOutcome::Applied, vec![], vec![]));
    assert_eq!(fs::read_to_string(layer.base("b")).unwrap(), "3\n");
    assert!(!layer.base("d").exists() && !layer.base("c").exists());
}

#[test]
fn sparse_files_stay_sparse() {
    let Some(layer) = Layer::over("echo a > a") else { return };
    layer.inside(
        "truncate -s 200M sparse; printf middle | dd of=sparse bs=1 seek=100000000 conv=notrunc status=none
         truncate -s 100M a",
    );
    let report = layer.apply();
    assert_eq!(report.outcome, ApplyOutcome::Applied);
    let status = fs::metadata(layer.base("sparse")).unwrap();
    assert_eq!(status.len(), 200 << 20);
    assert!(status.blocks() * 512 < 1 << 20, "{} blocks", status.blocks());
    assert!(fs::metadata(layer.base("a")).unwrap().blocks() * 512 < 1 << 20);
    assert!(layer.scan().is_empty());
}

#[test]
fn applying_twice_is_harmless() {
    let Some(layer) = Layer::over("echo a > a; mkdir d; echo x > d/x; echo m > m; echo t > t") else {
        return;
    };
    layer.inside("echo b > a; rm -r d; mkdir -p n/n; echo 1 > n/n/f; ln n/n/f n/g; ln -s a l; chmod 600 m; touch -d @1 t; mkfifo p");
    let set = layer.scan();
    let first = apply(&layer.source(), &set, &ApplyOptions::default()).unwrap();
    assert_eq!(first.outcome, ApplyOutcome::Applied);
    assert_eq!(first.applied, set.counts);
    let listed = layer.listed();
    let second = apply(&layer.source(), &set, &ApplyOptions::default()).unwrap();
    assert_eq!((second.outcome, second.conflicts, second.failures), (ApplyOutcome::Applied, vec![], vec![]));
    assert_eq!(layer.listed(), listed);
    assert_eq!(layer.apply().applied, Counts::default());
}

#[test]
fn checking_only_writes_nothing() {
    let Some(layer) = Layer::over("echo a > a") else { return };
    layer.inside("echo b > a; echo n > n");
    let listed = layer.listed();
    let options = ApplyOptions { check_only: true, ..ApplyOptions::default() };
    let report = apply(&layer.source(), &layer.scan(), &options).unwrap();
    assert_eq!(report.outcome, ApplyOutcome::Checked);
    assert_eq!(layer.listed(), listed);
}

#[test]
fn set_id_bits_are_withheld_unless_the_host_had_them() {
    let Some(layer) = Layer::over("echo a > had; chmod 4755 had; echo b > plain") else { return };
    layer.inside("echo more >> had; chmod 4755 had; chmod 6755 plain; echo n > new; chmod 4711 new");
    let set = layer.scan();
    let report = apply(&layer.source(), &set, &ApplyOptions::default()).unwrap();
    let mode = |name: &str| fs::metadata(layer.base(name)).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode("had"), mode("plain"), mode("new")), (0o4755, 0o755, 0o711));
    let withheld: Vec<_> = report.withheld.iter().map(|part| (part.path.to_string(), part.what)).collect();
    let set_id = WithheldPart::SetIdBits;
    assert_eq!(withheld, [("new".to_owned(), set_id), ("plain".to_owned(), set_id)]);
    let options = ApplyOptions { allow_set_id: true, ..ApplyOptions::default() };
    apply(&layer.source(), &layer.scan(), &options).unwrap();
    assert_eq!((mode("plain"), mode("new")), (0o6755, 0o4711));
}

#[test]
fn sockets_are_reported_and_not_carried() {
    let Some(layer) = Layer::over("echo a > a") else { return };
    layer.inside("echo b > b");
    std::os::unix::net::UnixListener::bind(layer.path("upper/socket")).unwrap();
    let report = layer.apply();
    assert_eq!(report.withheld.len(), 1);
    assert_eq!(report.withheld[0].what, WithheldPart::Socket);
    assert!(layer.base("b").exists() && !layer.base("socket").exists());
}

#[test]
fn one_failing_entry_does_not_stop_the_others() {
    let Some(layer) = Layer::over("echo a > a") else { return };
    layer.inside("echo 1 > one; echo 2 > two; echo 3 > three");
    let set = layer.scan();
    fs::write(layer.path("upper/two"), "changed after the scan").unwrap();
    let report = apply(&layer.source(), &set, &ApplyOptions::default()).unwrap();
    assert_eq!(report.outcome, ApplyOutcome::Incomplete);
    assert_eq!(report.failures.len(), 1);
    assert!(report.failures[0].message.contains("list again"), "{:?}", report.failures);
    assert!(layer.base("one").exists() && layer.base("three").exists() && !layer.base("two").exists());
    assert!(serde_json::to_string(&report).unwrap().contains("\"outcome\":\"incomplete\""));
}

#[test]
fn owners_are_translated_for_a_shifted_range() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can give files away");
        return;
    }
    let Some(layer) = Layer::over("echo a > a; chown 1000:1001 . a; echo b > b; chown 7:7 b") else { return };
    // Written by hand: such owners need a mapping that only the sandbox's start-up makes.
    layer.on_host("cd ../upper; echo n > n; echo m > m; mkdir d; ln -s x l; echo more > a");
    let upper = |name: &str| layer.path("upper").join(name);
    for (name, user, group) in
        [("n", 100_033, 100_044), ("m", 5, 300_000), ("d", 100_000, 100_000), ("l", 100_001, 100_002)]
    {
        std::os::unix::fs::lchown(upper(name), Some(user), Some(group)).unwrap();
    }
    std::os::unix::fs::lchown(upper("a"), Some(101_000), Some(101_001)).unwrap();
    let mut source = layer.source();
    source.owner_map = OwnerMap::Shifted { outside_start: 100_000, length: 65_536 };
    let set = scan(&source).unwrap();
    let report = apply(&source, &set, &ApplyOptions::default()).unwrap();
    assert_eq!((report.outcome, report.withheld), (ApplyOutcome::Applied, vec![]));
    let owner = |name: &str| {
        let status = fs::symlink_metadata(layer.base(name)).unwrap();
        (status.uid(), status.gid())
    };
    assert_eq!((owner("n"), owner("m"), owner("d"), owner("l")), ((33, 44), (1000, 1001), (0, 0), (1, 2)));
    assert_eq!((owner("a"), owner("b")), ((1000, 1001), (7, 7)));
}

#[test]
fn a_cancelled_apply_leaves_no_half_file() {
    let Some(layer) = Layer::over("echo a > a") else { return };
    layer.inside("echo b > a; echo n > n");
    let (source, set) = (layer.source(), layer.scan());
    source.cancellation.cancel();
    let error = apply(&source, &set, &ApplyOptions::default()).unwrap_err();
    assert_eq!(error.kind(), leasehold_model::ErrorKind::Cancelled);
    assert_eq!(fs::read_to_string(layer.base("a")).unwrap(), "a\n");
    assert_eq!(layer.listed().len(), 1);
}

/// Runs itself again with little address space.
#[test]
fn f60_a_large_file_needs_little_memory() {
    const LIMITED: &str = "LEASEHOLD_TEST_WITH_LITTLE_MEMORY";
    if std::env::var_os(LIMITED).is_none() {
        let name = "applying::f60_a_large_file_needs_little_memory";
        let output = Command::new("sh")
            .args(["-c", "ulimit -v 300000; exec \"$0\" --exact \"$1\" --test-threads 1 --nocapture"])
            .arg(std::env::current_exe().unwrap())
            .arg(name)
            .env(LIMITED, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && text.contains("1 passed"),
            "{text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        return;
    }
    let Some(layer) = Layer::over("truncate -s 600M big; echo a >> big; truncate -s 40M text") else {
        return;
    };
    layer.inside("printf x | dd of=big bs=1 seek=500000000 conv=notrunc status=none; truncate -s 1G new; echo z >> text");
    let set = layer.scan();
    let mut patch = Vec::new();
    diff(&layer.source(), &set, &DiffOptions::default(), &mut patch).unwrap();
    assert!(patch.len() < 1000, "{}", patch.len());
    assert_eq!(layer.apply().outcome, ApplyOutcome::Applied);
    assert!(layer.scan().is_empty());
}

#[test]
fn discarding_removes_closed_and_very_deep_trees() {
    let Some(layer) = Layer::over("echo a > a") else { return };
    layer.inside(
        "mkdir closed; echo x > closed/x; chmod 0 closed; i=0
         while [ $i -lt 300 ]; do mkdir d d2; echo f > f; ln -s / l; cd -P d; i=$((i+1)); done
         mkdir last; echo x > last/x; chmod 0 last",
    );
    let outside = list(&layer.path("outside"));
    std::os::unix::fs::symlink(layer.path("outside"), layer.path("upper/link")).unwrap();
    discard(&layer.path("upper")).unwrap();
    assert!(!layer.path("upper").exists());
    discard(&layer.path("upper")).unwrap();
    assert_eq!(list(&layer.path("outside")), outside);
}

#[test]
fn a_workspace_time_follows_its_names_only() {
    let Some(layer) = Layer::over("echo a > a; touch -d @1000 .") else { return };
    layer.inside("echo b > a");
    layer.apply();
    assert_eq!(fs::metadata(layer.path("base")).unwrap().mtime(), 1000);
    layer.inside("echo n > n; touch -d @2000 .");
    let report = layer.apply_with(ConflictPolicy::Overwrite);
    assert_eq!(find(&layer_set(&layer), "n").path.to_string(), "n");
    assert_eq!(report.outcome, ApplyOutcome::Applied);
    assert_eq!(fs::metadata(layer.path("base")).unwrap().mtime(), 2000);
}

/// The changes against an empty base: everything that the upper holds.
fn layer_set(layer: &Layer) -> leasehold_local::changes::ChangeSet {
    let mut source = layer.source();
    source.base = layer.path("outside");
    scan(&source).unwrap()
}
