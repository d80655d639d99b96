//! What a process loses before it becomes a command: capabilities, privileges by set-id programs,
//! system calls that only attackers and administrators need.

use std::io;
use std::sync::OnceLock;

use rustix::thread::{CapabilitySet, CapabilitySets};

use super::system_calls;

/// What root of a sandbox may do, within its own user namespace: own files of any inner user and
/// become any of them. Nothing that touches mounts, networks, processes of others or the kernel.
const KEPT_BY_ROOT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::AUDIT_WRITE)
    .union(CapabilitySet::SETFCAP);

/// The compiled filters; compiled once in pid 1 before it forks anything.
static FILTERS: OnceLock<Vec<seccompiler::BpfProgram>> = OnceLock::new();

/// Compiles the system-call filter, so that no command waits for it.
pub(super) fn prepare() -> io::Result<()> {
    if FILTERS.get().is_none() {
        let _ = FILTERS.set(system_calls::filters()?);
    }
    Ok(())
}

/// Removes from the bounding set all that no command keeps. Needs `CAP_SETPCAP`; done before the
/// user changes.
pub(super) fn bound_capabilities() -> io::Result<()> {
    for number in 0..64 {
        let one = CapabilitySet::from_bits_retain(1 << number);
        if KEPT_BY_ROOT.contains(one) {
            continue;
        }
        match rustix::thread::remove_capability_from_bounding_set(one) {
            Ok(()) => {}
            // The first number that this kernel does not know.
            Err(rustix::io::Errno::INVAL) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Gives up for good what this process will not need as the command, after the user changed.
pub(super) fn give_up(is_root: bool) -> io::Result<()> {
    rustix::thread::clear_ambient_capability_set()?;
    let kept = if is_root { KEPT_BY_ROOT } else { CapabilitySet::empty() };
    rustix::thread::set_capabilities(
        None,
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() },
    )?;
    rustix::thread::set_no_new_privs(true)?;
    prepare()?;
    for filter in FILTERS.get().ok_or(io::ErrorKind::NotFound)? {
        seccompiler::apply_filter(filter).map_err(io::Error::other)?;
    }
    Ok(())
}
