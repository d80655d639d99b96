//! x
pub mod changes;
