//! What a figure may be at most, or must be at least.

use serde::Serialize;

/// Which side of the bound is the good one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Side {
    /// The value may be as large as the bound.
    AtMost,
    /// The value must be as large as the bound.
    AtLeast,
}

/// What decides whether a missed bound is the program's fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Nature {
    /// A comparison within this run, or a count: holds on a busy machine too.
    Relative,
    /// A time: other work on the machine makes it longer.
    Absolute,
}

/// A bound on one value.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Budget {
    /// The value that was measured.
    pub(crate) value: f64,
    /// The bound.
    pub(crate) bound: f64,
    /// The unit of both.
    pub(crate) unit: &'static str,
    /// What the value is: `p50`, `p99`, a ratio.
    pub(crate) of: &'static str,
    /// The good side.
    pub(crate) side: Side,
    /// Whether it depends on the machine's other work.
    pub(crate) nature: Nature,
}

impl Budget {
    /// A comparison that may be this large.
    pub(crate) fn at_most(of: &'static str, value: f64, bound: f64, unit: &'static str) -> Self {
        Self { value, bound, unit, of, side: Side::AtMost, nature: Nature::Relative }
    }

    /// A comparison that must be this large.
    pub(crate) fn at_least(of: &'static str, value: f64, bound: f64, unit: &'static str) -> Self {
        Self { value, bound, unit, of, side: Side::AtLeast, nature: Nature::Relative }
    }

    /// A time in milliseconds that may be this long.
    pub(crate) fn within(of: &'static str, value: f64, bound: f64) -> Self {
        Self { value, bound, unit: "ms", of, side: Side::AtMost, nature: Nature::Absolute }
    }

    /// Whether it is kept.
    pub(crate) fn is_met(&self) -> bool {
        match self.side {
            Side::AtMost => self.value <= self.bound,
            Side::AtLeast => self.value >= self.bound,
        }
    }

    /// Whether it counts on a machine whose processors were busy with other work for this share.
    pub(crate) fn counts(&self, busy: f64) -> bool {
        self.nature == Nature::Relative || busy < crate::load::QUIET
    }

    /// As a sentence.
    pub(crate) fn describe(&self) -> String {
        let side = if self.side == Side::AtMost { "≤" } else { "≥" };
        let unit = if self.unit.is_empty() { String::new() } else { format!(" {}", self.unit) };
        format!("{} {:.2}{unit} {side} {}{unit}", self.of, self.value, self.bound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_side_has_its_good_values() {
        assert!(Budget::at_most("ratio", 1.0, 1.0, "×").is_met());
        assert!(!Budget::at_most("ratio", 1.1, 1.0, "×").is_met());
        assert!(Budget::at_least("share", 0.8, 0.8, "").is_met());
        assert!(!Budget::at_least("share", 0.7, 0.8, "").is_met());
    }

    #[test]
    fn times_count_only_on_a_quiet_machine() {
        assert!(Budget::within("p50", 4.0, 3.0).counts(0.0));
        assert!(!Budget::within("p50", 4.0, 3.0).counts(0.9));
        assert!(Budget::at_most("ratio", 2.0, 1.0, "×").counts(0.9));
        assert_eq!(Budget::within("p50", 4.0, 3.0).describe(), "p50 4.00 ms ≤ 3 ms");
    }
}
