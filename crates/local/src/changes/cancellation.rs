//! A switch that stops long work on another thread.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use leasehold_model::{Error, ErrorKind};

/// A switch shared between the one who works and the one who may stop it. Clones are the same switch.
#[derive(Debug, Clone, Default)]
pub struct Cancellation(Arc<AtomicBool>);

impl Cancellation {
    /// Stops the work at its next look, at the latest after some megabytes.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether somebody stopped it.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn check(&self) -> io::Result<()> {
        if self.is_cancelled() { Err(io::Error::other(WasCancelled)) } else { Ok(()) }
    }

    /// Whether this error is the one that [`Self::check`] gives.
    pub(super) fn caused(error: &io::Error) -> bool {
        error.get_ref().is_some_and(<dyn std::error::Error + Send + Sync>::is::<WasCancelled>)
    }

    pub(super) fn check_operation(&self, operation: &'static str) -> leasehold_model::Result<()> {
        if self.is_cancelled() {
            return Err(Error::new(ErrorKind::Cancelled, operation, "cancelled by the caller"));
        }
        Ok(())
    }
}

#[derive(Debug)]
struct WasCancelled;

impl fmt::Display for WasCancelled {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("cancelled by the caller")
    }
}

impl std::error::Error for WasCancelled {}
