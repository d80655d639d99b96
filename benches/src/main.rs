//! Measures Leasehold beside what else does the same: contenders take turns within one run, so that a
//! busy machine slows all of them down alike, and the ratios between them can be believed.
//!
//! Run it with `cargo xtask bench`. Each measurement is one file in `measurement`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "what is printed is the result")]

mod budget;
mod figure;
mod load;
mod measurement;
mod processes;
mod report;
mod rival;
mod sampling;
mod workbench;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use leasehold_model::{Error, ErrorKind, Result};

use crate::measurement::MEASUREMENTS;
use crate::report::Report;
use crate::workbench::Workbench;

/// What to measure, and what to do with the figures.
#[derive(Debug, Clone, Parser)]
#[command(name = "cargo xtask bench", bin_name = "cargo xtask bench")]
struct Options {
    /// Only the measurements of these names.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Fewer rounds: enough to see that everything works, not to tell anybody a number.
    #[arg(long)]
    quick: bool,
    /// Fail when a budget is missed. A bound in milliseconds counts only on a quiet machine.
    #[arg(long)]
    enforce: bool,
    /// Also write the figures to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Where sandboxes and trees are made: a directory on a disk that has some 5 GiB free.
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    scratch: PathBuf,
    /// The `leasehold` program to measure; without it, the command line is not measured.
    #[arg(long, value_name = "FILE")]
    leasehold: Option<PathBuf>,
    /// Name the measurements and end.
    #[arg(long)]
    list: bool,
}

fn main() -> ExitCode {
    // As in the product, this program is pid 1 of the sandboxes that it makes.
    leasehold_local::run_if_asked();
    let options = Options::parse();
    if options.list {
        for measurement in MEASUREMENTS {
            println!("{:<12} {}", measurement.name, measurement.about);
        }
        return ExitCode::SUCCESS;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let result = match runtime {
        Ok(runtime) => runtime.block_on(measure(&options)),
        Err(error) => Err(Error::io("bench.start", "cannot start the runtime", error)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", error.report());
            ExitCode::FAILURE
        }
    }
}

async fn measure(options: &Options) -> Result<()> {
    for name in &options.only {
        if MEASUREMENTS.iter().all(|measurement| measurement.name != name) {
            return Err(Error::invalid("bench.arguments", format!("there is no measurement `{name}`"))
                .with_hint("`cargo xtask bench --list` names them all"));
        }
    }
    let mut report = Report::new(options.quick);
    println!("{}", report.heading());
    let wanted = |name: &str| options.only.is_empty() || options.only.iter().any(|only| only == name);
    for measurement in MEASUREMENTS.iter().filter(|measurement| wanted(measurement.name)) {
        eprintln!("bench: {}: {}", measurement.name, measurement.about);
        let busy = load::busy_share().await;
        let bench = Workbench::open(&options.scratch, options.leasehold.clone(), options.quick).await?;
        let figures = measurement.run(&bench).await;
        // Nothing may be left, whether or not the measurement succeeded.
        let leftovers = bench.close();
        report.add(measurement.name, busy, figures?, leftovers);
        println!("{}", report.newest());
    }
    if let Some(path) = &options.json {
        let text = report.json()?;
        std::fs::write(path, text)
            .map_err(|error| Error::io("bench.report", format!("cannot write {}", path.display()), error))?;
    }
    let failures = report.failures();
    for failure in &failures {
        eprintln!("bench: missed: {failure}");
    }
    if options.enforce && !failures.is_empty() {
        let message = format!("{} budgets are missed", failures.len());
        return Err(Error::new(ErrorKind::LimitExceeded, "bench.enforce", message)
            .with_hint("the table above has the figures; a quiet machine gives the truest ones"));
    }
    Ok(())
}
