//! The parts of the Rust toolchain and the cargo tools that the checks use.

use std::process::Command;

use leasehold_model::Result;

use crate::subprocess;

/// The cargo-deny that `deny.toml` is written for.
const DENY_VERSION: &str = "0.20.2";

/// Adds rustfmt and clippy, and builds cargo-deny when it's wanted and absent.
pub(crate) fn install_missing(with_deny: bool) -> Result<()> {
    for (component, tool) in [("rustfmt", "fmt"), ("clippy", "clippy")] {
        if !subprocess::succeeds(subprocess::cargo().args([tool, "--version"])) {
            subprocess::run(Command::new("rustup").args(["component", "add", component]))?;
        }
    }
    if with_deny && !has_deny() {
        println!(
            "setup: building cargo-deny {DENY_VERSION}, once; it takes minutes (--without-deny skips it)"
        );
        let version = format!("cargo-deny@{DENY_VERSION}");
        let mut install = subprocess::cargo();
        // Built in a directory of its own, so that our build results stay ours.
        install.args(["install", "--locked", "--quiet", &version]).env_remove("CARGO_TARGET_DIR");
        subprocess::run(&mut install)?;
    }
    Ok(())
}

/// Whether cargo-deny is there, in whatever version.
pub(crate) fn has_deny() -> bool {
    subprocess::succeeds(subprocess::cargo().args(["deny", "--version"]))
}
