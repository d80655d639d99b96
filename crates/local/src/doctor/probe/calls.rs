//! Trials of single system calls.

use std::os::fd::AsFd as _;

use rustix::fs::{CWD, MemfdFlags, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, WaitId, WaitIdOptions};

use super::child::{self, Child};
use super::script::{Call, Script};
use super::system_calls;
use crate::doctor::facts::{CallTrials, Trial};

/// Makes every call once.
pub(super) fn probe() -> CallTrials {
    let mut script = Script::default();
    let clone3 = script.may(Call::Clone3);
    let no_new_privileges = script.must(Call::NoNewPrivileges);
    let landlock = script.may(Call::Landlock);
    let seccomp = script.may(Call::Seccomp);
    let outcomes = child::run(&script);
    let (pidfd, wait_on_pidfd) = probe_pidfd();
    CallTrials {
        seccomp: outcomes.of(seccomp).after(outcomes.of(no_new_privileges)),
        landlock_version: system_calls::landlock_version().ok(),
        security_modules: std::fs::read_to_string("/sys/kernel/security/lsm").ok(),
        landlock: outcomes.of(landlock).after(outcomes.of(no_new_privileges)),
        pidfd,
        wait_on_pidfd,
        openat2: rustix::fs::openat2(
            CWD,
            c".",
            OFlags::PATH | OFlags::CLOEXEC,
            Mode::empty(),
            ResolveFlags::BENEATH,
        )
        .into(),
        clone3: outcomes.of(clone3),
        close_range: system_calls::close_range_of_nothing().into(),
        memfd: rustix::fs::memfd_create(c"leasehold-doctor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .into(),
    }
}

/// Opens a pidfd of a child and waits on it, without taking the child away from its owner.
fn probe_pidfd() -> (Trial, Trial) {
    let script = Script::default();
    let child = match Child::start(&script) {
        Ok(child) => child,
        Err(error) => return (Trial::Failed(error.into()), Trial::NotTried),
    };
    let pidfd = match rustix::process::pidfd_open(child.pid(), PidfdFlags::empty()) {
        Ok(pidfd) => pidfd,
        Err(error) => return (Trial::Failed(error.into()), Trial::NotTried),
    };
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    let waited = loop {
        match rustix::process::waitid(WaitId::PidFd(pidfd.as_fd()), options) {
            Err(Errno::INTR) => {}
            other => break other,
        }
    };
    (Trial::Worked, waited.into())
}
