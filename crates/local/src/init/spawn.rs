//! Turning a request into a running command.

use std::ffi::{CString, OsStr};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::process::Pid;

use super::harden;
use super::tree::own_mark;
use super::users::{Account, resolve};
use crate::protocol::{InnerUsers, Refusal, RunCommand, StartPlan};
use crate::syscall::{c_string, raw};

/// Where a command's streams go.
pub(super) enum Streams {
    /// Standard input, output and error.
    Pipes([OwnedFd; 3]),
    /// The slave side of a terminal.
    Terminal(OwnedFd),
}

/// A command whose process exists and is on its way to `execve`.
pub(super) struct Starting {
    /// Its leader.
    pub(super) leader: Pid,
    /// Reports the mark of its tree, then closes at `execve` or reports why that failed.
    pub(super) status: OwnedFd,
}

/// What the child reports before it becomes the command. Fixed size, so that one read has it whole.
pub(super) const MARK_BYTES: usize = 8;

/// What could not be done, as the child tells it.
pub(super) struct StartError {
    /// What and on what.
    pub(super) message: String,
    /// The kernel's error number.
    pub(super) errno: i32,
    /// Whether everything was ready and `execve` failed.
    pub(super) about_program: bool,
}

impl StartError {
    fn new(message: impl Into<String>, error: &io::Error) -> Self {
        Self { message: message.into(), errno: error.raw_os_error().unwrap_or(0), about_program: false }
    }

    fn of_program(message: impl Into<String>, errno: i32) -> Self {
        Self { message: message.into(), errno, about_program: true }
    }

    /// What a child writes after its mark.
    fn report(&self) -> Vec<u8> {
        let mut bytes = self.errno.to_le_bytes().to_vec();
        bytes.push(u8::from(self.about_program));
        bytes.extend_from_slice(self.message.as_bytes());
        bytes
    }

    /// Reads what a child wrote after its mark.
    pub(super) fn parse(bytes: &[u8]) -> Self {
        let (number, rest) = bytes.split_at(bytes.len().min(4));
        let (about_program, message) = rest.split_at(rest.len().min(1));
        Self {
            message: String::from_utf8_lossy(message).into_owned(),
            errno: number.try_into().map_or(0, i32::from_le_bytes),
            about_program: about_program == [1],
        }
    }
}

impl From<StartError> for Refusal {
    fn from(error: StartError) -> Self {
        Self { message: error.message, errno: error.errno, about_program: error.about_program }
    }
}

/// Opens a terminal of this size; master and slave.
pub(super) fn open_terminal(columns: u16, rows: u16) -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let master = rustix::fs::openat(rustix::fs::CWD, "/dev/pts/ptmx", flags, Mode::empty())?;
    rustix::pty::unlockpt(&master)?;
    let slave = rustix::pty::ioctl_tiocgptpeer(
        &master,
        rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY | rustix::pty::OpenptFlags::CLOEXEC,
    )?;
    let size = rustix::termios::Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(&slave, size)?;
    Ok((master, slave))
}

/// Forks the leader of a command.
pub(super) fn spawn(
    plan: &StartPlan,
    command: &RunCommand,
    streams: &Streams,
    cgroups: &[OwnedFd],
) -> Result<Starting, StartError> {
    let asked = command.user.as_ref().unwrap_or(&plan.user);
    let account = resolve(asked).map_err(|error| StartError {
        message: error.to_string(),
        errno: error.raw_os_error().unwrap_or(libc::ENOENT),
        about_program: false,
    })?;
    if plan.users == InnerUsers::OwnerAlone && account.user != plan.owner.0 {
        return Err(StartError {
            message: format!(
                "user {} can't be used: this sandbox has one user id, {}",
                account.user, plan.owner.0
            ),
            errno: libc::EOPNOTSUPP,
            about_program: false,
        });
    }
    let pipe = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC | rustix::pipe::PipeFlags::NONBLOCK);
    let (reader, writer) = pipe.map_err(|error| StartError::new("cannot make a pipe", &error.into()))?;
    if let Some(leader) =
        raw::fork().map_err(|error| StartError::new("cannot make a process in the sandbox", &error))?
    {
        Ok(Starting { leader, status: reader })
    } else {
        let error = become_command(plan, command, streams, cgroups, &account, writer.as_fd());
        let _ = std::fs::File::from(writer).write_all(&error.report());
        raw::exit_now(127)
    }
}

/// In the child: everything from the fork to `execve`. Returns only on failure.
fn become_command(
    plan: &StartPlan,
    command: &RunCommand,
    streams: &Streams,
    cgroups: &[OwnedFd],
    account: &Account,
    status: BorrowedFd<'_>,
) -> StartError {
    let prepared = (|| -> Result<(), StartError> {
        let step =
            |what: &'static str| move |error: io::Error| StartError::new(format!("cannot {what}"), &error);
        raw::reset_signals();
        for file in cgroups {
            rustix::io::write(file, b"0")
                .map_err(io::Error::from)
                .map_err(step("join the command's cgroup"))?;
        }
        // Its own UTS namespace marks the tree; see `tree`.
        raw::new_uts_namespace().map_err(step("mark the command's processes"))?;
        let mark = own_mark().map_err(step("read the mark of the command's processes"))?;
        rustix::io::write(status, &mark.0.to_le_bytes())
            .map_err(io::Error::from)
            .map_err(step("report the mark"))?;
        rustix::process::setsid().map_err(io::Error::from).map_err(step("start a session"))?;
        connect(streams).map_err(step("connect the command's streams"))?;
        if let Streams::Terminal(slave) = streams {
            // Who runs on a terminal owns it, as after a login; else `/dev/stderr` is closed to them.
            let owner = Some(rustix::fs::Uid::from_raw(account.user));
            rustix::fs::fchown(slave, owner, None)
                .map_err(io::Error::from)
                .map_err(step("give the terminal to the command's user"))?;
        }
        raw::close_on_exec_from(3).map_err(step("close descriptors"))?;
        become_account(plan, account).map_err(step("become the command's user"))?;
        let limit = rustix::process::Rlimit {
            current: Some(plan.process_limit.into()),
            maximum: Some(plan.process_limit.into()),
        };
        rustix::process::setrlimit(rustix::process::Resource::Nproc, limit)
            .map_err(io::Error::from)
            .map_err(step("bound the number of processes"))?;
        rustix::process::umask(Mode::from_raw_mode(0o022));
        let directory = directory_of(plan, command);
        rustix::process::chdir(&directory).map_err(io::Error::from).map_err(|error| {
            StartError::new(format!("cannot enter directory `{}`", directory.display()), &error)
        })
    })();
    if let Err(error) = prepared {
        return error;
    }
    let mut environment = command.environment.clone();
    let mut default = |name: &[u8], value: &[u8]| {
        if !environment.iter().any(|(present, _)| present == name) {
            environment.push((name.to_vec(), value.to_vec()));
        }
    };
    let home = account.home.clone().unwrap_or_else(|| PathBuf::from("/"));
    default(b"HOME", home.as_os_str().as_bytes());
    default(b"PATH", b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    if command.terminal.is_some() {
        default(b"TERM", b"xterm-256color");
    }
    match harden::give_up(account.user == 0) {
        Ok(()) => execute(&command.arguments, &environment),
        Err(error) => StartError::new("cannot give up privileges", &error),
    }
}

fn directory_of(plan: &StartPlan, command: &RunCommand) -> PathBuf {
    command.directory.as_ref().map_or_else(|| plan.directory.to_path_buf(), |path| plan.directory.join(path))
}

fn connect(streams: &Streams) -> io::Result<()> {
    let [stdin, stdout, stderr] = match streams {
        Streams::Pipes([stdin, stdout, stderr]) => [stdin, stdout, stderr].map(AsFd::as_fd),
        Streams::Terminal(slave) => {
            rustix::process::ioctl_tiocsctty(slave)?;
            [slave.as_fd(); 3]
        }
    };
    rustix::stdio::dup2_stdin(stdin)?;
    rustix::stdio::dup2_stdout(stdout)?;
    Ok(rustix::stdio::dup2_stderr(stderr)?)
}

/// Becomes the user of an account, with every capability that is never needed again bounded away.
pub(super) fn become_account(plan: &StartPlan, account: &Account) -> io::Result<()> {
    harden::bound_capabilities()?;
    if plan.users == InnerUsers::Many {
        raw::set_groups(&account.groups)?;
    }
    // Without an own group to switch to, the one that exists is kept.
    let group = if plan.users == InnerUsers::Many { account.group } else { plan.owner.1 };
    rustix::thread::set_keep_capabilities(true)?;
    raw::set_ids(account.user, group)
}

/// Finds the program as `execvp` does, by the command's own `PATH`, and becomes it.
fn execute(arguments: &[Vec<u8>], environment: &[(Vec<u8>, Vec<u8>)]) -> StartError {
    let texts = |items: Vec<Vec<u8>>| -> io::Result<Vec<CString>> {
        items.into_iter().map(|item| c_string(OsStr::from_bytes(&item))).collect()
    };
    let joined = environment.iter().map(|(name, value)| [name, &b"="[..], value].concat()).collect();
    let (Ok(argv), Ok(envp)) = (texts(arguments.to_vec()), texts(joined)) else {
        return StartError::of_program("an argument or variable holds a NUL byte", libc::EINVAL);
    };
    let Some(program) = arguments.first().filter(|program| !program.is_empty()) else {
        return StartError::of_program("the command is empty", libc::EINVAL);
    };
    let shown = String::from_utf8_lossy(program).into_owned();
    let candidates: Vec<PathBuf> = if program.contains(&b'/') {
        vec![PathBuf::from(OsStr::from_bytes(program))]
    } else {
        let path = environment
            .iter()
            .find(|(name, _)| name == b"PATH")
            .map_or(&b"/usr/bin:/bin"[..], |(_, value)| value);
        path.split(|byte| *byte == b':')
            .map(|directory| {
                let directory = if directory.is_empty() { b"." } else { directory };
                Path::new(OsStr::from_bytes(directory)).join(OsStr::from_bytes(program))
            })
            .collect()
    };
    let mut denied = false;
    for candidate in candidates {
        let Ok(path) = c_string(&candidate) else { continue };
        let error = raw::execve(&path, &argv, &envp);
        match error.raw_os_error().unwrap_or(0) {
            libc::ENOENT | libc::ENOTDIR => {}
            libc::EACCES => denied = true,
            libc::ENOEXEC => {
                // A script without a first line that names its interpreter: the shell runs it.
                let mut shell = vec![c"/bin/sh".to_owned(), path];
                shell.extend(argv.into_iter().skip(1));
                let error = raw::execve(c"/bin/sh", &shell, &envp);
                let errno = error.raw_os_error().unwrap_or(0);
                return StartError::of_program(format!("cannot run `{shown}` as a script"), errno);
            }
            libc::E2BIG => {
                let message = format!(
                    "cannot run `{shown}`: its arguments and environment are too long for the kernel"
                );
                return StartError::of_program(message, libc::E2BIG);
            }
            errno => return StartError::of_program(format!("cannot run `{shown}`"), errno),
        }
    }
    let errno = if denied { libc::EACCES } else { libc::ENOENT };
    let message = if denied {
        format!("`{shown}` can't be executed")
    } else {
        format!("`{shown}` is not in the sandbox")
    };
    StartError::of_program(message, errno)
}

/// The process group in the foreground of the leader's terminal, as `/proc` tells it.
pub(super) fn foreground_group(leader: Pid) -> Option<Pid> {
    let text = std::fs::read_to_string(format!("/proc/{}/stat", leader.as_raw_nonzero())).ok()?;
    // The name in parentheses may hold anything; the fields after the last parenthesis are numbers.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    Pid::from_raw(fields.get(5)?.parse().ok()?)
}
