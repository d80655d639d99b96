//! The behaviour suite: what every provider must do, as named cases.
//!
//! The list of cases is computed from a provider's [`Capabilities`], so a provider is never excused
//! from what it claims and never failed for what it does not. Every case makes its own sandboxes with
//! names and labels of its own, destroys them, and proves that nothing of it is left.
//!
//! The suite asks little of a sandbox: a POSIX `sh` and programs with the names of GNU coreutils. It
//! asserts no speeds; a case that hangs fails by its own generous bound.

mod case;
mod commands;
mod confinement;
mod deadlines;
mod file_metadata;
mod files;
mod harness;
mod input;
mod lifecycle;
mod limits;
mod output;
mod states;
mod templates;
mod terminal;
mod workbench;

pub use case::{Case, Outcome};
pub use harness::{Leftovers, leftovers, main};

use crate::capabilities::Capabilities;

/// The cases that a provider with these capabilities must pass, in a stable order.
pub fn cases(capabilities: &Capabilities) -> Vec<Case> {
    [
        lifecycle::CASES,
        states::CASES,
        templates::CASES,
        commands::CASES,
        output::CASES,
        input::CASES,
        deadlines::CASES,
        terminal::CASES,
        files::CASES,
        file_metadata::CASES,
        confinement::CASES,
        limits::CASES,
    ]
    .into_iter()
    .flatten()
    .filter(|case| case.needs().iter().all(|needed| capabilities.has(*needed)))
    .copied()
    .collect()
}
