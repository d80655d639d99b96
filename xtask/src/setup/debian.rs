//! The programs that come from Debian's packages.

use std::path::Path;
use std::process::{Command, Stdio};

use leasehold_model::{Error, Result};

use crate::subprocess;

/// A package that checks, tests or benches need.
struct SystemPackage {
    name: &'static str,
    /// The program whose presence means that the package isn't needed any more.
    program: &'static str,
    reason: &'static str,
}

const PACKAGES: &[SystemPackage] = &[
    SystemPackage {
        name: "uidmap",
        program: "newuidmap",
        reason: "maps a range of user ids into a normal user's sandbox",
    },
    SystemPackage {
        name: "busybox-static",
        program: "busybox",
        reason: "makes small images for the image tests: one static program with a shell",
    },
    SystemPackage {
        name: "docker-registry",
        program: "docker-registry",
        reason: "serves images on loopback for the pull tests",
    },
    SystemPackage { name: "bubblewrap", program: "bwrap", reason: "a sandbox to measure ours against" },
    SystemPackage { name: "runc", program: "runc", reason: "a container runtime to measure ours against" },
];

/// Installs what is missing when root on Debian; otherwise the error has the command to run.
pub(crate) fn install_missing() -> Result<()> {
    let missing: Vec<_> =
        PACKAGES.iter().filter(|package| subprocess::find_program(package.program).is_none()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    for package in &missing {
        println!("setup: {} is missing: {}", package.name, package.reason);
    }
    let names: Vec<_> = missing.iter().map(|package| package.name).collect();
    if subprocess::find_program("apt-get").is_none() {
        return Err(lacking(&names).with_hint(
            "install the packages of your system that have these programs, or pass --no-setup to `test`",
        ));
    }
    if !rustix::process::geteuid().is_root() {
        return Err(lacking(&names).with_hint(format!("run `sudo {}`", install_line(&names))));
    }
    install(&names)
}

fn lacking(names: &[&str]) -> Error {
    Error::unsupported("xtask.setup", format!("this machine lacks {}", names.join(", ")))
}

fn install_line(names: &[&str]) -> String {
    format!("apt-get install --yes --no-install-recommends {}", names.join(" "))
}

fn install(names: &[&str]) -> Result<()> {
    // An index that can't be refreshed may still be good enough, so only the install itself decides.
    if let Err(error) = subprocess::run(apt().arg("update")) {
        println!("setup: {error}; trying with the package index as it is");
    }
    let mut command = apt();
    command.args(["install", "--yes", "--no-install-recommends"]).args(names);
    subprocess::run(&mut command).map_err(|error| {
        Error::new(error.kind(), "xtask.setup", format!("apt-get did not install {}", names.join(", ")))
            .with_context("command", install_line(names))
            .with_hint("see apt-get's own words above: a mirror out of reach, an old index, or a held lock")
            .with_source(error)
    })?;
    // Debian starts the registry as a service; our tests start their own on a free port.
    if names.contains(&"docker-registry") && Path::new("/run/systemd/system").is_dir() {
        subprocess::run(Command::new("systemctl").args(["disable", "--now", "docker-registry.service"]))?;
    }
    Ok(())
}

fn apt() -> Command {
    let mut command = Command::new("apt-get");
    command
        .args(["--quiet=2", "--option=DPkg::Lock::Timeout=300", "--option=Acquire::Retries=3"])
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null());
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_package_has_its_own_program_and_a_reason() {
        for (index, package) in PACKAGES.iter().enumerate() {
            assert!(!package.reason.is_empty(), "{}", package.name);
            let again = PACKAGES[..index].iter().any(|earlier| earlier.program == package.program);
            assert!(!again, "{} is listed twice", package.program);
        }
    }

    #[test]
    fn the_message_names_what_is_missing() {
        assert_eq!(lacking(&["uidmap", "runc"]).to_string(), "this machine lacks uidmap, runc");
    }
}
