//! Processes, memory and sockets of the host and of other sandboxes.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::path::Path;
use std::sync::Arc;

use leasehold_model::{CommandSpec, NetworkPolicy, Verdict, WorkspaceSpec};
use leasehold_provider::{Execution, Sandbox};

use crate::arena::{Arena, Side, judge, unique};
use crate::calls::Argument::Number;
use crate::calls::{call, landlock_version, open_message_queue, remove_message_queue};

/// Starts a command and waits for its first output.
fn start(arena: &Arena, sandbox: &Arc<dyn Sandbox>, command: CommandSpec) -> Execution {
    arena.wait(async {
        let mut execution = sandbox.exec(command.with_stdin()).await.expect("it starts");
        execution.output.next().await.expect("it says something").expect("readable");
        execution
    })
}

/// Ends a command by ending its input.
fn finish(arena: &Arena, mut execution: Execution) -> leasehold_provider::CollectedOutput {
    drop(execution.stdin.take());
    arena.wait(async {
        let mut stdout = Vec::new();
        while let Some(chunk) = execution.output.next().await {
            stdout.extend_from_slice(&chunk.expect("readable").bytes);
        }
        let verdict = execution.control.verdict().await;
        leasehold_provider::CollectedOutput { stdout, stderr: Vec::new(), verdict }
    })
}

/// The numbers outside of the processes whose command line holds `mark`.
fn numbers_outside(mark: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").expect("the process table").flatten();
    entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            name.parse::<u32>().ok()?;
            let line = std::fs::read(entry.path().join("cmdline")).ok()?;
            String::from_utf8_lossy(&line).contains(mark).then_some(name)
        })
        .collect()
}

/// A process of the host and one of another sandbox, both of the same user where a sandbox has one.
pub(super) fn processes(arena: &Arena, side: Side) {
    let other = arena.create(arena.spec(side));
    let mark = unique("victim");
    let victim = start(arena, &other, CommandSpec::shell(format!("echo ready; read line; : {mark}")));
    let mut targets = numbers_outside(&mark);
    assert!(!targets.is_empty(), "the victim has a number outside");
    targets.push(std::process::id().to_string());
    targets.push(std::os::unix::process::parent_id().to_string());
    let sandbox = arena.create(arena.spec(side));
    arena.attack(&sandbox, "outside_processes", &targets);
    arena.delete(&sandbox);
    assert_eq!(finish(arena, victim).verdict, Verdict::Exited { code: 0 }, "the victim lived on");
    arena.delete(&other);
}

pub(super) fn everybody(arena: &Arena, side: Side) {
    let other = arena.create(arena.spec(side));
    let victim = start(arena, &other, CommandSpec::shell("echo ready; read line; exit 3"));
    let sandbox = arena.create(arena.spec(side));
    let files = sandbox.files();
    arena.wait(files.stat(Path::new("/tmp"))).expect("a file server to kill");
    arena.attack(&sandbox, "everybody", &[]);
    arena.alive(&sandbox);
    // The one call that met a dead server may fail; the next opens another.
    let _ = arena.wait(files.stat(Path::new("/tmp")));
    arena.wait(files.stat(Path::new("/tmp"))).expect("the files API works again");
    arena.delete(&sandbox);
    assert_eq!(finish(arena, victim).verdict, Verdict::Exited { code: 3 }, "the victim lived on");
    arena.delete(&other);
}

pub(super) fn shared_memory(arena: &Arena, side: Side) {
    const CREATE: i64 = 0o1000 | 0o666;
    let key = i64::from(std::process::id()) << 8 | i64::from(side == Side::Root);
    let name = unique("/leasehold-security");
    let file = unique("leasehold-security");
    let memory = call(libc::SYS_shmget, &[Number(key), Number(4096), Number(CREATE)]).expect("shared memory");
    let semaphores = call(libc::SYS_semget, &[Number(key), Number(1), Number(CREATE)]).expect("semaphores");
    let queue = call(libc::SYS_msgget, &[Number(key), Number(CREATE)]).expect("a queue");
    let by_name = open_message_queue(&name, libc::O_RDWR | libc::O_CREAT);
    let in_memory = Path::new("/dev/shm").join(&file);
    std::fs::write(&in_memory, "of the host").expect("a file in shared memory");

    let sandbox = arena.create(arena.spec(side));
    let report = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        arena.attack(&sandbox, "shared_memory", &[key.to_string(), name.clone(), file.clone()])
    }));
    // Removal by `IPC_RMID` comes before any verdict: these outlive this process.
    let zero = Number(0);
    let memory_gone = call(libc::SYS_shmctl, &[Number(memory), zero, zero]);
    let semaphores_gone = call(libc::SYS_semctl, &[Number(semaphores), zero, zero, zero]);
    let queue_gone = call(libc::SYS_msgctl, &[Number(queue), zero, zero]);
    let content = std::fs::read(&in_memory);
    let file_gone = std::fs::remove_file(&in_memory);
    if by_name.is_ok() {
        remove_message_queue(&name).expect("the named queue was there");
    }
    if let Err(panic) = report {
        std::panic::resume_unwind(panic);
    }
    assert!(memory_gone.is_ok() && semaphores_gone.is_ok() && queue_gone.is_ok() && file_gone.is_ok());
    assert_eq!(content.expect("the file was there"), b"of the host");
    arena.delete(&sandbox);
}

pub(super) fn addresses(arena: &Arena, side: Side) {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a server of the host");
    let port = listener.local_addr().expect("an address").port();
    // The same port for IPv6, where the host has it and the port is free.
    let second = TcpListener::bind((Ipv6Addr::LOCALHOST, port)).ok();
    let sandbox = arena.create(arena.spec(side));
    arena.attack(&sandbox, "network", &[port.to_string()]);
    arena.delete(&sandbox);
    for listener in std::iter::once(listener).chain(second) {
        listener.set_nonblocking(true).expect("a setting");
        let came = listener.accept();
        assert!(matches!(&came, Err(error) if error.kind() == io::ErrorKind::WouldBlock), "{came:?}");
    }
}

/// Sockets with a path: one outside of everything shown, one in a workspace.
pub(super) fn unix_sockets(arena: &Arena, side: Side) {
    for network in [NetworkPolicy::None, NetworkPolicy::Host] {
        let outside = arena.host_directory();
        let workspace = arena.host_directory();
        let paths = [outside.join("socket"), workspace.join("socket")];
        let listeners =
            [&paths[0], &paths[1]].map(|path| UnixListener::bind(path).expect("a server of the host"));
        let mut spec = arena.spec(side);
        spec.network = network;
        spec.workspace = Some(WorkspaceSpec { source: Some(workspace.clone()), target: workspace });
        let sandbox = arena.create(spec);
        let paths: Vec<String> = paths.iter().map(|path| path.to_string_lossy().into_owned()).collect();
        arena.attack(&sandbox, "unix_sockets", &paths);
        arena.delete(&sandbox);
        for listener in listeners {
            listener.set_nonblocking(true).expect("a setting");
            assert!(listener.accept().is_err(), "a sandbox came in");
        }
    }
}

/// Names that belong to the network namespace, which is the host's here.
pub(super) fn abstract_sockets(arena: &Arena, side: Side) {
    if landlock_version() < 6 {
        eprintln!("abstract sockets showed nothing: the kernel has no Landlock scopes (Linux 6.12)");
        return;
    }
    let (of_host, of_other) = (unique("leasehold-host"), unique("leasehold-other"));
    let address = |name: &str| SocketAddr::from_abstract_name(name).expect("a name");
    let listener = UnixListener::bind_addr(&address(&of_host)).expect("a server of the host");
    let datagrams =
        UnixDatagram::bind_addr(&address(&format!("{of_host}-datagram"))).expect("a server of the host");
    let on_host_network = || {
        let mut spec = arena.spec(side);
        spec.network = NetworkPolicy::Host;
        spec
    };
    let other = arena.create(on_host_network());
    let server = start(arena, &other, arena.command("serve_abstract", std::slice::from_ref(&of_other)));
    let sandbox = arena.create(on_host_network());
    let report = arena.run(&sandbox, arena.command("connect_abstract", &[of_host, of_other]));
    let held = finish(arena, server);
    let lines = judge("connect_abstract", &report);
    // The names exist, so that only a barrier keeps the attacker out.
    assert!(lines.iter().filter(|line| line.contains("Operation not permitted")).count() >= 3, "{lines:#?}");
    let text = String::from_utf8_lossy(&held.stdout).into_owned();
    assert!(text.contains("held nobody else came"), "{text}");
    arena.delete(&sandbox);
    arena.delete(&other);
    listener.set_nonblocking(true).expect("a setting");
    datagrams.set_nonblocking(true).expect("a setting");
    assert!(listener.accept().is_err() && datagrams.recv(&mut [0; 1]).is_err());
}
