//! A simulated terminal: line discipline, size, and the output that its master reads.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use leasehold_model::TerminalSize;

use super::pipe::PipeWriter;

/// What typed input waits for a reader before the typist must.
const CAPACITY: usize = 65_536;

const INTERRUPT: u8 = 3;
const END: u8 = 4;
const ERASE: u8 = 0x7f;

#[derive(Debug)]
struct State {
    size: TerminalSize,
    raw: bool,
    echo: bool,
    line: Vec<u8>,
    /// Lines or raw pieces; an empty one is an end of input.
    ready: VecDeque<Bytes>,
    length: usize,
    readers: Vec<Waker>,
    writers: Vec<Waker>,
}

/// The terminal of one execution.
#[derive(Debug)]
pub(in crate::memory) struct Terminal {
    state: Mutex<State>,
}

impl Terminal {
    pub(in crate::memory) fn new(size: TerminalSize) -> Arc<Self> {
        let (line, ready) = (Vec::new(), VecDeque::new());
        let state = State {
            size,
            raw: false,
            echo: true,
            line,
            ready,
            length: 0,
            readers: Vec::new(),
            writers: Vec::new(),
        };
        Arc::new(Self { state: Mutex::new(state) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(in crate::memory) fn size(&self) -> TerminalSize {
        self.lock().size
    }

    pub(in crate::memory) fn set_size(&self, size: TerminalSize) {
        self.lock().size = size;
    }

    /// The words of `stty`.
    pub(in crate::memory) fn set_mode(&self, word: &[u8]) -> bool {
        let mut state = self.lock();
        match word {
            b"raw" => state.raw = true,
            b"cooked" | b"sane" => (state.raw, state.echo) = (false, true),
            b"echo" => state.echo = true,
            b"-echo" => state.echo = false,
            _ => return false,
        }
        true
    }

    /// Output as a process wrote it, as the master reads it.
    pub(in crate::memory) fn processed(&self, bytes: &Bytes) -> Bytes {
        if self.lock().raw || !bytes.contains(&b'\n') {
            return bytes.clone();
        }
        let mut out = Vec::with_capacity(bytes.len() + bytes.len() / 4);
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            match line.split_last() {
                Some((b'\n', text)) => {
                    out.extend_from_slice(text);
                    out.extend_from_slice(b"\r\n");
                }
                _ => out.extend_from_slice(line),
            }
        }
        out.into()
    }

    /// What a process reads: a line, or what was typed in raw mode; empty at an end of input.
    pub(in crate::memory) async fn read(&self, most: usize) -> Bytes {
        poll_fn(|context| {
            let mut state = self.lock();
            let Some(mut piece) = state.ready.pop_front() else {
                state.readers.push(context.waker().clone());
                return Poll::Pending;
            };
            if piece.len() > most {
                let rest = piece.split_off(most);
                state.ready.push_front(rest);
            }
            state.length -= piece.len();
            state.writers.drain(..).for_each(Waker::wake);
            Poll::Ready(piece)
        })
        .await
    }

    /// Types bytes. `interrupt` is called for each interrupt key; echoes go to `output`.
    pub(in crate::memory) fn poll_type(
        &self,
        context: &mut Context<'_>,
        bytes: &[u8],
        output: &PipeWriter,
        mut interrupt: impl FnMut(),
    ) -> Poll<io::Result<usize>> {
        let mut interrupts = 0;
        let mut state = self.lock();
        let room = CAPACITY.saturating_sub(state.length);
        if room == 0 && !bytes.is_empty() {
            state.writers.push(context.waker().clone());
            return Poll::Pending;
        }
        let taken = &bytes[..room.min(bytes.len())];
        let mut echo = Vec::new();
        if state.raw {
            state.ready.push_back(Bytes::copy_from_slice(taken));
            state.length += taken.len();
            echo.extend_from_slice(taken);
        } else {
            for byte in taken {
                match *byte {
                    INTERRUPT => {
                        interrupts += 1;
                        state.line.clear();
                        echo.extend_from_slice(b"^C");
                    }
                    END => {
                        let line = std::mem::take(&mut state.line);
                        state.length += line.len();
                        state.ready.push_back(line.into());
                    }
                    ERASE => {
                        if state.line.pop().is_some() {
                            echo.extend_from_slice(b"\x08 \x08");
                        }
                    }
                    b'\r' | b'\n' => {
                        let mut line = std::mem::take(&mut state.line);
                        line.push(b'\n');
                        state.length += line.len();
                        state.ready.push_back(line.into());
                        echo.extend_from_slice(b"\r\n");
                    }
                    other => {
                        state.line.push(other);
                        echo.push(other);
                    }
                }
            }
        }
        if state.echo {
            output.push(echo.into());
        }
        state.readers.drain(..).for_each(Waker::wake);
        drop(state);
        (0..interrupts).for_each(|_| interrupt());
        Poll::Ready(Ok(taken.len()))
    }
}
