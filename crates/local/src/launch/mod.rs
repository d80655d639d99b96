//! The host's side of start-up: from a plan to a pid 1 that is ready.
//!
//! A failure at any step undoes the earlier ones: the new process is killed, and with it go its mounts
//! and namespaces. The caller owns directories and cgroups and takes them down itself.

mod clone;
pub(crate) mod file_work;
mod owners;

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use leasehold_model::{Error, ErrorKind, Result};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::Signal;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use self::clone::{CloneRequest, Cloned, Namespaces};
use crate::identity::IdentityMap;
use crate::link::Link;
use crate::protocol::{EventBody, NetworkOwner, RequestBody, StartFailure, StartPlan};
use crate::watched::watch;

/// How long a sandbox may take to build itself. Images with very many layers stay far below.
const START_TIME: Duration = Duration::from_secs(30);

/// Everything that start-up needs from the host.
pub(crate) struct LaunchRequest {
    /// The program that becomes pid 1; this program itself when not given.
    pub(crate) program: Option<PathBuf>,
    /// What pid 1 builds.
    pub(crate) plan: StartPlan,
    /// Who is who.
    pub(crate) identity: IdentityMap,
    /// The control files of the commands' cgroups.
    pub(crate) cgroup_files: Vec<OwnedFd>,
    /// Held by pid 1 for its whole life, and by nobody else once it is ready.
    pub(crate) lock: OwnedFd,
    /// Where later connections come in.
    pub(crate) listener: Option<OwnedFd>,
}

/// A pid 1 that is ready.
#[derive(Debug)]
pub(crate) struct Launched {
    pub(crate) link: Link,
    pub(crate) process: InitProcess,
    /// Where the layers are, when they live in memory.
    pub(crate) layers: Option<OwnedFd>,
}

/// The process of pid 1. Its end is waited for here and nowhere else.
#[derive(Debug)]
pub(crate) struct InitProcess {
    descriptor: AsyncFd<OwnedFd>,
}

impl InitProcess {
    /// Kills it, and with it everything inside.
    pub(crate) fn kill(&self) {
        // It may have ended by itself; then there is nothing to kill.
        let _ = rustix::process::pidfd_send_signal(self.descriptor.get_ref(), Signal::KILL);
    }

    /// Collects it when it ends by itself, whoever still holds this. The task ends with the process.
    fn collect_when_it_ends(&self) -> Result<()> {
        let copy = self.descriptor.get_ref().try_clone();
        let watched = copy.and_then(|copy| watch(copy, Interest::READABLE));
        let descriptor = watched.map_err(failure("watch the new process"))?;
        tokio::spawn(async move { Self { descriptor }.ended().await });
        Ok(())
    }

    /// Waits for its end and collects it.
    pub(crate) async fn ended(&self) {
        // The descriptor stays readable, so that any number of tasks may wait.
        let _ = self.descriptor.readable().await;
        clone::reap(self.descriptor.get_ref().as_fd());
    }
}

fn failure(what: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |error| Error::io("sandbox.start", format!("cannot {what}"), error).with_context("step", what)
}

struct Prepared {
    cloned: Cloned,
    ours: OwnedFd,
    mapped: Vec<OwnedFd>,
}

/// Starts pid 1 and waits until the sandbox is built.
pub(crate) async fn launch(request: LaunchRequest) -> Result<Launched> {
    let LaunchRequest { program, plan, identity, cgroup_files, lock, listener } = request;
    let (prepared, plan) = tokio::task::spawn_blocking(move || prepare(program, plan, &identity))
        .await
        .map_err(|error| Error::new(ErrorKind::Unexpected, "sandbox.start", error.to_string()))??;
    let Prepared { cloned, ours, mapped } = prepared;
    let descriptor =
        watch(cloned.descriptor, Interest::READABLE).map_err(failure("watch the new process"))?;
    let process = InitProcess { descriptor };
    let guard = KillOnDrop { process: Some(process) };
    let link = Link::new(ours).map_err(failure("watch the new connection"))?;

    let mut descriptors = mapped;
    descriptors.extend(cgroup_files);
    descriptors.push(lock);
    descriptors.extend(listener);
    let ready = async {
        let mut answers = link.send("sandbox.start", RequestBody::Start(Box::new(plan)), descriptors).await?;
        answers.next().await.ok_or_else(ended_early)
    };
    let (body, mut descriptors) = tokio::time::timeout(START_TIME, ready).await.map_err(|_| {
        Error::new(ErrorKind::DeadlineExceeded, "sandbox.start", "the sandbox did not build itself in time")
    })??;
    match body {
        EventBody::Ready => {
            let process = guard.release().ok_or_else(ended_early)?;
            process.collect_when_it_ends()?;
            Ok(Launched { link, process, layers: descriptors.pop() })
        }
        EventBody::StartFailed(failure) => Err(start_error(&failure)),
        _ => Err(Error::new(ErrorKind::Corrupt, "sandbox.start", "pid 1 gave a wrong answer")),
    }
}

struct KillOnDrop {
    process: Option<InitProcess>,
}

impl KillOnDrop {
    fn release(mut self) -> Option<InitProcess> {
        self.process.take()
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if let Some(process) = self.process.take() {
            process.kill();
            // The caller is on its way out with an error or was dropped; the end is collected apart.
            tokio::spawn(async move { process.ended().await });
        }
    }
}

fn ended_early() -> Error {
    Error::new(ErrorKind::Unexpected, "sandbox.start", "pid 1 of the sandbox ended before it was ready")
        .with_hint("run `leasehold doctor`")
}

fn start_error(failure: &StartFailure) -> Error {
    let message = format!("cannot start the sandbox: step `{}` failed on {}", failure.step, failure.subject);
    let error = if failure.errno == 0 {
        Error::new(ErrorKind::Unexpected, "sandbox.start", message)
    } else {
        Error::io("sandbox.start", message, io::Error::from_raw_os_error(failure.errno))
    };
    error
        .with_context("step", &failure.step)
        .with_context("path", &failure.subject)
        .with_hint(failure.hint.clone())
}

/// A process of this program in new namespaces, waiting for its gate.
struct Started {
    cloned: Cloned,
    ours: OwnedFd,
    /// One byte opens the gate; closing it without one ends the process.
    opener: OwnedFd,
}

fn start_process(
    program: Option<PathBuf>,
    identity: &IdentityMap,
    namespaces: Namespaces,
) -> Result<Started> {
    let program = program.unwrap_or_else(|| PathBuf::from("/proc/self/exe"));
    let program = rustix::fs::openat(
        rustix::fs::CWD,
        &program,
        rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )
    .map_err(io::Error::from)
    .map_err(failure("open the program that becomes pid 1"))?;
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(io::Error::from)
            .map_err(failure("make the connection to pid 1"))?;
    let (gate, opener) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .map_err(io::Error::from)
        .map_err(failure("make the start gate"))?;
    let nothing = File::open("/dev/null").map_err(failure("open /dev/null"))?;

    let cloned = clone::clone_into_namespaces(&CloneRequest {
        program: program.as_fd(),
        connection: theirs.as_fd(),
        gate: gate.as_fd(),
        nothing: nothing.as_fd(),
        own_maps: identity.maps_itself().then(|| identity.map_lines()),
        namespaces,
    })
    .map_err(|error| {
        failure("make a process in new namespaces")(error).with_hint(
            "run `leasehold doctor`: user namespaces may be switched off or restricted on this host",
        )
    })?;
    Ok(Started { cloned, ours, opener })
}

/// The blocking part: the process, its id maps, and trees with their owners mapped.
fn prepare(
    program: Option<PathBuf>,
    plan: StartPlan,
    identity: &IdentityMap,
) -> Result<(Prepared, StartPlan)> {
    let namespaces = match plan.network {
        NetworkOwner::Sandbox => Namespaces::Sandbox,
        NetworkOwner::Host => Namespaces::SandboxOnHostNetwork,
    };
    let Started { cloned, ours, opener } = start_process(program, identity, namespaces)?;
    // From here on, dropping `opener` without a byte ends the child, and killing is a second safety.
    let mapped = (|| {
        owners::write_maps(identity, cloned.pid)?;
        let mapped = owners::map_trees(&plan.mounts.mapped, cloned.pid)?;
        if !identity.maps_itself() {
            File::from(opener).write_all(&[1]).map_err(failure("open the start gate"))?;
        }
        Ok(mapped)
    })();
    match mapped {
        Ok(mapped) => Ok((Prepared { cloned, ours, mapped }, plan)),
        Err(error) => {
            let _ = rustix::process::pidfd_send_signal(&cloned.descriptor, Signal::KILL);
            let mut wait = [rustix::event::PollFd::new(&cloned.descriptor, rustix::event::PollFlags::IN)];
            let _ = rustix::event::poll(&mut wait, None);
            clone::reap(cloned.descriptor.as_fd());
            Err(error)
        }
    }
}
