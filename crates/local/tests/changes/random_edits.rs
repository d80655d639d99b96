use std::path::Path;
use std::process::Command;

use leasehold_local::changes::ApplyOutcome;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::layer::Layer;

const HOST: &str =
    "mkdir -p a/a a/b b c; for f in a/a/x a/x b/x b/y c/x x y; do echo $f > $f; done; ln -s x z
    chmod 755 y; touch -d @1000.5 a/x b";

fn path() -> impl Strategy<Value = String> {
    proptest::collection::vec(prop_oneof!["[a-c]", "[x-z]"], 1..4).prop_map(|names| names.join("/"))
}

fn edit() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => (path(), 0..100_u32).prop_map(|(p, n)| format!("echo {n} > {p}")),
        2 => (path(), 0..100_u32).prop_map(|(p, n)| format!("echo {n} >> {p}")),
        2 => path().prop_map(|p| format!("rm -f {p}")),
        3 => path().prop_map(|p| format!("rm -rf {p}")),
        3 => path().prop_map(|p| format!("mkdir -p {p}")),
        1 => path().prop_map(|p| format!("rm -rf {p}; mkdir {p}")),
        1 => path().prop_map(|p| format!("rm -rf {p}; echo new > {p}")),
        4 => (path(), path()).prop_map(|(p, q)| format!("mv -fT {p} {q}")),
        2 => (path(), path()).prop_map(|(p, q)| format!("test -d {p} || ln {p} {q}")),
        2 => (path(), path()).prop_map(|(p, q)| format!("ln -sfT {p} {q}")),
        2 => (path(), prop_oneof!["600", "755", "444", "700"]).prop_map(|(p, m)| format!("test -L {p} || chmod {m} {p}")),
        2 => (path(), 0..9999_u32).prop_map(|(p, t)| format!("touch -c -h -d @{t}.25 {p}")),
        1 => path().prop_map(|p| format!("mkfifo {p}")),
        1 => (path(), 0..200_u32).prop_map(|(p, n)| format!("test -p {p} || truncate -s {n}K {p}")),
    ]
}

/// Content, type, mode and link target of everything below a directory, by somebody who may look
/// everywhere.
fn tree(root: &Path) -> Vec<String> {
    let script =
        r"find . -mindepth 1 -printf '%P|%y|%m|%l\0'; find . -type f -print0 | xargs -0r sha256sum -z";
    let output =
        Command::new("unshare").args(["-Ur", "sh", "-c", script]).current_dir(root).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut lines: Vec<_> = output
        .stdout
        .split(|byte| *byte == 0)
        .map(|line| String::from_utf8_lossy(line).into_owned())
        .collect();
    lines.sort();
    lines
}

/// The same edits in a plain copy and in an overlay whose changes are applied give the same tree, and
/// the applied tree is to the nanosecond what the sandbox saw.
#[test]
fn applied_edits_equal_direct_edits() {
    let mut runner = TestRunner::new(Config { cases: 64, failure_persistence: None, ..Config::default() });
    let scripts = proptest::collection::vec(edit(), 1..25);
    runner
        .run(&scripts, |edits| {
            let Some(layer) = Layer::over(HOST) else { return Ok(()) };
            let script = format!("set -f\n{}", edits.join("\n"));
            let copy = layer.path("outside");
            assert!(Command::new("cp").arg("-a").arg(layer.base(".")).arg(&copy).status().unwrap().success());
            Command::new("unshare").args(["-Ur", "sh", "-c", &script]).current_dir(&copy).output().unwrap();
            let seen = layer.inside_listed(&script);
            let report = layer.apply();
            prop_assert_eq!(report.outcome, ApplyOutcome::Applied, "{:?}", report);
            prop_assert_eq!(tree(&layer.path("base")), tree(&copy));
            prop_assert_eq!(layer.listed(), seen);
            prop_assert!(layer.scan().is_empty(), "{:?}", layer.scan());
            Ok(())
        })
        .unwrap();
}
