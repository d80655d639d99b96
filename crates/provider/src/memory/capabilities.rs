//! What the reference provider can do: all that needs no real machine.

use crate::capabilities::{Capabilities, Capability};

pub(super) fn capabilities() -> Capabilities {
    [
        Capability::Terminal,
        Capability::Stdin,
        Capability::SeparateStreams,
        Capability::Signals,
        Capability::TreeKill,
        Capability::StopStart,
        Capability::Pause,
        Capability::Archive,
        Capability::Templates,
        Capability::Fork,
        Capability::Expiry,
        Capability::IdleStop,
        Capability::MemoryLimit,
        Capability::ProcessLimit,
        Capability::DiskLimit,
        Capability::NetworkNone,
        Capability::Connect,
    ]
    .into_iter()
    .collect()
}
