//! Many values of one thing, and what can be said of them.

use std::time::{Duration, Instant};

/// Values of one thing, as measured.
#[derive(Debug, Default, Clone)]
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    /// Adds a value.
    pub(crate) fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// Adds a time, in milliseconds.
    pub(crate) fn push_time(&mut self, time: Duration) {
        self.push(milliseconds(time));
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// The value below which half of them are; zero when there are none.
    pub(crate) fn median(&self) -> f64 {
        self.quantile(50)
    }

    /// The value that this many of a hundred don't exceed (nearest rank).
    pub(crate) fn quantile(&self, percent: usize) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = (sorted.len() * percent).div_ceil(100).max(1);
        sorted.get(rank - 1).copied().unwrap_or(0.0)
    }
}

/// A time in milliseconds.
pub(crate) fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Measures how long some work takes.
pub(crate) async fn timed<T>(work: impl Future<Output = T>) -> (Duration, T) {
    let start = Instant::now();
    let result = work.await;
    (start.elapsed(), result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let mut samples = Samples::default();
        assert!(samples.median() < f64::EPSILON);
        for value in (1..=100).rev() {
            samples.push(f64::from(value));
        }
        let rounded = |value: f64| format!("{value:.0}");
        assert_eq!(rounded(samples.median()), "50");
        assert_eq!(rounded(samples.quantile(99)), "99");
        assert_eq!(rounded(samples.quantile(100)), "100");
        assert_eq!(samples.count(), 100);
    }
}
