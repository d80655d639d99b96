//! File work that this user may not do as itself: files of its subordinate ids.
//!
//! A normal user owns its subordinate ids but is not allowed to touch their files. The same program in a
//! user namespace that maps them is. It does one piece of work and ends.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use leasehold_model::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags};

use super::clone::{Namespaces, reap};
use super::{owners, start_process};
use crate::archive::Archive;
use crate::identity::{self, IdentityMap};
use crate::image::UnpackReport;
use crate::protocol::{Event, EventBody, FileWork, FrameReader, FrameWriter, Request, RequestBody, Tag};
use crate::record::Record;

/// Removes a tree, with the help of a namespace where this process alone may not.
pub(crate) fn remove_tree(program: Option<&Path>, path: &Path) -> Result<()> {
    match crate::removal::remove_tree(path) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => match subordinate() {
            Some(map) => perform(program, &map, FileWork::Remove { path: path.into() }, None, None).map(drop),
            None => Err(error),
        },
        other => other,
    }
}

/// Gives every file of a tree to the caller. With `base`, the path starts there.
pub(crate) fn take_over(
    program: Option<&Path>,
    map: &IdentityMap,
    base: Option<BorrowedFd<'_>>,
    path: &Path,
) -> Result<()> {
    let base = base.map(|base| base.try_clone_to_owned()).transpose();
    let base = base.map_err(|error| Error::io("files.take_over", "cannot pass the layers on", error))?;
    perform(program, map, FileWork::TakeOver { path: path.into() }, base, None).map(drop)
}

/// Unpacks a layer with the owners that the image names.
pub(crate) fn unpack(
    program: Option<&Path>,
    map: &IdentityMap,
    reader: &mut (dyn Read + Send),
    destination: &Path,
    limits: &crate::image::UnpackLimits,
) -> Result<UnpackReport> {
    let work = FileWork::Unpack { destination: destination.into(), limits: limits.clone() };
    match perform(program, map, work, None, Some(reader))? {
        EventBody::Unpacked(report) => Ok(report),
        _ => Err(wrong_answer()),
    }
}

/// Packs the layers of a state directory; see [`archive::write`](crate::archive::write).
pub(crate) fn pack_layers(program: Option<&Path>, map: &IdentityMap, state: &Path) -> Result<Archive> {
    match perform(program, map, FileWork::PackLayers { state: state.into() }, None, None)? {
        EventBody::Packed(archive) => Ok(archive),
        _ => Err(wrong_answer()),
    }
}

/// Unpacks the archive of a state directory; see [`archive::unpack`](crate::archive::unpack).
pub(crate) fn unpack_layers(program: Option<&Path>, map: &IdentityMap, state: &Path) -> Result<()> {
    perform(program, map, FileWork::UnpackLayers { state: state.into() }, None, None).map(drop)
}

/// Copies a layer with its owners; see [`layer::copy`](crate::layer::copy).
pub(crate) fn copy_layer(program: Option<&Path>, map: &IdentityMap, from: &Path, to: &Path) -> Result<()> {
    let work = FileWork::CopyLayer { from: from.into(), to: to.into() };
    perform(program, map, work, None, None).map(drop)
}

/// Merges layers, the lowest first, for the caller to read; see [`layer::merge`](crate::layer::merge).
pub(crate) fn merge_layers(
    program: Option<&Path>,
    map: &IdentityMap,
    layers: &[PathBuf],
    to: &Path,
) -> Result<()> {
    let layers = layers.iter().map(|layer| layer.as_path().into()).collect();
    perform(program, map, FileWork::MergeLayers { layers, to: to.into() }, None, None).map(drop)
}

fn wrong_answer() -> Error {
    Error::new(ErrorKind::Corrupt, "files.namespace", "the helper gave a wrong answer")
}

/// The ids that the files in a sandbox's layers may have, when they are not all the caller's or root's.
pub(crate) fn owners_of(record: &Record) -> Option<IdentityMap> {
    if rustix::process::geteuid().is_root() {
        return None;
    }
    record.image.as_ref().and_then(|_| subordinate())
}

/// The caller's subordinate ids, when it has some.
pub(crate) fn subordinate() -> Option<IdentityMap> {
    if !identity::has_subordinate_ids() {
        return None;
    }
    identity::choose("", true, (0, 0)).ok()
}

fn perform(
    program: Option<&Path>,
    map: &IdentityMap,
    work: FileWork,
    base: Option<OwnedFd>,
    reader: Option<&mut (dyn Read + Send)>,
) -> Result<EventBody> {
    let failed = |what: &'static str| {
        move |error: io::Error| Error::io("files.namespace", format!("cannot {what}"), error)
    };
    let started = start_process(program.map(PathBuf::from), map, Namespaces::UserOnly)?;
    owners::write_maps(map, started.cloned.pid)?;
    std::fs::File::from(started.opener).write_all(&[1]).map_err(failed("open the start gate"))?;

    let mut descriptors: Vec<OwnedFd> = base.into_iter().collect();
    let feed = match reader {
        None => None,
        Some(reader) => {
            let pipe = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC);
            let (theirs, ours) = pipe.map_err(io::Error::from).map_err(failed("make a pipe"))?;
            descriptors.push(theirs);
            Some((reader, ours))
        }
    };
    let mut writer = FrameWriter::default();
    let request = Request { tag: Tag(0), body: RequestBody::Work(work) };
    writer.push(&request, descriptors).map_err(failed("send the work"))?;
    flush(&mut writer, started.ours.as_fd()).map_err(failed("send the work"))?;
    let mut read_failure = None;
    if let Some((reader, ours)) = feed {
        let mut pipe = std::fs::File::from(ours);
        if let Err(error) = io::copy(reader, &mut pipe) {
            // A pipe that closed early belongs to a helper that gave up; it says why.
            if error.kind() != io::ErrorKind::BrokenPipe {
                read_failure = Some(error);
            }
        }
    }
    let answer = receive(started.ours.as_fd());
    let _ = rustix::event::poll(&mut [PollFd::new(&started.cloned.descriptor, PollFlags::IN)], None);
    reap(started.cloned.descriptor.as_fd());
    if let Some(error) = read_failure {
        return Err(Error::io("image.unpack", "cannot read the layer", error));
    }
    match answer.map_err(failed("hear from the helper"))? {
        EventBody::Refused(refusal) => Err(crate::link::refusal_error("files.namespace", &refusal)),
        answer => Ok(answer),
    }
}

fn flush(writer: &mut FrameWriter, socket: BorrowedFd<'_>) -> io::Result<()> {
    loop {
        match writer.flush(socket) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                rustix::event::poll(&mut [PollFd::new(&socket, PollFlags::OUT)], None)?;
            }
            other => return other,
        }
    }
}

fn receive(socket: BorrowedFd<'_>) -> io::Result<EventBody> {
    let mut reader = FrameReader::default();
    loop {
        if let Some((event, _)) = reader.next::<Event>()? {
            return Ok(event.body);
        }
        rustix::event::poll(&mut [PollFd::new(&socket, PollFlags::IN)], None)?;
        match reader.fill(socket) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            _ => {}
        }
    }
}
