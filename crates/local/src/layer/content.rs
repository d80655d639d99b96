//! The bytes of a file, without its holes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

/// Bytes moved at once.
pub(crate) const PIECE: usize = 1 << 18;

/// Tells where a file has data: offset and length, in order.
pub(crate) fn pieces(
    file: &File,
    size: u64,
    mut piece: impl FnMut(u64, u64) -> io::Result<()>,
) -> io::Result<()> {
    let mut end = 0;
    while end < size {
        let start = match rustix::fs::seek(file, SeekFrom::Data(end)) {
            Ok(start) => start,
            // Nothing but a hole follows.
            Err(Errno::NXIO) => return Ok(()),
            // This file system knows of no holes.
            Err(Errno::INVAL) => return piece(end, size - end),
            Err(error) => return Err(error.into()),
        };
        end = rustix::fs::seek(file, SeekFrom::Hole(start))?.min(size);
        if start < end {
            piece(start, end - start)?;
        }
    }
    Ok(())
}

/// Copies what `from` holds into the empty file `to`, sharing the blocks where the file system can.
pub(crate) fn copy(from: &File, to: &File, size: u64) -> io::Result<()> {
    if size == 0 || rustix::fs::ioctl_ficlone(to, from).is_ok() {
        return Ok(());
    }
    let mut buffer = Vec::new();
    pieces(from, size, |start, length| {
        let mut done = 0;
        while done < length {
            let (mut input, mut output) = (start + done, start + done);
            let left = usize::try_from(length - done).unwrap_or(usize::MAX).min(1 << 30);
            match rustix::fs::copy_file_range(from, Some(&mut input), to, Some(&mut output), left) {
                // The file is shorter than it was.
                Ok(0) => return Ok(()),
                Ok(count) => done += count as u64,
                Err(Errno::INTR) => {}
                Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::BADF) => {
                    buffer.resize(PIECE, 0);
                    let count = from.read_at(&mut buffer[..left.min(PIECE)], start + done)?;
                    if count == 0 {
                        return Ok(());
                    }
                    to.write_all_at(&buffer[..count], start + done)?;
                    done += count as u64;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    })?;
    to.set_len(size)
}
