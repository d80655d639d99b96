use std::fs;

use leasehold_local::changes::{ApplyOptions, ApplyOutcome, ConflictPolicy, ConflictReason, apply};

use super::layer::Layer;

const HOST: &str = "echo old > file; mkdir dir dir/sub; echo x > dir/sub/x; ln -s a link; echo 2 > calm";

/// What was done inside, what on the host, and the conflict if there is one: its path and reason.
type Case = (&'static str, &'static str, Option<(&'static str, &'static str)>);

const MATRIX: &[Case] = &[
    ("echo in > file", "echo out > file", Some(("file", "host_changed"))),
    ("echo in > file", "chmod 600 file", Some(("file", "host_changed"))),
    ("echo in > file", "rm file", Some(("file", "host_deleted"))),
    ("echo in > file", "mv file moved", Some(("file", "host_deleted"))),
    ("echo in > file", "rm file; mkdir file", Some(("file", "host_changed"))),
    ("echo in > file", "rm file; ln -s x file", Some(("file", "host_changed"))),
    ("echo in > file", "echo in > file", None),
    ("echo in > file", "echo out > other", None),
    ("chmod 600 file", "echo out > file", Some(("file", "host_changed"))),
    ("chmod 600 file", "chmod 600 file", None),
    ("rm file", "echo out > file", Some(("file", "host_changed"))),
    ("rm file", "rm file", None),
    ("rm file", "rm file; mkdir file", Some(("file", "host_changed"))),
    ("echo in > new", "echo out > new", Some(("new", "host_changed"))),
    ("echo in > new", "echo in > new", None),
    ("echo in > new", "mkdir new", Some(("new", "host_changed"))),
    ("mkdir new; echo in > new/in", "mkdir new; echo out > new/out", None),
    ("mkdir new; echo in > new/in", "echo out > new", Some(("new", "host_changed"))),
    ("rm -r dir", "echo out > dir/sub/out", Some(("dir", "host_changed_below"))),
    ("rm -r dir", "echo out > dir/sub/x", Some(("dir", "host_changed_below"))),
    ("rm -r dir", "rm -r dir", None),
    ("rm -r dir", "rm -r dir; echo f > dir", Some(("dir", "host_changed"))),
    ("rm -r dir; echo in > dir", "echo out > dir/sub/x", Some(("dir", "host_changed_below"))),
    ("rm -r dir; mkdir dir", "echo out > dir/out", Some(("dir/out", "host_changed"))),
    ("echo in > dir/sub/x", "rm -r dir", Some(("dir", "host_deleted"))),
    ("echo in > dir/sub/in", "echo out > dir/sub/out", None),
    ("echo in > dir/sub/in", "mv dir/sub dir/moved", Some(("dir/sub", "host_deleted"))),
    ("chmod 700 dir", "chmod 711 dir", Some(("dir", "host_changed"))),
    ("chmod 700 dir", "echo out > dir/out", None),
    ("ln -sfn in link", "ln -sfn out link", Some(("link", "host_changed"))),
    ("ln -sfn in link", "ln -sfn in link", None),
    ("rm file; mkdir file", "echo out > file", Some(("file", "host_changed"))),
    ("mv calm moved", "echo out > other", None),
    ("echo in >> calm", "mv calm gone; echo x > y", Some(("calm", "host_deleted"))),
];

fn reason_name(reason: &ConflictReason) -> String {
    serde_json::to_value(reason).unwrap()["reason"].as_str().unwrap().to_owned()
}

#[test]
fn every_pair_of_edits_is_judged_and_refusal_writes_nothing() {
    for (inside, outside, expected) in MATRIX {
        let Some(layer) = Layer::over(HOST) else { return };
        layer.inside(inside);
        layer.on_host_later(outside);
        let before = layer.listed();
        let report = layer.apply();
        let found: Vec<_> = report
            .conflicts
            .iter()
            .map(|conflict| (conflict.path.to_string(), reason_name(&conflict.reason)))
            .filter(|(_, reason)| reason != "parent_skipped")
            .collect();
        let case = format!("inside `{inside}`, on the host `{outside}`");
        if let Some((path, reason)) = expected {
            assert_eq!(found, [((*path).to_owned(), (*reason).to_owned())], "{case}");
            assert_eq!(report.outcome, ApplyOutcome::Refused, "{case}");
            assert_eq!(layer.listed(), before, "{case}");
        } else {
            assert_eq!(found, [], "{case}");
            assert_eq!((report.outcome, report.failures), (ApplyOutcome::Applied, vec![]), "{case}");
        }
    }
}

/// The host may also change between listing and applying, when the list shows the host as it was.
#[test]
fn changes_of_the_host_after_the_listing_are_noticed_as_well() {
    for (inside, outside, expected) in MATRIX {
        let Some(layer) = Layer::over(HOST) else { return };
        layer.inside(inside);
        let set = layer.scan();
        layer.on_host_later(outside);
        let before = layer.listed();
        let report = apply(&layer.source(), &set, &ApplyOptions::default()).unwrap();
        let case = format!("inside `{inside}`, on the host `{outside}`: {report:?}");
        if expected.is_some_and(|(path, _)| set.changes.iter().any(|change| change.path.starts_with(path))) {
            assert_eq!(report.outcome, ApplyOutcome::Refused, "{case}");
            assert_eq!(layer.listed(), before, "{case}");
        } else {
            assert!(report.failures.is_empty(), "{case}");
        }
    }
}

#[test]
fn skipping_leaves_the_hosts_version_and_overwriting_replaces_it() {
    for (inside, outside, expected) in MATRIX {
        if expected.is_none() {
            continue;
        }
        for policy in [ConflictPolicy::Skip, ConflictPolicy::Overwrite] {
            let Some(layer) = Layer::over(HOST) else { return };
            layer.inside(&format!("{inside}; echo calm > beside"));
            layer.on_host_later(outside);
            let case = format!("{policy:?}: inside `{inside}`, on the host `{outside}`");
            let report = layer.apply_with(policy);
            assert_eq!(report.failures, [], "{case}");
            assert!(layer.base("beside").exists(), "{case}");
            if policy == ConflictPolicy::Skip {
                assert_eq!(report.outcome, ApplyOutcome::Incomplete, "{case}");
                layer.on_host(&format!("test -e beside; rm beside; {}", still_there(outside)));
            } else {
                assert_eq!(report.outcome, ApplyOutcome::Applied, "{case}");
                assert!(report.conflicts.iter().all(|conflict| conflict.overwritten), "{case}");
                assert!(layer.scan().is_empty(), "{case}: {:?}", layer.scan());
            }
        }
    }
}

/// A shell test that what the host did is still so.
fn still_there(outside: &str) -> String {
    match outside.split_once("> ") {
        Some((_, path)) if outside.starts_with("echo out >") => format!("grep -q out {path}"),
        _ => ":".to_owned(),
    }
}

#[test]
fn a_file_that_the_host_changes_between_check_and_move_is_kept() {
    let Some(layer) = Layer::over("echo old > a-first; echo old > z-last") else { return };
    layer.inside("truncate -s 300M big; yes | head -c 50000000 > b-slow; echo in > z-last; rm a-first");
    let (source, set) = (layer.source(), layer.scan());
    // The host writes again and again, so that some write falls between the check and the move.
    let stop = std::sync::atomic::AtomicBool::new(false);
    let path = layer.base("z-last");
    let report = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut count = 0_u64;
            while !layer.base("b-slow").exists() && !stop.load(std::sync::atomic::Ordering::Relaxed) {
                std::thread::yield_now();
            }
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                count += 1;
                fs::write(&path, format!("host {count}")).unwrap();
            }
        });
        let report = apply(&source, &set, &ApplyOptions::default());
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        writer.join().unwrap();
        report.unwrap()
    });
    // Whoever came last, nothing of the host's was lost unseen.
    let content = fs::read_to_string(layer.base("z-last")).unwrap();
    if report.outcome == ApplyOutcome::Applied {
        assert!(content == "in\n" || content.starts_with("host"), "{content}");
    } else {
        assert_eq!(report.conflicts[0].reason, ConflictReason::HostChangedDuringApply);
        assert!(content.starts_with("host"), "{content}");
    }
}
