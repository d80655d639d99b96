//! One named case: what it needs, what it shows, and how it is run.

use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use leasehold_model::{Error, ErrorKind, Result};

use super::workbench::Workbench;
use crate::capabilities::Capability;
use crate::provider::Provider;

/// How long one case may take before it counts as hanging. Not a measure of speed.
const LONGEST: Duration = Duration::from_secs(180);

pub(super) type Body = fn(Arc<Workbench>) -> Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// One case of the suite.
#[derive(Clone, Copy)]
pub struct Case {
    pub(super) name: &'static str,
    pub(super) shows: &'static str,
    pub(super) needs: &'static [Capability],
    pub(super) body: Body,
}

/// How a case that did not fail ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It ran and every check held.
    Passed,
    /// The sandbox lacks a program without which nothing can be shown; the reason names it.
    Skipped(String),
}

/// Declares the cases of one file: `name: [needed capabilities], "what it shows";`.
macro_rules! declare_cases {
    ($($name:ident: [$($capability:ident),*], $shows:literal;)*) => {
        pub(super) const CASES: &[$crate::suite::case::Case] = &[$(
            $crate::suite::case::Case {
                name: stringify!($name),
                shows: $shows,
                needs: &[$($crate::capabilities::Capability::$capability),*],
                body: |bench| Box::pin($name(bench)),
            },
        )*];
    };
}
pub(super) use declare_cases;

impl Case {
    /// The stable name. A field case starts with its number: `f23_…`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The promise or field case that it shows.
    pub fn shows(&self) -> &'static str {
        self.shows
    }

    /// The capabilities without which it is not run.
    pub fn needs(&self) -> &'static [Capability] {
        self.needs
    }

    /// Runs it, destroys its sandboxes whatever happened, and checks that none is left.
    ///
    /// Errors: whatever the provider answered unexpectedly; `Unexpected` for a check that did not hold
    /// and for sandboxes left behind; `DeadlineExceeded` for a hang.
    pub async fn run(&self, provider: &Arc<dyn Provider>) -> Result<Outcome> {
        let bench = Arc::new(Workbench::new(Arc::clone(provider), self.name));
        let body = AssertUnwindSafe((self.body)(Arc::clone(&bench))).catch_unwind();
        let ended = match tokio::time::timeout(LONGEST, body).await {
            Ok(Ok(ended)) => ended,
            Ok(Err(panic)) => Err(Error::new(ErrorKind::Unexpected, "suite.check", panic_text(&*panic))),
            Err(_) => Err(Error::new(
                ErrorKind::DeadlineExceeded,
                "suite.run",
                format!("the case hung: it had not ended after {} s", LONGEST.as_secs()),
            )),
        };
        let swept = bench.sweep().await;
        ended.and(swept).map_err(|error| error.with_context("case", self.name))?;
        Ok(bench.skipped().map_or(Outcome::Passed, Outcome::Skipped))
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "a check panicked".to_owned())
}

impl fmt::Debug for Case {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Case")
            .field("name", &self.name)
            .field("needs", &self.needs)
            .finish_non_exhaustive()
    }
}
