//! Sending a call again: whether is one question, when another.

use std::future::Future;
use std::hash::{BuildHasher as _, Hasher as _};
use std::time::Duration;

use leasehold_model::{Error, ErrorKind, Result, Retry};

use super::{Layer, Operation, Repeat};

/// Whether a failed call may be sent again: the error says that it can help, and a second time does no
/// harm: the call is idempotent, or the error proves that the first had no effect.
///
/// Proof is the fact `effect: none` in the error's context, or a kind that is only given before an
/// effect. `Unavailable`, `DeadlineExceeded`, `Cancelled`, `Corrupt` and `Unexpected` leave it in doubt.
pub fn may_repeat(operation: Operation<'_>, error: &Error) -> bool {
    let no_effect = || {
        let said =
            error.context().iter().rev().find(|(name, _)| *name == "effect").map(|(_, value)| value.as_str());
        match said {
            Some(value) => value == "none",
            None => {
                matches!(error.kind(), ErrorKind::LimitExceeded | ErrorKind::Conflict | ErrorKind::NotFound)
            }
        }
    };
    error.retry() == Retry::Later
        && match operation.repeat {
            Repeat::Harmless => true,
            Repeat::IfNoEffect => no_effect(),
            Repeat::Never => false,
        }
}

/// When: after a random part of a span that doubles each time, so that many callers don't return at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backoff {
    /// The first span.
    pub first: Duration,
    /// The longest span.
    pub longest: Duration,
}

impl Default for Backoff {
    /// 100 ms, at most 10 s.
    fn default() -> Self {
        Self { first: Duration::from_millis(100), longest: Duration::from_secs(10) }
    }
}

impl Backoff {
    /// The span before attempt `number` (the first retry is number 1), of which `chance` in 0..=1 picks
    /// a part: from a half to the whole.
    pub fn span(&self, number: u32, chance: f64) -> Duration {
        let doubled =
            self.first.saturating_mul(1_u32.checked_shl(number.saturating_sub(1)).unwrap_or(u32::MAX));
        doubled.min(self.longest).mul_f64(0.5 + chance.clamp(0.0, 1.0) / 2.0)
    }
}

/// Sends calls again, a bounded number of times.
#[derive(Debug, Clone)]
pub struct RetryLayer {
    attempts: u32,
    backoff: Backoff,
}

impl Default for RetryLayer {
    /// Four attempts in all.
    fn default() -> Self {
        Self::new(4, Backoff::default())
    }
}

impl RetryLayer {
    /// At most `attempts` in all, at least one.
    pub fn new(attempts: u32, backoff: Backoff) -> Self {
        Self { attempts: attempts.max(1), backoff }
    }
}

/// A number in 0..1 from the standard library's random keys: good enough to spread callers.
fn chance() -> f64 {
    let bits = std::collections::hash_map::RandomState::new().build_hasher().finish();
    f64::from(u32::try_from(bits >> 32).unwrap_or(0)) / f64::from(u32::MAX)
}

impl Layer for RetryLayer {
    async fn around<T, F, C>(&self, operation: Operation<'_>, call: C) -> Result<T>
    where
        T: Send,
        F: Future<Output = Result<T>> + Send,
        C: Fn() -> F + Send + Sync,
    {
        let mut attempt = 1;
        loop {
            match call().await {
                Err(error) if attempt < self.attempts && may_repeat(operation, &error) => {
                    let span = self.backoff.span(attempt, chance());
                    tracing::debug!(
                        operation = operation.name,
                        attempt,
                        kind = error.kind().as_str(),
                        wait_ms = u64::try_from(span.as_millis()).unwrap_or(u64::MAX),
                        "a call failed and is sent again"
                    );
                    tokio::time::sleep(span).await;
                    attempt += 1;
                }
                Err(error) if attempt > 1 => return Err(error.with_context("attempts", attempt)),
                ended => return ended,
            }
        }
    }
}
