//! Sparse files in archives: GNU's old format and its three PAX formats.

use super::pax::{Malformed, PaxRecords, decimal};

/// The most pieces of data one sparse file may have.
const PIECES: usize = 1 << 20;

/// Where a sparse file has data; all else is a hole. The pieces lie one after the other in the archive.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct SparseMap {
    /// Offset in the file, and length.
    pub(super) pieces: Vec<(u64, u64)>,
}

impl SparseMap {
    /// Adds a piece; `None` when it is out of order, overlaps, or is one too many.
    pub(super) fn add(&mut self, offset: u64, length: u64) -> Option<()> {
        let end = self.pieces.last().map_or(Some(0), |(offset, length)| offset.checked_add(*length))?;
        offset.checked_add(length)?;
        if offset < end || self.pieces.len() >= PIECES {
            return None;
        }
        if length > 0 {
            self.pieces.push((offset, length));
        }
        Some(())
    }

    /// Bytes of data, if the pieces fit into a file of this size.
    pub(super) fn stored(&self, size: u64) -> Option<u64> {
        if let Some((offset, length)) = self.pieces.last()
            && offset + length > size
        {
            return None;
        }
        self.pieces.iter().try_fold(0_u64, |sum, (_, length)| sum.checked_add(*length))
    }

    /// The map in PAX records of the formats 0.0 and 0.1, with the file's size, if there is one.
    pub(super) fn from_records(records: &PaxRecords) -> Result<Option<(Self, u64)>, Malformed> {
        let Some(size) = records.number("GNU.sparse.size")? else { return Ok(None) };
        let pairs = match records.get("GNU.sparse.map") {
            Some(text) => Self::listed(text).ok_or(Malformed)?,
            None => records.sparse_pairs.clone(),
        };
        let mut map = Self::default();
        for (offset, length) in pairs {
            map.add(offset, length).ok_or(Malformed)?;
        }
        Ok(Some((map, size)))
    }

    fn listed(text: &[u8]) -> Option<Vec<(u64, u64)>> {
        let numbers: Option<Vec<u64>> = text.split(|byte| *byte == b',').map(decimal).collect();
        let numbers = numbers?;
        let (pairs, rest) = numbers.as_chunks::<2>();
        rest.is_empty().then(|| pairs.iter().map(|[offset, length]| (*offset, *length)).collect())
    }

    /// Reads the map of format 1.0, which stands before the data: a count, then the pairs, one
    /// number a line. `next` gives the next byte.
    pub(super) fn read<E>(mut next: impl FnMut() -> Result<u8, E>) -> Result<Option<Self>, E> {
        let mut number = || {
            let mut digits = Vec::new();
            loop {
                match next()? {
                    b'\n' => return Ok(decimal(&digits)),
                    byte if digits.len() < 20 => digits.push(byte),
                    _ => return Ok(None),
                }
            }
        };
        let mut map = Self::default();
        let Some(count) = number()? else { return Ok(None) };
        for _ in 0..count {
            let (Some(offset), Some(length)) = (number()?, number()?) else { return Ok(None) };
            if map.add(offset, length).is_none() {
                return Ok(None);
            }
        }
        Ok(Some(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_come_in_order_and_within_the_file() {
        let mut map = SparseMap::default();
        map.add(10, 5).unwrap();
        map.add(15, 0).unwrap();
        map.add(20, 1).unwrap();
        assert_eq!((map.stored(21), map.stored(20)), (Some(6), None));
        assert!(map.add(20, 1).is_none());
        assert!(map.add(u64::MAX, 2).is_none());
    }

    #[test]
    fn each_pax_format_gives_the_same_map() {
        let expected = SparseMap { pieces: vec![(512, 3), (1024, 4)] };
        let mut old = PaxRecords::default();
        old.add(b"24 GNU.sparse.size=2048\n25 GNU.sparse.offset=512\n25 GNU.sparse.numbytes=3\n26 GNU.sparse.offset=1024\n25 GNU.sparse.numbytes=4\n")
            .unwrap();
        assert_eq!(SparseMap::from_records(&old), Ok(Some((expected.clone(), 2048))));
        let mut listed = PaxRecords::default();
        listed.add(b"24 GNU.sparse.size=2048\n31 GNU.sparse.map=512,3,1024,4\n").unwrap();
        assert_eq!(SparseMap::from_records(&listed), Ok(Some((expected.clone(), 2048))));
        let mut bytes = b"2\n512\n3\n1024\n4\n".iter().copied();
        assert_eq!(SparseMap::read(|| bytes.next().ok_or(())), Ok(Some(expected)));
        assert_eq!(SparseMap::from_records(&PaxRecords::default()), Ok(None));
    }
}
