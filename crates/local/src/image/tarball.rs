//! Reading tar archives: ustar, PAX and GNU, from a stream, with every size bounded.
//!
//! Written here because of what layers hold and what must not be trusted: names and attributes with
//! newlines, negative and fractional times, sparse files, and extension headers as large as an
//! attacker likes. Where parsers disagree, Go's `archive/tar` is followed: the tools that make layers use it.

use std::io::Read;

use leasehold_model::{Error, ErrorKind, Result};

use super::pax::{self, PaxRecords};
use super::sparse::SparseMap;

const BLOCK: usize = 512;

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryKind {
    File,
    HardLink,
    Symlink,
    Directory,
    Fifo,
    Device,
    Unknown(u8),
}

/// One entry; its data follows in [`Tarball::read`].
#[derive(Debug)]
pub(super) struct Entry {
    /// As written, not checked.
    pub(super) path: Vec<u8>,
    pub(super) link: Vec<u8>,
    pub(super) kind: EntryKind,
    pub(super) mode: u32,
    pub(super) user: u64,
    pub(super) group: u64,
    /// Seconds since 1970, rounded down, and nanoseconds.
    pub(super) modified: (i64, u32),
    /// The size of the file, holes included.
    pub(super) size: u64,
    pub(super) sparse: Option<SparseMap>,
    pub(super) attributes: Vec<(Vec<u8>, Vec<u8>)>,
    /// Where the data starts in the archive.
    pub(super) data_offset: u64,
}

/// A tar archive being read.
pub(super) struct Tarball<R> {
    reader: R,
    /// Bytes read so far.
    position: u64,
    /// Data of the current entry not yet read.
    remaining: u64,
    padding: u64,
    header_bytes: u64,
}

/// A reader that may know a cheaper way to skip than to read.
pub(super) trait Skip: Read {
    fn skip(&mut self, mut count: u64) -> std::io::Result<()> {
        let mut buffer = vec![0; usize::try_from(count.min(64 << 10)).unwrap_or(64 << 10)];
        while count > 0 {
            let want = usize::try_from(count).unwrap_or(usize::MAX).min(buffer.len());
            self.read_exact(&mut buffer[..want])?;
            count -= want as u64;
        }
        Ok(())
    }
}

/// A stream, which skips by reading.
pub(super) struct Streamed<R>(pub(super) R);

impl<R: Read> Read for Streamed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(buffer)
    }
}

impl<R: Read> Skip for Streamed<R> {}

impl<R: Skip> Tarball<R> {
    pub(super) fn new(reader: R, header_bytes: u64) -> Self {
        Self { reader, position: 0, remaining: 0, padding: 0, header_bytes }
    }

    /// The next entry, or `None` at the end of the archive.
    pub(super) fn next(&mut self) -> Result<Option<Entry>> {
        let mut records = PaxRecords::default();
        let mut long_path = None;
        let mut long_link = None;
        let mut pending = false;
        loop {
            let Some(header) = self.header()? else {
                if pending {
                    return Err(corrupt("an extension header at the end of the archive describes nothing"));
                }
                return Ok(None);
            };
            match header.kind() {
                b'x' => records.add(&self.body(&header)?).ok_or_else(bad_records)?,
                // Global records are not applied: no tool that makes layers writes any that matter,
                // and Go, which the others read with, ignores them.
                b'g' => {
                    self.remaining = header.size()?;
                    self.padding = padding(self.remaining);
                    continue;
                }
                b'L' => long_path = Some(until_nul(&self.body(&header)?).to_vec()),
                b'K' => long_link = Some(until_nul(&self.body(&header)?).to_vec()),
                _ => return self.entry(&header, &records, long_path, long_link).map(Some),
            }
            pending = true;
        }
    }

    fn entry(
        &mut self,
        header: &Header,
        records: &PaxRecords,
        long_path: Option<Vec<u8>>,
        long_link: Option<Vec<u8>>,
    ) -> Result<Entry> {
        let recorded = |key| records.get(key).map(<[u8]>::to_vec);
        let path = long_path
            .or_else(|| recorded("GNU.sparse.name"))
            .or_else(|| recorded("path"))
            .unwrap_or_else(|| header.path());
        let link = long_link.or_else(|| recorded("linkpath")).unwrap_or_else(|| header.link());
        let bad = |field: &str| corrupt(format!("the entry `{}` has a bad {field}", path.escape_ascii()));

        let number = |key: &'static str, field: &[u8]| {
            let recorded = records.number(key).map_err(|_| bad(key))?;
            recorded
                .or_else(|| number(field).and_then(|value| u64::try_from(value).ok()))
                .ok_or_else(|| bad(key))
        };
        let modified = match records.get("mtime") {
            Some(text) => pax::time(text).ok_or_else(|| bad("mtime"))?,
            None => (self::number(header.field(136, 12)).ok_or_else(|| bad("mtime"))?, 0),
        };
        let mode = self::number(header.field(100, 8)).ok_or_else(|| bad("mode"))?;
        let kind = match header.kind() {
            0 if path.ends_with(b"/") => EntryKind::Directory,
            b'0' | 0 | b'7' | b'S' => EntryKind::File,
            b'1' => EntryKind::HardLink,
            b'2' => EntryKind::Symlink,
            b'3' | b'4' => EntryKind::Device,
            b'5' => EntryKind::Directory,
            b'6' => EntryKind::Fifo,
            other => EntryKind::Unknown(other),
        };
        let size = number("size", header.field(124, 12))?;
        // Entries of these kinds have no data, whatever their size field says.
        let stored = if matches!(kind, EntryKind::File | EntryKind::Unknown(_)) { size } else { 0 };
        self.remaining = stored;
        self.padding = padding(stored);

        let mut entry = Entry {
            link,
            kind,
            mode: u32::try_from(mode & 0o7777).unwrap_or(0),
            user: number("uid", header.field(108, 8))?,
            group: number("gid", header.field(116, 8))?,
            modified,
            size: stored,
            sparse: None,
            attributes: records.attributes().map(|(name, value)| (name.to_vec(), value.to_vec())).collect(),
            data_offset: self.position,
            path,
        };
        if kind == EntryKind::File {
            self.sparse(header, records, &mut entry)?;
        }
        Ok(entry)
    }

    /// Finds out whether a file is sparse, and reads its map.
    fn sparse(&mut self, header: &Header, records: &PaxRecords, entry: &mut Entry) -> Result<()> {
        let bad = |entry: &Entry| {
            corrupt(format!("the entry `{}` has a bad map of its holes", entry.path.escape_ascii()))
        };
        let found = if header.kind() == b'S' {
            let map = self.old_sparse(header)?.ok_or_else(|| bad(entry))?;
            let size = number(header.field(483, 12)).and_then(|size| u64::try_from(size).ok());
            Some((map, size))
        } else if records.get("GNU.sparse.major") == Some(b"1") {
            let before = self.remaining;
            let map = SparseMap::read(|| {
                let mut byte = [0];
                self.read_exact(&mut byte)?;
                Ok::<u8, Error>(byte[0])
            })?
            .ok_or_else(|| bad(entry))?;
            // The map is padded to whole blocks.
            let mut rest = vec![0; usize::try_from(padding(before - self.remaining)).unwrap_or(0)];
            self.read_exact(&mut rest)?;
            Some((map, records.number("GNU.sparse.realsize").ok().flatten()))
        } else {
            let found = SparseMap::from_records(records).map_err(|_| bad(entry))?;
            found.map(|(map, size)| (map, Some(size)))
        };
        let Some((map, size)) = found else { return Ok(()) };
        let size = size.ok_or_else(|| bad(entry))?;
        if map.stored(size) != Some(self.remaining) {
            return Err(bad(entry));
        }
        entry.size = size;
        entry.sparse = Some(map);
        entry.data_offset = self.position;
        Ok(())
    }

    /// The map of GNU's old format: four pieces in the header, more in blocks after it.
    fn old_sparse(&mut self, header: &Header) -> Result<Option<SparseMap>> {
        let mut map = SparseMap::default();
        let add = |map: &mut SparseMap, piece: &[u8]| -> Option<()> {
            if piece[0] == 0 {
                return Some(());
            }
            let offset = u64::try_from(number(&piece[..12])?).ok()?;
            let length = u64::try_from(number(&piece[12..])?).ok()?;
            map.add(offset, length)
        };
        for piece in header.field(386, 96).chunks_exact(24) {
            if add(&mut map, piece).is_none() {
                return Ok(None);
            }
        }
        let mut more = header.field(482, 1)[0] != 0;
        while more {
            let mut block = [0; BLOCK];
            self.read_block(&mut block)?;
            for piece in block[..504].chunks_exact(24) {
                if add(&mut map, piece).is_none() {
                    return Ok(None);
                }
            }
            more = block[504] != 0;
        }
        Ok(Some(map))
    }

    /// Reads data of the current entry; 0 at its end.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let want = usize::try_from(self.remaining).unwrap_or(usize::MAX).min(buffer.len());
        if want == 0 {
            return Ok(0);
        }
        let count = loop {
            match self.reader.read(&mut buffer[..want]) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(reading(error)),
                Ok(0) => return Err(truncated()),
                Ok(count) => break count,
            }
        };
        self.remaining -= count as u64;
        self.position += count as u64;
        Ok(count)
    }

    /// Fills the buffer with data of the current entry.
    pub(super) fn read_exact(&mut self, mut buffer: &mut [u8]) -> Result<()> {
        while !buffer.is_empty() {
            match self.read(buffer)? {
                0 => return Err(truncated()),
                count => buffer = &mut buffer[count..],
            }
        }
        Ok(())
    }

    fn header(&mut self) -> Result<Option<Header>> {
        let skip = self.remaining.checked_add(self.padding).ok_or_else(truncated)?;
        self.reader.skip(skip).map_err(reading)?;
        self.position = self.position.checked_add(skip).ok_or_else(truncated)?;
        (self.remaining, self.padding) = (0, 0);

        let mut block = [0; BLOCK];
        let mut filled = 0;
        while filled < BLOCK {
            match self.reader.read(&mut block[filled..]) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(reading(error)),
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => return Err(truncated()),
                Ok(count) => filled += count,
            }
        }
        self.position += BLOCK as u64;
        if block.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let header = Header(block);
        header.check()?;
        Ok(Some(header))
    }

    /// The body of an extension header.
    fn body(&mut self, header: &Header) -> Result<Vec<u8>> {
        let size = header.size()?;
        if size > self.header_bytes {
            return Err(Error::new(
                ErrorKind::LimitExceeded,
                "image.unpack",
                format!("an extension header has {size} bytes; {} are allowed", self.header_bytes),
            ));
        }
        self.remaining = size;
        self.padding = padding(size);
        let mut body = vec![0; usize::try_from(size).unwrap_or(0)];
        self.read_exact(&mut body)?;
        Ok(body)
    }

    fn read_block(&mut self, block: &mut [u8; BLOCK]) -> Result<()> {
        self.reader.read_exact(block).map_err(reading)?;
        self.position += BLOCK as u64;
        Ok(())
    }
}

struct Header([u8; BLOCK]);

impl Header {
    fn field(&self, offset: usize, length: usize) -> &[u8] {
        &self.0[offset..offset + length]
    }

    fn kind(&self) -> u8 {
        self.0[156]
    }

    fn size(&self) -> Result<u64> {
        let size = number(self.field(124, 12)).and_then(|size| u64::try_from(size).ok());
        size.ok_or_else(|| corrupt("an extension header has a bad size"))
    }

    fn path(&self) -> Vec<u8> {
        let name = until_nul(self.field(0, 100));
        let prefix = until_nul(self.field(345, 155));
        // GNU's own format keeps other things where ustar has the prefix.
        if self.field(257, 6) != b"ustar\0" || prefix.is_empty() {
            return name.to_vec();
        }
        [prefix, b"/", name].concat()
    }

    fn link(&self) -> Vec<u8> {
        until_nul(self.field(157, 100)).to_vec()
    }

    /// Some old writers summed signed bytes, so both sums are right.
    fn check(&self) -> Result<()> {
        let bytes = || {
            let blank = std::iter::repeat_n(&b' ', 8);
            self.0[..148].iter().chain(blank).chain(&self.0[156..])
        };
        let unsigned: i64 = bytes().map(|byte| i64::from(*byte)).sum();
        let signed: i64 = bytes().map(|byte| i64::from(byte.cast_signed())).sum();
        match number(self.field(148, 8)) {
            Some(sum) if sum == unsigned || sum == signed => Ok(()),
            _ => Err(corrupt("a header of the archive has a wrong checksum")),
        }
    }
}

/// A header's number: octal digits, or big-endian two's complement when the first bit is set.
fn number(field: &[u8]) -> Option<i64> {
    if field[0] & 0x80 != 0 {
        let negative = field[0] & 0x40 != 0;
        let first = if negative { field[0] } else { field[0] & 0x3F };
        let start = if negative { -1_i128 } else { 0 };
        let value = std::iter::once(first)
            .chain(field[1..].iter().copied())
            .fold(start, |value, byte| (value << 8) | i128::from(byte));
        return i64::try_from(value).ok();
    }
    let digits = until_nul(field).trim_ascii();
    digits.iter().try_fold(0_i64, |value, digit| {
        let digit = matches!(digit, b'0'..=b'7').then(|| i64::from(digit - b'0'))?;
        value.checked_mul(8)?.checked_add(digit)
    })
}

fn until_nul(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn padding(size: u64) -> u64 {
    size.wrapping_neg() % BLOCK as u64
}

fn corrupt(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, "image.unpack", message)
}

fn bad_records() -> Error {
    corrupt("an extension header of the archive is malformed")
}

fn truncated() -> Error {
    corrupt("the archive ends in the middle of an entry")
}

fn reading(error: std::io::Error) -> Error {
    if error.kind() == std::io::ErrorKind::UnexpectedEof {
        return truncated().with_source(error);
    }
    // A reader of ours put its own judgement inside.
    match error.downcast::<Error>() {
        Ok(error) => error,
        Err(error) => corrupt("cannot read the archive").with_source(error),
    }
}
