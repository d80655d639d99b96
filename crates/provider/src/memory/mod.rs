//! The in-memory reference provider.
//!
//! It starts no real process and touches no disk: a sandbox is a file tree in memory, simulated
//! processes, and a small POSIX shell that knows the vocabulary of the behaviour suite. It is the
//! reference for semantics: where a real provider disagrees with it, one of the two has a bug. It
//! also stands in for a provider in tests of everything above the seam, with tokio's paused clock if
//! they like.
//!
//! It isolates nothing: there is nothing in it that could get out.

mod capabilities;
mod execution;
mod files;
mod machine;
mod provider;
mod sandbox;

pub use provider::MemoryProvider;
