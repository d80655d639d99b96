//! `cargo xtask setup`: installs what a bare machine lacks. Quick and silent when nothing is missing.

mod debian;
pub(crate) mod rust_tools;

use clap::Args;
use leasehold_model::Result;

/// What to install.
#[derive(Debug, Clone, Default, Args)]
#[group(skip)]
pub(crate) struct Options {
    /// Leave out cargo-deny, whose build takes minutes; `check` then skips the dependency rules.
    /// Setting `LEASEHOLD_WITHOUT_DENY` does the same.
    #[arg(long)]
    without_deny: bool,
}

/// Installs the Debian packages and the Rust tools that are missing.
pub(crate) fn run(options: &Options) -> Result<()> {
    debian::install_missing()?;
    let without_deny = options.without_deny || std::env::var_os("LEASEHOLD_WITHOUT_DENY").is_some();
    rust_tools::install_missing(!without_deny)?;
    println!("setup: everything is there");
    Ok(())
}
