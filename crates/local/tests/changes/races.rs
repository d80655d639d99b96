use std::fs;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};

use leasehold_local::changes::{ApplyOptions, ConflictPolicy, apply};

use super::layer::{Layer, list};

/// Applies again and again while a thread swaps a parent directory with a link to a directory outside
/// that holds the same names. Nothing outside may change.
fn swapped_during_apply(inside: &str) {
    let host =
        "mkdir -p d/e; for i in $(seq 30); do echo host > d/f$i; echo host > d/e/f$i; done; mkdir d/gone
        echo x > d/gone/x; cp -a d/. ../outside; mkdir ../spare";
    let Some(layer) = Layer::over(host) else { return };
    layer.inside(inside);
    let set = layer.scan();
    let outside = list(&layer.path("outside"));
    let stop = AtomicBool::new(false);
    let (directory, aside) = (layer.base("d"), layer.path("spare/d"));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                fs::rename(&directory, &aside).unwrap();
                symlink(layer.path("outside"), &directory).unwrap();
                std::thread::yield_now();
                fs::remove_file(&directory).unwrap();
                fs::rename(&aside, &directory).unwrap();
                std::thread::yield_now();
            }
        });
        let options = ApplyOptions { conflicts: ConflictPolicy::Overwrite, ..ApplyOptions::default() };
        for _ in 0..30 {
            apply(&layer.source(), &set, &options).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(list(&layer.path("outside")), outside);
    for index in 1..=30 {
        assert_eq!(fs::read_to_string(layer.path(&format!("outside/f{index}"))).unwrap(), "host\n");
    }
    // When nobody swaps any more, everything arrives.
    let options = ApplyOptions { conflicts: ConflictPolicy::Overwrite, ..ApplyOptions::default() };
    let report = apply(&layer.source(), &layer.scan(), &options).unwrap();
    assert_eq!(report.failures, []);
    assert_eq!(layer.scan().counts.bytes, 0);
}

#[test]
fn f62_a_parent_swapped_for_a_link_never_leads_content_outside() {
    swapped_during_apply(
        "for i in $(seq 30); do echo in > d/f$i; echo in > d/e/f$i; echo n > d/n$i; mkdir d/m$i; done",
    );
}

#[test]
fn f63_a_parent_swapped_for_a_link_never_leads_metadata_or_deletions_outside() {
    swapped_during_apply(
        "for i in $(seq 15); do chmod 600 d/f$i; touch -d @5 d/e/f$i; done; for i in $(seq 16 30); do rm d/f$i d/e/f$i; done
         rm -r d/gone; ln -s x d/link; mkfifo d/pipe; chmod 700 d/e; ln d/f1 d/again",
    );
}

#[test]
fn f62_links_that_the_sandbox_plants_are_carried_verbatim_and_not_followed() {
    let Some(layer) = Layer::over("mkdir a; echo 1 > a/f; echo secret > ../outside/f") else { return };
    layer.inside("rm -r a; ln -s ../outside a; ln -s /etc/passwd absolute; ln -s ../../.. up; mkdir up2; ln -s ../up up2/x");
    let outside = list(&layer.path("outside"));
    let report = layer.apply();
    assert_eq!(report.failures, []);
    assert_eq!(fs::read_link(layer.base("a")).unwrap().to_str(), Some("../outside"));
    assert_eq!(fs::read_link(layer.base("absolute")).unwrap().to_str(), Some("/etc/passwd"));
    assert_eq!(list(&layer.path("outside")), outside);
}

#[test]
fn f63_a_host_link_in_the_way_is_a_conflict_and_not_followed() {
    let Some(layer) = Layer::over("mkdir a; echo 1 > a/f; echo 2 > a/g; cp -a a/. ../outside") else {
        return;
    };
    layer.inside("echo in > a/f; rm a/g; echo n > a/n");
    layer.on_host_later("rm -r a; ln -s ../outside a");
    let outside = list(&layer.path("outside"));
    for policy in [ConflictPolicy::Refuse, ConflictPolicy::Skip] {
        let report = layer.apply_with(policy);
        assert!(!report.conflicts.is_empty());
        assert_eq!(list(&layer.path("outside")), outside);
    }
}
