//! Frames: four bytes of length, one of descriptor count, then the message.
//!
//! Descriptors travel with the first byte of their frame. The kernel never merges bytes across such a
//! boundary into one receive, so they arrive in the order of their frames.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The largest message: room for a megabyte-sized argument list and environment, and a bound on what
/// a hostile peer can make us hold.
pub(crate) const LARGEST_MESSAGE: usize = 16 << 20;
/// The most descriptors one frame may carry: as root, each exposed path and toolchain is one.
pub(crate) const MOST_DESCRIPTORS: usize = 64;
const HEADER: usize = 5;

fn corrupt(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("bad frame on the sandbox socket: {what}"))
}

/// Frames waiting to be sent on one socket.
#[derive(Debug, Default)]
pub(crate) struct FrameWriter {
    queue: VecDeque<Outgoing>,
}

#[derive(Debug)]
struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
    descriptors: Vec<OwnedFd>,
}

impl FrameWriter {
    /// Adds a message to the queue.
    pub(crate) fn push<M: Serialize>(&mut self, message: &M, descriptors: Vec<OwnedFd>) -> io::Result<()> {
        if descriptors.len() > MOST_DESCRIPTORS {
            return Err(corrupt("too many descriptors"));
        }
        let mut bytes = vec![0; HEADER];
        bytes = postcard::to_extend(message, bytes).map_err(|error| corrupt(&error.to_string()))?;
        let length = bytes.len() - HEADER;
        if length > LARGEST_MESSAGE {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("the message has {length} bytes, over the limit of {LARGEST_MESSAGE}"),
            ));
        }
        let length = u32::try_from(length).map_err(|_| corrupt("length"))?;
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        bytes[4] = u8::try_from(descriptors.len()).map_err(|_| corrupt("descriptors"))?;
        self.queue.push_back(Outgoing { bytes, sent: 0, descriptors });
        Ok(())
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// How many bytes wait.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.queue.iter().map(|frame| frame.bytes.len() - frame.sent).sum()
    }

    /// Sends what the socket takes. `WouldBlock` means: wait until it is writable, then call again.
    pub(crate) fn flush(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        while let Some(frame) = self.queue.front_mut() {
            let borrowed: Vec<BorrowedFd<'_>> = frame.descriptors.iter().map(AsFd::as_fd).collect();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if frame.sent == 0 && !borrowed.is_empty() {
                control.push(SendAncillaryMessage::ScmRights(&borrowed));
            }
            let part = [IoSlice::new(&frame.bytes[frame.sent..])];
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match rustix::net::sendmsg(socket, &part, &mut control, flags) {
                Ok(count) => {
                    frame.sent += count;
                    if frame.sent == frame.bytes.len() {
                        self.queue.pop_front();
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Bytes and descriptors received on one socket and not yet taken as messages.
#[derive(Debug, Default)]
pub(crate) struct FrameReader {
    bytes: Vec<u8>,
    descriptors: VecDeque<OwnedFd>,
}

impl FrameReader {
    /// Receives once. `Ok(0)` is the end; `WouldBlock` means: wait until it is readable.
    pub(crate) fn fill(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let mut chunk = [0_u8; 16 << 10];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = loop {
            match rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut chunk)], &mut control, flags) {
                Err(rustix::io::Errno::INTR) => {}
                other => break other?,
            }
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.descriptors.extend(descriptors);
            }
        }
        self.bytes.extend_from_slice(&chunk[..received.bytes]);
        Ok(received.bytes)
    }

    /// Takes the next whole message.
    pub(crate) fn next<M: DeserializeOwned>(&mut self) -> io::Result<Option<(M, Vec<OwnedFd>)>> {
        let Some(header) = self.bytes.first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let count = usize::from(header[4]);
        if length > LARGEST_MESSAGE || count > MOST_DESCRIPTORS {
            return Err(corrupt("its header is beyond the limits"));
        }
        if self.bytes.len() < HEADER + length {
            return Ok(None);
        }
        if self.descriptors.len() < count {
            return Err(corrupt("its descriptors did not come with it"));
        }
        let message = postcard::from_bytes(&self.bytes[HEADER..HEADER + length])
            .map_err(|error| corrupt(&error.to_string()))?;
        self.bytes.drain(..HEADER + length);
        Ok(Some((message, self.descriptors.drain(..count).collect())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::net::UnixStream;

    fn pair() -> (UnixStream, UnixStream) {
        UnixStream::pair().unwrap()
    }

    /// Receives until `count` messages came, sending meanwhile.
    fn pump<M: DeserializeOwned>(
        writer: &mut FrameWriter,
        left: &UnixStream,
        right: &UnixStream,
        count: usize,
    ) -> Vec<(M, Vec<OwnedFd>)> {
        let mut reader = FrameReader::default();
        let mut messages = Vec::new();
        while messages.len() < count {
            match writer.flush(left.as_fd()) {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => panic!("{error}"),
                _ => {}
            }
            match reader.fill(right.as_fd()) {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => panic!("{error}"),
                _ => {}
            }
            while let Some(message) = reader.next().unwrap() {
                messages.push(message);
            }
        }
        messages
    }

    #[test]
    fn descriptors_arrive_with_their_own_message() {
        let (left, right) = pair();
        let mut writer = FrameWriter::default();
        for number in 0..20_u32 {
            let descriptors =
                (0..number % 4).map(|_| std::fs::File::open("/dev/null").unwrap().into()).collect();
            writer.push(&(number, vec![7_u8; 3000]), descriptors).unwrap();
        }
        for (index, ((number, _), descriptors)) in
            pump::<(u32, Vec<u8>)>(&mut writer, &left, &right, 20).into_iter().enumerate()
        {
            assert_eq!((number as usize, descriptors.len()), (index, index % 4));
        }
    }

    #[test]
    fn a_megabyte_passes_and_a_huge_message_is_refused_before_it_is_sent() {
        let (left, right) = pair();
        let mut writer = FrameWriter::default();
        let big = vec![b'x'; 4 << 20];
        writer.push(&big, Vec::new()).unwrap();
        assert_eq!(pump::<Vec<u8>>(&mut writer, &left, &right, 1)[0].0, big);
        let error = writer.push(&vec![0_u8; LARGEST_MESSAGE + 1], Vec::new()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn a_hostile_length_is_refused_without_reserving_it() {
        let mut reader = FrameReader { bytes: vec![0xFF; HEADER], ..FrameReader::default() };
        assert!(reader.next::<u32>().is_err());
        let mut reader = FrameReader { bytes: vec![1, 0, 0, 0, 1, 0], ..FrameReader::default() };
        assert!(reader.next::<u8>().is_err(), "a descriptor was promised and did not come");
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut reader = FrameReader { bytes, ..FrameReader::default() };
            let _ = reader.next::<(u32, String, Vec<Option<u8>>)>();
        }
    }
}
