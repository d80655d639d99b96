//! A process of the sandbox's own user that does file work for the host, inside.
//!
//! It sees what a command would see and may do what a command may do: the kernel resolves every path
//! below the sandbox's root, and nothing it says is trusted outside.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::file_operations::Worker;
use super::{harden, spawn, users};
use crate::protocol::{FilesRequest, FrameReader, FrameWriter, StartPlan};
use crate::syscall::raw;

/// Forks a file server and gives the host's end of its socket.
pub(super) fn open(plan: &StartPlan) -> io::Result<OwnedFd> {
    let account = users::resolve(&plan.user)?;
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    if raw::fork()?.is_some() {
        return Ok(ours);
    }
    drop(ours);
    raw::reset_signals();
    let become_server = || -> io::Result<()> {
        // Everything else of pid 1 is not for this process; only its own socket is kept.
        let socket = rustix::io::dup(&theirs)?;
        rustix::stdio::dup2_stdin(&socket)?;
        raw::close_from(3)?;
        std::mem::forget(socket);
        spawn::become_account(plan, &account)?;
        rustix::process::umask(rustix::fs::Mode::empty());
        let _ = rustix::process::chdir(&*plan.directory);
        harden::give_up(account.user == 0)?;
        let mut worker = Worker::default();
        let served = serve(&rustix::stdio::stdin().try_clone_to_owned()?, &mut worker);
        // The host may have gone in the middle of a write; then the old file is the file.
        worker.abandon_scratch();
        served
    };
    raw::exit_now(i32::from(become_server().is_err()))
}

fn serve(socket: &OwnedFd, worker: &mut Worker) -> io::Result<()> {
    let mut reader = FrameReader::default();
    let mut writer = FrameWriter::default();
    loop {
        while let Some((request, _)) = reader.next::<FilesRequest>()? {
            for (reply, descriptor) in worker.answer(request) {
                writer.push(&reply, descriptor.into_iter().collect())?;
            }
        }
        let flags = if writer.is_empty() { PollFlags::IN } else { PollFlags::OUT };
        match rustix::event::poll(&mut [PollFd::new(socket, flags)], None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let progress = if writer.is_empty() {
            match reader.fill(socket.as_fd()) {
                Ok(0) => return Ok(()),
                other => other.map(drop),
            }
        } else {
            writer.flush(socket.as_fd())
        };
        match progress {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            _ => {}
        }
    }
}
