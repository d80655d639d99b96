//! Between this process's own streams and a command: bytes in, bytes out, signals, sizes.

use std::io::{self, Read};
use std::sync::Arc;

use leasehold_model::{Error, Result, SignalNumber, StreamKind, Verdict};
use leasehold_provider::{Execution, ExecutionControl, OutputChunk, SignalScope};
use tokio::io::AsyncWriteExt;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use crate::terminal;

/// Pieces that wait between a blocking thread and the runtime.
const WAITING: usize = 4;
const CHUNK: usize = 64 << 10;

/// Signals that are passed on to the command.
const FORWARDED: [SignalNumber; 4] =
    [SignalNumber::HANGUP, SignalNumber::INTERRUPT, SignalNumber::QUIT, SignalNumber::TERMINATE];

/// The signals that this process gets for its command. They are caught from the moment this exists.
#[derive(Debug)]
pub(crate) struct Signals {
    forwarded: mpsc::Receiver<SignalNumber>,
    resized: Signal,
}

impl Signals {
    /// Starts catching.
    pub(crate) fn catch() -> io::Result<Self> {
        let (sender, forwarded) = mpsc::channel(16);
        for number in FORWARDED {
            let mut source = signal(SignalKind::from_raw(number.0))?;
            let sender = sender.clone();
            // Ends with the runtime, at the end of this process.
            tokio::spawn(async move {
                while source.recv().await.is_some() && sender.send(number).await.is_ok() {}
            });
        }
        Ok(Self { forwarded, resized: signal(SignalKind::window_change())? })
    }
}

/// Joins a command to this process's streams until it ends.
pub(crate) async fn attach(execution: Execution, signals: &mut Signals) -> Result<Verdict> {
    let Execution { mut output, stdin, control } = execution;
    if let Some(stdin) = stdin {
        tokio::spawn(feed(stdin.0));
    }
    let (chunks, writer) = output_thread();
    let has_terminal = control.resize(terminal::size()).await.is_ok();
    let mut chunks = Some(chunks);
    loop {
        tokio::select! {
            chunk = output.next() => {
                let Some(chunk) = chunk else { break };
                let chunk = chunk?;
                if let Some(sender) = &chunks
                    && sender.send(chunk).await.is_err()
                {
                    // Our own reader is gone. The command learns it as it would without us.
                    chunks = None;
                    control.signal(SignalNumber(13), SignalScope::Group).await?;
                }
            }
            Some(number) = signals.forwarded.recv() => forward(&control, number).await,
            Some(()) = signals.resized.recv() => {
                if has_terminal {
                    // The command may be gone by now; its size then matters to nobody.
                    let _ = control.resize(terminal::size()).await;
                }
            }
        }
    }
    drop(chunks);
    let verdict = loop {
        tokio::select! {
            verdict = control.verdict() => break verdict,
            Some(number) = signals.forwarded.recv() => forward(&control, number).await,
        }
    };
    let written = tokio::task::spawn_blocking(move || writer.join()).await;
    match written {
        Ok(Ok(Err(error))) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::io("run.output", "cannot write the command's output", error))
        }
        _ => Ok(verdict),
    }
}

async fn forward(control: &Arc<dyn ExecutionControl>, number: SignalNumber) {
    // Only a lost sandbox can refuse, and then the verdict says so.
    let _ = control.signal(number, SignalScope::Group).await;
}

/// Writes chunks to standard output and error, in a thread of its own since either may block.
fn output_thread() -> (mpsc::Sender<OutputChunk>, std::thread::JoinHandle<io::Result<()>>) {
    let (sender, mut receiver) = mpsc::channel::<OutputChunk>(WAITING);
    let writer = std::thread::spawn(move || {
        while let Some(chunk) = receiver.blocking_recv() {
            match chunk.stream {
                StreamKind::Stdout => write_whole(&rustix::stdio::stdout(), &chunk.bytes)?,
                StreamKind::Stderr => write_whole(&rustix::stdio::stderr(), &chunk.bytes)?,
            }
        }
        Ok(())
    });
    (sender, writer)
}

fn write_whole(descriptor: &impl std::os::fd::AsFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(descriptor, bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(rustix::io::Errno::INTR) => {}
            // Somebody made our stream non-blocking; wait as a blocking one would.
            Err(rustix::io::Errno::AGAIN) => {
                let mut wait = [rustix::event::PollFd::new(descriptor, rustix::event::PollFlags::OUT)];
                rustix::event::poll(&mut wait, None)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Reads standard input in a thread of its own, since it may never end, and passes it on.
async fn feed(mut stdin: leasehold_provider::StdinWriter) {
    let (sender, mut receiver) = mpsc::channel::<Vec<u8>>(WAITING);
    std::thread::spawn(move || {
        let mut buffer = vec![0; CHUNK];
        loop {
            match io::stdin().lock().read(&mut buffer) {
                Ok(0) => return,
                Ok(count) => {
                    if sender.blocking_send(buffer[..count].to_vec()).is_err() {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    });
    while let Some(bytes) = receiver.recv().await {
        // The command closed its input; what is left is nobody's.
        if stdin.write_all(&bytes).await.is_err() {
            return;
        }
    }
    let _ = stdin.shutdown().await;
}
