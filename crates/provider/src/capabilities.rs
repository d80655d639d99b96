//! What a provider can do, as data.

use std::collections::BTreeSet;
use std::fmt;

use leasehold_model::{Error, Result};

/// One ability beyond the required minimum. Each is proven by cases of the behaviour suite, so a
/// provider is never excused from what it claims and never failed for what it does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Capability {
    /// A directory of this machine as a copy-on-write workspace.
    HostWorkspace,
    /// A container image as root file system.
    Images,
    /// Commands on a terminal.
    Terminal,
    /// Streaming standard input.
    Stdin,
    /// Standard output and standard error kept apart, byte-exact.
    SeparateStreams,
    /// Signals to a running command.
    Signals,
    /// A deadline or cancel kills every process that the command left, wherever it moved.
    TreeKill,
    /// Stop and start with the file system kept.
    StopStart,
    /// Freeze and thaw with memory kept.
    Pause,
    /// Pack a stopped sandbox away and bring it back.
    Archive,
    /// Freeze a sandbox's file system as a template for others.
    Templates,
    /// A new sandbox from a live one's file system.
    Fork,
    /// Expiry enforced where the sandbox lives.
    Expiry,
    /// Idle stop enforced where the sandbox lives.
    IdleStop,
    /// Memory limits, with evidence when one was hit.
    MemoryLimit,
    /// Limits on processes.
    ProcessLimit,
    /// Limits on processor time.
    CpuLimit,
    /// Limits on disk use, enforced by the kernel.
    DiskLimit,
    /// No network at all.
    NetworkNone,
    /// Connections to ports inside.
    Connect,
    /// Commands as another user than the sandbox's own.
    OtherUsers,
}

impl Capability {
    /// The capability as a stable lower-case word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::HostWorkspace => "host_workspace",
            Self::Images => "images",
            Self::Terminal => "terminal",
            Self::Stdin => "stdin",
            Self::SeparateStreams => "separate_streams",
            Self::Signals => "signals",
            Self::TreeKill => "tree_kill",
            Self::StopStart => "stop_start",
            Self::Pause => "pause",
            Self::Archive => "archive",
            Self::Templates => "templates",
            Self::Fork => "fork",
            Self::Expiry => "expiry",
            Self::IdleStop => "idle_stop",
            Self::MemoryLimit => "memory_limit",
            Self::ProcessLimit => "process_limit",
            Self::CpuLimit => "cpu_limit",
            Self::DiskLimit => "disk_limit",
            Self::NetworkNone => "network_none",
            Self::Connect => "connect",
            Self::OtherUsers => "other_users",
        }
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// The set of abilities of one provider, as it is now on this host and account.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Capabilities(BTreeSet<Capability>);

impl Capabilities {
    /// Whether the ability is there.
    pub fn has(&self, capability: Capability) -> bool {
        self.0.contains(&capability)
    }

    /// Every ability, in a stable order.
    pub fn iter(&self) -> impl Iterator<Item = Capability> + '_ {
        self.0.iter().copied()
    }

    /// The same set without one ability: layers and configurations may take abilities away.
    #[must_use]
    pub fn without(mut self, capability: Capability) -> Self {
        self.0.remove(&capability);
        self
    }

    /// Fails closed when an ability is missing (invariant 15), naming it.
    pub fn require(&self, capability: Capability, operation: &'static str) -> Result<()> {
        if self.has(capability) {
            return Ok(());
        }
        Err(Error::unsupported(operation, format!("this provider can't do `{capability}` here"))
            .with_context("capability", capability))
    }
}

impl FromIterator<Capability> for Capabilities {
    fn from_iter<I: IntoIterator<Item = Capability>>(capabilities: I) -> Self {
        Self(capabilities.into_iter().collect())
    }
}
