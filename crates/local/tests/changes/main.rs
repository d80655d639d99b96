//! Changes of real overlays, made in a namespace of their own and carried to a host directory.

// The exemption for tests in clippy.toml does not reach the functions that tests share.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod applying;
mod conflicts;
mod layer;
mod patches;
mod races;
mod random_edits;
mod scanning;
