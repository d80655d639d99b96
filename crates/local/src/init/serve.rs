//! Pid 1 at work: one loop over connections, children and clocks.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::net::SocketFlags;
use rustix::process::{Pid, WaitOptions, WaitStatus};

use super::commands::{Command, ConnectionId, Report};
use super::spawn::{self, Streams};
use super::{connect, file_server, tree};
use crate::protocol::{
    Event, EventBody, FrameReader, FrameWriter, KillCause, Lifetime, Refusal, Request, RequestBody,
    RunCommand, StartPlan, Tag,
};
use crate::syscall::raw;

/// A host that doesn't read its events is cut off beyond this.
const MOST_WAITING_BYTES: usize = 4 << 20;
/// The most connections at one time.
const MOST_CONNECTIONS: usize = 256;

struct Connection {
    id: ConnectionId,
    socket: OwnedFd,
    reader: FrameReader,
    writer: FrameWriter,
    closed: bool,
}

/// Why the loop ends.
enum Goal {
    Serve,
    /// Every process was asked to end; at the instant the rest is killed.
    Stop {
        kill_at: Instant,
        tell: Option<(ConnectionId, Tag)>,
    },
}

/// Pid 1's state.
pub(super) struct Server {
    plan: StartPlan,
    signals: OwnedFd,
    cgroups: Vec<OwnedFd>,
    listener: Option<OwnedFd>,
    connections: Vec<Connection>,
    next_connection: u64,
    commands: Vec<Command>,
    expires_at: Option<Instant>,
    idle_stop_after: Option<Duration>,
    idle_since: Instant,
    goal: Goal,
}

fn from_now(millis: Option<u64>) -> Option<Instant> {
    millis.and_then(|millis| Instant::now().checked_add(Duration::from_millis(millis)))
}

fn refused(message: impl Into<String>, error: &io::Error) -> EventBody {
    let errno = error.raw_os_error().unwrap_or(0);
    EventBody::Refused(Refusal { message: message.into(), errno, about_program: false })
}

impl Server {
    pub(super) fn new(
        plan: StartPlan,
        signals: OwnedFd,
        cgroups: Vec<OwnedFd>,
        listener: Option<OwnedFd>,
    ) -> Self {
        Self {
            expires_at: from_now(plan.expire_after),
            idle_stop_after: plan.idle_stop_after.map(Duration::from_millis),
            plan,
            signals,
            cgroups,
            listener,
            connections: Vec::new(),
            next_connection: 0,
            commands: Vec::new(),
            idle_since: Instant::now(),
            goal: Goal::Serve,
        }
    }

    /// Takes over the first connection and says that the sandbox is ready.
    pub(super) fn adopt(
        &mut self,
        socket: OwnedFd,
        reader: FrameReader,
        tag: Tag,
        layers: Option<OwnedFd>,
    ) -> io::Result<()> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        let id = self.add_connection(socket, reader);
        self.tell((id, tag, EventBody::Ready, layers));
        Ok(())
    }

    fn add_connection(&mut self, socket: OwnedFd, reader: FrameReader) -> ConnectionId {
        let id = ConnectionId(self.next_connection);
        self.next_connection += 1;
        self.connections.push(Connection {
            id,
            socket,
            reader,
            writer: FrameWriter::default(),
            closed: false,
        });
        id
    }

    fn tell(&mut self, (id, tag, body, descriptor): Report) {
        let Some(connection) = self.connections.iter_mut().find(|connection| connection.id == id) else {
            return;
        };
        let pushed = connection.writer.push(&Event { tag, body }, descriptor.into_iter().collect());
        if pushed.is_err() || connection.writer.waiting_bytes() > MOST_WAITING_BYTES {
            connection.closed = true;
        }
    }

    /// Serves until the sandbox is to end. Everything inside ends with this process.
    pub(super) fn run(&mut self) -> io::Result<()> {
        loop {
            self.flush();
            if self.is_finished() {
                return Ok(());
            }
            self.wait()?;
            self.reap();
            self.accept();
            self.read_requests();
            self.check_clocks();
            self.report_commands();
        }
    }

    fn flush(&mut self) {
        for connection in &mut self.connections {
            match connection.writer.flush(connection.socket.as_fd()) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => connection.closed = true,
            }
        }
        let creator_left =
            self.connections.iter().any(|connection| connection.closed && connection.id.0 == 0);
        self.connections.retain(|connection| !connection.closed);
        if creator_left && self.plan.lifetime == Lifetime::Creator {
            self.stop(Duration::ZERO, None);
        }
    }

    fn is_finished(&mut self) -> bool {
        let Goal::Stop { kill_at, tell } = self.goal else {
            return false;
        };
        let others_live = has_other_processes();
        if others_live && Instant::now() < kill_at {
            return false;
        }
        if others_live {
            raw::signal_everyone(libc::SIGKILL);
            while has_other_processes() {
                // Killed processes end without their consent; each ends with a wake-up.
                let _ = rustix::process::wait(WaitOptions::empty()).map(|ended| self.note_end(ended));
            }
            self.report_commands();
        }
        if let Some((id, tag)) = tell {
            self.tell((id, tag, EventBody::Done, None));
        }
        self.flush();
        true
    }

    fn wait(&mut self) -> io::Result<()> {
        let mut wait = vec![PollFd::new(&self.signals, PollFlags::IN)];
        wait.extend(self.listener.iter().map(|listener| PollFd::new(listener, PollFlags::IN)));
        wait.extend(
            self.commands.iter().filter_map(Command::status).map(|status| PollFd::new(status, PollFlags::IN)),
        );
        wait.extend(self.connections.iter().map(|connection| {
            let flags =
                if connection.writer.is_empty() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
            PollFd::new(&connection.socket, flags)
        }));
        let timeout = self.next_event().map(|instant| {
            let left = instant.saturating_duration_since(Instant::now());
            rustix::event::Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            }
        });
        match rustix::event::poll(&mut wait, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn next_event(&self) -> Option<Instant> {
        let idle =
            self.idle_stop_after.filter(|_| self.commands.is_empty()).map(|after| self.idle_since + after);
        let stopping = match self.goal {
            Goal::Stop { kill_at, .. } => Some(kill_at.min(Instant::now() + Duration::from_millis(5))),
            Goal::Serve => None,
        };
        let commands = self.commands.iter().filter_map(Command::next_event);
        commands.chain(self.expires_at).chain(idle).chain(stopping).min()
    }

    fn reap(&mut self) {
        // The descriptor is only a bell; the children themselves say who ended.
        let _ = rustix::io::read(&self.signals, &mut [0_u8; 128 * 8]);
        while let Ok(Some(ended)) = rustix::process::wait(WaitOptions::NOHANG) {
            self.note_end(Some(ended));
        }
    }

    fn note_end(&mut self, ended: Option<(Pid, WaitStatus)>) {
        if let Some((pid, status)) = ended
            && let Some(command) = self.commands.iter_mut().find(|command| command.is_leader(pid))
        {
            command.leader_ended(status);
        }
    }

    fn accept(&mut self) {
        let Some(listener) = &self.listener else {
            return;
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let Ok(socket) = rustix::net::accept_with(listener, flags) else {
            return;
        };
        if self.connections.len() < MOST_CONNECTIONS {
            self.add_connection(socket, FrameReader::default());
        }
    }

    fn read_requests(&mut self) {
        let mut requests = Vec::new();
        for connection in &mut self.connections {
            match connection.reader.fill(connection.socket.as_fd()) {
                Ok(0) => connection.closed = true,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(_) => connection.closed = true,
            }
            loop {
                match connection.reader.next::<Request>() {
                    Ok(Some((request, descriptors))) => requests.push((connection.id, request, descriptors)),
                    Ok(None) => break,
                    Err(_) => {
                        connection.closed = true;
                        break;
                    }
                }
            }
        }
        for (id, request, descriptors) in requests {
            if let Some((body, descriptor)) = self.answer(id, request.tag, request.body, descriptors) {
                self.tell((id, request.tag, body, descriptor));
            }
        }
    }

    /// Does one request. `None` when its answer comes later.
    fn answer(
        &mut self,
        id: ConnectionId,
        tag: Tag,
        body: RequestBody,
        descriptors: Vec<OwnedFd>,
    ) -> Option<(EventBody, Option<OwnedFd>)> {
        let done = |result: io::Result<()>, what: &str| match result {
            Ok(()) => Some((EventBody::Done, None)),
            Err(error) => Some((refused(what, &error), None)),
        };
        match body {
            RequestBody::Start(_) | RequestBody::Work(_) => {
                Some((refused("the sandbox has started", &io::ErrorKind::Other.into()), None))
            }
            RequestBody::Run(command) => {
                self.run_command(id, tag, &command, descriptors).map(|body| (body, None))
            }
            RequestBody::Signal { command, signal, target } => {
                let result =
                    self.command(id, command).map_or(Ok(()), |command| command.signal(signal, target));
                done(result, "cannot send the signal")
            }
            RequestBody::Cancel { command } => {
                if let Some(command) = self.command(id, command) {
                    command.kill(KillCause::Cancel);
                }
                done(Ok(()), "")
            }
            RequestBody::OpenFiles => Some(match file_server::open(&self.plan) {
                Ok(socket) => (EventBody::Done, Some(socket)),
                Err(error) => (refused("cannot open the sandbox's files", &error), None),
            }),
            RequestBody::Connect { port } => Some(match connect::open(port) {
                Ok(socket) => (EventBody::Done, Some(socket)),
                Err(error) => {
                    (refused(format!("cannot connect to port {port} in the sandbox"), &error), None)
                }
            }),
            RequestBody::SetExpiry { after } => {
                self.expires_at = from_now(after);
                done(Ok(()), "")
            }
            RequestBody::SetIdleStop { after } => {
                self.idle_stop_after = after.map(Duration::from_millis);
                self.idle_since = Instant::now();
                done(Ok(()), "")
            }
            RequestBody::EndIfIdle => {
                if has_commands_running() {
                    return Some((refused("processes are running", &io::ErrorKind::Other.into()), None));
                }
                self.stop(Duration::ZERO, None);
                done(Ok(()), "")
            }
            RequestBody::Stop { grace } => {
                self.stop(Duration::from_millis(grace), Some((id, tag)));
                None
            }
        }
    }

    fn command(&mut self, id: ConnectionId, tag: Tag) -> Option<&mut Command> {
        self.commands.iter_mut().find(|command| command.connection == id && command.tag == tag)
    }

    /// Starts a command; an answer only when it can't be forked.
    fn run_command(
        &mut self,
        id: ConnectionId,
        tag: Tag,
        command: &RunCommand,
        descriptors: Vec<OwnedFd>,
    ) -> Option<EventBody> {
        if !matches!(self.goal, Goal::Serve) {
            return Some(refused("the sandbox is stopping", &io::Error::from_raw_os_error(libc::ESHUTDOWN)));
        }
        let (streams, master) = match command.terminal {
            Some((columns, rows)) => match spawn::open_terminal(columns, rows) {
                Ok((master, slave)) => (Streams::Terminal(slave), Some(master)),
                Err(error) => return Some(refused("cannot open a terminal in the sandbox", &error)),
            },
            None => match pipes(descriptors) {
                Ok(pipes) => (Streams::Pipes(pipes), None),
                Err(error) => return Some(refused("cannot connect the command's streams", &error)),
            },
        };
        match spawn::spawn(&self.plan, command, &streams, &self.cgroups) {
            Ok(starting) => {
                self.commands.push(Command::new(id, tag, starting, master, command.timeout));
                None
            }
            Err(error) => Some(EventBody::Refused(error.into())),
        }
    }

    fn stop(&mut self, grace: Duration, tell: Option<(ConnectionId, Tag)>) {
        if matches!(self.goal, Goal::Stop { .. }) {
            return;
        }
        for command in &mut self.commands {
            command.mark_stopped();
        }
        if !grace.is_zero() {
            raw::signal_everyone(libc::SIGTERM);
        }
        self.goal = Goal::Stop { kill_at: Instant::now() + grace, tell };
    }

    fn check_clocks(&mut self) {
        let now = Instant::now();
        for command in &mut self.commands {
            command.check_deadline(now);
            command.kill_again();
        }
        if !self.commands.is_empty() {
            self.idle_since = now;
        }
        let idle = self.idle_stop_after.is_some_and(|after| now >= self.idle_since + after);
        let expired = self.expires_at.is_some_and(|instant| now >= instant);
        if (idle || expired) && matches!(self.goal, Goal::Serve) {
            self.stop(Duration::from_millis(500), None);
        }
    }

    fn report_commands(&mut self) {
        let mut reports = Vec::new();
        for command in &mut self.commands {
            reports.extend(command.read_status());
        }
        self.commands.retain_mut(|command| !command.is_over(&mut reports));
        for report in reports {
            self.tell(report);
        }
    }
}

/// Standard input, output and error; two descriptors are the last two of them.
fn pipes(mut descriptors: Vec<OwnedFd>) -> io::Result<[OwnedFd; 3]> {
    if descriptors.len() == 2 {
        descriptors.insert(0, std::fs::File::open("/dev/null")?.into());
    }
    descriptors.try_into().map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Whether anything runs but this process and its file servers, which change nothing by themselves.
fn has_commands_running() -> bool {
    let own = tree::own_mark().ok();
    other_processes().into_iter().any(|number| tree::mark_of(&number.to_string()).ok() != own)
}

fn has_other_processes() -> bool {
    !other_processes().is_empty()
}

fn other_processes() -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|number| *number != 1)
        .collect()
}
