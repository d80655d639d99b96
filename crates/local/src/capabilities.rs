//! What the embedded provider can do on this host, as this user.

use leasehold_provider::{Capabilities, Capability};

use crate::cgroup;

/// Abilities that need nothing but namespaces.
const ALWAYS: &[Capability] = &[
    Capability::HostWorkspace,
    Capability::Images,
    Capability::Terminal,
    Capability::Stdin,
    Capability::SeparateStreams,
    Capability::Signals,
    Capability::TreeKill,
    Capability::StopStart,
    Capability::Archive,
    Capability::Expiry,
    Capability::IdleStop,
    Capability::ProcessLimit,
    Capability::DiskLimit,
    Capability::NetworkNone,
    Capability::Connect,
    Capability::Templates,
    Capability::Fork,
];

/// Measures the abilities.
pub(crate) fn measure() -> Capabilities {
    let mut found: Vec<Capability> = ALWAYS.to_vec();
    if cgroup::is_available() {
        found.extend([Capability::MemoryLimit, Capability::CpuLimit, Capability::Pause]);
    }
    // A normal user's subordinate ids serve image roots; on the host's own files everybody is themselves.
    if rustix::process::geteuid().is_root() {
        found.push(Capability::OtherUsers);
    }
    found.into_iter().collect()
}
