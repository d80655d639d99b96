//! Modes, times and owners of files.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leasehold_model::{ErrorKind, Result};

use super::case::declare_cases;
use super::workbench::{Workbench, read, reader, refused, stdout, write};
use crate::files::WriteOptions;

declare_cases! {
    f56_modes_survive: [], "F56: permission, set-id and sticky bits are kept, both ways";
    f56_times_survive: [], "F56: nanoseconds, and times before 1970";
    an_executable_written_is_executable: [], "F56: mode 0755 runs";
    owners_are_the_sandbox_user: [], "a written file belongs to the user that commands run as";
    f56_a_file_nobody_may_read: [], "F56: mode 0000 is kept, and reading is as the user would get it";
}

async fn f56_modes_survive(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let files = sandbox.files();
    for mode in [0o755, 0o640, 0o400, 0o000, 0o777, 0o600, 0o4755, 0o2755, 0o6711] {
        let path = format!("file-{mode:o}");
        write(&sandbox, &path, b"x").await?;
        files.set_mode(path.as_ref(), mode).await?;
        assert_eq!(files.stat(path.as_ref()).await?.mode & 0o7777, mode, "{path}");
    }
    for mode in [0o755, 0o700, 0o1777, 0o2775] {
        let path = format!("directory-{mode:o}");
        files.make_directory(path.as_ref(), 0o755, false).await?;
        files.set_mode(path.as_ref(), mode).await?;
        assert_eq!(files.stat(path.as_ref()).await?.mode & 0o7777, mode, "{path}");
    }
    stdout(&sandbox, "chmod 751 file-640; chmod 4711 file-755").await?;
    assert_eq!(files.stat("file-640".as_ref()).await?.mode & 0o7777, 0o751);
    assert_eq!(files.stat("file-755".as_ref()).await?.mode & 0o7777, 0o4711);
    refused(files.set_mode("none".as_ref(), 0o644).await, ErrorKind::NotFound, "the mode of nothing");
    Ok(())
}

async fn f56_times_survive(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let files = sandbox.files();
    let times = [
        SystemTime::UNIX_EPOCH + Duration::new(1_234_567_890, 123_456_789),
        SystemTime::UNIX_EPOCH,
        SystemTime::UNIX_EPOCH - Duration::new(86_400, 1),
        SystemTime::UNIX_EPOCH + Duration::new(2_000_000_000, 999_999_999),
    ];
    write(&sandbox, "file", b"x").await?;
    files.make_directory("directory".as_ref(), 0o755, false).await?;
    for path in ["file", "directory"] {
        for time in times {
            files.set_modified(path.as_ref(), time).await?;
            assert_eq!(files.stat(path.as_ref()).await?.modified, time, "{path}");
        }
    }
    refused(files.set_modified("none".as_ref(), times[0]).await, ErrorKind::NotFound, "the time of nothing");
    let before = SystemTime::now() - Duration::from_secs(3600);
    write(&sandbox, "file", b"new").await?;
    assert!(files.stat("file".as_ref()).await?.modified > before, "a write sets the time");
    Ok(())
}

async fn an_executable_written_is_executable(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let options = WriteOptions { mode: 0o755, create_parents: false };
    sandbox.files().write("tool".as_ref(), reader(b"#!/bin/sh\necho ran\n"), options).await?;
    assert_eq!(stdout(&sandbox, "./tool").await?, "ran\n");
    Ok(())
}

async fn owners_are_the_sandbox_user(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let user: u32 = stdout(&sandbox, "id -u").await?.trim().parse().expect("a number");
    write(&sandbox, "outside", b"x").await?;
    stdout(&sandbox, "echo x > inside").await?;
    for path in ["outside", "inside"] {
        assert_eq!(sandbox.files().stat(path.as_ref()).await?.user, user, "{path}");
    }
    // What the files API wrote, the command may change.
    stdout(&sandbox, "echo more >> outside; chmod 600 outside; rm outside").await?;
    Ok(())
}

async fn f56_a_file_nobody_may_read(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    stdout(&sandbox, "echo secret > closed; chmod 000 closed").await?;
    assert_eq!(sandbox.files().stat("closed".as_ref()).await?.mode & 0o7777, 0);
    let inside = super::workbench::sh(&sandbox, "cat closed").await?;
    let outside = read(&sandbox, "closed").await;
    if inside.verdict.is_success() {
        assert_eq!(outside?, b"secret\n", "root inside reads it, so the files API does");
    } else {
        refused(outside, ErrorKind::PermissionDenied, "reading a file of mode 0000");
    }
    Ok(())
}
