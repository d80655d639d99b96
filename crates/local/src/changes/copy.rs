//! Copies the content of a file: cloned where the file system can, holes kept as holes.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt as _;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::Cancellation;

/// Bytes that the kernel copies between two looks at the cancellation.
const KERNEL_CHUNK: usize = 16 * 1024 * 1024;
/// Bytes copied through memory at a time, where the kernel can't copy by itself.
const BUFFER: usize = 256 * 1024;

/// Fills an empty file with the first `length` bytes of another.
pub(super) fn copy_content(
    source: BorrowedFd<'_>,
    target: BorrowedFd<'_>,
    length: u64,
    cancellation: &Cancellation,
) -> io::Result<()> {
    if length == 0 || rustix::fs::ioctl_ficlone(target, source).is_ok() {
        return Ok(());
    }
    rustix::fs::ftruncate(target, length)?;
    let mut offset = 0;
    while offset < length {
        let (start, end) = match rustix::fs::seek(source, SeekFrom::Data(offset)) {
            Ok(start) => (start, rustix::fs::seek(source, SeekFrom::Hole(start))?.min(length)),
            // Only a hole is left.
            Err(Errno::NXIO) => break,
            // The file system does not know where its holes are.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => (offset, length),
            Err(error) => return Err(error.into()),
        };
        copy_range(source, target, start, end, cancellation)?;
        offset = end.max(start);
    }
    Ok(())
}

fn copy_range(
    source: BorrowedFd<'_>,
    target: BorrowedFd<'_>,
    start: u64,
    end: u64,
    cancellation: &Cancellation,
) -> io::Result<()> {
    let (mut from, mut to) = (start, start);
    while from < end {
        cancellation.check()?;
        let wanted = usize::try_from(end - from).unwrap_or(KERNEL_CHUNK).min(KERNEL_CHUNK);
        match rustix::fs::copy_file_range(source, Some(&mut from), target, Some(&mut to), wanted) {
            // Some file systems answer 0 instead of refusing; reading tells the difference.
            Ok(0) | Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::PERM) => {
                return copy_through_memory(source, target, from, end, cancellation);
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn copy_through_memory(
    source: BorrowedFd<'_>,
    target: BorrowedFd<'_>,
    start: u64,
    end: u64,
    cancellation: &Cancellation,
) -> io::Result<()> {
    let source = File::from(source.as_fd().try_clone_to_owned()?);
    let target = File::from(target.as_fd().try_clone_to_owned()?);
    let mut buffer = vec![0; BUFFER];
    let mut offset = start;
    while offset < end {
        cancellation.check()?;
        let wanted = usize::try_from(end - offset).unwrap_or(BUFFER).min(BUFFER);
        match source.read_at(&mut buffer[..wanted], offset) {
            Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter")),
            Ok(count) => {
                target.write_all_at(&buffer[..count], offset)?;
                offset += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn holes_stay_holes_by_kernel_and_through_memory() {
        let mut source = tempfile::tempfile().unwrap();
        source.set_len(64 << 20).unwrap();
        source.write_all_at(b"middle", 32 << 20).unwrap();
        source.write_all_at(b"end", (64 << 20) - 3).unwrap();
        let target = tempfile::tempfile().unwrap();
        let cancellation = Cancellation::default();
        copy_content(source.as_fd(), target.as_fd(), 64 << 20, &cancellation).unwrap();
        assert!(super::super::comparison::same_content(&source, &target, &cancellation).unwrap());
        assert!(target.metadata().unwrap().blocks() * 512 < 1 << 20);

        let second = tempfile::tempfile().unwrap();
        second.set_len(64 << 20).unwrap();
        let range = 32 << 20;
        copy_through_memory(source.as_fd(), second.as_fd(), range, range + 4096, &cancellation).unwrap();
        let mut read = [0; 6];
        second.read_exact_at(&mut read, range).unwrap();
        assert_eq!(&read, b"middle");
        io::Seek::rewind(&mut source).unwrap();
    }

    #[test]
    fn a_cancelled_copy_stops() {
        let source = tempfile::tempfile().unwrap();
        source.write_all_at(&[7; 100], 0).unwrap();
        let target = tempfile::tempfile().unwrap();
        let cancellation = Cancellation::default();
        cancellation.cancel();
        let error = copy_range(source.as_fd(), target.as_fd(), 0, 100, &cancellation).unwrap_err();
        assert!(Cancellation::caused(&error));
    }
}
