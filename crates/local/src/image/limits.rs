//! The bounds of unpacking.

use serde::{Deserialize, Serialize};

/// How much one layer may ask for. Archives come from strangers: each of these bounds is a way in
/// which one can exhaust the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnpackLimits {
    /// Entries of the archive, and directories made for them that it left out.
    pub entries: u64,
    /// Bytes of the decompressed archive.
    pub total_bytes: u64,
    /// Below this many decompressed bytes the ratio is not looked at.
    pub ratio_floor: u64,
    /// Decompressed bytes for each compressed one: the bound on decompression bombs.
    pub ratio: u64,
    /// Bytes of one path.
    pub path_bytes: usize,
    /// Directories above one another.
    pub depth: usize,
    /// Bytes of one extension header, and so of a path, a link and all attributes of one entry.
    pub header_bytes: u64,
    /// Bytes of memory for what must be remembered to the end: directories and deletions.
    pub memory_bytes: usize,
    /// Bytes of one extended attribute's value (the kernel's own bound is 64 KiB).
    pub attribute_bytes: usize,
}

impl Default for UnpackLimits {
    fn default() -> Self {
        Self {
            entries: 4_000_000,
            total_bytes: 256 << 30,
            ratio_floor: 1 << 30,
            ratio: 200,
            path_bytes: 4_095,
            depth: 256,
            header_bytes: 1 << 20,
            memory_bytes: 512 << 20,
            attribute_bytes: 64 << 10,
        }
    }
}
