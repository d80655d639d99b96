//! The moment by which a call must have ended.

use std::time::{Duration, Instant};

/// A point on this process's monotonic clock. Every operation that can hang takes one, so that no
/// call depends on the other side answering (invariant 9).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// The deadline `span` from now. A span too long for the clock is cut to thirty years.
    pub fn after(span: Duration) -> Self {
        const THIRTY_YEARS: Duration = Duration::from_secs(30 * 365 * 86_400);
        let now = Instant::now();
        Self(now.checked_add(span).unwrap_or(now + THIRTY_YEARS))
    }

    /// The deadline at this instant.
    pub fn at(instant: Instant) -> Self {
        Self(instant)
    }

    /// The instant, for timers.
    pub fn instant(self) -> Instant {
        self.0
    }

    /// What is left of it; zero once it has passed.
    pub fn remaining(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// Whether it has passed.
    pub fn is_past(self) -> bool {
        self.remaining().is_zero()
    }

    /// The earlier of two.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        Self(self.0.min(other.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_beyond_the_clock_does_not_overflow() {
        assert!(!Deadline::after(Duration::MAX).is_past());
        assert!(Deadline::after(Duration::ZERO).is_past());
    }
}
