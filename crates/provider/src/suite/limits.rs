//! Limits and the network.

use std::net::Ipv4Addr;
use std::sync::Arc;

use leasehold_model::{
    ByteSize, CommandSpec, EndedBy, ErrorKind, ResourceLimits, Result, SignalNumber, Verdict,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::case::declare_cases;
use super::workbench::{
    Workbench, exited, pause, read, read_until, refused, run, sh, size, start, stdout, until, write,
};
use crate::capabilities::Capability;

declare_cases! {
    f81_memory_gives_its_own_verdict: [MemoryLimit], "F81: the verdict is out-of-memory by evidence, names the limit, and the sandbox lives on";
    f81_a_child_out_of_memory: [MemoryLimit], "F81: a child killed for memory under a shell that passes 137 on";
    f81_a_plain_kill_is_not_memory: [MemoryLimit], "F81: SIGKILL alone is no proof of memory";
    processes_are_limited: [ProcessLimit, TreeKill, Stdin], "a fork storm ends at its limit and the sandbox lives on";
    disk_full_gives_its_own_verdict: [DiskLimit], "the verdict says that the disk allowance was used up";
    disk_full_refuses_writes: [DiskLimit], "the files API answers `LimitExceeded`, and space can be made again";
    no_network_means_none: [NetworkNone], "no route leads out, and this machine's own ports are out of reach";
    a_port_inside_can_be_reached: [Connect], "a connection to a server inside carries bytes both ways";
    a_closed_port_is_refused: [Connect], "nobody listening is an error at once, not a hang";
}

/// One spec for each limit, for providers that must refuse it.
pub(super) fn each_limit() -> [(Capability, ResourceLimits); 4] {
    let none = ResourceLimits::default;
    let size = Some(ByteSize(256 << 20));
    [
        (Capability::MemoryLimit, ResourceLimits { memory: size, ..none() }),
        (Capability::ProcessLimit, ResourceLimits { processes: Some(64), ..none() }),
        (Capability::CpuLimit, ResourceLimits { cpus: "1".parse().ok(), ..none() }),
        (Capability::DiskLimit, ResourceLimits { disk: size, ..none() }),
    ]
}

const MEMORY: u64 = 96 << 20;

async fn f81_memory_gives_its_own_verdict(bench: Arc<Workbench>) -> Result<()> {
    let mut spec = bench.spec();
    spec.limits.memory = Some(ByteSize(MEMORY));
    let sandbox = bench.provider().create(spec).await?;
    // Without a newline, `tail` keeps all that it has read.
    let output = run(&sandbox, CommandSpec::new(["tail", "/dev/zero"])).await?;
    assert_eq!(output.verdict, Verdict::OutOfMemory { limit: Some(MEMORY) });
    assert_eq!(output.verdict.retry(), leasehold_model::Retry::Never);
    assert_eq!(stdout(&sandbox, "echo alive").await?, "alive\n");
    // A verdict belongs to one command: the next one ends as it ends.
    exited(&sh(&sandbox, "exit 137").await?.verdict, 137);
    Ok(())
}

async fn f81_a_child_out_of_memory(bench: Arc<Workbench>) -> Result<()> {
    let mut spec = bench.spec();
    spec.limits.memory = Some(ByteSize(MEMORY));
    let sandbox = bench.provider().create(spec).await?;
    let output = sh(&sandbox, "tail /dev/zero; code=$?; echo $code; exit $code").await?;
    assert_eq!(output.verdict, Verdict::OutOfMemory { limit: Some(MEMORY) });
    assert_eq!(output.stdout, b"137\n");
    Ok(())
}

async fn f81_a_plain_kill_is_not_memory(bench: Arc<Workbench>) -> Result<()> {
    let mut spec = bench.spec();
    spec.limits.memory = Some(ByteSize(MEMORY));
    let sandbox = bench.provider().create(spec).await?;
    let verdict = sh(&sandbox, "kill -KILL $$").await?.verdict;
    assert_eq!(verdict, Verdict::Signalled { signal: SignalNumber::KILL, by: EndedBy::Other });
    Ok(())
}

async fn processes_are_limited(bench: Arc<Workbench>) -> Result<()> {
    const LIMIT: u32 = 32;
    let mut spec = bench.spec();
    spec.limits.processes = Some(LIMIT);
    let sandbox = bench.provider().create(spec).await?;
    // The outer shell needs no new process after the storm, and holds the tree for the cancel.
    write(&sandbox, "storm", b"for i in $(seq 1 100); do (echo x >> began; exec sleep 600) & done\n").await?;
    let line = "sh storm; echo $? > status; read line";
    let execution = sandbox.exec(CommandSpec::shell(line).with_stdin()).await?;
    until(|| async { Ok(size(&sandbox, "status").await? > 0) }).await?;
    assert_ne!(read(&sandbox, "status").await?, b"0\n", "a hundred processes fit into {LIMIT}");
    let began = size(&sandbox, "began").await? / 2;
    assert!((1..=u64::from(LIMIT)).contains(&began), "{began} processes ran under a limit of {LIMIT}");
    execution.control.cancel().await?;
    drop(execution.output);
    assert_eq!(execution.control.verdict().await, Verdict::Cancelled);
    assert_eq!(stdout(&sandbox, "sleep 0; echo alive").await?, "alive\n");
    Ok(())
}

const DISK: u64 = 32 << 20;

async fn disk_full_gives_its_own_verdict(bench: Arc<Workbench>) -> Result<()> {
    let mut spec = bench.spec();
    spec.limits.disk = Some(ByteSize(DISK));
    let sandbox = bench.provider().create(spec).await?;
    let output = sh(&sandbox, "head -c 67108864 /dev/zero > big").await?;
    match output.verdict {
        Verdict::DiskFull { limit, code } => assert!(limit == DISK && code != 0, "{limit} {code}"),
        other => panic!("a full disk gave: {other}"),
    }
    stdout(&sandbox, "rm big; head -c 1048576 /dev/zero > small").await?;
    exited(&sh(&sandbox, "exit 1").await?.verdict, 1);
    Ok(())
}

async fn disk_full_refuses_writes(bench: Arc<Workbench>) -> Result<()> {
    let mut spec = bench.spec();
    spec.limits.disk = Some(ByteSize(DISK));
    let sandbox = bench.provider().create(spec).await?;
    write(&sandbox, "file", b"old").await?;
    let big = vec![7; 64 << 20];
    refused(write(&sandbox, "file", &big).await, ErrorKind::LimitExceeded, "a write beyond the disk limit");
    assert_eq!(super::workbench::read(&sandbox, "file").await?, b"old");
    write(&sandbox, "small", &big[..1 << 20]).await?;
    Ok(())
}

async fn no_network_means_none(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    // A kernel may add idle tunnel devices to every new network; without a route none leads anywhere.
    let routes = stdout(&sandbox, "cat /proc/net/route").await?;
    assert_eq!(routes.lines().count(), 1, "routes beside the heading: {routes}");
    assert!(stdout(&sandbox, "cat /proc/net/dev").await?.contains("lo:"), "no loopback");
    // A server of this machine, tried with whatever can open a connection inside.
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
    let Ok(listener) = listener else { return Ok(()) };
    let port = listener.local_addr().map_or(0, |address| address.port());
    let tries = [
        format!("command -v bash >/dev/null && timeout 5 bash -c 'echo x > /dev/tcp/127.0.0.1/{port}' && echo reached"),
        format!("command -v python3 >/dev/null && python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", {port}), 5)' && echo reached"),
        "command -v python3 >/dev/null && python3 -c 'import socket; socket.create_connection((\"192.0.2.1\", 80), 5)' && echo reached".to_owned(),
    ];
    for line in tries {
        let output = sh(&sandbox, &line).await?;
        assert!(output.stdout.is_empty(), "{line}");
    }
    Ok(())
}

/// Ways to serve one connection that echoes a line, one of which most systems have.
fn servers(port: u16) -> [(&'static str, CommandSpec); 3] {
    let python = format!(
        "import socket; s = socket.create_server(('127.0.0.1', {port})); print('ready', flush=True)\n\
         while True:\n c, _ = s.accept(); c.sendall(c.recv(100)); c.close()"
    );
    let perl = format!(
        "use IO::Socket::INET; $| = 1; my $s = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => {port}, \
         Listen => 5, ReuseAddr => 1) or die; print \"ready\\n\"; \
         while (my $c = $s->accept) {{ my $line = <$c>; print $c $line; close $c }}"
    );
    let socat = format!("echo ready; exec socat TCP-LISTEN:{port},bind=127.0.0.1,fork,reuseaddr EXEC:cat");
    [
        ("python3", CommandSpec::new(["python3", "-c", &python])),
        ("perl", CommandSpec::new(["perl", "-e", &perl])),
        ("socat", CommandSpec::shell(socat)),
    ]
}

async fn a_port_inside_can_be_reached(bench: Arc<Workbench>) -> Result<()> {
    const PORT: u16 = 18_080;
    let sandbox = bench.sandbox().await?;
    for (program, command) in servers(PORT) {
        if !sh(&sandbox, &format!("command -v {program}")).await?.verdict.is_success() {
            continue;
        }
        let mut server = sandbox.exec(command).await?;
        read_until(&mut server.output, "ready").await?;
        let mut connection = loop {
            match sandbox.connect(PORT).await {
                Ok(connection) => break connection,
                Err(_) => pause(50).await,
            }
        };
        connection.write_all(b"there and back\n").await.expect("the server reads");
        let mut answer = vec![0; 15];
        connection.read_exact(&mut answer).await.expect("the server answers");
        assert_eq!(answer, b"there and back\n");
        return server.control.cancel().await;
    }
    bench.skip("none of python3, perl and socat is in the sandbox, so nothing can listen");
    Ok(())
}

async fn a_closed_port_is_refused(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let silent = start(&sandbox, "sleep 600").await?;
    assert!(sandbox.connect(18_081).await.is_err(), "a connection to a port that nobody serves");
    silent.control.cancel().await
}
