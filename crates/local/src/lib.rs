//! The embedded sandbox of this machine.

pub mod doctor;
