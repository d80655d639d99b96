//! One running command, seen from outside.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use async_trait::async_trait;
use bytes::Bytes;
use futures_core::Stream;
use leasehold_model::{
    ByteOffset, Error, ErrorKind, ExecutionId, Result, SignalNumber, StreamKind, TerminalSize, Verdict,
};
use tokio::io::AsyncWrite;
use tokio::sync::mpsc;

/// A piece of one output stream. Offsets count from the stream's first byte, so that a gap or a
/// repeat shows (invariant 7).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputChunk {
    /// Which stream.
    pub stream: StreamKind,
    /// Where in that stream it starts.
    pub offset: ByteOffset,
    /// The bytes; never empty.
    pub bytes: Bytes,
}

/// The output of a command, in order per stream. It ends when the command's output has ended: after
/// its end and a short quiet drain, even if a grandchild still holds the pipe (invariant 8).
/// Not reading it holds the command back; dropping it discards the rest without breaking the command.
pub struct OutputStream {
    receiver: mpsc::Receiver<Result<OutputChunk>>,
}

/// The provider's side of an [`OutputStream`].
#[derive(Debug, Clone)]
pub struct OutputSender {
    sender: mpsc::Sender<Result<OutputChunk>>,
}

/// A bounded channel for output: at most `chunks` wait in it.
pub fn output_channel(chunks: usize) -> (OutputSender, OutputStream) {
    let (sender, receiver) = mpsc::channel(chunks);
    (OutputSender { sender }, OutputStream { receiver })
}

impl OutputSender {
    /// Hands one chunk over, waiting while the reader is behind. `false` when nobody reads any more;
    /// the provider then drains and discards.
    pub async fn send(&self, chunk: Result<OutputChunk>) -> bool {
        self.sender.send(chunk).await.is_ok()
    }
}

impl OutputStream {
    /// The next chunk; `None` at the end.
    pub async fn next(&mut self) -> Option<Result<OutputChunk>> {
        self.receiver.recv().await
    }
}

impl Stream for OutputStream {
    type Item = Result<OutputChunk>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.receiver.poll_recv(context)
    }
}

impl fmt::Debug for OutputStream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("OutputStream")
    }
}

/// A command's standard input. Shutting it down is end of input.
pub type StdinWriter = Box<dyn AsyncWrite + Send + Unpin>;

/// Whom a signal reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignalScope {
    /// The command's process group (on a terminal: its foreground group), as a shell's Ctrl-C does.
    Group,
    /// Every process that the command started and that still runs, wherever it moved.
    Tree,
}

/// What can be done to a running command from any task.
#[async_trait]
pub trait ExecutionControl: fmt::Debug + Send + Sync {
    /// The command's id.
    fn id(&self) -> &ExecutionId;

    /// Sends a signal. To a command that has ended this is success without effect (field case F29).
    async fn signal(&self, signal: SignalNumber, scope: SignalScope) -> Result<()>;

    /// Kills the whole tree; the verdict becomes `Cancelled` unless the command ended first.
    async fn cancel(&self) -> Result<()>;

    /// Changes the size of its terminal.
    async fn resize(&self, size: TerminalSize) -> Result<()>;

    /// Waits for the one verdict. It comes after the last output chunk was handed over, or at once
    /// after the end when the output stream was dropped. May be called any number of times.
    async fn verdict(&self) -> Verdict;
}

/// One command: its output, its input, and its control, each owned apart.
#[derive(Debug)]
pub struct Execution {
    /// What it writes.
    pub output: OutputStream,
    /// What it reads, when it was started with a stream.
    pub stdin: Option<Stdin>,
    /// Signals, size, verdict.
    pub control: Arc<dyn ExecutionControl>,
}

/// The holder of a [`StdinWriter`] with a `Debug` of its own.
pub struct Stdin(pub StdinWriter);

impl fmt::Debug for Stdin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Stdin")
    }
}

/// All output of one finished command, for short commands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollectedOutput {
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// How it ended.
    pub verdict: Verdict,
}

impl Execution {
    /// Closes standard input, reads all output and waits for the verdict. Fails with `LimitExceeded`
    /// and cancels the command when a stream grows beyond `limit` bytes.
    pub async fn collect(mut self, limit: usize) -> Result<CollectedOutput> {
        drop(self.stdin.take());
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        while let Some(chunk) = self.output.next().await {
            let chunk = chunk?;
            let buffer = match chunk.stream {
                StreamKind::Stdout => &mut stdout,
                StreamKind::Stderr => &mut stderr,
            };
            if chunk.offset != ByteOffset(buffer.len() as u64) {
                return Err(Error::new(
                    ErrorKind::Corrupt,
                    "execution.collect",
                    format!("the output jumps from byte {} to {}", buffer.len(), chunk.offset),
                ));
            }
            if buffer.len() + chunk.bytes.len() > limit {
                self.control.cancel().await?;
                return Err(Error::new(
                    ErrorKind::LimitExceeded,
                    "execution.collect",
                    format!("the command wrote more than {limit} bytes to one stream"),
                )
                .with_hint("read its output as a stream instead"));
            }
            buffer.extend_from_slice(&chunk.bytes);
        }
        Ok(CollectedOutput { stdout, stderr, verdict: self.control.verdict().await })
    }
}
