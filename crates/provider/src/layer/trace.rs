//! A span around every call.

use std::future::Future;

use leasehold_model::Result;
use tracing::Instrument as _;

use super::{Layer, Operation};

/// Writes a `tracing` span per call with its name, its sandbox, how long it took and how it failed.
///
/// No arguments, variables, labels or contents, and no error messages, which may quote them: a trace
/// is kept by others (invariant 12).
#[derive(Debug, Clone, Copy, Default)]
pub struct TraceLayer;

impl Layer for TraceLayer {
    async fn around<T, F, C>(&self, operation: Operation<'_>, call: C) -> Result<T>
    where
        T: Send,
        F: Future<Output = Result<T>> + Send,
        C: Fn() -> F + Send + Sync,
    {
        let span = tracing::debug_span!(
            "provider_call",
            operation = operation.name,
            sandbox = operation.sandbox.map(leasehold_model::SandboxId::as_str),
        );
        async {
            let begun = tokio::time::Instant::now();
            let ended = call().await;
            let took_us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
            match &ended {
                Ok(_) => tracing::debug!(took_us, "done"),
                Err(error) => tracing::debug!(
                    took_us,
                    kind = error.kind().as_str(),
                    can_retry = error.retry() == leasehold_model::Retry::Later,
                    "failed"
                ),
            }
            ended
        }
        .instrument(span)
        .await
    }
}
