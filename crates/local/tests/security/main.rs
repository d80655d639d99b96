//! The security suite: code in a sandbox really attacks, as the sandboxed user and as its root, and each
//! attempt must fail. What could have been harmed on the host is looked at afterwards.
//!
//! This program is both sides. Started with [`attacker::WORD`] it attacks; a sandbox sees it read-only.
//! What is promised and what is not stands in `docs/threat-model.md`, which names these trials.

mod arena;
mod attacker;
mod calls;
mod trials;

use std::process::ExitCode;
use std::sync::Arc;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|first| first == attacker::WORD) {
        return attacker::run(arguments.map(|argument| argument.to_string_lossy().into_owned()).collect());
    }
    let arguments = libtest_mimic::Arguments::from_args();
    let arena = Arc::new(arena::Arena::open());
    let conclusion = libtest_mimic::run(&arguments, trials::all(&arena));
    match Arc::try_unwrap(arena) {
        Ok(arena) => arena.close(),
        // A thread of the test library still holds a trial; that is a fault of the suite.
        Err(_) => panic!("the arena is still in use"),
    }
    conclusion.exit_code()
}
