//! Pid 1 of a sandbox.
//!
//! The host starts this program again in new namespaces (see `launch`). It has one thread. It builds
//! the sandbox around itself ([`start`]), then serves requests until it is told to end, its creator is
//! gone, or its time is up ([`serve`]). It alone reaps (invariant 10).

mod commands;
mod connect;
mod file_operations;
mod file_server;
mod file_work;
mod harden;
mod scope;
mod serve;
mod spawn;
mod start;
mod system_calls;
mod tree;
mod users;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::process::DumpableBehavior;

use crate::protocol::{Event, EventBody, FrameReader, FrameWriter, Request, RequestBody, StartFailure, Tag};
use crate::syscall::{Linux, raw};

/// The first argument by which this program knows that it is pid 1 of a sandbox.
pub(crate) const PROGRAM_NAME: &str = "leasehold-init";
/// The descriptor of the first connection.
pub(crate) const CONNECTION_DESCRIPTOR: i32 = 3;

/// Becomes pid 1 of a sandbox if this process was started as one; else returns at once.
///
/// A program that uses the embedded provider calls this first thing in `main`, before it starts any
/// thread.
pub fn run_if_asked() {
    let asked = std::env::args_os().next().is_some_and(|name| name.as_bytes() == PROGRAM_NAME.as_bytes());
    if !asked {
        return;
    }
    let status = match run() {
        Ok(()) => 0,
        Err(_) => 1,
    };
    raw::exit_now(status)
}

fn run() -> io::Result<()> {
    // Nothing inside may look into this process, which holds descriptors of the host.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    // Out of the host's session: its terminal's Ctrl-C is not for us, and what can be changed about a
    // session through `/proc/1` (how the scheduler ranks it) must not be the host's.
    rustix::process::setsid()?;
    // Every mode is given in full; the host's mask must not make `/dev/shm` one user's.
    rustix::process::umask(rustix::fs::Mode::empty());
    raw::forget_ignored_signals();
    let connection = raw::take_inherited(CONNECTION_DESCRIPTOR).ok_or(io::ErrorKind::NotConnected)?;
    let signals = raw::signal_descriptor(&[libc::SIGCHLD])?;
    let mut reader = FrameReader::default();
    let (tag, body, mut descriptors) = first_message(&connection, &mut reader)?;
    let plan = match body {
        RequestBody::Start(plan) => *plan,
        RequestBody::Work(work) => {
            let body = file_work::perform(work, descriptors);
            return say(&connection, &Event { tag, body });
        }
        _ => return Err(io::ErrorKind::InvalidData.into()),
    };
    let mapped = descriptors.drain(..plan.mounts.mapped.len().min(descriptors.len())).collect();
    let cgroups: Vec<OwnedFd> =
        descriptors.drain(..usize::from(plan.cgroup_files).min(descriptors.len())).collect();
    let listener = if plan.listens { descriptors.pop() } else { None };
    // What is left is the lock: held until this process ends, it says that the sandbox lives.
    let _lock = descriptors;
    let built = start::build(&Linux, &plan, mapped).and_then(|layers| {
        barrier("scope", "the Landlock domain", scope::confine())?;
        barrier("system_calls", "the system-call filter", harden::prepare())?;
        Ok(layers)
    });
    match built {
        Ok(layers) => {
            let mut server = serve::Server::new(plan, signals, cgroups, listener);
            server.adopt(connection, reader, tag, layers)?;
            server.run()
        }
        Err(failure) => say(&connection, &Event { tag, body: EventBody::StartFailed(failure) }),
    }
}

/// Sends the one and last event.
fn say(connection: &OwnedFd, event: &Event) -> io::Result<()> {
    let mut writer = FrameWriter::default();
    writer.push(event, Vec::new())?;
    writer.flush(connection.as_fd())
}

/// A barrier that is put up after the build.
fn barrier(step: &str, subject: &str, result: io::Result<()>) -> Result<(), StartFailure> {
    result.map_err(|error| StartFailure {
        step: step.to_owned(),
        subject: subject.to_owned(),
        errno: error.raw_os_error().unwrap_or(0),
        hint: "run `leasehold doctor`".to_owned(),
    })
}

fn first_message(
    connection: &OwnedFd,
    reader: &mut FrameReader,
) -> io::Result<(Tag, RequestBody, Vec<OwnedFd>)> {
    loop {
        if let Some((request, descriptors)) = reader.next::<Request>()? {
            return Ok((request.tag, request.body, descriptors));
        }
        let mut wait = [rustix::event::PollFd::new(connection, rustix::event::PollFlags::IN)];
        match rustix::event::poll(&mut wait, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        match reader.fill(connection.as_fd()) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}
