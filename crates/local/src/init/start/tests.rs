use super::*;
use crate::protocol::{InnerUsers, Lifetime, MountPlan, NetworkOwner, SharedTree, TreeAccess, User};
use crate::syscall::Recording;

fn plan() -> StartPlan {
    let overlay = |lower: &str, layer: &str, target: &str| OverlayPlan {
        lower: vec![lower.into()],
        layer: layer.into(),
        target: target.into(),
    };
    StartPlan {
        host_name: "sandbox".into(),
        mounts: MountPlan {
            state: "/state".into(),
            mapped: vec!["/state".into()],
            root: overlay("/skeleton", "root", "/"),
            system: vec![SharedTree {
                source: "/usr".into(),
                target: "/usr".into(),
                access: TreeAccess::ReadOnly,
            }],
            links: vec![("/bin".into(), "usr/bin".into())],
            overlays: vec![overlay("/home/u/project", "workspace", "/home/u/project")],
            directories: vec![("/tmp".into(), 0o1777)],
            files: vec![("/etc/hostname".into(), b"sandbox\n".to_vec())],
            exposures: vec![SharedTree {
                source: "/data".into(),
                target: "/data/".into(),
                access: TreeAccess::ReadOnly,
            }],
            disk_limit: None,
        },
        network: NetworkOwner::Sandbox,
        owner: (0, 0),
        user: User::Id { user: 0, group: Some(0) },
        directory: "/home/u/project".into(),
        users: InnerUsers::Many,
        lifetime: Lifetime::Creator,
        expire_after: None,
        idle_stop_after: None,
        cgroup_files: 0,
        process_limit: 100,
        listens: false,
    }
}

fn mapped() -> Vec<OwnedFd> {
    vec![std::fs::File::open("/dev/null").unwrap().into()]
}

#[test]
fn places_are_opened_before_the_user_changes_and_the_root_changes_last() {
    let recording = Recording::default();
    build(&recording, &plan(), mapped()).unwrap();
    let lines = recording.lines();
    let position = |wanted: &str| {
        lines
            .iter()
            .position(|line| line.starts_with(wanted))
            .unwrap_or_else(|| panic!("{wanted}: {lines:#?}"))
    };
    assert_eq!(position("make_mounts_private"), 0);
    for source in ["/state", "/skeleton", "/usr", "/home/u/project", "/data"] {
        assert!(position(&format!("open_place {source}")) < position("become_user 0:0"), "{source}");
    }
    let limit = lines.iter().position(|line| line.starts_with("write_kernel_file")).unwrap();
    let masked = lines.iter().position(|line| line == "open_below proc/sys").unwrap();
    assert!(limit < masked, "the namespace limit is set before /proc/sys is read-only");
    assert!(position("make_directory data") > position("make_directory home/u/project"));
    assert!(position("change_root") > position("make_directory data"));
    assert_eq!(lines.last().unwrap(), "loopback_up");
}

#[test]
fn nothing_of_the_host_is_attached_without_its_restriction() {
    let recording = Recording::default();
    build(&recording, &plan(), mapped()).unwrap();
    let lines = recording.lines();
    let clones = lines.iter().filter(|line| *line == "clone_tree").count();
    let restricted = lines.iter().filter(|line| line.starts_with("restrict")).count();
    // `/sys` is new, and restricted when it is full.
    assert_eq!(clones, restricted - 1, "{lines:#?}");
    let exposed = lines.iter().rposition(|line| line == "clone_tree").unwrap();
    assert!(lines[exposed + 1].contains("read_only: true"), "{lines:#?}");
}

#[test]
fn a_failing_step_is_named_with_its_subject_and_a_hint() {
    for (call, step, subject) in [
        ("make_mounts_private", "private_mounts", "/"),
        ("become_user", "identity", "user 0, group 0"),
        ("new_filesystem", "root", "/"),
        ("change_root", "change_root", "/"),
        ("set_host_name", "settings", "sandbox"),
    ] {
        let failure = build(&Recording::failing_on(call), &plan(), mapped()).unwrap_err();
        assert_eq!((failure.step.as_str(), failure.subject.as_str()), (step, subject));
        assert!(!failure.hint.is_empty());
    }
}

#[test]
fn a_disk_limit_puts_every_layer_into_memory() {
    let recording = Recording::default();
    let mut plan = plan();
    plan.mounts.disk_limit = Some(1 << 20);
    assert!(build(&recording, &plan, mapped()).unwrap().is_some());
    let lines = recording.lines();
    let first = lines.iter().position(|line| line.starts_with("new_filesystem tmpfs")).unwrap();
    assert!(lines[first].contains("size") && lines[first].contains("nr_inodes"));
    assert!(lines.iter().any(|line| line.starts_with("make_directory workspace/upper")));
}
