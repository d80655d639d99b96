//! What one sandbox may use.

use serde::{Deserialize, Serialize};

use crate::quantity::{ByteSize, CpuQuota};

/// Bounds on a sandbox. `None` means the provider's default, which is finite for processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceLimits {
    /// Memory and swap together.
    pub memory: Option<ByteSize>,
    /// Processor time.
    pub cpus: Option<CpuQuota>,
    /// Processes and threads at one time.
    pub processes: Option<u32>,
    /// Bytes that the sandbox may write to its file systems.
    pub disk: Option<ByteSize>,
}
