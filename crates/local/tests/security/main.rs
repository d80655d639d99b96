//! The security suite: code in a sandbox really attacks, as the sandboxed user and as its root, and each
//! attempt must fail. What could have been harmed on the host is looked at afterwards.
//!
//! This program is both sides. Started with [`attacker::WORD`] it attacks; a sandbox sees it read-only.
//! What is promised and what is not stands in `docs/threat-model.md`, which names these trials.

// All attacks have one shape, whether or not their preparation can fail.
#![allow(clippy::unnecessary_wraps)]
// A test program talks to its user.
#![allow(clippy::print_stderr)]

mod arena;
mod attacker;
mod calls;
mod trials;

use std::process::ExitCode;
use std::sync::Arc;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|first| first == attacker::WORD) {
        let arguments: Vec<String> =
            arguments.map(|argument| argument.to_string_lossy().into_owned()).collect();
        return attacker::run(&arguments);
    }
    let arguments = libtest_mimic::Arguments::from_args();
    let arena = Arc::new(arena::Arena::open());
    let conclusion = libtest_mimic::run(&arguments, trials::all(&arena));
    // Each trial's share of the arena went with the trial.
    Arc::into_inner(arena).expect("no trial is left").close();
    conclusion.exit_code()
}
