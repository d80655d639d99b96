//! The `leasehold` command.
//!
//! Arguments, messages and exit codes; everything else is in the crates below.

mod arguments;
mod changes;
mod doctor;
mod environment;
mod failure;
mod images;
mod report;
mod run;
mod sandboxes;
mod streams;
mod terminal;

use std::process::ExitCode;

use clap::Parser;

use crate::arguments::{Arguments, Command};
use crate::failure::Failure;

fn main() -> ExitCode {
    // This program is also pid 1 of every embedded sandbox; then nothing below runs.
    leasehold_local::run_if_asked();
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(usage) => return Failure::of_usage(&usage).unwrap_or_else(|failure| failure.tell()),
    };
    start_log();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return Failure::from(error).tell(),
    };
    let status = match runtime.block_on(dispatch(arguments)) {
        Ok(status) => ExitCode::from(status),
        Err(failure) => failure.tell(),
    };
    // A thread may be waiting for input that nobody will give; it must not hold the end up.
    runtime.shutdown_background();
    status
}

/// Log lines go to standard error when `LEASEHOLD_LOG` asks for them.
fn start_log() {
    if let Ok(filter) = std::env::var("LEASEHOLD_LOG") {
        let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
    }
}

async fn dispatch(arguments: Arguments) -> Result<u8, Failure> {
    match arguments.command {
        Command::Run(options) => run::run(options).await,
        Command::Shell(options) => run::shell(options).await,
        Command::Changes(command) => changes::dispatch(command).await,
        Command::Sandbox(command) => sandboxes::dispatch(command).await,
        Command::Image(command) => images::dispatch(command).await,
        Command::Doctor { workspace, json } => doctor::doctor(workspace, json).await,
    }
}
