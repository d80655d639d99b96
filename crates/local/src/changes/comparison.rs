//! Whether two files hold the same bytes.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt as _;

use super::Cancellation;

/// Bytes compared at a time, per file.
const BLOCK: usize = 128 * 1024;

/// Compares two files of the same length block by block. An error of the operation being cancelled is
/// `Interrupted`.
pub(super) fn same_content(
    first: impl AsFd,
    second: impl AsFd,
    cancellation: &Cancellation,
) -> std::io::Result<bool> {
    let first = File::from(first.as_fd().try_clone_to_owned()?);
    let second = File::from(second.as_fd().try_clone_to_owned()?);
    let (mut left, mut right) = (vec![0; BLOCK], vec![0; BLOCK]);
    let mut offset = 0;
    loop {
        cancellation.check()?;
        let count = read_full(&first, &mut left, offset)?;
        if read_full(&second, &mut right, offset)? != count || left[..count] != right[..count] {
            return Ok(false);
        }
        if count < BLOCK {
            return Ok(true);
        }
        offset += count as u64;
    }
}

fn read_full(file: &File, block: &mut [u8], offset: u64) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < block.len() {
        match file.read_at(&mut block[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
