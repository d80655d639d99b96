//! One change of a sandbox's state at a time, among all processes.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_model::{Error, ErrorKind, Result, SandboxState};
use rustix::fs::FlockOperation;

use crate::cgroup::{self, Cgroup};
use crate::record::Record;

/// Locked while somebody changes the state; not empty while its processes are frozen for a moment.
const FILE: &str = "hold.lock";
/// How long processes may take to freeze. One in the middle of slow input or output takes longest.
const FREEZE_TIME: Duration = Duration::from_secs(10);

/// The right to change the state of a sandbox.
#[derive(Debug)]
pub(crate) struct Hold {
    file: File,
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |error| Error::io("sandbox.hold", what, error)
}

fn open(state: &Path) -> Result<File> {
    File::options().create(true).write(true).truncate(false).open(state.join(FILE)).map_err(|error| {
        let is_gone = error.kind() == io::ErrorKind::NotFound;
        let error = failed("cannot open the lock of the sandbox's state")(error);
        if is_gone { Error::new(ErrorKind::Lost, "sandbox.hold", error.message()) } else { error }
    })
}

impl Hold {
    /// Waits until nobody else has it. Blocking.
    pub(crate) fn take(state: &Path) -> Result<Self> {
        let file = open(state)?;
        rustix::fs::flock(&file, FlockOperation::LockExclusive)
            .map_err(io::Error::from)
            .map_err(failed("cannot lock the sandbox's state"))?;
        Ok(Self { file })
    }

    /// Thaws the processes that somebody froze for a moment and died. A sandbox that was paused stays so.
    pub(crate) fn thaw_forgotten(&self, record: &Record) -> Result<()> {
        if !is_marked(&self.file) {
            return Ok(());
        }
        if record.state != SandboxState::Paused
            && let Some(cgroup) = cgroup::create(record.id.as_str(), &record.limits)?
        {
            cgroup.set_frozen(false).map_err(failed("cannot thaw the sandbox's processes"))?;
        }
        self.mark(false)
    }

    fn mark(&self, is_frozen: bool) -> Result<()> {
        self.file
            .set_len(u64::from(is_frozen))
            .map_err(failed("cannot note whether the sandbox's processes are frozen"))
    }

    /// Freezes every process in a group until the answer is dropped; with `is_paused` they are frozen
    /// already and stay so. Blocking.
    pub(crate) fn freeze(self, cgroup: Arc<Cgroup>, is_paused: bool) -> Result<Frozen> {
        // Written down before the first process is frozen, so that whoever comes after us can thaw them.
        self.mark(!is_paused)?;
        let frozen = Frozen { hold: self, cgroup, is_paused };
        let started = Instant::now();
        if !is_paused {
            frozen.cgroup.set_frozen(true).map_err(failed("cannot freeze the sandbox's processes"))?;
        }
        while !frozen.is_still().map_err(failed("cannot ask whether the sandbox's processes are frozen"))? {
            if started.elapsed() > FREEZE_TIME {
                return Err(Error::new(
                    ErrorKind::Conflict,
                    "sandbox.hold",
                    "the sandbox's processes could not be frozen in time",
                )
                .with_hint("try again, or stop the sandbox first"));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(frozen)
    }
}

fn is_marked(file: &File) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.len() > 0)
}

/// The same as [`Hold::thaw_forgotten`] for a sandbox that nobody holds at this moment. Cheap when there
/// is nothing to do.
pub(crate) fn thaw_forgotten(state: &Path, record: &Record) -> Result<()> {
    let marked = state.join(FILE).metadata().is_ok_and(|metadata| metadata.len() > 0);
    if !marked {
        return Ok(());
    }
    let file = open(state)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Hold { file }.thaw_forgotten(record),
        // Whoever froze them is still at it.
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(()),
        Err(error) => Err(failed("cannot lock the sandbox's state")(error.into())),
    }
}

/// Processes that are frozen for a moment.
#[derive(Debug)]
pub(crate) struct Frozen {
    hold: Hold,
    cgroup: Arc<Cgroup>,
    is_paused: bool,
}

impl Frozen {
    /// Whether they are; the end of the sandbox thaws them without asking.
    pub(crate) fn is_still(&self) -> io::Result<bool> {
        self.cgroup.is_frozen()
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        if self.is_paused {
            return;
        }
        let thawed = self.cgroup.set_frozen(false).map_err(failed("cannot thaw the sandbox's processes"));
        if let Err(error) = thawed.and_then(|()| self.hold.mark(false)) {
            tracing::warn!(%error, "the next sweep thaws the processes of this sandbox");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holds_and_the_mark_outlives_it() {
        let state = tempfile::tempdir().unwrap();
        let hold = Hold::take(state.path()).unwrap();
        hold.mark(true).unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let path = state.path().to_owned();
        let other = std::thread::spawn(move || {
            let hold = Hold::take(&path).unwrap();
            sender.send(is_marked(&hold.file)).unwrap();
        });
        assert!(receiver.try_recv().is_err());
        drop(hold);
        assert!(receiver.recv().unwrap(), "a death in between leaves the mark");
        other.join().unwrap();
        let gone = Hold::take(&state.path().join("gone")).unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::Lost);
    }
}
