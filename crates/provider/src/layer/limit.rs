//! A bound on calls at one time, and on those that wait for their turn (invariant 14).

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};

use leasehold_model::{Error, ErrorKind, Result, Retry};
use tokio::sync::Semaphore;

use super::{Layer, Operation};

/// Lets a number of calls through at one time; some more wait, the rest is refused at once.
#[derive(Debug)]
pub struct LimitLayer {
    turns: Semaphore,
    concurrent: usize,
    waiting: AtomicUsize,
    queue: usize,
}

/// One place in the queue, given back even when the caller goes away.
struct Place<'a>(&'a AtomicUsize);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl LimitLayer {
    /// At most `concurrent` calls (at least one) at a time, and at most `queue` that wait.
    pub fn new(concurrent: usize, queue: usize) -> Self {
        let concurrent = concurrent.clamp(1, Semaphore::MAX_PERMITS);
        Self { turns: Semaphore::new(concurrent), concurrent, waiting: AtomicUsize::new(0), queue }
    }

    fn refused(&self, operation: &'static str) -> Error {
        Error::new(
            ErrorKind::LimitExceeded,
            operation,
            format!("{} calls run and {} wait already", self.concurrent, self.queue),
        )
        .with_retry(Retry::Later)
        .with_context("effect", "none")
        .with_hint("send fewer calls at one time, or try again later")
    }
}

impl Layer for LimitLayer {
    async fn around<T, F, C>(&self, operation: Operation<'_>, call: C) -> Result<T>
    where
        T: Send,
        F: Future<Output = Result<T>> + Send,
        C: Fn() -> F + Send + Sync,
    {
        let _turn = if let Ok(turn) = self.turns.try_acquire() {
            turn
        } else {
            let before = self.waiting.fetch_add(1, Ordering::Relaxed);
            let place = Place(&self.waiting);
            if before >= self.queue {
                return Err(self.refused(operation.name));
            }
            let turn = self.turns.acquire().await.map_err(|_| self.refused(operation.name))?;
            drop(place);
            turn
        };
        call().await
    }
}
