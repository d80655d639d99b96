//! Host-side deadlines: no call depends on the provider answering (invariant 9, field cases F40, F41).

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_model::{
    CommandSpec, Error, ErrorKind, ExecutionId, Result, SignalNumber, TerminalSize, Verdict,
};
use tokio::time::Instant;

use super::{Layer, Operation, OperationKind};
use crate::execution::{Execution, ExecutionControl, OutputStream, SignalScope, output_channel};

/// How long each kind of call may take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallDeadlines {
    /// Create and fork.
    pub create: Duration,
    /// Find, list, refresh.
    pub query: Duration,
    /// Destroy, stop, start, pause, resume, expiry.
    pub change: Duration,
    /// Archive, template.
    pub snapshot: Duration,
    /// The start of a command, not its run.
    pub exec: Duration,
    /// Signal, cancel, resize.
    pub control: Duration,
    /// One step on the file tree, and the opening of a file.
    pub file: Duration,
    /// A whole write.
    pub transfer: Duration,
    /// The opening of a connection.
    pub connect: Duration,
    /// What a command with a timeout of its own may take beyond it before we stop waiting for its
    /// verdict: the provider ends it, this only ends the wait.
    pub verdict_grace: Duration,
}

impl Default for CallDeadlines {
    /// Seconds for questions, minutes for what makes or moves something.
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            create: seconds(300),
            query: seconds(30),
            change: seconds(120),
            snapshot: seconds(900),
            exec: seconds(60),
            control: seconds(30),
            file: seconds(60),
            transfer: seconds(900),
            connect: seconds(30),
            verdict_grace: seconds(60),
        }
    }
}

/// Ends every call at its deadline with `DeadlineExceeded`; the call's effect is then unknown.
///
/// A command's run is not a call: only its start has a deadline here. A command with a timeout also
/// bounds the wait for its verdict: should the provider never report the end, the verdict is
/// `ObservationLost` and the output ends with an error.
#[derive(Debug, Clone, Default)]
pub struct DeadlineLayer {
    deadlines: CallDeadlines,
}

impl DeadlineLayer {
    /// A layer with these deadlines.
    pub fn new(deadlines: CallDeadlines) -> Self {
        Self { deadlines }
    }

    fn allowed(&self, kind: OperationKind) -> Duration {
        match kind {
            OperationKind::Create => self.deadlines.create,
            OperationKind::Query => self.deadlines.query,
            OperationKind::Change => self.deadlines.change,
            OperationKind::Snapshot => self.deadlines.snapshot,
            OperationKind::Exec => self.deadlines.exec,
            OperationKind::Control => self.deadlines.control,
            OperationKind::File => self.deadlines.file,
            OperationKind::Transfer => self.deadlines.transfer,
            OperationKind::Connect => self.deadlines.connect,
        }
    }
}

fn exceeded(operation: &'static str, allowed: Duration) -> Error {
    Error::new(
        ErrorKind::DeadlineExceeded,
        operation,
        format!("the provider did not answer within {} s", allowed.as_secs_f64()),
    )
    .with_context("effect", "unknown")
}

impl Layer for DeadlineLayer {
    async fn around<T, F, C>(&self, operation: Operation<'_>, call: C) -> Result<T>
    where
        T: Send,
        F: Future<Output = Result<T>> + Send,
        C: Fn() -> F + Send + Sync,
    {
        let allowed = self.allowed(operation.kind);
        let Ok(ended) = tokio::time::timeout(allowed, call()).await else {
            let error = exceeded(operation.name, allowed);
            return Err(match operation.sandbox {
                Some(sandbox) => error.with_context("sandbox", sandbox),
                None => error,
            });
        };
        ended
    }

    fn execution(&self, command: &CommandSpec, execution: Execution) -> Execution {
        let Some(wait) =
            command.timeout.and_then(|timeout| timeout.checked_add(self.deadlines.verdict_grace))
        else {
            return execution;
        };
        let Some(end) = Instant::now().checked_add(wait) else { return execution };
        let Execution { output, stdin, control } = execution;
        let (sender, guarded) = output_channel(1);
        tokio::spawn(async move {
            let mut output = output;
            loop {
                match tokio::time::timeout_at(end, OutputStream::next(&mut output)).await {
                    Ok(Some(chunk)) => {
                        if !sender.send(chunk).await {
                            return;
                        }
                    }
                    Ok(None) => return,
                    Err(_) => {
                        sender.send(Err(exceeded("execution.output", wait))).await;
                        return;
                    }
                }
            }
        });
        Execution {
            output: guarded,
            stdin,
            control: Arc::new(Guarded { control, end, grace: self.deadlines.verdict_grace }),
        }
    }
}

/// A command whose verdict is not waited for without end.
#[derive(Debug)]
struct Guarded {
    control: Arc<dyn ExecutionControl>,
    end: Instant,
    grace: Duration,
}

#[async_trait]
impl ExecutionControl for Guarded {
    fn id(&self) -> &ExecutionId {
        self.control.id()
    }

    async fn signal(&self, signal: SignalNumber, scope: SignalScope) -> Result<()> {
        self.control.signal(signal, scope).await
    }

    async fn cancel(&self) -> Result<()> {
        self.control.cancel().await
    }

    async fn resize(&self, size: TerminalSize) -> Result<()> {
        self.control.resize(size).await
    }

    async fn verdict(&self) -> Verdict {
        // Who asks late, after slowly reading much output, still gets the grace.
        let end = Instant::now().checked_add(self.grace).map_or(self.end, |graced| graced.max(self.end));
        let verdict = tokio::time::timeout_at(end, self.control.verdict()).await;
        verdict.unwrap_or(Verdict::ObservationLost)
    }
}
