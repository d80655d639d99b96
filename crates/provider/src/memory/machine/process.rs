//! Simulated processes: numbers, groups, signals, and their end.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use leasehold_model::{EndedBy, SignalNumber};
use tokio::sync::watch;

use super::Machine;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::memory) enum Ended {
    Exited(u8),
    Signalled(SignalNumber, EndedBy),
}

impl Ended {
    /// The status that a shell shows.
    pub(in crate::memory) fn status(self) -> u8 {
        match self {
            Self::Exited(code) => code,
            Self::Signalled(signal, _) => u8::try_from(128 + signal.0).unwrap_or(255),
        }
    }
}

/// What a process does with a signal, beside the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::memory) enum Disposition {
    Ignore,
    Trap,
}

#[derive(Debug, Default)]
struct State {
    dispositions: BTreeMap<i32, Disposition>,
    pending: VecDeque<i32>,
    deadly: Option<(SignalNumber, EndedBy)>,
    waker: Option<Waker>,
}

/// One process.
#[derive(Debug)]
pub(in crate::memory) struct Process {
    pub(in crate::memory) id: u32,
    /// The execution whose tree it belongs to, wherever it moves.
    pub(in crate::memory) tree: u64,
    pub(in crate::memory) group: AtomicU32,
    state: Mutex<State>,
    ended: watch::Sender<Option<Ended>>,
}

/// Signals whose default is to do nothing: child, continue, urgent, window size.
const HARMLESS: [i32; 4] = [17, 18, 23, 28];

impl Process {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a signal.
    pub(in crate::memory) fn signal(&self, signal: SignalNumber, by: EndedBy) {
        let mut state = self.lock();
        match state.dispositions.get(&signal.0) {
            _ if signal == SignalNumber::KILL => state.deadly = state.deadly.or(Some((signal, by))),
            Some(Disposition::Ignore) => {}
            Some(Disposition::Trap) => state.pending.push_back(signal.0),
            None if signal.0 == 0 || HARMLESS.contains(&signal.0) => {}
            None => state.deadly = state.deadly.or(Some((signal, by))),
        }
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }

    /// Sets what a signal does; `None` is the default.
    pub(in crate::memory) fn dispose(&self, signal: i32, disposition: Option<Disposition>) {
        let mut state = self.lock();
        match disposition {
            Some(disposition) => state.dispositions.insert(signal, disposition),
            None => state.dispositions.remove(&signal),
        };
    }

    /// Takes the next trapped signal that came.
    pub(in crate::memory) fn take_pending(&self) -> Option<i32> {
        self.lock().pending.pop_front()
    }

    /// Waits until a trapped signal is there, without taking it.
    pub(in crate::memory) async fn trapped(&self) {
        // A signal wakes the process's task, and with it this future.
        poll_fn(|_| if self.lock().pending.is_empty() { Poll::Pending } else { Poll::Ready(()) }).await;
    }

    /// Forgets traps, as a new program or a subshell does; what is ignored stays so.
    pub(in crate::memory) fn reset_traps(&self) {
        self.lock().dispositions.retain(|_, disposition| *disposition == Disposition::Ignore);
    }

    /// Waits for its end.
    pub(in crate::memory) async fn ended(&self) -> Ended {
        let mut ended = self.ended.subscribe();
        match ended.wait_for(Option::is_some).await {
            Ok(ended) => ended.unwrap_or(Ended::Exited(0)),
            Err(_) => Ended::Signalled(SignalNumber::KILL, EndedBy::Other),
        }
    }
}

/// Why no process could be made: the limit is reached.
#[derive(Debug)]
pub(in crate::memory) struct TooMany;

/// The processes of one machine.
#[derive(Debug, Default)]
pub(in crate::memory) struct ProcessTable {
    inner: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    last_id: u32,
    live: BTreeMap<u32, Arc<Process>>,
    frozen: bool,
    thawed: Vec<Waker>,
    /// Trees of which one process was killed for memory.
    starved: BTreeSet<u64>,
}

impl ProcessTable {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new process: a copy of `parent`'s group and ignored signals, or the leader of a new tree.
    pub(in crate::memory) fn make(
        &self,
        tree: u64,
        parent: Option<&Process>,
        limit: usize,
    ) -> Result<Arc<Process>, TooMany> {
        let mut table = self.lock();
        if table.live.len() >= limit {
            return Err(TooMany);
        }
        // Number 1 is the machine's own.
        table.last_id = table.last_id.max(1) + 1;
        let id = table.last_id;
        let mut state = State::default();
        if let Some(parent) = parent {
            let parent = parent.lock();
            state.dispositions.extend(
                parent
                    .dispositions
                    .iter()
                    .filter(|(_, kept)| **kept == Disposition::Ignore)
                    .map(|(s, d)| (*s, *d)),
            );
        }
        let group = parent.map_or(id, |parent| parent.group.load(Ordering::Relaxed));
        let process = Arc::new(Process {
            id,
            tree,
            group: AtomicU32::new(group),
            state: Mutex::new(state),
            ended: watch::Sender::new(None),
        });
        table.live.insert(id, Arc::clone(&process));
        Ok(process)
    }

    /// The live processes that a question picks.
    pub(in crate::memory) fn pick(&self, wanted: impl Fn(&Process) -> bool) -> Vec<Arc<Process>> {
        self.lock().live.values().filter(|process| wanted(process)).map(Arc::clone).collect()
    }

    /// Freezes or thaws all processes.
    pub(in crate::memory) fn set_frozen(&self, frozen: bool) {
        let mut table = self.lock();
        table.frozen = frozen;
        if !frozen {
            table.thawed.drain(..).for_each(Waker::wake);
        }
    }

    /// Kills a process for memory, and keeps the evidence.
    pub(in crate::memory) fn starve(&self, process: &Process) {
        self.lock().starved.insert(process.tree);
        process.signal(SignalNumber::KILL, EndedBy::Other);
    }

    /// Whether a process of this tree was killed for memory.
    pub(in crate::memory) fn starved(&self, tree: u64) -> bool {
        self.lock().starved.contains(&tree)
    }

    /// Takes a process back that never ran.
    pub(in crate::memory) fn give_up(&self, process: &Process) {
        self.bury(process, Ended::Exited(127));
    }

    fn poll_frozen(&self, context: &Context<'_>) -> bool {
        let mut table = self.lock();
        if table.frozen {
            table.thawed.push(context.waker().clone());
        }
        table.frozen
    }

    fn bury(&self, process: &Process, ended: Ended) {
        self.lock().live.remove(&process.id);
        process.ended.send_replace(Some(ended));
    }
}

type Program = Pin<Box<dyn Future<Output = u8> + Send>>;

/// Runs the program of a process until it returns or a signal ends it, standing still while frozen.
struct Supervised {
    machine: Arc<Machine>,
    process: Arc<Process>,
    program: Option<Program>,
}

impl Future for Supervised {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let deadly = {
            let mut state = self.process.lock();
            state.waker = Some(context.waker().clone());
            state.deadly
        };
        let frozen = self.machine.processes.poll_frozen(context);
        let ended = match deadly {
            Some((signal, by)) if !frozen || signal == SignalNumber::KILL => Ended::Signalled(signal, by),
            _ if frozen => return Poll::Pending,
            _ => match self.program.as_mut().map(|program| program.as_mut().poll(context)) {
                Some(Poll::Ready(code)) => Ended::Exited(code),
                Some(Poll::Pending) => {
                    // A signal that the program sent to itself came before its waker was looked at.
                    if self.process.lock().deadly.is_some() {
                        context.waker().wake_by_ref();
                    }
                    return Poll::Pending;
                }
                None => return Poll::Ready(()),
            },
        };
        // Closes its descriptors before anybody hears of the end.
        self.program = None;
        self.machine.processes.bury(&self.process, ended);
        Poll::Ready(())
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        // The runtime is going down: nobody may wait for ever.
        if self.program.take().is_some() {
            self.machine.processes.bury(&self.process, Ended::Signalled(SignalNumber::KILL, EndedBy::Other));
        }
    }
}

/// Starts a process's program.
pub(in crate::memory) fn launch(
    machine: &Arc<Machine>,
    process: &Arc<Process>,
    program: impl Future<Output = u8> + Send + 'static,
) {
    tokio::spawn(Supervised {
        machine: Arc::clone(machine),
        process: Arc::clone(process),
        program: Some(Box::pin(program)),
    });
}
