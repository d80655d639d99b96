//! The form of an archive: gzip around a magic line and a sequence of items.
//!
//! An item is its length in four bytes, the lowest first, and as many bytes of its `postcard` form. The
//! bytes of a piece of data follow its item as they are. A directory's entries stand between its `Enter`
//! and its `Leave`, so a name is always one component and there are no paths that could lead elsewhere.
//! A tar archive would be neither simpler nor exact: deletions, closed directories, the overlay's marks
//! and names of any bytes would all need extensions.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

use crate::layer::{Attributes, Node, Shared};

/// How an archive begins. Another form would have another number.
pub(super) const MAGIC: &[u8] = b"leasehold layers 1\n";
/// The longest item: a file may have many extended attributes of 64 KiB each.
const LONGEST: u32 = 64 << 20;

/// One item of an archive. Names are single components.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Item {
    /// A layer begins; its root is a directory that ends with `Leave`.
    Layer(Vec<u8>),
    /// A directory begins.
    Enter(Vec<u8>),
    /// The current directory ends.
    Leave(Attributes),
    /// A regular file begins.
    File(Vec<u8>),
    /// A piece of the current file; what no piece covers is a hole.
    Data { offset: u64, length: u32 },
    /// The current file ends.
    EndOfFile { size: u64, attributes: Attributes, shared: Option<Shared> },
    /// Anything else.
    Node { name: Vec<u8>, node: Node, attributes: Attributes, shared: Option<Shared> },
    /// A further name of a file or node.
    Link { name: Vec<u8>, number: u64 },
    /// The archive ends.
    End,
}

/// Writes one item.
pub(super) fn put(output: &mut impl Write, item: &Item) -> io::Result<()> {
    let bytes = postcard::to_stdvec(item).map_err(io::Error::other)?;
    let length = u32::try_from(bytes.len()).ok().filter(|length| *length <= LONGEST);
    let length = length.ok_or_else(|| io::Error::other("an entry has too many extended attributes"))?;
    output.write_all(&length.to_le_bytes())?;
    output.write_all(&bytes)
}

/// Reads one item.
pub(super) fn get(input: &mut impl Read) -> io::Result<Item> {
    let mut length = [0; 4];
    input.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    let malformed = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    if length > LONGEST {
        return Err(malformed(format!("an item of {length} bytes")));
    }
    let mut bytes = Vec::new();
    input.by_ref().take(length.into()).read_to_end(&mut bytes)?;
    if bytes.len() as u64 != u64::from(length) {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    postcard::from_bytes(&bytes).map_err(|error| malformed(format!("an unknown item: {error}")))
}
