//! Trials of single system calls.

use super::child;
use super::script::{Call, Script};
use super::system_calls;
use crate::doctor::facts::{CallTrials, Trial};

/// Makes every call once, each in a child of its own: a seccomp filter may kill for it.
pub(super) fn probe() -> CallTrials {
    let landlock = unprivileged(Call::Landlock);
    CallTrials {
        seccomp: unprivileged(Call::Seccomp),
        // What has just failed to kill a child does not kill us.
        landlock_version: match landlock {
            Trial::Killed(_) => None,
            _ => system_calls::landlock_version().ok(),
        },
        security_modules: std::fs::read_to_string("/sys/kernel/security/lsm").ok(),
        landlock,
        pidfd: alone(Call::Pidfd),
        wait_on_pidfd: alone(Call::WaitOnPidfd),
        openat2: alone(Call::Openat2),
        clone3: alone(Call::Clone3),
        close_range: alone(Call::CloseRange),
        memfd: alone(Call::Memfd),
    }
}

fn alone(call: Call) -> Trial {
    let mut script = Script::default();
    let step = script.must(call);
    child::run(&script).of(step)
}

/// Makes a call that needs `no_new_privs` first.
fn unprivileged(call: Call) -> Trial {
    let mut script = Script::default();
    let no_new_privileges = script.must(Call::NoNewPrivileges);
    let step = script.must(call);
    let outcomes = child::run(&script);
    outcomes.of(step).after(outcomes.of(no_new_privileges))
}
