//! The embedded sandbox provider.

pub mod image;
