//! A bounded pipe between simulated processes.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;

/// What a pipe holds before its writers wait, as on Linux.
const CAPACITY: usize = 65_536;

#[derive(Debug, Default)]
struct State {
    chunks: VecDeque<Bytes>,
    length: usize,
    reader_gone: bool,
    writer_gone: bool,
    readers: Vec<Waker>,
    writers: Vec<Waker>,
}

#[derive(Debug, Default)]
struct Shared(Mutex<State>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The reading end; shared by clones of its `Arc`, closed with the last.
#[derive(Debug)]
pub(in crate::memory) struct PipeReader(Arc<Shared>);

/// The writing end; shared by clones of its `Arc`, closed with the last.
#[derive(Debug)]
pub(in crate::memory) struct PipeWriter(Arc<Shared>);

pub(in crate::memory) fn pipe() -> (Arc<PipeReader>, Arc<PipeWriter>) {
    let shared = Arc::new(Shared::default());
    (Arc::new(PipeReader(Arc::clone(&shared))), Arc::new(PipeWriter(shared)))
}

fn wake(wakers: &mut Vec<Waker>) {
    wakers.drain(..).for_each(Waker::wake);
}

impl PipeReader {
    /// At most `most` bytes; empty at the end.
    pub(in crate::memory) async fn read(&self, most: usize) -> Bytes {
        poll_fn(|context| self.poll_read(context, most)).await
    }

    fn poll_read(&self, context: &mut Context<'_>, most: usize) -> Poll<Bytes> {
        let mut state = self.0.lock();
        if let Some(mut chunk) = state.chunks.pop_front() {
            if chunk.len() > most {
                let rest = chunk.split_off(most);
                state.chunks.push_front(rest);
            }
            state.length -= chunk.len();
            wake(&mut state.writers);
            return Poll::Ready(chunk);
        }
        if state.writer_gone {
            return Poll::Ready(Bytes::new());
        }
        state.readers.push(context.waker().clone());
        Poll::Pending
    }

    /// How many bytes wait in it now.
    pub(in crate::memory) fn waiting(&self) -> usize {
        self.0.lock().length
    }
}

impl PipeWriter {
    /// Hands all bytes over, waiting while the pipe is full.
    ///
    /// Errors: `BrokenPipe` when nobody can read any more.
    pub(in crate::memory) async fn write(&self, mut bytes: Bytes) -> io::Result<()> {
        while !bytes.is_empty() {
            let count = poll_fn(|context| self.poll_write(context, &bytes)).await?;
            bytes = bytes.slice(count..);
        }
        Ok(())
    }

    /// Takes as many bytes as fit, at least one.
    pub(in crate::memory) fn poll_write(
        &self,
        context: &mut Context<'_>,
        bytes: &Bytes,
    ) -> Poll<io::Result<usize>> {
        let mut state = self.0.lock();
        if state.reader_gone {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let room = CAPACITY.saturating_sub(state.length);
        if room == 0 {
            state.writers.push(context.waker().clone());
            return Poll::Pending;
        }
        let count = room.min(bytes.len());
        state.chunks.push_back(bytes.slice(..count));
        state.length += count;
        wake(&mut state.readers);
        Poll::Ready(Ok(count))
    }

    /// Adds bytes without regard to the bound: a terminal's echo must not block its typist.
    pub(in crate::memory) fn push(&self, bytes: Bytes) {
        let mut state = self.0.lock();
        if !bytes.is_empty() && !state.reader_gone {
            state.length += bytes.len();
            state.chunks.push_back(bytes);
            wake(&mut state.readers);
        }
    }
}

impl Drop for PipeReader {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.reader_gone = true;
        state.chunks.clear();
        state.length = 0;
        wake(&mut state.writers);
    }
}

impl Drop for PipeWriter {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.writer_gone = true;
        wake(&mut state.readers);
    }
}
