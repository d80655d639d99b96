//! One command: its pipes, its control, and its one verdict.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;
use std::{fmt, io};

use async_trait::async_trait;
use bytes::Bytes;
use leasehold_model::{
    ByteOffset, CommandSpec, EndedBy, Error, ErrorKind, ExecutionId, Result, SignalNumber, StdinMode,
    StreamKind, TerminalSize, UserSpec, Verdict,
};
use tokio::io::AsyncWrite;
use tokio::sync::watch;
use tokio::time::Instant;

use super::machine::Machine;
use super::machine::descriptor::{Descriptor, Descriptors, PIECE};
use super::machine::pipe::{PipeReader, PipeWriter, pipe};
use super::machine::process::{Ended, Process, launch};
use super::machine::task::{DEFAULT_PATH, Task};
use super::machine::terminal::Terminal;
use super::machine::tree::Device;
use super::sandbox::{Core, start_directory};
use crate::execution::{
    Execution, ExecutionControl, OutputChunk, OutputSender, SignalScope, Stdin, output_channel,
};

const EXEC: &str = "sandbox.exec";

/// After its leader's end, output counts as ended when nothing came for so long …
const QUIET: Duration = Duration::from_millis(50);

/// … or after so long, whatever still comes (invariant 8).
const LONGEST_DRAIN: Duration = Duration::from_millis(200);

/// Chunks that wait for a reader.
const WAITING_CHUNKS: usize = 16;

#[derive(Debug)]
enum Cause {
    Running,
    Killed(Verdict),
    Ended,
}

/// What the sandbox and the caller's handle share.
#[derive(Debug)]
pub(super) struct Control {
    id: ExecutionId,
    number: u64,
    machine: Arc<Machine>,
    leader: Arc<Process>,
    terminal: Option<Arc<Terminal>>,
    cause: Mutex<Cause>,
    verdict: watch::Sender<Option<Verdict>>,
}

impl Control {
    fn cause(&self) -> MutexGuard<'_, Cause> {
        self.cause.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kills the tree; the verdict is `verdict` unless the command ended first.
    pub(super) fn kill(&self, verdict: &Verdict) {
        let mut cause = self.cause();
        match *cause {
            Cause::Ended => return,
            Cause::Running => *cause = Cause::Killed(verdict.clone()),
            Cause::Killed(_) => {}
        }
        drop(cause);
        self.send(SignalNumber::KILL, SignalScope::Tree, EndedBy::Other);
    }

    fn send(&self, signal: SignalNumber, scope: SignalScope, by: EndedBy) {
        let group = self.leader.group.load(Ordering::Relaxed);
        let reached = self.machine.processes.pick(|process| match scope {
            SignalScope::Group => process.group.load(Ordering::Relaxed) == group,
            SignalScope::Tree => process.tree == self.number,
        });
        for process in reached {
            process.signal(signal, by);
        }
    }

    /// Waits for the leader and for all that a kill must take with it.
    async fn leader_ended(&self, timeout: Option<Duration>) -> Ended {
        if let Some(allowed) = timeout
            && tokio::time::timeout(allowed, self.leader.ended()).await.is_err()
        {
            self.kill(&Verdict::Deadline { allowed });
        }
        let ended = self.leader.ended().await;
        let killed = {
            let mut cause = self.cause();
            if matches!(*cause, Cause::Running) {
                *cause = Cause::Ended;
            }
            matches!(*cause, Cause::Killed(_))
        };
        if killed {
            // What was forked while the kill went round is killed now.
            self.send(SignalNumber::KILL, SignalScope::Tree, EndedBy::Other);
            for process in self.machine.processes.pick(|process| process.tree == self.number) {
                process.ended().await;
            }
        }
        ended
    }

    fn judge(&self, ended: Ended) -> Verdict {
        if let Cause::Killed(verdict) = &*self.cause() {
            return verdict.clone();
        }
        let starved = self.machine.processes.starved(self.number);
        if starved && ended.status() == 137 {
            return Verdict::OutOfMemory { limit: self.machine.limits.memory.map(|size| size.0) };
        }
        match ended {
            Ended::Signalled(signal, by) => Verdict::Signalled { signal, by },
            Ended::Exited(code) => match self.machine.limits.disk {
                Some(limit) if code != 0 && self.machine.found_full_disk(self.number) => {
                    Verdict::DiskFull { limit: limit.0, code }
                }
                _ => Verdict::Exited { code },
            },
        }
    }
}

#[async_trait]
impl ExecutionControl for Control {
    fn id(&self) -> &ExecutionId {
        &self.id
    }

    async fn signal(&self, signal: SignalNumber, scope: SignalScope) -> Result<()> {
        if !(1..=64).contains(&signal.0) {
            return Err(Error::invalid("execution.signal", format!("{} is not a signal", signal.0)));
        }
        if !matches!(*self.cause(), Cause::Ended) {
            self.send(signal, scope, EndedBy::Caller);
        }
        Ok(())
    }

    async fn cancel(&self) -> Result<()> {
        self.kill(&Verdict::Cancelled);
        Ok(())
    }

    async fn resize(&self, size: TerminalSize) -> Result<()> {
        let Some(terminal) = &self.terminal else {
            let message = format!("command {} has no terminal to resize", self.id);
            return Err(Error::new(ErrorKind::Conflict, "execution.resize", message));
        };
        terminal.set_size(size);
        self.send(SignalNumber(28), SignalScope::Group, EndedBy::Other);
        Ok(())
    }

    async fn verdict(&self) -> Verdict {
        let mut verdict = self.verdict.subscribe();
        match verdict.wait_for(Option::is_some).await {
            Ok(verdict) => verdict.clone().unwrap_or(Verdict::ObservationLost),
            Err(_) => Verdict::ObservationLost,
        }
    }
}

/// The ends of a command's descriptors that stay outside.
struct Outside {
    outputs: Vec<(StreamKind, Arc<PipeReader>)>,
    stdin: Option<Arc<PipeWriter>>,
    terminal: Option<(Arc<Terminal>, Weak<PipeWriter>)>,
}

fn connect(command: &CommandSpec) -> (Descriptors, Outside) {
    let (out_reader, out_writer) = pipe();
    if let Some(size) = command.terminal {
        let terminal = Terminal::new(size);
        let outside = Outside {
            outputs: vec![(StreamKind::Stdout, out_reader)],
            stdin: None,
            terminal: Some((Arc::clone(&terminal), Arc::downgrade(&out_writer))),
        };
        let end = Descriptor::Terminal(terminal, out_writer);
        return ((0..3).map(|number| (number, end.clone())).collect(), outside);
    }
    let (error_reader, error_writer) = pipe();
    let (input, stdin) = match command.stdin {
        StdinMode::Empty => (Descriptor::Device(Device::Null), None),
        StdinMode::Stream => {
            let (reader, writer) = pipe();
            (Descriptor::Input(reader), Some(writer))
        }
    };
    let descriptors =
        [(0, input), (1, Descriptor::Output(out_writer)), (2, Descriptor::Output(error_writer))].into();
    let outputs = vec![(StreamKind::Stdout, out_reader), (StreamKind::Stderr, error_reader)];
    (descriptors, Outside { outputs, stdin, terminal: None })
}

/// Starts a command.
pub(super) fn start(core: &Arc<Core>, command: &CommandSpec) -> Result<Execution> {
    let Some(program) = command.arguments.first() else {
        return Err(Error::invalid(EXEC, "a command needs at least a program"));
    };
    let strings =
        command.arguments.iter().chain(command.environment.iter().flat_map(|(name, value)| [name, value]));
    if strings.clone().any(|text| text.as_bytes().contains(&0)) {
        return Err(Error::invalid(EXEC, "an argument or variable holds a NUL byte"));
    }
    if !matches!(&command.user, None | Some(UserSpec::Id { user: 0, .. })) {
        return Err(Error::unsupported(EXEC, "memory has one user only"));
    }
    let program = program.as_bytes().to_vec();
    let words = command.arguments.iter().map(|word| word.as_bytes().to_vec()).collect();
    let variables = core.spec().environment.iter().chain(&command.environment);
    let base = [(b"PATH".to_vec(), DEFAULT_PATH.to_vec()), (b"HOME".to_vec(), b"/root".to_vec())];
    let environment = base
        .into_iter()
        .chain(variables.map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec())))
        .collect();
    let (descriptors, outside) = connect(command);

    let control = core.start(|machine, number| {
        let named = |what: &str, path: &Path, source| {
            Error::io(EXEC, format!("cannot {what} {}", path.display()), source)
                .with_context("path", path.display())
        };
        let asked = command.directory.as_deref();
        let directory = start_directory(core, machine, asked)
            .map_err(|source| named("start in", asked.unwrap_or(Path::new(".")), source))?;
        let leader = machine.processes.make(number, None, machine.most_processes()).map_err(|_| {
            Error::new(ErrorKind::LimitExceeded, EXEC, "the sandbox has no process left for this command")
                .with_hint("end some of its processes, or give it a higher process limit")
        })?;
        let machine = Arc::clone(machine);
        let task = Task { machine, process: leader, descriptors, environment, directory, mask: 0o022 };
        let file = task.find(&program).map_err(|source| {
            task.machine.processes.give_up(&task.process);
            named("run", super::machine::task::path_of(&program), source)
        })?;
        let (machine, process) = (Arc::clone(&task.machine), Arc::clone(&task.process));
        launch(&machine, &process, task.run(file, words));
        Ok(Arc::new(Control {
            id: ExecutionId::new(format!("{}-{number}", core.id()))?,
            number,
            machine,
            leader: process,
            terminal: outside.terminal.as_ref().map(|(terminal, _)| Arc::clone(terminal)),
            cause: Mutex::new(Cause::Running),
            verdict: watch::Sender::new(None),
        }))
    })?;

    let (sender, output) = output_channel(WAITING_CHUNKS);
    let over = watch::Sender::new(false);
    let pumps: Vec<_> = outside
        .outputs
        .into_iter()
        .map(|(stream, reader)| tokio::spawn(pump(stream, reader, sender.clone(), over.subscribe())))
        .collect();
    drop(sender);
    tokio::spawn(supervise(Arc::clone(core), Arc::clone(&control), command.timeout, over, pumps));

    let stdin = match (outside.terminal, outside.stdin) {
        (Some((terminal, output)), _) => {
            let control = Arc::clone(&control);
            Some(Stdin(Box::new(TerminalInput { terminal, output, control })))
        }
        (None, Some(writer)) => Some(Stdin(Box::new(PipeInput(Some(writer))))),
        (None, None) => None,
    };
    Ok(Execution { output, stdin, control })
}

async fn supervise(
    core: Arc<Core>,
    control: Arc<Control>,
    timeout: Option<Duration>,
    over: watch::Sender<bool>,
    pumps: Vec<tokio::task::JoinHandle<()>>,
) {
    let ended = control.leader_ended(timeout).await;
    over.send_replace(true);
    for pump in pumps {
        // A pump never panics; were one cancelled, the runtime is going down.
        let _ = pump.await;
    }
    core.ended(control.number);
    control.verdict.send_replace(Some(control.judge(ended)));
}

async fn is_over(over: &mut watch::Receiver<bool>) {
    // A sender that is gone says the same.
    drop(over.wait_for(|over| *over).await);
}

/// Carries one stream out, until it ends or the drain after the leader's end is over. What comes later
/// is discarded, so that its writer lives on.
async fn pump(
    stream: StreamKind,
    pipe: Arc<PipeReader>,
    sender: OutputSender,
    mut over: watch::Receiver<bool>,
) {
    let mut sender = Some(sender);
    let mut offset = ByteOffset(0);
    let mut deliver = async |bytes: Bytes| {
        if let Some(wanted) = &sender {
            let length = bytes.len();
            if !wanted.send(Ok(OutputChunk { stream, offset, bytes })).await {
                sender = None;
            }
            offset = offset.advance(length);
        }
    };
    loop {
        tokio::select! {
            piece = pipe.read(PIECE) => {
                if piece.is_empty() {
                    return;
                }
                deliver(piece).await;
            }
            () = is_over(&mut over) => break,
        }
    }
    let mut written_before = pipe.waiting();
    let limit = Instant::now() + LONGEST_DRAIN;
    while written_before > 0 || Instant::now() < limit {
        let most = if written_before > 0 { written_before } else { PIECE };
        let Ok(piece) = tokio::time::timeout(QUIET, pipe.read(most)).await else { break };
        if piece.is_empty() {
            return;
        }
        written_before = written_before.saturating_sub(piece.len());
        deliver(piece).await;
    }
    tokio::spawn(async move { while !pipe.read(PIECE).await.is_empty() {} });
}

struct PipeInput(Option<Arc<PipeWriter>>);

impl AsyncWrite for PipeInput {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &self.0 {
            Some(pipe) => pipe.poll_write(context, &Bytes::copy_from_slice(&bytes[..bytes.len().min(PIECE)])),
            None => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0 = None;
        Poll::Ready(Ok(()))
    }
}

struct TerminalInput {
    terminal: Arc<Terminal>,
    output: Weak<PipeWriter>,
    control: Arc<Control>,
}

impl AsyncWrite for TerminalInput {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Some(output) = self.output.upgrade() else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        let interrupt = || self.control.send(SignalNumber::INTERRUPT, SignalScope::Group, EndedBy::Other);
        self.terminal.poll_type(context, bytes, &output, interrupt)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl fmt::Debug for TerminalInput {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("TerminalInput")
    }
}
