//! The host's side of the connection to pid 1.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_model::{Error, ErrorKind, Result};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::protocol::{Event, EventBody, FrameReader, FrameWriter, Refusal, Request, RequestBody, Tag};
use crate::watched::watch;

/// How long pid 1 may take to answer a request that it can answer at once.
pub(crate) const ANSWER_TIME: Duration = Duration::from_secs(10);

/// An event with the descriptors that came along.
pub(crate) type Delivery = (EventBody, Vec<OwnedFd>);

/// A connection. Its reader task ends with it.
#[derive(Debug)]
pub(crate) struct Link {
    shared: Arc<Shared>,
    reader: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    socket: AsyncFd<OwnedFd>,
    writer: tokio::sync::Mutex<FrameWriter>,
    waiting: Mutex<HashMap<Tag, mpsc::UnboundedSender<Delivery>>>,
    next_tag: AtomicU64,
    closed: AtomicBool,
    closing: watch::Sender<bool>,
}

/// The answers to one request, in their order.
#[derive(Debug)]
pub(crate) struct Answers {
    pub(crate) tag: Tag,
    receiver: mpsc::UnboundedReceiver<Delivery>,
    shared: Arc<Shared>,
}

impl Drop for Answers {
    fn drop(&mut self) {
        self.shared.waiting().remove(&self.tag);
    }
}

impl Answers {
    /// The next event, or `None` when the connection is gone.
    pub(crate) async fn next(&mut self) -> Option<Delivery> {
        self.receiver.recv().await
    }
}

fn gone(operation: &'static str) -> Error {
    Error::new(ErrorKind::Lost, operation, "the sandbox has ended")
}

impl Shared {
    fn waiting(&self) -> std::sync::MutexGuard<'_, HashMap<Tag, mpsc::UnboundedSender<Delivery>>> {
        // The map is whole at every point where a holder could panic.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.waiting().clear();
        self.closing.send_replace(true);
    }

    async fn read_events(self: Arc<Self>) {
        let mut reader = FrameReader::default();
        loop {
            let received =
                self.socket.async_io(Interest::READABLE, |socket| reader.fill(socket.as_fd())).await;
            if !matches!(received, Ok(1..)) {
                return self.close();
            }
            loop {
                match reader.next::<Event>() {
                    Ok(Some((event, descriptors))) => {
                        if let Some(waiting) = self.waiting().get(&event.tag) {
                            let _ = waiting.send((event.body, descriptors));
                        }
                    }
                    Ok(None) => break,
                    Err(error) => {
                        tracing::error!(%error, "pid 1 of a sandbox sent nonsense; the connection is closed");
                        return self.close();
                    }
                }
            }
        }
    }
}

impl Link {
    /// Takes over a connected socket.
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        let shared = Arc::new(Shared {
            socket: watch(socket, Interest::READABLE | Interest::WRITABLE)?,
            writer: tokio::sync::Mutex::default(),
            waiting: Mutex::default(),
            next_tag: AtomicU64::new(1),
            closed: AtomicBool::new(false),
            closing: watch::Sender::new(false),
        });
        let reader = tokio::spawn(Arc::clone(&shared).read_events());
        Ok(Self { shared, reader })
    }

    /// Whether the other side is gone.
    pub(crate) fn is_closed(&self) -> bool {
        self.shared.closed.load(Ordering::SeqCst)
    }

    /// Waits until the other side is gone.
    pub(crate) async fn closed(&self) {
        let mut closing = self.shared.closing.subscribe();
        let _ = closing.wait_for(|closed| *closed).await;
    }

    /// Sends a request and gives its answers.
    pub(crate) async fn send(
        &self,
        operation: &'static str,
        body: RequestBody,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Answers> {
        if self.is_closed() {
            return Err(gone(operation));
        }
        let tag = Tag(self.shared.next_tag.fetch_add(1, Ordering::Relaxed));
        let (sender, receiver) = mpsc::unbounded_channel();
        self.shared.waiting().insert(tag, sender);
        let answers = Answers { tag, receiver, shared: Arc::clone(&self.shared) };
        let mut writer = self.shared.writer.lock().await;
        writer
            .push(&Request { tag, body }, descriptors)
            .map_err(|error| Error::io(operation, "the request can't be sent to the sandbox", error))?;
        // A frame must go out whole even if this future is dropped; what is left goes out with the next.
        while !writer.is_empty() {
            self.shared
                .socket
                .async_io(Interest::WRITABLE, |socket| writer.flush(socket.as_fd()))
                .await
                .map_err(|_| gone(operation))?;
        }
        Ok(answers)
    }

    /// Sends a request that has one answer, and waits for it.
    pub(crate) async fn ask(&self, operation: &'static str, body: RequestBody) -> Result<Vec<OwnedFd>> {
        self.ask_within(operation, body, ANSWER_TIME).await
    }

    /// The same, with another bound on the wait.
    pub(crate) async fn ask_within(
        &self,
        operation: &'static str,
        body: RequestBody,
        time: Duration,
    ) -> Result<Vec<OwnedFd>> {
        let answer = async {
            let mut answers = self.send(operation, body, Vec::new()).await?;
            answers.next().await.ok_or_else(|| gone(operation))
        };
        let (body, descriptors) = tokio::time::timeout(time, answer).await.map_err(|_| {
            Error::new(ErrorKind::DeadlineExceeded, operation, "pid 1 of the sandbox does not answer")
        })??;
        match body {
            EventBody::Done => Ok(descriptors),
            EventBody::Refused(refusal) => Err(refusal_error(operation, &refusal)),
            _ => Err(Error::new(ErrorKind::Corrupt, operation, "pid 1 of the sandbox gave a wrong answer")),
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.reader.abort();
        self.shared.close();
    }
}

/// The operation of errors that say that a program itself can't be run, where a shell's status would be 126
/// or 127. Every other failure to start a command is Leasehold's own.
pub const START_PROGRAM: &str = "program.start";

/// What pid 1 refused, as an error.
pub(crate) fn refusal_error(operation: &'static str, refusal: &Refusal) -> Error {
    let operation = if refusal.about_program { START_PROGRAM } else { operation };
    let message = refusal.message.clone();
    if refusal.errno == 0 {
        return Error::new(ErrorKind::Unexpected, operation, message);
    }
    let source = io::Error::from_raw_os_error(refusal.errno);
    match refusal.errno {
        libc::ESHUTDOWN => Error::new(ErrorKind::Conflict, operation, message),
        libc::EOPNOTSUPP => Error::unsupported(operation, message),
        libc::EAGAIN | libc::ENFILE | libc::EMFILE => Error::new(ErrorKind::LimitExceeded, operation, message)
            .with_source(source)
            .with_hint("the sandbox is at its limit of processes; raise it with --pids"),
        libc::E2BIG => Error::new(ErrorKind::InvalidInput, operation, message).with_source(source).with_hint(
            "one argument may hold 128 KiB and all of them a quarter of the stack limit; pass more through a file or standard input",
        ),
        _ => Error::io(operation, message, source),
    }
}
