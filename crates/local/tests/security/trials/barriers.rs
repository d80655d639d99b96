//! The kernel, the pid 1, the devices and the rights of a command.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use leasehold_model::{CommandSpec, TerminalSize, UserSpec};

use crate::arena::{Arena, HostFacts, Side, is_host_root, judge, read_only};
use crate::calls::Argument::{Memory, Number, Text};
use crate::calls::call;

/// An attack that needs nothing prepared: all is refused, the sandbox lives, the host is as it was.
#[track_caller]
pub(super) fn plain(arena: &Arena, side: Side, attack: &str) {
    let before = HostFacts::now(arena);
    let sandbox = arena.create(arena.spec(side));
    arena.attack(&sandbox, attack, &[]);
    arena.alive(&sandbox);
    arena.delete(&sandbox);
    assert_eq!(HostFacts::now(arena), before, "the host was changed by {attack}");
}

pub(super) fn init_files(arena: &Arena, side: Side) {
    let before = HostFacts::now(arena);
    let sandbox = arena.create(arena.spec(side));
    // A file server is a copy of pid 1 with the user's own id; it must be as closed.
    let files = sandbox.files();
    arena.wait(files.stat(Path::new("/tmp"))).expect("the files API works");
    arena.attack(&sandbox, "init_files", &[]);
    arena.wait(files.stat(Path::new("/tmp"))).expect("the files API still works");
    drop(files);
    arena.alive(&sandbox);
    arena.delete(&sandbox);
    assert_eq!(HostFacts::now(arena), before);
}

pub(super) fn terminal(arena: &Arena, side: Side) {
    let sandbox = arena.create(arena.spec(side));
    let command = arena.command("terminal", &[]).with_terminal(TerminalSize::default());
    let output = arena.run(&sandbox, command);
    judge("terminal", &output);
    arena.delete(&sandbox);
}

pub(super) fn devices(arena: &Arena, side: Side) {
    let blocks: Vec<String> = std::fs::read_dir("/sys/class/block")
        .map(|entries| {
            entries.flatten().map(|entry| format!("/dev/{}", entry.file_name().to_string_lossy())).collect()
        })
        .unwrap_or_default();
    let sandbox = arena.create(arena.spec(side));
    arena.attack(&sandbox, "devices", &blocks);
    // What the command may not make, the files API makes neither.
    for path in ["/dev/made", "/tmp/made"] {
        assert!(arena.wait(sandbox.files().stat(Path::new(path))).is_err());
    }
    arena.delete(&sandbox);
}

/// Changing owners, users and modes; low ports; new roots; nothing else.
const CAPABILITIES_OF_ROOT: &str = "00000000a00405fb";
const NO_CAPABILITIES: &str = "0000000000000000";

pub(super) fn capabilities(arena: &Arena, side: Side) {
    let sandbox = arena.create(arena.spec(side));
    let lines = arena.attack(&sandbox, "status", &[]);
    arena.delete(&sandbox);
    let own = match side {
        Side::User => NO_CAPABILITIES,
        Side::Root => CAPABILITIES_OF_ROOT,
    };
    let (user, group) = side.ids();
    for wanted in [
        format!("Uid: {user} {user} {user} {user}"),
        format!("Gid: {group} {group} {group} {group}"),
        format!("CapInh: {NO_CAPABILITIES}"),
        format!("CapPrm: {own}"),
        format!("CapEff: {own}"),
        format!("CapBnd: {CAPABILITIES_OF_ROOT}"),
        format!("CapAmb: {NO_CAPABILITIES}"),
        "NoNewPrivs: 1".to_owned(),
        "Seccomp: 2".to_owned(),
        "Max processes 4096 4096 processes".to_owned(),
    ] {
        assert!(lines.contains(&wanted), "`{wanted}` is not in {lines:#?}");
    }
}

pub(super) fn environment(arena: &Arena, side: Side) {
    assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some(), "the host has nothing that could leak");
    let mut spec = arena.spec(side);
    spec.environment.push(("GIVEN".into(), "1".into()));
    let sandbox = arena.create(spec);
    let lines = arena.attack(&sandbox, "environment", &[]);
    arena.delete(&sandbox);
    let names: Vec<&str> = lines
        .iter()
        .filter_map(|line| line.strip_prefix("variable ")?.split_once('='))
        .map(|(name, _)| name)
        .collect();
    assert_eq!(names, ["GIVEN", "HOME", "PATH"]);
}

/// A copy of the attacker that belongs to root and is set-uid, or has a capability on the file.
pub(super) fn set_id_programs(arena: &Arena, side: Side) {
    let directory = arena.host_directory();
    let raising = directory.join("raising");
    std::fs::copy(arena.program(), &raising).expect("a copy");
    if is_host_root() {
        // `vfs_cap_data`, second revision, effective: every capability.
        let capabilities: Vec<u8> =
            [0x0200_0001_u32, u32::MAX, 0, u32::MAX, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
        let path = raising.to_string_lossy();
        let arguments =
            [Text(&path), Text("security.capability"), Memory(&capabilities), Number(20), Number(0)];
        call(libc::SYS_setxattr, &arguments).expect("a capability on a file");
    }
    std::fs::set_permissions(&raising, std::fs::Permissions::from_mode(0o6755)).expect("the set-uid bit");
    let mut spec = arena.spec(side);
    spec.exposures.push(read_only(&directory));
    let sandbox = arena.create(spec);
    let words = |program: String| CommandSpec::new([program, crate::attacker::WORD.into(), "status".into()]);
    let unraised = |command: CommandSpec, (user, group): (u32, u32), capabilities: &str| {
        let lines = judge("status", &arena.run(&sandbox, command));
        for wanted in [
            format!("Uid: {user} {user} {user} {user}"),
            format!("Gid: {group} {group} {group} {group}"),
            format!("CapEff: {capabilities}"),
        ] {
            assert!(lines.contains(&wanted), "`{wanted}` is not in {lines:#?}");
        }
    };
    let own = if side == Side::Root { CAPABILITIES_OF_ROOT } else { NO_CAPABILITIES };
    unraised(words(raising.to_string_lossy().into_owned()), side.ids(), own);
    if side == Side::Root && is_host_root() {
        // Root inside makes such a program itself; another user inside runs it.
        let copy = format!("cp {} /tmp/raising && chmod 6755 /tmp/raising", arena.program().display());
        let output = arena.run(&sandbox, CommandSpec::shell(copy));
        assert!(output.verdict.is_success(), "{}", output.verdict);
        for program in [raising.to_string_lossy().into_owned(), "/tmp/raising".to_owned()] {
            let mut command = words(program);
            command.user = Some(UserSpec::Id { user: 1000, group: Some(1000) });
            unraised(command, (1000, 1000), NO_CAPABILITIES);
        }
    }
    arena.delete(&sandbox);
}
