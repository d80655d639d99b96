//! Using up what there is.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};

use super::{Report, argument};
use crate::calls::Argument::{Memory, Number};
use crate::calls::{call, fork, in_child, leave};

/// Makes children that wait, until no more can be made; tells how many, and ends them.
fn breed(most: usize) -> (Vec<i32>, Option<io::Error>) {
    let mut children = Vec::new();
    while children.len() < most {
        match fork() {
            Ok(Some(child)) => children.push(child),
            Ok(None) => loop {
                std::thread::park();
            },
            Err(error) => return (children, Some(error)),
        }
    }
    (children, None)
}

fn end(children: &[i32]) -> io::Result<()> {
    for child in children {
        call(libc::SYS_kill, &[Number((*child).into()), Number(9)])?;
        call(libc::SYS_wait4, &[Number((*child).into()), Number(0), Number(0), Number(0)])?;
    }
    Ok(())
}

/// Arguments: the limit.
pub(super) fn processes(report: &mut Report, arguments: &[String]) -> io::Result<()> {
    let limit: usize = argument(arguments, 0)?.parse().map_err(io::Error::other)?;
    let (children, error) = breed(limit * 2);
    report.holds(
        format_args!("{} processes, then {error:?}", children.len()),
        error.is_some() && children.len() < limit,
    );
    end(&children)
}

/// The same, as one user after the other. Arguments: the limit.
pub(super) fn processes_of_many_users(report: &mut Report, arguments: &[String]) -> io::Result<()> {
    let limit: usize = argument(arguments, 0)?.parse().map_err(io::Error::other)?;
    let mut total = Vec::new();
    for user in 1..=8_i64 {
        let (reader, writer) = rustix::pipe::pipe()?;
        // The child becomes the user, breeds, tells how many, and stays.
        match fork() {
            Err(_) => break,
            Ok(None) => {
                let user = Number(1000 + user);
                let _ = call(libc::SYS_setresuid, &[user, user, user]);
                let (children, _) = breed(limit);
                let count = u32::try_from(children.len()).unwrap_or(u32::MAX);
                let _ = rustix::io::write(&writer, &count.to_ne_bytes());
                loop {
                    std::thread::park();
                }
            }
            Ok(Some(_)) => {
                let mut count = [0; 4];
                rustix::io::read(&reader, &mut count)?;
                total.push(u32::from_ne_bytes(count) as usize + 1);
            }
        }
    }
    report.holds(format_args!("processes of several users: {total:?}"), total.iter().sum::<usize>() < limit);
    let _ = call(libc::SYS_kill, &[Number(-1), Number(9)]);
    Ok(())
}

/// Forks for ever, everywhere, until it is killed.
pub(super) fn storm(_: &mut Report, _: &[String]) -> io::Result<()> {
    loop {
        // Children go on as their parent does.
        let _ = fork();
        let _ = call(libc::SYS_wait4, &[Number(-1), Number(0), Number(1), Number(0)]);
    }
}

/// Arguments: bytes to use.
pub(super) fn memory(report: &mut Report, arguments: &[String]) -> io::Result<()> {
    let bytes: usize = argument(arguments, 0)?.parse().map_err(io::Error::other)?;
    let mut held = Vec::new();
    while held.len() * (1 << 20) < bytes {
        held.push(vec![1_u8; 1 << 20]);
    }
    report.holds(format_args!("{} MiB were had", held.len()), false);
    Ok(())
}

fn fill(path: &str, most: u64) -> (u64, io::Result<()>) {
    let mut written = 0;
    let result = File::create(path).and_then(|mut file| {
        let block = vec![7; 64 << 10];
        while written < most {
            written += file.write(&block)? as u64;
        }
        Ok(())
    });
    (written, result)
}

/// Arguments: the limit in bytes.
pub(super) fn disk(report: &mut Report, arguments: &[String]) -> io::Result<()> {
    let limit: u64 = argument(arguments, 0)?.parse().map_err(io::Error::other)?;
    for path in ["/tmp/big", "big", "/dev/shm/big"] {
        let (written, result) = fill(path, limit * 2);
        report.refused(format_args!("{written} bytes in {path}"), result);
        report.holds(format_args!("{path} stayed below the limit"), written <= limit);
        fs::remove_file(path)?;
    }
    // A hole costs nothing until it is filled.
    let file = OpenOptions::new().write(true).create(true).truncate(false).open("/tmp/sparse")?;
    file.set_len(limit * 64)?;
    let filled = call(
        libc::SYS_fallocate,
        &[
            Number(std::os::fd::AsRawFd::as_raw_fd(&file).into()),
            Number(0),
            Number(0),
            Number((limit * 2).cast_signed()),
        ],
    );
    report.refused("fill a hole", filled);
    fs::remove_file("/tmp/sparse")?;
    Ok(())
}

/// Arguments: more files than the limit allows.
pub(super) fn inodes(report: &mut Report, arguments: &[String]) -> io::Result<()> {
    let most: u32 = argument(arguments, 0)?.parse().map_err(io::Error::other)?;
    let make = || (0..most).try_for_each(|number| File::create(format!("/tmp/empty-{number}")).map(drop));
    report.refused(format_args!("make {most} empty files"), make());
    Ok(())
}

/// Descriptors until there are no more; the process's own bound ends it.
pub(super) fn descriptors(report: &mut Report, _: &[String]) -> io::Result<()> {
    let mut held = Vec::new();
    let error = loop {
        match rustix::pipe::pipe() {
            Ok(pipe) => held.push(pipe),
            Err(error) => break error,
        }
        if held.len() > 1 << 20 {
            break rustix::io::Errno::OVERFLOW;
        }
    };
    report.holds(
        format_args!("{} pipes, then {error}", held.len()),
        matches!(error, rustix::io::Errno::MFILE | rustix::io::Errno::NFILE),
    );
    Ok(())
}

/// Orphans that end at once: pid 1 has to collect them all. Arguments: how many.
pub(super) fn zombies(report: &mut Report, arguments: &[String]) -> io::Result<()> {
    let count: u32 = argument(arguments, 0)?.parse().map_err(io::Error::other)?;
    for _ in 0..count / 50 {
        in_child(|| {
            for _ in 0..50 {
                if matches!(fork(), Ok(None)) {
                    leave(0);
                }
            }
            0
        })?;
    }
    report.holds("all were made", true);
    Ok(())
}

/// Takes pid 1's means to end a tree, then leaves a process that only pid 1 can end, and waits.
pub(super) fn starve_init(_: &mut Report, _: &[String]) -> io::Result<()> {
    let none = [0_u8; 16];
    let arguments = [Number(1), Number(libc::RLIMIT_NOFILE.into()), Memory(&none), Number(0)];
    let _ = call(libc::SYS_prlimit64, &arguments);
    let _ = call(libc::SYS_sched_setscheduler, &[Number(1), Number(5), Memory(&none)]);
    if matches!(fork(), Ok(None)) {
        let _ = rustix::process::setsid();
    }
    loop {
        std::thread::park();
    }
}
