//! Hosts by their recorded facts (field case F84).

use leasehold_model::ErrorKind;

use crate::doctor::diagnosis::{Block, Diagnosis, Necessity, Rung, Status};
use crate::doctor::facts::{
    CallTrials, CgroupFacts, Confinement, ErrorNumber, HostFacts, IdMappedTrials, LayerFacts, LegacyCgroup,
    NamespaceSettings, NamespaceTrials, SubordinateIds, Trial, UnifiedCgroup,
};

const REFUSED: Trial = Trial::Failed(ErrorNumber::NOT_PERMITTED);
const DENIED: Trial = Trial::Failed(ErrorNumber::ACCESS_DENIED);
const INVALID: Trial = Trial::Failed(ErrorNumber::INVALID);

fn layer(directory: &str, file_system: &str) -> LayerFacts {
    LayerFacts {
        directory: directory.into(),
        file_system: file_system.to_owned(),
        access: Trial::Worked,
        mounts_beneath: Vec::new(),
        overlay: Trial::Worked,
        changes: Trial::Worked,
        user_attributes: Trial::Worked,
    }
}

/// A desktop on which everything works for a normal user.
fn healthy() -> HostFacts {
    let worked = Trial::Worked;
    HostFacts {
        kernel_release: "6.8.0-31-generic".to_owned(),
        distribution: vec!["ubuntu".to_owned(), "debian".to_owned()],
        systemd: true,
        program: "/usr/local/bin/leasehold".into(),
        user_id: 1000,
        user_name: "ada".to_owned(),
        confinement: Confinement { mapped_ids: 4_294_967_295, ..Confinement::default() },
        settings: NamespaceSettings {
            unprivileged_clone: Some(1),
            maximum_user_namespaces: Some(63_000),
            apparmor_restriction: Some(0),
        },
        namespaces: NamespaceTrials {
            user: worked,
            id_map: worked,
            mount: worked,
            tmpfs: worked,
            ipc_and_uts: worked,
            network: worked,
            tunnel_device: worked,
            tunnel: worked,
            devpts: worked,
            terminal: worked,
            pid: worked,
            proc: worked,
        },
        covered_proc_paths: Vec::new(),
        subordinate_ids: SubordinateIds {
            user_range: Some((100_000, 65_536)),
            group_range: Some((100_000, 65_536)),
            first_free: 165_536,
            newuidmap: Some("/usr/bin/newuidmap".into()),
            newgidmap: Some("/usr/bin/newgidmap".into()),
            tools_privileged: true,
            mapping: worked,
            complaint: None,
        },
        data_directory: layer("/home/ada/.local/share/leasehold", "ext4"),
        workspace: Some(layer("/home/ada/project", "ext4")),
        id_mapped: IdMappedTrials::default(),
        cgroups: CgroupFacts {
            unified: Some(UnifiedCgroup {
                directory: "/sys/fs/cgroup/user.slice/app.scope".into(),
                create: worked,
                enter: worked,
                subtree_control: worked,
                kill: worked,
                freeze: worked,
                controllers: ["cpu", "memory", "pids"].map(str::to_owned).to_vec(),
            }),
            legacy: Vec::new(),
        },
        calls: CallTrials {
            seccomp: worked,
            landlock_version: Some(4),
            security_modules: None,
            landlock: worked,
            pidfd: worked,
            wait_on_pidfd: worked,
            openat2: worked,
            clone3: worked,
            close_range: worked,
            memfd: worked,
        },
    }
}

fn diagnose(change: impl FnOnce(&mut HostFacts)) -> Diagnosis {
    let mut facts = healthy();
    change(&mut facts);
    Diagnosis::of(facts)
}

/// The reason and the fix of a block that must be missing.
fn missing(diagnosis: &Diagnosis, block: Block) -> (String, String) {
    let finding = diagnosis.finding(block).unwrap();
    let Status::Missing { reason } = &finding.status else { panic!("{block} is {:?}", finding.status) };
    (reason.clone(), finding.fix.clone().unwrap_or_default())
}

/// Namespaces of a host on which not even a user namespace can be made.
fn no_namespaces(trial: Trial) -> NamespaceTrials {
    NamespaceTrials { user: trial, ..NamespaceTrials::default() }
}

#[test]
fn a_healthy_host_is_on_the_full_rung_and_refuses_nothing() {
    let diagnosis = diagnose(|_| ());
    assert_eq!(diagnosis.rung, Rung::Full);
    assert!(diagnosis.refusal().is_none());
    assert!(diagnosis.findings.iter().all(|finding| finding.fix.is_none()));
    let text = diagnosis.to_string();
    assert!(text.ends_with("This host makes sandboxes with full isolation.\n"), "{text}");
}

#[test]
fn f84_ubuntu_24_04_names_apparmor_and_gives_a_profile() {
    for (id_map, tmpfs) in [(REFUSED, Trial::NotTried), (Trial::Worked, DENIED)] {
        let diagnosis = diagnose(|facts| {
            facts.settings.apparmor_restriction = Some(1);
            facts.namespaces =
                NamespaceTrials { user: Trial::Worked, id_map, tmpfs, ..NamespaceTrials::default() };
            if id_map.worked() {
                facts.namespaces.mount = Trial::Worked;
            }
        });
        let (reason, fix) = missing(&diagnosis, Block::UserNamespaces);
        assert!(reason.contains("AppArmor denies capabilities"), "{reason}");
        assert!(
            fix.contains("profile leasehold /usr/local/bin/leasehold flags=(unconfined) {\n  userns,"),
            "{fix}"
        );
        assert!(fix.contains("sudo apparmor_parser --replace /etc/apparmor.d/leasehold"), "{fix}");
        assert!(fix.contains("sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"), "{fix}");
        assert!(
            fix.contains("/etc/sysctl.d/90-leasehold-apparmor-restrict-unprivileged-userns.conf"),
            "{fix}"
        );
        let refusal = diagnosis.refusal().unwrap();
        assert_eq!(refusal.kind(), ErrorKind::Unsupported);
        assert!(refusal.message().contains("user_namespaces"), "{refusal}");
        assert_eq!(refusal.hint(), Some(fix.as_str()));
    }
}

#[test]
fn f84_debian_switch_is_named_with_its_lasting_form() {
    let diagnosis = diagnose(|facts| {
        facts.settings.unprivileged_clone = Some(0);
        facts.namespaces = no_namespaces(REFUSED);
    });
    let (reason, fix) = missing(&diagnosis, Block::UserNamespaces);
    assert_eq!(reason, "kernel.unprivileged_userns_clone is 0: EPERM");
    assert_eq!(
        fix,
        "sudo sysctl -w kernel.unprivileged_userns_clone=1\n\
         echo 'kernel.unprivileged_userns_clone = 1' | sudo tee \
         /etc/sysctl.d/90-leasehold-unprivileged-userns-clone.conf   # keeps it after a restart"
    );
}

#[test]
fn f84_no_user_namespaces_allowed_at_all() {
    let diagnosis = diagnose(|facts| {
        facts.settings.maximum_user_namespaces = Some(0);
        facts.namespaces = no_namespaces(Trial::Failed(ErrorNumber::NO_SPACE));
    });
    let (reason, fix) = missing(&diagnosis, Block::UserNamespaces);
    assert_eq!(reason, "user.max_user_namespaces is 0: ENOSPC");
    assert!(fix.starts_with("sudo sysctl -w user.max_user_namespaces=15000\n"), "{fix}");
    // What stands on user namespaces says so instead of inventing a cause of its own.
    for block in [Block::Proc, Block::NetworkNamespace, Block::Overlay, Block::Terminals, Block::Tun] {
        let finding = diagnosis.finding(block).unwrap();
        assert_eq!(finding.status, Status::Blocked { by: Block::UserNamespaces }, "{block}");
    }
    assert_eq!(diagnosis.rung, Rung::Refused);
}

#[test]
fn root_of_a_nested_user_namespace_is_sent_outside() {
    let diagnosis = diagnose(|facts| {
        facts.user_id = 0;
        facts.confinement.mapped_ids = 1;
        facts.settings.maximum_user_namespaces = Some(0);
        facts.namespaces = no_namespaces(Trial::Failed(ErrorNumber::NO_SPACE));
    });
    let (_, fix) = missing(&diagnosis, Block::UserNamespaces);
    assert!(fix.starts_with("# outside of this user namespace:\nsudo sysctl -w "), "{fix}");
}

#[test]
fn f84_inside_docker_with_its_default_filter() {
    let diagnosis = diagnose(|facts| {
        facts.user_id = 0;
        facts.confinement.container = Some("docker".to_owned());
        facts.confinement.seccomp_filter = true;
        facts.settings.apparmor_restriction = Some(1);
        facts.namespaces = no_namespaces(REFUSED);
    });
    let (reason, fix) = missing(&diagnosis, Block::UserNamespaces);
    assert_eq!(reason, "forbidden by the seccomp filter of this docker container: EPERM");
    for flag in
        ["seccomp=unconfined", "apparmor=unconfined", "systempaths=unconfined", "--device /dev/net/tun"]
    {
        assert!(fix.contains(flag), "{fix}");
    }
    assert!(!fix.contains("sudo"), "root needs no sudo: {fix}");
}

#[test]
fn f84_a_filter_that_kills_is_recognised() {
    let diagnosis = diagnose(|facts| {
        facts.confinement.seccomp_filter = true;
        facts.namespaces = no_namespaces(Trial::Killed(31));
    });
    let (reason, _) = missing(&diagnosis, Block::UserNamespaces);
    assert_eq!(reason, "forbidden by the seccomp filter that this process inherits: killed by SIGSYS");
}

#[test]
fn f84_a_chroot_is_recognised() {
    let diagnosis = diagnose(|facts| {
        facts.confinement.changed_root = true;
        facts.namespaces = no_namespaces(REFUSED);
    });
    assert!(missing(&diagnosis, Block::UserNamespaces).0.contains("chroot"));
}

#[test]
fn f84_masked_proc_of_a_container() {
    let diagnosis = diagnose(|facts| {
        facts.confinement.container = Some("podman".to_owned());
        facts.covered_proc_paths = ["/proc/kcore", "/proc/keys"].map(str::to_owned).to_vec();
        facts.namespaces.proc = REFUSED;
    });
    let (reason, fix) = missing(&diagnosis, Block::Proc);
    assert_eq!(reason, "/proc/kcore and 1 more is covered, so the kernel refuses a new one: EPERM");
    assert!(fix.contains("--security-opt unmask=ALL"), "{fix}");
}

#[test]
fn f84_no_tunnel_device_loses_little_and_says_what() {
    let diagnosis = diagnose(|facts| {
        facts.namespaces.tunnel_device = Trial::Failed(ErrorNumber::NOT_FOUND);
        facts.namespaces.tunnel = Trial::Failed(ErrorNumber::NOT_FOUND);
    });
    let (reason, fix) = missing(&diagnosis, Block::Tun);
    assert_eq!(reason, "/dev/net/tun: ENOENT");
    assert!(fix.starts_with("sudo modprobe tun\n"), "{fix}");
    assert_eq!(diagnosis.rung, Rung::Full, "an optional block does not lower the rung");
    assert!(diagnosis.refusal().is_none());

    let locked = diagnose(|facts| facts.namespaces.tunnel_device = DENIED);
    assert!(missing(&locked, Block::Tun).1.starts_with("sudo chmod 666 /dev/net/tun\n"));
}

#[test]
fn f84_no_cgroup_delegation_on_a_systemd_host() {
    let diagnosis = diagnose(|facts| {
        let group = facts.cgroups.unified.as_mut().unwrap();
        group.directory = "/sys/fs/cgroup/user.slice/user-1000.slice/session-3.scope".into();
        group.create = DENIED;
        group.enter = Trial::NotTried;
        group.kill = Trial::NotTried;
        group.freeze = Trial::NotTried;
        group.subtree_control = DENIED;
    });
    let (reason, fix) = missing(&diagnosis, Block::CgroupLimits);
    assert!(reason.starts_with("memory, pids, cpu: "), "{reason}");
    assert!(reason.ends_with("is not delegated to us: EACCES"), "{reason}");
    assert!(fix.starts_with("systemd-run --user --scope --property=Delegate=yes leasehold run"), "{fix}");
    assert!(fix.contains("Delegate=cpu cpuset io memory pids"), "{fix}");
    assert_eq!(diagnosis.rung, Rung::Reduced);
    assert!(diagnosis.refusal().is_none());
    let text = diagnosis.to_string();
    assert!(text.contains("lost: --memory, --cpus and --pids are refused"), "{text}");
    assert_eq!(text.matches("systemd-run").count(), 1, "the same fix is printed once: {text}");
    assert!(text.contains("fix:  as for cgroup_limits"), "{text}");
}

#[test]
fn f84_a_delegated_group_without_the_cpu_controller() {
    let diagnosis = diagnose(|facts| {
        facts.cgroups.unified.as_mut().unwrap().controllers = vec!["memory".into(), "pids".into()];
    });
    let (reason, _) = missing(&diagnosis, Block::CgroupLimits);
    assert!(reason.starts_with("cpu: "), "{reason}");
    assert!(reason.ends_with("lacks the controller (usable: memory, pids)"), "{reason}");
}

#[test]
fn hybrid_cgroups_are_used_where_they_are_ours() {
    let group = |controller: &str, create, enter| LegacyCgroup {
        controller: controller.to_owned(),
        directory: format!("/sys/fs/cgroup/{controller}").into(),
        create,
        enter,
    };
    let worked = Trial::Worked;
    let mut diagnosis = diagnose(|facts| {
        facts.cgroups.unified.as_mut().unwrap().controllers.clear();
        facts.cgroups.legacy =
            ["memory", "pids", "cpu", "freezer"].map(|name| group(name, worked, worked)).to_vec();
    });
    assert_eq!(diagnosis.rung, Rung::Full);
    let mut facts = std::mem::take(&mut diagnosis.facts);
    facts.cgroups.legacy[0] = group("memory", DENIED, Trial::NotTried);
    facts.systemd = false;
    let (reason, fix) = missing(&Diagnosis::of(facts), Block::CgroupLimits);
    assert_eq!(reason, "memory: /sys/fs/cgroup/memory is not ours: EACCES (usable: pids, cpu)");
    assert!(fix.contains("/sys/fs/cgroup/memory/leasehold-ada"), "{fix}");
    assert!(fix.contains("sudo chown -R ada $group && echo $$ | sudo tee $group/cgroup.procs"), "{fix}");
}

#[test]
fn f84_overlay_refused_on_the_data_directory() {
    let diagnosis = diagnose(|facts| {
        facts.data_directory.file_system = "nfs4".to_owned();
        facts.data_directory.overlay = INVALID;
        facts.data_directory.changes = Trial::NotTried;
        facts.workspace.as_mut().unwrap().overlay = INVALID;
    });
    let (reason, fix) = missing(&diagnosis, Block::Overlay);
    assert!(
        reason.starts_with("nfs4 at /home/ada/.local/share/leasehold cannot hold upper layers"),
        "{reason}"
    );
    assert!(fix.contains("ext4, xfs, btrfs or tmpfs"), "{fix}");
    let workspace = diagnosis.finding(Block::WorkspaceOverlay).unwrap();
    assert_eq!(workspace.status, Status::Blocked { by: Block::Overlay });
}

#[test]
fn f84_overlay_inside_docker_wants_a_volume() {
    let diagnosis = diagnose(|facts| {
        facts.confinement.container = Some("docker".to_owned());
        facts.data_directory = layer("/root/.local/share/leasehold", "overlay");
        facts.data_directory.overlay = INVALID;
    });
    let (_, fix) = missing(&diagnosis, Block::Overlay);
    assert!(fix.starts_with("docker run --volume leasehold:/root/.local/share/leasehold IMAGE"), "{fix}");
}

#[test]
fn f84_overlay_refused_on_the_workspace() {
    let refused = diagnose(|facts| {
        let mut workspace = layer("/mnt/usb", "vfat");
        workspace.overlay = INVALID;
        facts.workspace = Some(workspace);
    });
    assert!(missing(&refused, Block::WorkspaceOverlay).0.starts_with("vfat at /mnt/usb"));

    let inside = diagnose(|facts| {
        let mut workspace = layer("/home/ada", "ext4");
        workspace.overlay = Trial::Failed(ErrorNumber::LOOP);
        facts.workspace = Some(workspace);
    });
    let (reason, _) = missing(&inside, Block::WorkspaceOverlay);
    assert!(reason.contains("lies inside the workspace /home/ada"), "{reason}");

    let mounts = diagnose(|facts| {
        let workspace = facts.workspace.as_mut().unwrap();
        workspace.overlay = INVALID;
        workspace.mounts_beneath = vec!["/home/ada/project/cache".to_owned()];
    });
    let (reason, fix) = missing(&mounts, Block::WorkspaceOverlay);
    assert!(reason.contains("/home/ada/project/cache is mounted inside"), "{reason}");
    assert!(fix.ends_with("umount /home/ada/project/cache"), "{fix}");
}

#[test]
fn an_unwritable_data_directory_is_said_before_anything_else_about_it() {
    let diagnosis = diagnose(|facts| {
        facts.data_directory = LayerFacts { access: DENIED, ..layer("/var/lib/my leases", "ext4") };
    });
    let (reason, fix) = missing(&diagnosis, Block::Overlay);
    assert_eq!(reason, "cannot write in the data directory /var/lib/my leases: EACCES");
    assert_eq!(fix, "sudo install --directory --owner=ada --mode=700 '/var/lib/my leases'");
    let read_only = diagnose(|facts| facts.data_directory.access = Trial::Failed(ErrorNumber::READ_ONLY));
    assert!(missing(&read_only, Block::Overlay).1.contains("writable file system"));
}

#[test]
fn subordinate_ids_are_mended_in_one_round() {
    let diagnosis = diagnose(|facts| {
        facts.subordinate_ids = SubordinateIds { first_free: 231_072, ..SubordinateIds::default() };
    });
    let (reason, fix) = missing(&diagnosis, Block::SubordinateIds);
    assert!(reason.contains("not installed") && reason.contains("nothing is reserved for ada"), "{reason}");
    assert_eq!(
        fix,
        "sudo apt-get install --yes uidmap\n\
         sudo usermod --add-subuids 231072-296607 --add-subgids 231072-296607 ada"
    );
    let fresh = diagnose(|facts| {
        facts.subordinate_ids.user_range = None;
        facts.subordinate_ids.first_free = 0;
        facts.subordinate_ids.mapping = Trial::NotTried;
    });
    assert_eq!(
        missing(&fresh, Block::SubordinateIds).1,
        "sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 ada"
    );
    let tools = diagnose(|facts| {
        facts.subordinate_ids.tools_privileged = false;
        facts.subordinate_ids.mapping = REFUSED;
    });
    assert!(
        missing(&tools, Block::SubordinateIds).1.ends_with("chmod u+s /usr/bin/newuidmap /usr/bin/newgidmap")
    );
}

#[test]
fn id_mapped_mounts_matter_to_root_only() {
    assert!(matches!(
        diagnose(|_| ()).finding(Block::IdMappedMounts).unwrap().status,
        Status::NotNeeded { .. }
    ));
    let old = diagnose(|facts| {
        facts.user_id = 0;
        facts.kernel_release = "5.15.0-100-generic".to_owned();
        facts.id_mapped = IdMappedTrials { mount: Trial::Worked, overlay: INVALID };
    });
    let (reason, fix) = missing(&old, Block::IdMappedMounts);
    assert!(reason.starts_with("an overlay over one on ext4"), "{reason}");
    assert_eq!(fix, "# start a kernel of 5.19 or later");
    assert_eq!(old.rung, Rung::Reduced);
}

#[test]
fn an_old_kernel_is_refused_first() {
    let diagnosis = diagnose(|facts| {
        facts.kernel_release = "4.18.0-553.el8_10.x86_64".to_owned();
        facts.calls.openat2 = Trial::Failed(ErrorNumber::NO_SUCH_CALL);
    });
    let refusal = diagnosis.refusal().unwrap();
    assert!(refusal.message().contains("kernel is missing: 4.18.0-553"), "{refusal}");
    assert_eq!(refusal.context(), [("block", "kernel".to_owned()), ("also missing", "openat2".to_owned())]);
}

#[test]
fn landlock_that_is_switched_off_is_told_from_one_that_is_absent() {
    let off = diagnose(|facts| {
        facts.calls.landlock_version = None;
        facts.calls.landlock = Trial::Failed(ErrorNumber::NOT_SUPPORTED);
        facts.calls.security_modules = Some("lockdown,yama,apparmor\n".to_owned());
    });
    assert!(missing(&off, Block::Landlock).1.ends_with("\nlsm=landlock,lockdown,yama,apparmor"));
    let absent = diagnose(|facts| {
        facts.calls.landlock_version = None;
        facts.calls.landlock = Trial::Failed(ErrorNumber::NO_SUCH_CALL);
    });
    assert!(missing(&absent, Block::Landlock).1.contains("CONFIG_SECURITY_LANDLOCK=y"));
}

#[test]
fn json_names_blocks_and_keeps_the_facts_readable() {
    let diagnosis = diagnose(|facts| facts.calls.clone3 = Trial::Failed(ErrorNumber::NO_SUCH_CALL));
    let json = serde_json::to_value(&diagnosis).unwrap();
    assert_eq!(json["rung"], "full");
    let clone3 = json["findings"].as_array().unwrap().iter().find(|one| one["block"] == "clone3").unwrap();
    assert_eq!(clone3["status"], "missing");
    assert_eq!(clone3["necessity"], "optional");
    assert_eq!(clone3["reason"], "clone3: ENOSYS");
    let facts: HostFacts = serde_json::from_value(json["facts"].clone()).unwrap();
    assert_eq!(facts, diagnosis.facts);
    for finding in &diagnosis.findings {
        assert_eq!(serde_json::to_value(finding.block).unwrap(), finding.block.name());
    }
}

#[test]
fn the_documentation_knows_every_block_and_what_is_lost() {
    let page = include_str!("../../../../../docs/host-requirements.md").replace('\n', " ");
    for finding in diagnose(|_| ()).findings {
        assert!(page.contains(&format!("| `{}` |", finding.block)), "{}", finding.block);
        if let Necessity::Recommended { lost } | Necessity::Optional { lost } = finding.necessity {
            let plain = |text: &str| text.replace('`', "");
            assert!(plain(&page).contains(&plain(lost)), "{}: {lost}", finding.block);
        }
    }
}

#[test]
fn every_required_block_that_fails_refuses() {
    for block in diagnose(|_| ()).findings.iter().map(|finding| (finding.block, finding.necessity)) {
        let (block, necessity) = block;
        if necessity != Necessity::Required {
            continue;
        }
        let diagnosis = diagnose(|facts| break_block(facts, block));
        let refusal = diagnosis.refusal().unwrap();
        assert!(refusal.message().contains(block.name()), "{refusal}");
        assert!(refusal.hint().is_some_and(|hint| !hint.is_empty()));
    }
}

fn break_block(facts: &mut HostFacts, block: Block) {
    match block {
        Block::Kernel => facts.kernel_release = "3.10.0".to_owned(),
        Block::UserNamespaces => facts.namespaces.user = REFUSED,
        Block::ProcessNamespaces => facts.namespaces.pid = REFUSED,
        Block::Proc => facts.namespaces.proc = REFUSED,
        Block::NetworkNamespace => facts.namespaces.network = REFUSED,
        Block::Overlay => facts.data_directory.overlay = INVALID,
        Block::WorkspaceOverlay => facts.workspace.as_mut().unwrap().overlay = INVALID,
        Block::Seccomp => facts.calls.seccomp = INVALID,
        Block::Pidfd => facts.calls.wait_on_pidfd = INVALID,
        Block::Openat2 => facts.calls.openat2 = Trial::Failed(ErrorNumber::NO_SUCH_CALL),
        other => panic!("{other} is not required"),
    }
}
