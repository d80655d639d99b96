//! The one entry for set-up, checks, tests and benches: `cargo xtask <TASK>`.
//!
//! Each task is one file with a `Options` type and a `run` function. A new task is a new file, a
//! variant of [`Task`] and an arm of [`Task::run`].
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "what a task prints is its result")]

mod bench;
mod check;
mod setup;
mod subprocess;
mod test;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use leasehold_model::Result;

/// Set-up, checks and tests of this repository.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Install what this machine lacks to check and test the project.
    Setup(setup::Options),
    /// Check formatting, lints, documentation, dependencies and the rules of the house.
    Check(check::Options),
    /// Set up, check, and run all tests; as root, a second time as a normal user.
    Test(test::Options),
    /// Measure speed and memory beside what else does the same; see SPECIFICATION.md.
    Bench(bench::Options),
}

impl Task {
    fn run(&self) -> Result<()> {
        match self {
            Self::Setup(options) => setup::run(options),
            Self::Check(options) => check::run(options),
            Self::Test(options) => test::run(options),
            Self::Bench(options) => bench::run(options),
        }
    }
}

fn main() -> ExitCode {
    match Arguments::parse().task.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            for (name, value) in error.context() {
                eprintln!("  {name}: {value}");
            }
            if let Some(hint) = error.hint() {
                eprintln!("  hint: {hint}");
            }
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_arguments_of_all_tasks_fit_together() {
        super::Arguments::command().debug_assert();
    }
}
