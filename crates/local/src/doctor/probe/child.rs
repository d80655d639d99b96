//! A forked child that performs a script, seen from its parent.

use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use super::script::{RECORD_LENGTH, Script, StepNumber, read_record};
use super::system_calls;
use crate::doctor::facts::{ErrorNumber, Trial};

/// How long one child may take for its whole script. A healthy one takes a few milliseconds; a dead
/// network file system takes for ever.
const PATIENCE: Duration = Duration::from_secs(2);

/// How often the parent looks whether a silent child has died. The end of the pipe is no sign, as
/// another thread may have forked meanwhile and hold it open; and a pidfd, which would be one, is a
/// call that a filter may kill us for.
const LOOK: Duration = Duration::from_millis(1);

/// A running child. Dropping it kills and reaps it.
#[derive(Debug)]
pub(super) struct Child {
    pid: Pid,
    report: OwnedFd,
    steps: Vec<Trial>,
    deadline: Instant,
    end: End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Running,
    Exited,
    Killed(i32),
    Hung,
}

impl Child {
    /// Starts the script.
    pub(super) fn start(script: &Script) -> rustix::io::Result<Self> {
        let (report, write_end) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let pid = system_calls::fork_performing(script, 0, write_end.as_fd())?;
        Ok(Self {
            pid,
            report,
            steps: vec![Trial::NotTried; script.len()],
            deadline: Instant::now() + PATIENCE,
            end: End::Running,
        })
    }

    /// Its process id; valid as long as this value lives, since nobody else reaps it.
    pub(super) fn pid(&self) -> Pid {
        self.pid
    }

    /// Waits until a step has been reported or can't be any more.
    pub(super) fn wait_for(&mut self, step: StepNumber) -> Trial {
        while self.trial(step) == Trial::NotTried && self.end == End::Running {
            self.observe();
        }
        self.trial(step)
    }

    /// Waits for the end and gives the outcome of every step. A step during which the child died or
    /// hung says so.
    pub(super) fn finish(mut self) -> Outcomes {
        while self.end == End::Running {
            self.observe();
        }
        let mut steps = std::mem::take(&mut self.steps);
        let ending = match self.end {
            End::Killed(signal) => Some(Trial::Killed(signal)),
            End::Hung => Some(Trial::Hung),
            End::Running | End::Exited => None,
        };
        let last = steps.iter().rposition(|step| *step != Trial::NotTried).map_or(0, |last| last + 1);
        if let (Some(ending), Some(step)) = (ending, steps.get_mut(last)) {
            *step = ending;
        }
        Outcomes(steps)
    }

    fn trial(&self, step: StepNumber) -> Trial {
        self.steps.get(step.0).copied().unwrap_or_default()
    }

    /// Takes in what there is, waiting at most [`LOOK`].
    fn observe(&mut self) {
        let ended = self.reap();
        self.read_records();
        if ended {
            return;
        }
        if Instant::now() >= self.deadline {
            self.kill();
            self.end = End::Hung;
            return;
        }
        let wait = Timespec { tv_sec: 0, tv_nsec: i64::from(LOOK.subsec_nanos()) };
        let _ = rustix::event::poll(&mut [PollFd::new(&self.report, PollFlags::IN)], Some(&wait));
    }

    fn read_records(&mut self) {
        let mut bytes = [0; RECORD_LENGTH];
        // Each record is written in one piece, far below what a pipe keeps whole.
        while rustix::io::read(&self.report, &mut bytes) == Ok(RECORD_LENGTH) {
            let (step, error) = read_record(bytes);
            if let Some(trial) = self.steps.get_mut(step.0) {
                *trial = if error == 0 { Trial::Worked } else { Trial::Failed(ErrorNumber(error)) };
            }
        }
    }

    /// Whether the child has ended.
    fn reap(&mut self) -> bool {
        match rustix::process::waitpid(Some(self.pid), WaitOptions::NOHANG) {
            Ok(Some((_, status))) => {
                self.end = end_of(status);
                true
            }
            Ok(None) | Err(Errno::INTR) => false,
            // Somebody reaps children behind our back; the reports still count.
            Err(_) => {
                self.end = End::Exited;
                true
            }
        }
    }

    /// Kills and reaps it. A process that even SIGKILL does not end (it hangs in the kernel) is left
    /// to end by itself.
    fn kill(&mut self) {
        const TRIES: u32 = 100;
        let _ = rustix::process::kill_process(self.pid, Signal::KILL);
        for _ in 0..TRIES {
            if self.reap() {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.end == End::Running {
            self.kill();
        }
    }
}

fn end_of(status: WaitStatus) -> End {
    match status.terminating_signal() {
        Some(signal) => End::Killed(signal),
        None => End::Exited,
    }
}

/// The outcome of every step of a script.
#[derive(Debug)]
pub(super) struct Outcomes(Vec<Trial>);

impl Outcomes {
    /// The outcome of one step.
    pub(super) fn of(&self, step: StepNumber) -> Trial {
        self.0.get(step.0).copied().unwrap_or_default()
    }

    /// The outcome of the first of several steps that did not work, or that all worked.
    pub(super) fn of_all(&self, steps: &[StepNumber]) -> Trial {
        steps.iter().map(|step| self.of(*step)).find(|trial| !trial.worked()).unwrap_or(Trial::Worked)
    }
}

/// Performs a script and waits for its end. A child that can't be started fails every step.
pub(super) fn run(script: &Script) -> Outcomes {
    match Child::start(script) {
        Ok(child) => child.finish(),
        Err(error) => Outcomes(vec![Trial::Failed(error.into()); script.len()]),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;

    use super::*;
    use crate::doctor::probe::script::Call;

    fn open(path: &str) -> Call {
        Call::Open(CString::new(path).unwrap())
    }

    #[test]
    fn steps_are_reported_one_by_one_and_a_needed_one_stops() {
        let mut script = Script::default();
        let fine = script.may(open("/dev/null"));
        let shrugged = script.may(open("/nonexistent/shrugged"));
        let needed = script.must(open("/nonexistent/needed"));
        let never = script.may(open("/dev/null"));
        let outcomes = run(&script);
        assert_eq!(outcomes.of(fine), Trial::Worked);
        assert_eq!(outcomes.of(shrugged), Trial::Failed(ErrorNumber::NOT_FOUND));
        assert_eq!(outcomes.of(needed), Trial::Failed(ErrorNumber::NOT_FOUND));
        assert_eq!(outcomes.of(never), Trial::NotTried);
        assert_eq!(outcomes.of_all(&[fine, needed]), Trial::Failed(ErrorNumber::NOT_FOUND));
    }

    #[test]
    fn a_child_killed_within_a_step_says_so() {
        let mut script = Script::default();
        let done = script.must(open("/dev/null"));
        let hold = script.must(Call::Hold);
        let after = script.must(open("/dev/null"));
        let mut child = Child::start(&script).unwrap();
        assert_eq!(child.wait_for(hold), Trial::Worked);
        rustix::process::kill_process(child.pid(), Signal::KILL).unwrap();
        let outcomes = child.finish();
        assert_eq!(outcomes.of(done), Trial::Worked);
        assert_eq!(outcomes.of(after), Trial::Killed(libc::SIGKILL));
    }

    #[test]
    fn a_dropped_child_is_reaped() {
        let mut script = Script::default();
        let hold = script.must(Call::Hold);
        let mut child = Child::start(&script).unwrap();
        child.wait_for(hold);
        let pid = child.pid();
        drop(child);
        let waited = rustix::process::waitpid(Some(pid), WaitOptions::NOHANG);
        assert_eq!(waited.err(), Some(Errno::CHILD));
    }
}
