//! `cargo xtask bench`: builds what is measured as it is shipped, then hands over to the program that
//! measures (`benches/`).

use clap::Args;
use leasehold_model::Result;

use crate::subprocess::{self, cargo};
use crate::workspace::Workspace;

/// What to measure.
#[derive(Debug, Clone, Default, Args)]
#[group(skip)]
#[command(disable_help_flag = true)]
pub(crate) struct Options {
    /// Options of the program that measures; `--help` tells them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTION")]
    options: Vec<String>,
}

/// Builds and measures.
pub(crate) fn run(options: &Options) -> Result<()> {
    subprocess::run(cargo().args([
        "build",
        "--quiet",
        "--release",
        "-p",
        "leasehold",
        "-p",
        "leasehold-benches",
    ]))?;
    let programs = Workspace::load()?.target.join("release");
    let mut command = std::process::Command::new(programs.join("leasehold-benches"));
    command.arg("--leasehold").arg(programs.join("leasehold")).args(&options.options);
    subprocess::run(&mut command)
}
