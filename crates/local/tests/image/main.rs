//! The image store from outside: real archives, real directories, a real registry.

// Clippy's own exception for tests covers only functions marked as such, not their fixtures.
#![allow(clippy::unwrap_used)]

mod fixture;
mod hostile;
mod overlay;
mod property;
mod registry;
mod sharing;
mod sources;
mod unpacking;
