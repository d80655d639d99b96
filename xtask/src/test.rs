//! `cargo xtask test`: the one test command, here and in CI.
//!
//! What we test behaves differently for root and for a normal user, so as root the same test programs
//! run twice: as root through cargo, then as a user made for this run (see [`normal_user`]).

mod normal_user;
mod open_paths;
mod programs;
mod tally;

use clap::Args;
use leasehold_model::{Error, ErrorKind, Result};

use crate::subprocess::{self, cargo};
use crate::workspace::Workspace;
use crate::{check, setup};
use tally::Tally;

/// How much to test.
#[derive(Debug, Clone, Default, Args)]
#[group(skip)]
pub(crate) struct Options {
    /// Only the checks that don't compile, and the tests as the user who asks.
    #[arg(long)]
    quick: bool,
    /// Take the machine as it is.
    #[arg(long)]
    no_setup: bool,
    #[command(flatten)]
    setup: setup::Options,
}

/// Sets up, checks and tests; the last line it prints is the sum of all test results.
pub(crate) fn run(options: &Options) -> Result<()> {
    if !options.no_setup {
        setup::run(&options.setup)?;
    }
    let checked = check::run(&check::Options { quick: options.quick });
    let tested = run_tests(options.quick);
    // Told again, because the tests' own output stands between it and its reasons.
    match (checked, tested) {
        (Err(error), Err(worse)) => Err(worse.with_context("also", error)),
        (checked, tested) => tested.and(checked),
    }
}

fn run_tests(quick: bool) -> Result<()> {
    let programs = programs::build()?;
    let mut sum = Tally::default();
    let as_root = rustix::process::geteuid().is_root();

    println!("test: as {}", if as_root { "root" } else { "the user who asks" });
    let mut command = cargo();
    command.args(["test", "--workspace", "--no-fail-fast"]);
    sum.add(tally::run(&subprocess::describe(&command), &mut command)?);
    if !as_root {
        println!("test: not as root: that needs `cargo xtask test` as root");
    } else if quick {
        println!("test: not as a normal user: left out by --quick");
    } else {
        println!("test: as a normal user");
        sum.add(normal_user::run(&programs, &Workspace::load()?.target)?);
    }

    println!("{sum}");
    if sum.failed > 0 {
        return Err(Error::new(ErrorKind::Unexpected, "xtask.test", format!("{} tests failed", sum.failed))
            .with_hint("`cargo test -p CRATE NAME` runs one alone"));
    }
    if sum.passed == 0 {
        return Err(Error::new(ErrorKind::NotFound, "xtask.test", "no test was run"));
    }
    Ok(())
}
