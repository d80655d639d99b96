//! The measurements, in the order of the table.

mod acquire;
mod command;
mod fleet;
mod realize;
mod teardown;
mod template;
mod throughput;

use std::pin::Pin;

use leasehold_model::Result;

use crate::figure::Figure;
use crate::workbench::Workbench;

type Running<'a> = Pin<Box<dyn Future<Output = Result<Vec<Figure>>> + 'a>>;

/// One measurement.
pub(crate) struct Measurement {
    /// The name to choose it by.
    pub(crate) name: &'static str,
    /// What it measures.
    pub(crate) about: &'static str,
    /// Does it.
    pub(crate) run: for<'a> fn(&'a Workbench) -> Running<'a>,
}

impl Measurement {
    /// Does it.
    pub(crate) async fn run(&self, bench: &Workbench) -> Result<Vec<Figure>> {
        (self.run)(bench).await
    }
}

/// All of them.
pub(crate) const MEASUREMENTS: &[Measurement] = &[
    Measurement {
        name: "acquire",
        about: "from nothing to the end of the first command",
        run: |bench| Box::pin(acquire::run(bench)),
    },
    Measurement {
        name: "command",
        about: "a command in a live sandbox",
        run: |bench| Box::pin(command::run(bench)),
    },
    Measurement {
        name: "throughput",
        about: "1 GiB of output, and both streams at once",
        run: |bench| Box::pin(throughput::run(bench)),
    },
    Measurement {
        name: "realize",
        about: "a workspace of 10, 10 000 and 100 000 files",
        run: |bench| Box::pin(realize::run(bench)),
    },
    Measurement {
        name: "template",
        about: "template and fork of a sandbox that holds 1 GiB",
        run: |bench| Box::pin(template::run(bench)),
    },
    Measurement {
        name: "fleet",
        about: "many live sandboxes: memory of each, and listing them",
        run: |bench| Box::pin(fleet::run(bench)),
    },
    Measurement {
        name: "teardown",
        about: "taking a sandbox down",
        run: |bench| Box::pin(teardown::run(bench)),
    },
];
