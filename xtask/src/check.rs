//! `cargo xtask check`: what must hold before a change is worth reviewing.
//!
//! All steps run even when an early one fails, so that one run shows everything there is to mend.

mod files;
mod floors;
mod manifests;
mod source_text;
mod unsafe_code;

use std::fmt;

use clap::Args;
use leasehold_model::{Error, ErrorKind, Result};

use crate::setup::rust_tools;
use crate::subprocess::{self, cargo};
use crate::workspace::{self, Workspace};

/// How much to check.
#[derive(Debug, Clone, Default, Args)]
#[group(skip)]
pub(crate) struct Options {
    /// Only the rules of the house and the formatting: nothing that compiles.
    #[arg(long)]
    pub(crate) quick: bool,
}

/// One place that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Finding {
    /// A crate, or a file with its line where it has one.
    place: String,
    /// What is wrong there.
    problem: String,
    /// What to do about it.
    fix: &'static str,
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "error: {}: {}\n  hint: {}", self.place, self.problem, self.fix)
    }
}

type Step = (&'static str, fn() -> Result<()>);

const QUICK_STEPS: &[Step] = &[("rules of the house", house_rules), ("formatting", formatting)];
const SLOW_STEPS: &[Step] =
    &[("lints", lints), ("documentation", documentation), ("dependencies", dependencies)];

/// Runs the steps; the error names those that failed.
pub(crate) fn run(options: &Options) -> Result<()> {
    let slow = if options.quick { &[][..] } else { SLOW_STEPS };
    let mut failed = Vec::new();
    for (name, step) in QUICK_STEPS.iter().chain(slow) {
        println!("check: {name}");
        if let Err(error) = step() {
            eprintln!("error: {error}");
            failed.push(*name);
        }
    }
    if failed.is_empty() {
        println!("check: all is well");
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidInput, "xtask.check", format!("check failed: {}", failed.join(", ")))
        .with_hint("each failure is explained above; CONTRIBUTING.md has the rules"))
}

fn house_rules() -> Result<()> {
    let workspace = Workspace::load()?;
    let sources = workspace::source_files(workspace::root())?;
    let mut findings = floors::findings(&workspace.packages);
    findings.extend(manifests::findings(&workspace.packages)?);
    findings.extend(files::findings(&sources));
    findings.extend(unsafe_code::findings(&sources));
    for finding in &findings {
        eprintln!("{finding}");
    }
    if findings.is_empty() {
        return Ok(());
    }
    let count = findings.len();
    Err(Error::new(ErrorKind::InvalidInput, "xtask.check", format!("{count} breaks of the house's rules")))
}

fn formatting() -> Result<()> {
    subprocess::run(cargo().args(["fmt", "--all", "--check"]))
        .map_err(|error| error.with_hint("run `cargo fmt`"))
}

fn lints() -> Result<()> {
    // Clippy asks for the argument at every single unsafe block only when it's told to.
    let strict = ["-D", "warnings", "-D", "clippy::undocumented_unsafe_blocks"];
    subprocess::run(cargo().args(["clippy", "--quiet", "--workspace", "--all-targets", "--"]).args(strict))
}

fn documentation() -> Result<()> {
    subprocess::run(
        cargo().args(["doc", "--quiet", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings"),
    )
}

fn dependencies() -> Result<()> {
    if !rust_tools::has_deny() {
        println!("check: dependencies skipped: cargo-deny is not installed (`cargo xtask setup` builds it)");
        return Ok(());
    }
    subprocess::run(cargo().args([
        "deny",
        "check",
        "--hide-inclusion-graph",
        "licenses",
        "bans",
        "sources",
    ]))?;
    // The advisory database lives in the network; its absence says nothing about our dependencies.
    if !subprocess::succeeds(cargo().args(["deny", "fetch", "db"])) {
        println!("check: advisories skipped: the advisory database cannot be fetched");
        return Ok(());
    }
    subprocess::run(cargo().args(["deny", "check", "--disable-fetch", "advisories"]))
}
