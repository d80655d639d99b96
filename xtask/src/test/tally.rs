//! Counting test results while showing them.

use std::fmt;
use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use leasehold_model::{Error, Result};

/// How many tests ended how.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

impl Tally {
    /// One failure, for what fails outside of any single test.
    pub(crate) const FAILURE: Self = Self { passed: 0, failed: 1, skipped: 0 };

    /// Adds another tally to this one.
    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }

    /// Reads the line with which a test program ends: `test result: ok. 3 passed; 0 failed; …`.
    fn parse(line: &str) -> Option<Self> {
        let counts = line.trim().strip_prefix("test result: ")?.split_once(". ")?.1;
        let count = |name: &str| {
            let part = counts.split("; ").find_map(|part| part.strip_suffix(name))?;
            part.trim().parse().ok()
        };
        Some(Self { passed: count("passed")?, failed: count("failed")?, skipped: count("ignored")? })
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} passed, {} failed", self.passed, self.failed)?;
        if self.skipped > 0 {
            write!(formatter, ", {} skipped", self.skipped)?;
        }
        Ok(())
    }
}

/// How long the output may stay open without a word after its program has ended.
const QUIET_DRAIN: Duration = Duration::from_secs(2);

/// Runs a test command, passes its output on line by line, and adds its results up. A command that
/// fails without a failed test (it crashed, or did not compile) counts as one failure, and so does a
/// process that it leaves behind with its output.
pub(crate) fn run(name: &str, command: &mut Command) -> Result<Tally> {
    println!("+ {name}");
    run_into(name, command, &mut io::stdout())
}

fn run_into(name: &str, command: &mut Command, shown: &mut dyn Write) -> Result<Tally> {
    let failed = |source| Error::io("xtask.test", format!("cannot run {name}"), source);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(failed)?;
    let lines = child.stdout.take().map(read_lines);
    let mut tally = Tally::default();
    // When the program was first seen to have ended, and nothing was read since.
    let mut ended: Option<Instant> = None;
    while let Some(lines) = &lines {
        match lines.recv_timeout(Duration::from_millis(50)) {
            Ok(line) => {
                // Nobody may be reading; the count matters all the same.
                let _ = shown.write_all(&line);
                if let Some(results) = Tally::parse(&String::from_utf8_lossy(&line)) {
                    tally.add(results);
                }
                ended = None;
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                let since = match ended {
                    Some(since) => since,
                    None if child.try_wait().map_err(failed)?.is_none() => continue,
                    None => *ended.insert(Instant::now()),
                };
                if since.elapsed() > QUIET_DRAIN {
                    eprintln!("error: {name} left a process behind that holds its output open");
                    tally.add(Tally::FAILURE);
                    break;
                }
            }
        }
    }
    let status = child.wait().map_err(failed)?;
    if !status.success() && tally.failed == 0 {
        eprintln!("error: {name} failed outside of its tests: {status}");
        tally.add(Tally::FAILURE);
    }
    Ok(tally)
}

/// Reads lines in a thread of its own, which ends with the output: perhaps long after the program.
fn read_lines(output: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut output = BufReader::new(output);
        loop {
            let mut line = Vec::new();
            let read = output.read_until(b'\n', &mut line);
            if !read.is_ok_and(|length| length > 0) || sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use rustix::process::{Pid, Signal};

    use super::*;

    #[test]
    fn result_lines_are_read_and_others_are_not() {
        let line = "test result: FAILED. 12 passed; 3 failed; 1 ignored; 0 measured; 9 filtered out; finished in 0.1s\n";
        assert_eq!(Tally::parse(line), Some(Tally { passed: 12, failed: 3, skipped: 1 }));
        assert_eq!(Tally::parse("test result ... ok"), None);
        assert_eq!(Tally::parse("running 3 tests"), None);
    }

    #[test]
    fn the_sum_is_one_plain_line() {
        let mut sum = Tally { passed: 2, failed: 0, skipped: 0 };
        assert_eq!(sum.to_string(), "2 passed, 0 failed");
        sum.add(Tally { passed: 1, failed: 1, skipped: 4 });
        assert_eq!(sum.to_string(), "3 passed, 1 failed, 4 skipped");
    }

    const RESULT: &str = "echo 'test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured'";

    /// Shown to a buffer: on our own output, whoever counts our results would count these too.
    fn sum_of(script: &str) -> (Tally, String) {
        let mut shown = Vec::new();
        let sum = run_into("sh", Command::new("sh").args(["-c", script]), &mut shown).unwrap();
        (sum, String::from_utf8(shown).unwrap())
    }

    #[test]
    fn a_process_left_behind_counts_as_a_failure_and_does_not_hang_us() {
        let (sum, shown) = sum_of(&format!("{RESULT}; sleep 1000 & echo $!"));
        let left = shown.lines().last().unwrap().parse().unwrap();
        rustix::process::kill_process(Pid::from_raw(left).unwrap(), Signal::KILL).unwrap();
        assert_eq!(sum, Tally { passed: 2, failed: 1, skipped: 0 });
    }

    #[test]
    fn a_crash_counts_as_a_failure() {
        let (sum, shown) = sum_of(RESULT);
        assert_eq!(sum, Tally { passed: 2, failed: 0, skipped: 0 });
        assert!(shown.starts_with("test result: ok. 2 passed"), "{shown}");
        let (sum, _) = sum_of(&format!("{RESULT}; kill -ABRT $$"));
        assert_eq!(sum, Tally { passed: 2, failed: 1, skipped: 0 });
    }
}
