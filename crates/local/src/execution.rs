//! One command in an embedded sandbox, seen from the host.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use leasehold_model::{
    ByteOffset, BytePath, CommandSpec, EndedBy, Error, ErrorKind, ExecutionId, Result, SignalNumber,
    StdinMode, StreamKind, TerminalSize, Verdict,
};
use leasehold_provider::{
    Execution, ExecutionControl, OutputChunk, OutputSender, SignalScope, Stdin, output_channel,
};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncWrite, Interest};
use tokio::sync::watch;

use crate::cgroup::Cgroup;
use crate::link::{ANSWER_TIME, Answers, Link, refusal_error};
use crate::plan;
use crate::protocol::{Ending, EventBody, KillCause, RequestBody, RunCommand, SignalTarget, Tag};
use crate::watched::watch;

/// How long a stream may stay silent after its command ended before its output counts as whole, when a
/// grandchild still holds it (invariant 8).
const QUIET: Duration = Duration::from_millis(100);
/// And how long at all, when a grandchild never stays silent. What was in the pipe when the command ended
/// is read in any case.
const LONGEST_DRAIN: Duration = Duration::from_secs(1);
/// One read takes at most this much.
const CHUNK: usize = 256 << 10;
/// Chunks that wait for a slow reader, beyond which the command waits too.
const WAITING_CHUNKS: usize = 8;
/// Asked of the kernel for each pipe; less is fine.
const PIPE_SIZE: usize = 1 << 20;

/// What a command needs from its sandbox.
pub(crate) struct Surroundings {
    pub(crate) link: Arc<Link>,
    pub(crate) cgroup: Option<Arc<Cgroup>>,
    pub(crate) environment: Vec<(Vec<u8>, Vec<u8>)>,
    /// Where the layers are when they live in memory, with their size.
    pub(crate) disk: Option<(Arc<OwnedFd>, u64)>,
    pub(crate) id: ExecutionId,
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |error| Error::io("sandbox.exec", format!("cannot {what}"), error)
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    // A larger pipe means fewer wake-ups; a host that refuses it has its reasons.
    let _ = rustix::pipe::fcntl_setpipe_size(&reader, PIPE_SIZE);
    // The command opens it again as `/dev/stdout`, but its owner is a user of the host. Only who may look
    // into the command's descriptors can, whatever the mode.
    rustix::fs::fchmod(&reader, rustix::fs::Mode::from_raw_mode(0o666))?;
    Ok((reader, writer))
}

/// Our ends of a command's streams.
struct Ends {
    stdin: Option<OwnedFd>,
    outputs: Vec<(StreamKind, OwnedFd)>,
}

/// Starts a command.
pub(crate) async fn start(surroundings: Surroundings, command: CommandSpec) -> Result<Execution> {
    let Surroundings { link, cgroup, environment, disk, id } = surroundings;
    if command.arguments.first().is_none_or(|program| program.is_empty()) {
        return Err(
            Error::invalid("sandbox.exec", "the command is empty").with_hint("name a program after `--`")
        );
    }
    let (mut ends, descriptors) = streams(&command).map_err(failed("make pipes for the command"))?;
    let memory_kills = cgroup.as_ref().map_or(0, |cgroup| cgroup.memory_kills());
    let allowed = command.timeout;
    let request = RunCommand {
        arguments: command.arguments.into_iter().map(OsStringExt::into_vec).collect(),
        environment: merge(environment, command.environment),
        directory: command.directory.map(BytePath),
        user: command.user.as_ref().map(plan::user),
        terminal: command.terminal.map(|size| (size.columns, size.rows)),
        timeout: allowed.map(|span| u64::try_from(span.as_millis()).unwrap_or(u64::MAX)),
    };
    let start = async {
        let mut answers = link.send("sandbox.exec", RequestBody::Run(request), descriptors).await?;
        let answer =
            answers.next().await.ok_or_else(|| lost("the sandbox ended while the command was starting"))?;
        Ok::<_, Error>((answers, answer))
    };
    let (answers, (body, mut received)) =
        tokio::time::timeout(ANSWER_TIME, start).await.map_err(|_| {
            Error::new(ErrorKind::DeadlineExceeded, "sandbox.exec", "the command did not start in time")
        })??;
    match body {
        EventBody::Started => {}
        EventBody::Refused(refusal) => return Err(refusal_error("sandbox.exec", &refusal)),
        _ => return Err(Error::new(ErrorKind::Corrupt, "sandbox.exec", "pid 1 gave a wrong answer")),
    }
    let mut terminal = None;
    if command.terminal.is_some() {
        let master = received.pop().ok_or_else(|| lost("the terminal did not come with the command"))?;
        terminal = Some(Arc::new(master.try_clone().map_err(failed("keep the terminal"))?));
        ends.stdin = Some(master.try_clone().map_err(failed("keep the terminal"))?);
        ends.outputs.push((StreamKind::Stdout, master));
    }

    let (verdict, _) = watch::channel(None);
    let verdict = Arc::new(verdict);
    let (sender, output) = output_channel(WAITING_CHUNKS);
    let (leader_ended, _) = watch::channel(false);
    let tag = answers.tag;
    let mut pumps = Vec::new();
    for (kind, descriptor) in ends.outputs {
        let stream = ByteSource::new(descriptor).map_err(failed("watch the command's output"))?;
        pumps.push(pump(kind, stream, sender.clone(), leader_ended.subscribe()));
    }
    drop(sender);
    let watcher = Watcher { cgroup, memory_kills, allowed, disk, verdict: Arc::clone(&verdict) };
    tokio::spawn(watcher.watch(answers, leader_ended, pumps));
    let stdin = match ends.stdin {
        Some(descriptor) => {
            let is_terminal = terminal.is_some();
            Some(Stdin(Box::new(
                ByteSink::new(descriptor, is_terminal).map_err(failed("watch the command's input"))?,
            )))
        }
        None => None,
    };
    Ok(Execution { output, stdin, control: Arc::new(Control { id, tag, link, verdict, terminal }) })
}

fn lost(message: &str) -> Error {
    Error::new(ErrorKind::Lost, "sandbox.exec", message)
}

fn streams(command: &CommandSpec) -> io::Result<(Ends, Vec<OwnedFd>)> {
    if command.terminal.is_some() {
        return Ok((Ends { stdin: None, outputs: Vec::new() }, Vec::new()));
    }
    // Without a stream of ours the command gets the sandbox's own `/dev/null`.
    let (stdin, theirs) = match command.stdin {
        StdinMode::Empty => (None, None),
        StdinMode::Stream => {
            let (reader, writer) = pipe()?;
            (Some(writer), Some(reader))
        }
    };
    let (stdout, their_stdout) = pipe()?;
    let (stderr, their_stderr) = pipe()?;
    let outputs = vec![(StreamKind::Stdout, stdout), (StreamKind::Stderr, stderr)];
    Ok((Ends { stdin, outputs }, theirs.into_iter().chain([their_stdout, their_stderr]).collect()))
}

/// The sandbox's variables under the command's own, the last of each name.
fn merge(
    base: Vec<(Vec<u8>, Vec<u8>)>,
    own: Vec<(std::ffi::OsString, std::ffi::OsString)>,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut merged: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    let own = own.into_iter().map(|(name, value)| (name.into_vec(), value.into_vec()));
    for (name, value) in base.into_iter().chain(own) {
        match merged.iter_mut().find(|(present, _)| *present == name) {
            Some(entry) => entry.1 = value,
            None => merged.push((name, value)),
        }
    }
    merged
}

/// A non-blocking descriptor that is read.
struct ByteSource {
    descriptor: AsyncFd<OwnedFd>,
}

impl ByteSource {
    fn new(descriptor: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&descriptor, true)?;
        Ok(Self { descriptor: watch(descriptor, Interest::READABLE)? })
    }

    /// Reads what is there. Empty at the end; a terminal's end is an error of its own.
    async fn read(&self, buffer: &mut Vec<u8>) -> io::Result<Bytes> {
        buffer.clear();
        buffer.reserve(CHUNK);
        let result = self
            .descriptor
            .async_io(Interest::READABLE, |descriptor| {
                Ok(rustix::io::read(descriptor, rustix::buffer::spare_capacity(buffer))?)
            })
            .await;
        match result {
            // A small piece must not hold a large buffer for as long as its reader keeps it.
            Ok(count) if count < CHUNK / 4 => Ok(Bytes::copy_from_slice(buffer)),
            Ok(_) => Ok(Bytes::from(std::mem::take(buffer))),
            Err(error) if error.raw_os_error() == Some(libc::EIO) => Ok(Bytes::new()),
            Err(error) => Err(error),
        }
    }
}

/// What is left of a stream whose command has ended.
struct Tail {
    /// Bytes that were in the pipe at the end and are not read yet.
    own_bytes: u64,
    until: tokio::time::Instant,
}

impl Tail {
    fn new(source: &ByteSource) -> Self {
        let own_bytes = rustix::io::ioctl_fionread(source.descriptor.get_ref()).unwrap_or(0);
        Self { own_bytes, until: tokio::time::Instant::now() + LONGEST_DRAIN }
    }

    fn is_over(&self) -> bool {
        self.own_bytes == 0 && tokio::time::Instant::now() >= self.until
    }
}

/// Moves one stream to the reader until its end, or until it is quiet after the leader's end; then what
/// a grandchild still writes is taken and dropped, so that it is not broken.
async fn pump(
    kind: StreamKind,
    source: ByteSource,
    sender: OutputSender,
    mut leader_ended: watch::Receiver<bool>,
) -> Option<ByteSource> {
    let mut buffer = Vec::new();
    let mut offset = ByteOffset::default();
    let mut wanted = true;
    let mut tail: Option<Tail> = None;
    loop {
        if tail.is_none() && *leader_ended.borrow() {
            tail = Some(Tail::new(&source));
        }
        if tail.as_ref().is_some_and(Tail::is_over) {
            return Some(source);
        }
        let read = source.read(&mut buffer);
        let received = if tail.is_some() {
            match tokio::time::timeout(QUIET, read).await {
                Ok(received) => received,
                Err(_) => return Some(source),
            }
        } else {
            tokio::select! {
                biased;
                received = read => received,
                _ = leader_ended.wait_for(|ended| *ended) => continue,
            }
        };
        let bytes = match received {
            Ok(bytes) if bytes.is_empty() => return None,
            Ok(bytes) => bytes,
            Err(error) => {
                let error = Error::io("execution.output", "cannot read the command's output", error);
                sender.send(Err(error)).await;
                return None;
            }
        };
        if let Some(tail) = &mut tail {
            tail.own_bytes = tail.own_bytes.saturating_sub(bytes.len() as u64);
        }
        if wanted {
            let length = bytes.len();
            wanted = sender.send(Ok(OutputChunk { stream: kind, offset, bytes })).await;
            offset = offset.advance(length);
        }
    }
}

/// Waits for the end of a command and tells its verdict.
struct Watcher {
    cgroup: Option<Arc<Cgroup>>,
    memory_kills: u64,
    allowed: Option<Duration>,
    disk: Option<(Arc<OwnedFd>, u64)>,
    verdict: Arc<watch::Sender<Option<Verdict>>>,
}

impl Watcher {
    async fn watch(
        self,
        mut answers: Answers,
        leader_ended: watch::Sender<bool>,
        pumps: Vec<impl Future<Output = Option<ByteSource>> + Send + 'static>,
    ) {
        let pumps = futures_util::future::join_all(pumps);
        tokio::pin!(pumps);
        // Output flows while the command runs; it may end before the command does.
        let mut finished = None;
        let ending = loop {
            tokio::select! {
                drained = &mut pumps, if finished.is_none() => finished = Some(drained),
                delivery = answers.next() => match delivery {
                    Some((EventBody::Ended(ending), _)) => break Some(ending),
                    Some(_) => {}
                    None => break None,
                },
            }
        };
        leader_ended.send_replace(true);
        let held = match finished {
            Some(held) => held,
            None => pumps.await,
        };
        let verdict = match ending {
            Some(ending) => self.judge(ending),
            None => Verdict::SandboxStopped,
        };
        self.verdict.send_replace(Some(verdict));
        drain(held.into_iter().flatten().collect()).await;
    }

    /// Why the command ended, from records: what pid 1 did, and what the kernel counted.
    fn judge(&self, ending: Ending) -> Verdict {
        match ending.killed {
            Some(KillCause::Deadline) => {
                return Verdict::Deadline { allowed: self.allowed.unwrap_or_default() };
            }
            Some(KillCause::Cancel) => return Verdict::Cancelled,
            Some(KillCause::Stop) => return Verdict::SandboxStopped,
            None => {}
        }
        let killed_for_memory =
            self.cgroup.as_ref().is_some_and(|cgroup| cgroup.memory_kills() > self.memory_kills);
        if killed_for_memory && ending.code != Some(0) && !ending.signal_was_sent {
            return Verdict::OutOfMemory {
                limit: self.cgroup.as_ref().and_then(|cgroup| cgroup.memory_limit()),
            };
        }
        match (ending.code, ending.signal) {
            (Some(code), _) => match self.full_disk() {
                Some(limit) if code != 0 => Verdict::DiskFull { limit, code },
                _ => Verdict::Exited { code },
            },
            (None, Some(signal)) => Verdict::Signalled {
                signal: SignalNumber(signal),
                by: if ending.signal_was_sent { EndedBy::Caller } else { EndedBy::Other },
            },
            (None, None) => Verdict::ObservationLost,
        }
    }

    /// The disk limit, when less than a page or no file is left below it.
    fn full_disk(&self) -> Option<u64> {
        let (layers, limit) = self.disk.as_ref()?;
        let usage = rustix::fs::fstatvfs(layers.as_fd()).ok()?;
        (usage.f_bfree <= 1 || usage.f_ffree == 0).then_some(*limit)
    }
}

/// Takes and drops what grandchildren still write, until they close or the sandbox ends.
async fn drain(held: Vec<ByteSource>) {
    let drains = held.into_iter().map(|source| async move {
        let mut buffer = Vec::new();
        while source.read(&mut buffer).await.is_ok_and(|bytes| !bytes.is_empty()) {}
    });
    futures_util::future::join_all(drains).await;
}

/// A non-blocking descriptor that is written.
struct ByteSink {
    descriptor: Option<AsyncFd<OwnedFd>>,
    is_terminal: bool,
}

impl ByteSink {
    fn new(descriptor: OwnedFd, is_terminal: bool) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&descriptor, true)?;
        Ok(Self { descriptor: Some(watch(descriptor, Interest::WRITABLE)?), is_terminal })
    }
}

impl AsyncWrite for ByteSink {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Some(descriptor) = &self.descriptor else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        loop {
            let mut guard = std::task::ready!(descriptor.poll_write_ready(context))?;
            if let Ok(result) = guard.try_io(|descriptor| Ok(rustix::io::write(descriptor.get_ref(), bytes)?))
            {
                return Poll::Ready(result);
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A terminal has no end of input of its own; whoever types sends Ctrl-D.
        if !self.is_terminal {
            self.descriptor = None;
        }
        Poll::Ready(Ok(()))
    }
}

#[derive(Debug)]
struct Control {
    id: ExecutionId,
    tag: Tag,
    link: Arc<Link>,
    verdict: Arc<watch::Sender<Option<Verdict>>>,
    terminal: Option<Arc<OwnedFd>>,
}

impl Control {
    fn is_over(&self) -> bool {
        self.verdict.borrow().is_some()
    }
}

#[async_trait]
impl ExecutionControl for Control {
    fn id(&self) -> &ExecutionId {
        &self.id
    }

    async fn signal(&self, signal: SignalNumber, scope: SignalScope) -> Result<()> {
        if self.is_over() {
            return Ok(());
        }
        let target = match scope {
            SignalScope::Group => SignalTarget::Group,
            SignalScope::Tree => SignalTarget::Tree,
        };
        let body = RequestBody::Signal { command: self.tag, signal: signal.0, target };
        self.link.ask("execution.signal", body).await.map(drop)
    }

    async fn cancel(&self) -> Result<()> {
        if self.is_over() {
            return Ok(());
        }
        self.link.ask("execution.cancel", RequestBody::Cancel { command: self.tag }).await.map(drop)
    }

    async fn resize(&self, size: TerminalSize) -> Result<()> {
        let Some(terminal) = &self.terminal else {
            return Err(Error::invalid("execution.resize", "the command has no terminal"));
        };
        let size =
            rustix::termios::Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
        rustix::termios::tcsetwinsize(terminal, size).map_err(|error| {
            Error::io("execution.resize", "cannot set the size of the terminal", error.into())
        })
    }

    async fn verdict(&self) -> Verdict {
        let mut receiver = self.verdict.subscribe();
        match receiver.wait_for(Option::is_some).await {
            Ok(verdict) => verdict.clone().unwrap_or(Verdict::ObservationLost),
            Err(_) => Verdict::ObservationLost,
        }
    }
}
