//! Writing an archive.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest as _, Sha256};

use super::Archive;
use super::format::{Item, MAGIC, put};
use super::unpack::hexadecimal;
use crate::layer::{self, Attributes, CAPABILITY, Content, Node, ReadOptions, Shared, Sink};

/// Writes layers, each a directory with an `upper`, to `file`.
///
/// An error of kind `Unsupported` names an entry that this user could not bring back: of another owner,
/// or with a file capability.
pub(super) fn pack(layers: &[PathBuf], file: &File) -> io::Result<Archive> {
    let measured = Measured { output: file, hasher: Sha256::new(), bytes: 0 };
    let output = GzEncoder::new(BufWriter::with_capacity(1 << 18, measured), Compression::fast());
    let mut packing = Packing { output, restorable: Restorable::by_this_user()?, buffer: Vec::new() };
    packing.output.write_all(MAGIC)?;
    for layer in layers {
        let name = layer.file_name().unwrap_or_default().as_bytes();
        put(&mut packing.output, &Item::Layer(name.to_vec()))?;
        layer::read(&layer.join("upper"), ReadOptions::default(), &mut packing)?;
    }
    put(&mut packing.output, &Item::End)?;
    let measured = packing.output.finish()?.into_inner().map_err(io::IntoInnerError::into_error)?;
    Ok(Archive { digest: hexadecimal(&measured.hasher.finalize()), bytes: measured.bytes })
}

/// A file, with the digest and the length of what was written to it.
struct Measured<'a> {
    output: &'a File,
    hasher: Sha256,
    bytes: u64,
}

impl Write for Measured<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.output.write(bytes)?;
        self.hasher.update(&bytes[..count]);
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

/// What can be brought back exactly: everything by root, the user's own files by others.
enum Restorable {
    Everything,
    Own { user: u32, groups: Vec<u32> },
}

impl Restorable {
    fn by_this_user() -> io::Result<Self> {
        let user = rustix::process::geteuid();
        if user.is_root() {
            return Ok(Self::Everything);
        }
        let groups = rustix::process::getgroups()?;
        let own = rustix::process::getegid();
        let groups = groups.into_iter().chain([own]).map(rustix::fs::Gid::as_raw).collect();
        Ok(Self::Own { user: user.as_raw(), groups })
    }

    fn check(&self, name: &[u8], attributes: &Attributes) -> io::Result<()> {
        let Self::Own { user, groups } = self else { return Ok(()) };
        let problem = if attributes.owner.0 != *user || !groups.contains(&attributes.owner.1) {
            "belongs to another user"
        } else if attributes.extended(CAPABILITY).is_some() {
            "has a file capability"
        } else {
            return Ok(());
        };
        let what = format!("`{}` {problem}, which only root can bring back", name.escape_ascii());
        Err(io::Error::new(io::ErrorKind::Unsupported, what))
    }
}

struct Packing<W: Write> {
    output: W,
    restorable: Restorable,
    buffer: Vec<u8>,
}

impl<W: Write> Sink for Packing<W> {
    fn enter(&mut self, name: &[u8], attributes: &Attributes) -> io::Result<()> {
        self.restorable.check(name, attributes)?;
        put(&mut self.output, &Item::Enter(name.to_vec()))
    }

    fn leave(&mut self, attributes: &Attributes) -> io::Result<()> {
        // The root of a layer was never entered.
        self.restorable.check(b".", attributes)?;
        put(&mut self.output, &Item::Leave(attributes.clone()))
    }

    fn file(
        &mut self,
        name: &[u8],
        content: &Content<'_>,
        attributes: &Attributes,
        shared: Option<Shared>,
    ) -> io::Result<()> {
        self.restorable.check(name, attributes)?;
        put(&mut self.output, &Item::File(name.to_vec()))?;
        let Self { output, buffer, .. } = self;
        buffer.resize(layer::content::PIECE, 0);
        layer::content::pieces(content.file, content.size, |start, length| {
            let mut done = 0;
            while done < length {
                let left = usize::try_from(length - done).unwrap_or(usize::MAX).min(buffer.len());
                let piece = &mut buffer[..left];
                content.file.read_exact_at(piece, start + done)?;
                let length = u32::try_from(left).map_err(io::Error::other)?;
                put(output, &Item::Data { offset: start + done, length })?;
                output.write_all(piece)?;
                done += left as u64;
            }
            Ok(())
        })?;
        let attributes = attributes.clone();
        put(&mut self.output, &Item::EndOfFile { size: content.size, attributes, shared })
    }

    fn node(
        &mut self,
        name: &[u8],
        node: &Node,
        attributes: &Attributes,
        shared: Option<Shared>,
    ) -> io::Result<()> {
        self.restorable.check(name, attributes)?;
        let (name, node, attributes) = (name.to_vec(), node.clone(), attributes.clone());
        put(&mut self.output, &Item::Node { name, node, attributes, shared })
    }

    fn link(&mut self, name: &[u8], number: u64) -> io::Result<()> {
        put(&mut self.output, &Item::Link { name: name.to_vec(), number })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_user_could_not_bring_back_is_refused_by_name() {
        let own = Restorable::Own { user: 1000, groups: vec![1000, 50] };
        let attributes = |owner, extended: &[&[u8]]| Attributes {
            mode: 0o644,
            owner,
            modified: (0, 0),
            extended: extended.iter().map(|name| (name.to_vec(), Vec::new())).collect(),
        };
        own.check(b"file", &attributes((1000, 50), &[b"user.overlay.origin"])).unwrap();
        for bad in [
            attributes((100_001, 1000), &[]),
            attributes((1000, 100_001), &[]),
            attributes((1000, 1000), &[CAPABILITY]),
        ] {
            let error = own.check(b"fi\xffle", &bad).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::Unsupported);
            assert!(error.to_string().contains("fi\\xffle"), "{error}");
            Restorable::Everything.check(b"file", &bad).unwrap();
        }
    }
}
