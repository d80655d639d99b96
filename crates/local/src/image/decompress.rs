//! Undoing a layer's compression.
//!
//! The format is taken from the first bytes, not from the media type: tools are known to label one as
//! the other, and the digest of the decompressed layer proves the result.

use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Result};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::FrameDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};

const GZIP: [u8; 2] = [0x1F, 0x8B];
const ZSTD: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];
/// Skippable frames, with which some zstd layers start: 0x184D2A5? little-endian.
const SKIPPABLE: [u8; 3] = [0x2A, 0x4D, 0x18];

/// How bytes are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compression {
    None,
    Gzip,
    Zstd,
}

impl Compression {
    /// Recognises the first four bytes.
    pub(super) fn of(start: &[u8]) -> Self {
        if start.starts_with(&GZIP) {
            Self::Gzip
        } else if start.starts_with(&ZSTD) || (start.len() >= 4 && start[1..4] == SKIPPABLE) {
            Self::Zstd
        } else {
            Self::None
        }
    }
}

/// The decompressed bytes of a reader.
pub(super) fn decompressed<'reader>(
    reader: impl Read + Send + 'reader,
) -> Result<Box<dyn Read + Send + 'reader>> {
    let mut start = Vec::with_capacity(4);
    let mut reader = BufReader::with_capacity(128 << 10, reader);
    (&mut reader).take(4).read_to_end(&mut start)?;
    let compression = Compression::of(&start);
    let whole = BufReader::with_capacity(128 << 10, std::io::Cursor::new(start).chain(reader));
    Ok(match compression {
        Compression::None => Box::new(whole),
        Compression::Gzip => Box::new(MultiGzDecoder::new(whole)),
        Compression::Zstd => {
            Box::new(ZstdFrames { source: whole, decoder: FrameDecoder::new(), within: false })
        }
    })
}

/// All frames of a zstd stream, one after the other; the library decodes one.
struct ZstdFrames<R> {
    source: R,
    decoder: FrameDecoder,
    within: bool,
}

impl<R: BufRead> ZstdFrames<R> {
    /// Starts the next frame; false at the end of the stream.
    fn start_frame(&mut self) -> Result<bool> {
        loop {
            if self.source.fill_buf()?.is_empty() {
                return Ok(false);
            }
            match self.decoder.reset(&mut self.source) {
                Ok(()) => {
                    self.within = true;
                    return Ok(true);
                }
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let length = u64::from(length);
                    let skipped = std::io::copy(&mut (&mut self.source).take(length), &mut std::io::sink())?;
                    if skipped < length {
                        return Err(ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(Error::other(error)),
            }
        }
    }
}

impl<R: BufRead> Read for ZstdFrames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        use ruzstd::decoding::BlockDecodingStrategy::UptoBlocks;

        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            if !self.within && !self.start_frame()? {
                return Ok(0);
            }
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                self.decoder.decode_blocks(&mut self.source, UptoBlocks(1)).map_err(Error::other)?;
            }
            if self.decoder.can_collect() > 0 {
                return self.decoder.read(buffer);
            }
            let promised = self.decoder.get_checksum_from_data();
            if promised.is_some() && promised != self.decoder.get_calculated_checksum() {
                return Err(Error::new(ErrorKind::InvalidData, "a zstd frame has a wrong checksum"));
            }
            self.within = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    fn read(bytes: &[u8]) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        decompressed(bytes)?.read_to_end(&mut out)?;
        Ok(out)
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn each_format_is_recognised_and_members_follow_one_another() {
        let text = b"leasehold ".repeat(50_000);
        let twice = [&text[..], &text].concat();
        let zstd = compress_to_vec(text.as_slice(), CompressionLevel::Fastest);
        let skippable = [&[0x50, 0x2A, 0x4D, 0x18, 3, 0, 0, 0, 1, 2, 3][..], &zstd, &zstd].concat();
        assert_eq!(read(&text).unwrap(), text);
        assert_eq!(read(&[gzip(&text), gzip(&text)].concat()).unwrap(), twice);
        assert_eq!(read(&skippable).unwrap(), twice);
        assert_eq!(read(b"").unwrap(), b"");
        assert_eq!(read(b"abc").unwrap(), b"abc");
    }

    #[test]
    fn truncated_streams_are_errors() {
        let text = b"leasehold ".repeat(50_000);
        for whole in [gzip(&text), compress_to_vec(text.as_slice(), CompressionLevel::Fastest)] {
            for cut in [5, whole.len() / 2, whole.len() - 1] {
                assert!(read(&whole[..cut]).is_err(), "cut at {cut} of {}", whole.len());
            }
        }
    }
}
