//! Reading an archive.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _};
use std::path::Path;

use flate2::read::GzDecoder;
use sha2::{Digest as _, Sha256};

use super::Archive;
use super::format::{Item, MAGIC, get};
use crate::layer::{Sink as _, Writer, check_name, content::PIECE};

/// A digest in hexadecimal digits.
pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The digest and length of what a file holds.
pub(super) fn measure(mut file: &File) -> io::Result<Archive> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; PIECE];
    let mut bytes = 0;
    file.rewind()?;
    loop {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => {
                hasher.update(&buffer[..count]);
                bytes += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Archive { digest: hexadecimal(&hasher.finalize()), bytes })
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Unpacks an archive into the new directory `to`, one directory a layer, each with an `upper`.
pub(super) fn unpack(mut file: &File, to: &Path) -> io::Result<()> {
    file.rewind()?;
    let mut input = BufReader::with_capacity(PIECE, GzDecoder::new(BufReader::with_capacity(PIECE, file)));
    let mut magic = vec![0; MAGIC.len()];
    input.read_exact(&mut magic)?;
    if magic != MAGIC {
        return Err(malformed("it is of another kind or a newer version"));
    }
    let directory = |path: &Path, mode| fs::DirBuilder::new().mode(mode).create(path);
    directory(to, 0o700)?;
    loop {
        match get(&mut input)? {
            Item::Layer(name) => {
                check_name(&name)?;
                let layer = to.join(OsStr::from_bytes(&name));
                directory(&layer, 0o755)?;
                let upper = layer.join("upper");
                directory(&upper, 0o700)?;
                unpack_layer(&mut input, &upper, &to.join(".names"))?;
            }
            Item::End => return Ok(()),
            _ => return Err(malformed("an entry stands outside of every layer")),
        }
    }
}

fn unpack_layer(input: &mut impl Read, upper: &Path, waiting_room: &Path) -> io::Result<()> {
    let mut writer = Writer::new(upper, waiting_room.to_path_buf(), true)?;
    let mut depth = 0_u64;
    let mut buffer = vec![0; PIECE];
    loop {
        match get(input)? {
            Item::Enter(name) => {
                writer.enter_new(&name)?;
                depth += 1;
            }
            Item::Leave(attributes) => {
                writer.leave(&attributes)?;
                if depth == 0 {
                    return Ok(());
                }
                depth -= 1;
            }
            Item::File(name) => unpack_file(input, &mut writer, &name, &mut buffer)?,
            Item::Node { name, node, attributes, shared } => {
                writer.node(&name, &node, &attributes, shared)?;
            }
            Item::Link { name, number } => writer.link(&name, number)?,
            Item::Layer(_) | Item::Data { .. } | Item::EndOfFile { .. } | Item::End => {
                return Err(malformed("items are out of order"));
            }
        }
    }
}

fn unpack_file(input: &mut impl Read, writer: &mut Writer, name: &[u8], buffer: &mut [u8]) -> io::Result<()> {
    let file = writer.create(name)?;
    loop {
        match get(input)? {
            Item::Data { offset, length } => {
                let length = usize::try_from(length).ok().filter(|length| *length <= buffer.len());
                let piece = &mut buffer[..length.ok_or_else(|| malformed("a piece of data is too long"))?];
                input.read_exact(piece)?;
                file.write_all_at(piece, offset)?;
            }
            Item::EndOfFile { size, attributes, shared } => {
                file.set_len(size)?;
                return writer.finish(name, &file, &attributes, shared);
            }
            _ => return Err(malformed("a file does not end")),
        }
    }
}
