//! What one measurement says.

use serde::Serialize;

use crate::budget::Budget;
use crate::sampling::Samples;

/// One line of the table.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Figure {
    /// What was measured.
    pub(crate) what: String,
    /// The unit of the values.
    pub(crate) unit: &'static str,
    /// The middle value.
    pub(crate) median: f64,
    /// The value that one in a hundred exceeds; of few rounds, the largest.
    pub(crate) p99: f64,
    /// How many values.
    pub(crate) rounds: usize,
    /// What it is compared with, and our median as a multiple of its median.
    pub(crate) compared: Vec<(String, f64)>,
    /// The bounds that it has.
    pub(crate) budgets: Vec<Budget>,
    /// What a reader must know.
    pub(crate) note: Option<String>,
}

impl Figure {
    /// A line without comparisons.
    pub(crate) fn new(what: impl Into<String>, unit: &'static str, samples: &Samples) -> Self {
        Self {
            what: what.into(),
            unit,
            median: samples.median(),
            p99: samples.quantile(99),
            rounds: samples.count(),
            compared: Vec::new(),
            budgets: Vec::new(),
            note: None,
        }
    }

    /// A line with one value.
    pub(crate) fn single(what: impl Into<String>, unit: &'static str, value: f64) -> Self {
        let mut samples = Samples::default();
        samples.push(value);
        Self::new(what, unit, &samples)
    }

    /// A line that says why there is no value.
    pub(crate) fn absent(what: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::new(what, "", &Samples::default()).noted(reason)
    }

    /// Compares it with another line of this run.
    #[must_use]
    pub(crate) fn against(mut self, other: &Self) -> Self {
        if other.median > 0.0 {
            self.compared.push((other.what.clone(), self.median / other.median));
        }
        self
    }

    /// Adds a bound on what was measured.
    #[must_use]
    pub(crate) fn bounded(mut self, budget: impl FnOnce(&Self) -> Budget) -> Self {
        let budget = budget(&self);
        self.budgets.push(budget);
        self
    }

    /// Adds a remark.
    #[must_use]
    pub(crate) fn noted(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }
}
