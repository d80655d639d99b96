//! Using up what there is: each bomb ends at its limit, and the host and the sandbox go on.

use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold_model::{ByteSize, CommandSpec, ErrorKind, Verdict};

use crate::arena::{Arena, Side, is_host_root};

const PROCESSES: u32 = 48;
/// How long a bomb runs before its deadline; nothing depends on the figure.
const SHORT: Duration = Duration::from_millis(500);

pub(super) fn fork_bomb(arena: &Arena, side: Side) {
    let mut spec = arena.spec(side);
    spec.limits.processes = Some(PROCESSES);
    let sandbox = arena.create(spec);
    let limit = [PROCESSES.to_string()];
    arena.attack(&sandbox, "fork_bomb", &limit);
    arena.alive(&sandbox);
    if side == Side::Root && is_host_root() {
        let has_group = arena.wait(async { group_of(sandbox.id().as_str()) }).is_some();
        if has_group {
            arena.attack(&sandbox, "fork_bomb_of_many_users", &limit);
            arena.alive(&sandbox);
        } else {
            eprintln!("a bomb of many users showed nothing: this host has no control group for processes");
        }
    }
    arena.delete(&sandbox);
}

pub(super) fn fork_storm(arena: &Arena, side: Side) {
    let mut spec = arena.spec(side);
    spec.limits.processes = Some(PROCESSES);
    let sandbox = arena.create(spec);
    let output = arena.run(&sandbox, arena.command("fork_storm", &[]).with_timeout(SHORT));
    assert_eq!(output.verdict, Verdict::Deadline { allowed: SHORT });
    assert_eq!(processes_inside(arena, &sandbox), 0, "all of the storm is gone");
    arena.delete(&sandbox);
}

/// How many processes are inside beside pid 1 and the one that counts.
fn processes_inside(arena: &Arena, sandbox: &std::sync::Arc<dyn leasehold_provider::Sandbox>) -> usize {
    let line = "for d in /proc/[0-9]*; do echo ${d#/proc/}; done";
    let output = arena.run(sandbox, CommandSpec::shell(line));
    assert!(output.verdict.is_success(), "{}", output.verdict);
    String::from_utf8_lossy(&output.stdout).lines().count() - 2
}

pub(super) fn starved_init(arena: &Arena, side: Side) {
    let sandbox = arena.create(arena.spec(side));
    let output = arena.run(&sandbox, arena.command("starve_init", &[]).with_timeout(SHORT));
    assert_eq!(output.verdict, Verdict::Deadline { allowed: SHORT });
    assert_eq!(processes_inside(arena, &sandbox), 0, "the whole tree ended");
    arena.delete(&sandbox);
}

pub(super) fn memory_bomb(arena: &Arena, side: Side) {
    const LIMIT: u64 = 64 << 20;
    let mut spec = arena.spec(side);
    spec.limits.memory = Some(ByteSize(LIMIT));
    let sandbox = match arena.try_create(spec) {
        Ok(sandbox) => sandbox,
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            eprintln!("a memory bomb showed nothing: this user has no control groups here ({error})");
            return;
        }
        Err(error) => panic!("{}", error.report()),
    };
    let output = arena.run(&sandbox, arena.command("memory_bomb", &[(LIMIT * 4).to_string()]));
    assert_eq!(output.verdict, Verdict::OutOfMemory { limit: Some(LIMIT) });
    // Memory of files in memory counts too.
    let line = "head -c 268435456 /dev/zero > /dev/shm/big";
    let output = arena.run(&sandbox, CommandSpec::shell(line));
    assert!(!output.verdict.is_success(), "a file in shared memory went around the limit");
    // Nothing may be left for a command inside; the files API has its memory elsewhere.
    arena.wait(sandbox.files().remove(Path::new("/dev/shm/big"), false)).expect("it can be removed");
    arena.alive(&sandbox);
    arena.delete(&sandbox);
}

pub(super) fn disk_bomb(arena: &Arena, side: Side) {
    const LIMIT: u64 = 8 << 20;
    let mut spec = arena.spec(side);
    spec.limits.disk = Some(ByteSize(LIMIT));
    let sandbox = arena.create(spec);
    let mut command = arena.command("disk_bomb", &[LIMIT.to_string()]);
    command.directory = Some("/var/tmp".into());
    crate::arena::judge("disk_bomb", &arena.run(&sandbox, command));
    arena.attack(&sandbox, "inode_bomb", &[(LIMIT / 1024).to_string()]);
    let output = arena.run(&sandbox, CommandSpec::shell("rm -f /tmp/empty-1*; echo x > /tmp/small"));
    assert!(output.verdict.is_success(), "space can be made again: {}", output.verdict);
    arena.delete(&sandbox);
}

pub(super) fn descriptor_bomb(arena: &Arena, side: Side) {
    let sandbox = arena.create(arena.spec(side));
    arena.attack(&sandbox, "descriptor_bomb", &[]);
    arena.alive(&sandbox);
    drop(std::fs::File::open("/dev/null").expect("the host has descriptors"));
    arena.delete(&sandbox);
}

pub(super) fn zombies(arena: &Arena, side: Side) {
    let sandbox = arena.create(arena.spec(side));
    arena.attack(&sandbox, "zombies", &["3000".to_owned()]);
    // Pid 1 collects when it is woken, which is before it starts the next command or soon after.
    let mut left = processes_inside(arena, &sandbox);
    for _ in 0..100 {
        if left == 0 {
            break;
        }
        left = processes_inside(arena, &sandbox);
    }
    assert_eq!(left, 0);
    arena.delete(&sandbox);
}

/// The directory of the group that bounds the processes of a sandbox.
fn group_of(id: &str) -> Option<PathBuf> {
    let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    own.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let hierarchy = match controllers {
            "" => Path::new("/sys/fs/cgroup").to_path_buf(),
            some if some.split(',').any(|name| name == "pids") => Path::new("/sys/fs/cgroup").join("pids"),
            _ => return None,
        };
        // The group lies in ours or in one above.
        let start = hierarchy.join(path.trim_start_matches('/'));
        start
            .ancestors()
            .take_while(|directory| directory.starts_with(&hierarchy))
            .map(|directory| directory.join(format!("leasehold-{id}")))
            .find(|directory| directory.join("pids.max").exists())
    })
}

/// Without any limit asked for: the bound of each process is in `capabilities_are_exact`; this is the
/// bound of all of them together.
pub(super) fn default_process_limit(arena: &Arena) {
    let sandbox = arena.create(arena.spec(Side::Root));
    match group_of(sandbox.id().as_str()) {
        Some(group) => {
            let limit = std::fs::read_to_string(group.join("pids.max")).expect("the bound can be read");
            assert_eq!(limit.trim(), "4096");
        }
        None => eprintln!("the default bound showed nothing: this user has no control groups here"),
    }
    arena.delete(&sandbox);
}
