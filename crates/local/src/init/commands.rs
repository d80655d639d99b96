//! The commands of a sandbox, from fork to report.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitStatus};

use super::spawn::{MARK_BYTES, StartError, Starting, foreground_group};
use super::tree::{self, TreeMark};
use crate::protocol::{Ending, EventBody, KillCause, SignalTarget, Tag};

/// Which connection a command belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ConnectionId(pub(super) u64);

/// One command.
pub(super) struct Command {
    pub(super) connection: ConnectionId,
    pub(super) tag: Tag,
    leader: Pid,
    mark: Option<TreeMark>,
    /// Open until the child became the program or told why it could not.
    status: Option<OwnedFd>,
    received: Vec<u8>,
    refused: bool,
    /// The terminal's master side, until the command has started.
    master: Option<OwnedFd>,
    has_terminal: bool,
    deadline: Option<Instant>,
    killed: Option<KillCause>,
    sent: Option<i32>,
    ending: Option<Ending>,
}

/// What to tell the host, with a descriptor that goes along.
pub(super) type Report = (ConnectionId, Tag, EventBody, Option<OwnedFd>);

impl Command {
    pub(super) fn new(
        connection: ConnectionId,
        tag: Tag,
        starting: Starting,
        master: Option<OwnedFd>,
        timeout: Option<u64>,
    ) -> Self {
        let deadline = timeout.and_then(|millis| Instant::now().checked_add(Duration::from_millis(millis)));
        Self {
            connection,
            tag,
            leader: starting.leader,
            mark: None,
            status: Some(starting.status),
            received: Vec::new(),
            refused: false,
            has_terminal: master.is_some(),
            master,
            deadline,
            killed: None,
            sent: None,
            ending: None,
        }
    }

    /// The descriptor to wait on while it starts.
    pub(super) fn status(&self) -> Option<&OwnedFd> {
        self.status.as_ref()
    }

    pub(super) fn is_leader(&self, pid: Pid) -> bool {
        self.leader == pid && self.is_alive()
    }

    /// Whether its leader still runs.
    fn is_alive(&self) -> bool {
        self.ending.is_none()
    }

    /// When something must be done about it.
    pub(super) fn next_event(&self) -> Option<Instant> {
        if self.killed.is_some() { Some(Instant::now() + Duration::from_millis(2)) } else { self.deadline }
    }

    /// Reads what the starting child tells. `Some` when it started or failed to.
    pub(super) fn read_status(&mut self) -> Option<Report> {
        let mut buffer = [0_u8; 4096];
        loop {
            match rustix::io::read(self.status.as_ref()?, &mut buffer) {
                Ok(0) => break,
                Ok(count) => self.received.extend_from_slice(&buffer[..count]),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => {
                    self.read_mark();
                    return None;
                }
                Err(_) => break,
            }
        }
        self.read_mark();
        self.status = None;
        let failure = self.received.get(MARK_BYTES..).filter(|rest| !rest.is_empty()).map(StartError::parse);
        let body = match failure {
            None => EventBody::Started,
            Some(error) => {
                self.refused = true;
                EventBody::Refused(error.into())
            }
        };
        Some((self.connection, self.tag, body, self.master.take()))
    }

    fn read_mark(&mut self) {
        if let Some(mark) = self.received.first_chunk::<MARK_BYTES>() {
            self.mark = Some(TreeMark(u64::from_le_bytes(*mark)));
        }
    }

    /// Notes how the leader ended.
    pub(super) fn leader_ended(&mut self, status: WaitStatus) {
        let signal = status.terminating_signal();
        self.ending = Some(Ending {
            code: status.exit_status().and_then(|code| u8::try_from(code).ok()),
            signal,
            killed: self.killed,
            signal_was_sent: signal.is_some() && signal == self.sent,
        });
    }

    /// Whether it is over, told or not to be told.
    pub(super) fn is_over(&mut self, reports: &mut Vec<Report>) -> bool {
        let (Some(ending), None) = (self.ending, &self.status) else {
            return false;
        };
        if self.killed.is_some() && !self.mark.is_none_or(|mark| tree::kill(mark).unwrap_or(false)) {
            return false;
        }
        if !self.refused {
            reports.push((self.connection, self.tag, EventBody::Ended(ending), None));
        }
        true
    }

    /// Notes that the sandbox ends under it.
    pub(super) fn mark_stopped(&mut self) {
        if self.is_alive() && self.killed.is_none() {
            self.killed = Some(KillCause::Stop);
        }
    }

    /// Kills the whole tree for a cause; the first cause stays.
    pub(super) fn kill(&mut self, cause: KillCause) {
        if self.is_alive() && self.killed.is_none() {
            self.killed = Some(cause);
        }
        self.kill_again();
    }

    /// Another pass over a tree that is being killed.
    pub(super) fn kill_again(&mut self) {
        if matches!(self.killed, None | Some(KillCause::Stop)) {
            return;
        }
        if self.is_alive() {
            let _ = rustix::process::kill_process(self.leader, Signal::KILL);
        }
        if let Some(mark) = self.mark {
            let _ = tree::kill(mark);
        }
    }

    /// Kills it when its time is up.
    pub(super) fn check_deadline(&mut self, now: Instant) {
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.deadline = None;
            if self.is_alive() {
                self.kill(KillCause::Deadline);
            }
        }
    }

    /// Sends a signal; without effect once the leader ended.
    pub(super) fn signal(&mut self, number: i32, target: SignalTarget) -> io::Result<()> {
        let signal = Signal::from_named_raw(number).ok_or(io::ErrorKind::InvalidInput)?;
        if !self.is_alive() {
            return Ok(());
        }
        self.sent = Some(number);
        let delivered = if let (SignalTarget::Tree, Some(mark)) = (target, self.mark) {
            tree::signal(mark, number).map(drop)
        } else {
            let foreground = if self.has_terminal { foreground_group(self.leader) } else { None };
            let group = foreground.filter(|group| group.as_raw_nonzero().get() > 1).unwrap_or(self.leader);
            rustix::process::kill_process_group(group, signal).map_err(io::Error::from)
        };
        match delivered {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            other => other,
        }
    }
}
