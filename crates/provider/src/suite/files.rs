//! The content of files, directories, names.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use leasehold_model::{CommandSpec, ErrorKind, Result};
use tokio::io::{AsyncRead, ReadBuf};

use super::case::declare_cases;
use super::workbench::{
    WORKSPACE, Workbench, exists, exited, noise, read, read_from, reader, refused, run, same_bytes, sh,
    stdout, until, write,
};
use crate::files::{EntryKind, WriteOptions};

declare_cases! {
    f58_what_is_written_is_there: [], "F58: sizes from 0 bytes to 16 MiB read back the same, inside and outside";
    a_read_starts_at_its_offset: [], "offsets, the end, and beyond it";
    a_write_replaces_and_keeps_the_mode: [], "a new content, the old permission bits";
    f60_a_write_is_atomic: [], "F60: a failing or abandoned write leaves the old content and no debris";
    f60_readers_see_the_old_or_the_new: [], "F60: a replaced file is never seen half";
    parents_are_made_on_request: [], "create_parents, and a clear refusal without";
    relative_paths_start_at_the_workspace: [], "the files API and commands see the same place";
    a_listing_is_sorted_and_complete: [], "kinds, sizes, targets, sorted by bytes";
    f66_names_of_any_bytes: [], "F66: spaces, tabs, newlines, quotes, dashes, non-UTF-8, 255 bytes, twins";
    directories_are_made_and_removed: [], "make_directory and remove with their refusals";
    removal_never_follows_links: [], "removing a link or a tree leaves what links point to";
    a_rename_replaces: [], "rename moves files, trees and links";
    wrong_types_are_invalid_input: [], "reading a directory, listing a file and their siblings";
    links_are_verbatim: [], "a link's target is kept byte for byte, dangling or not";
}

async fn f58_what_is_written_is_there(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    stdout(&sandbox, "echo bin/ > .gitignore").await?;
    for length in [0, 1, 18 * 1024, 65_536, 65_537, 16 << 20] {
        let bytes = noise(length);
        let options = WriteOptions { create_parents: true, ..WriteOptions::default() };
        let path = PathBuf::from(format!("bin/{length}"));
        assert_eq!(sandbox.files().write(&path, reader(&bytes), options).await?, length as u64);
        let entry = sandbox.files().stat(&path).await?;
        assert_eq!((entry.kind, entry.size), (EntryKind::File, length as u64));
        same_bytes(&read(&sandbox, &path).await?, &bytes, "read back");
        let output = run(&sandbox, CommandSpec::new(["cat", &format!("bin/{length}")])).await?;
        same_bytes(&output.stdout, &bytes, "seen inside");
    }
    stdout(&sandbox, "printf 'made\\0inside' > made").await?;
    assert_eq!(read(&sandbox, "made").await?, b"made\0inside");
    Ok(())
}

async fn a_read_starts_at_its_offset(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let bytes = noise(200_000);
    write(&sandbox, "file", &bytes).await?;
    for offset in [0, 1, 4096, 65_536, 199_999] {
        same_bytes(&read_from(&sandbox, "file", offset as u64).await?, &bytes[offset..], "from an offset");
    }
    assert!(read_from(&sandbox, "file", 200_000).await?.is_empty());
    assert!(read_from(&sandbox, "file", 1 << 40).await?.is_empty());
    Ok(())
}

async fn a_write_replaces_and_keeps_the_mode(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let files = sandbox.files();
    let mode = |mode| WriteOptions { mode, create_parents: false };
    files.write("file".as_ref(), reader(b"a long first content"), mode(0o640)).await?;
    assert_eq!(files.stat("file".as_ref()).await?.mode & 0o7777, 0o640, "the mode of a new file, no mask");
    files.write("file".as_ref(), reader(b"short"), mode(0o777)).await?;
    assert_eq!(read(&sandbox, "file").await?, b"short");
    assert_eq!(files.stat("file".as_ref()).await?.mode & 0o7777, 0o640, "an existing file keeps its mode");
    Ok(())
}

/// Content that fails, or never ends, after some bytes.
struct Broken {
    left: usize,
    hangs: bool,
}

impl AsyncRead for Broken {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.left == 0 {
            if self.hangs {
                return Poll::Pending;
            }
            return Poll::Ready(Err(io::Error::other("the content broke off")));
        }
        let count = self.left.min(buffer.remaining());
        buffer.put_slice(&vec![b'x'; count]);
        self.left -= count;
        Poll::Ready(Ok(()))
    }
}

async fn f60_a_write_is_atomic(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    write(&sandbox, "file", b"old").await?;
    let files = sandbox.files();
    for path in ["file", "new"] {
        let broken = Box::new(Broken { left: 100_000, hangs: false });
        assert!(files.write(path.as_ref(), broken, WriteOptions::default()).await.is_err());
        let hanging = Box::new(Broken { left: 100_000, hangs: true });
        let write = files.write(path.as_ref(), hanging, WriteOptions::default());
        assert!(tokio::time::timeout(std::time::Duration::from_millis(500), write).await.is_err());
    }
    assert_eq!(read(&sandbox, "file").await?, b"old");
    // What a broken write had begun may take a moment to go, but it goes.
    until(|| async { Ok(files.list(WORKSPACE.as_ref()).await?.len() == 1) }).await
}

async fn f60_readers_see_the_old_or_the_new(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let contents: [Vec<u8>; 2] = [vec![b'a'; 300_000], vec![b'b'; 200_000]];
    write(&sandbox, "file", &contents[0]).await?;
    let writer = {
        let (sandbox, contents) = (Arc::clone(&sandbox), contents.clone());
        tokio::spawn(async move {
            for round in 1..30 {
                write(&sandbox, "file", &contents[round % 2]).await?;
            }
            Ok::<_, leasehold_model::Error>(())
        })
    };
    while !writer.is_finished() {
        let seen = read(&sandbox, "file").await?;
        assert!(contents.contains(&seen), "{} bytes that nobody wrote", seen.len());
        // A provider whose read never waits would keep the writer from its turn.
        tokio::task::yield_now().await;
    }
    writer.await.expect("no panic")?;
    assert_eq!(sandbox.files().list(WORKSPACE.as_ref()).await?.len(), 1);
    Ok(())
}

async fn parents_are_made_on_request(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let files = sandbox.files();
    refused(write(&sandbox, "a/b/file", b"x").await, ErrorKind::NotFound, "a write without its directory");
    let options = WriteOptions { create_parents: true, ..WriteOptions::default() };
    files.write("a/b/file".as_ref(), reader(b"x"), options).await?;
    assert_eq!(stdout(&sandbox, "cat a/b/file").await?, "x");
    refused(
        files.make_directory("c/d".as_ref(), 0o755, false).await,
        ErrorKind::NotFound,
        "mkdir without parents",
    );
    files.make_directory("c/d".as_ref(), 0o750, true).await?;
    assert_eq!(files.stat("c/d".as_ref()).await?.mode & 0o7777, 0o750);
    Ok(())
}

async fn relative_paths_start_at_the_workspace(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    write(&sandbox, "relative", b"here").await?;
    assert_eq!(read(&sandbox, format!("{WORKSPACE}/relative")).await?, b"here");
    assert_eq!(stdout(&sandbox, &format!("cat {WORKSPACE}/relative; cat relative")).await?, "herehere");
    write(&sandbox, "/tmp/absolute", b"there").await?;
    assert_eq!(stdout(&sandbox, "cat /tmp/absolute").await?, "there");
    assert_eq!(read(&sandbox, "../tmp/absolute").await?, b"there");
    Ok(())
}

async fn a_listing_is_sorted_and_complete(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    stdout(
        &sandbox,
        "mkdir d; printf 12345 > b; ln -s b link; ln -s /nowhere dangling; : > .hidden; : > B; : > 10; : > 9",
    )
    .await?;
    let list = sandbox.files().list(WORKSPACE.as_ref()).await?;
    let names: Vec<_> = list.iter().map(|entry| entry.name.to_string_lossy().into_owned()).collect();
    assert_eq!(names, [".hidden", "10", "9", "B", "b", "d", "dangling", "link"]);
    let kind = |name: &str| list.iter().find(|entry| entry.name == name).expect("listed").kind.clone();
    assert_eq!(kind("d"), EntryKind::Directory);
    assert_eq!(kind("link"), EntryKind::Symlink { target: "b".into() });
    assert_eq!(kind("dangling"), EntryKind::Symlink { target: "/nowhere".into() });
    let file = list.iter().find(|entry| entry.name == "b").expect("listed");
    assert_eq!((&file.kind, file.size), (&EntryKind::File, 5));
    assert_eq!(&sandbox.files().stat("b".as_ref()).await?, file, "stat and list agree");
    assert!(sandbox.files().list("d".as_ref()).await?.is_empty());
    Ok(())
}

async fn f66_names_of_any_bytes(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let files = sandbox.files();
    let every: Vec<u8> = (1..=255).filter(|byte| *byte != b'/').collect();
    let longest = [b'n'; 255];
    let names: [&[u8]; 19] = [
        b"a b",
        b"tab\there",
        b"new\nline",
        b"\"a.py\"",
        b"it's",
        b"-rf",
        b"--help",
        b"%2F",
        b"a\\b",
        b"*?[x]",
        b"\xc3\xa9",
        b"e\xcc\x81",
        b"\xff",
        b"\xf0\x9f\xa6\x80",
        b"case",
        b"CASE",
        b"...",
        &every[..254],
        &longest,
    ];
    for (number, name) in names.iter().enumerate() {
        let path = PathBuf::from(OsString::from_vec(name.to_vec()));
        write(&sandbox, &path, format!("content {number}").as_bytes()).await?;
    }
    let mut expected: Vec<OsString> = names.iter().map(|name| OsString::from_vec(name.to_vec())).collect();
    expected.sort();
    let listed: Vec<_> = files.list(WORKSPACE.as_ref()).await?.into_iter().map(|entry| entry.name).collect();
    assert_eq!(listed, expected);
    for (number, name) in names.iter().enumerate() {
        let path = Path::new(WORKSPACE).join(OsString::from_vec(name.to_vec()));
        let command = CommandSpec::new([OsString::from("cat"), path.clone().into_os_string()]);
        assert_eq!(
            run(&sandbox, command).await?.stdout,
            format!("content {number}").into_bytes(),
            "{}",
            path.display()
        );
        files.remove(&path, false).await?;
    }
    let too_long = "n".repeat(256);
    refused(write(&sandbox, &too_long, b"x").await, ErrorKind::InvalidInput, "a name of 256 bytes");
    refused(write(&sandbox, "nul\0inside", b"x").await, ErrorKind::InvalidInput, "a name with NUL");
    assert!(files.list(WORKSPACE.as_ref()).await?.is_empty());
    Ok(())
}

async fn directories_are_made_and_removed(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let files = sandbox.files();
    files.make_directory("d".as_ref(), 0o755, false).await?;
    refused(files.make_directory("d".as_ref(), 0o755, false).await, ErrorKind::AlreadyExists, "mkdir again");
    files.make_directory("d".as_ref(), 0o755, true).await?;
    write(&sandbox, "d/file", b"x").await?;
    refused(files.remove("d".as_ref(), false).await, ErrorKind::Conflict, "removal of a full directory");
    files.remove("d".as_ref(), true).await?;
    refused(files.stat("d".as_ref()).await, ErrorKind::NotFound, "stat of what was removed");
    refused(files.remove("d".as_ref(), true).await, ErrorKind::NotFound, "removal of nothing");
    files.make_directory("empty".as_ref(), 0o755, false).await?;
    files.remove("empty".as_ref(), false).await?;
    refused(files.list("empty".as_ref()).await, ErrorKind::NotFound, "a listing of nothing");
    refused(read(&sandbox, "empty").await, ErrorKind::NotFound, "reading nothing");
    Ok(())
}

async fn removal_never_follows_links(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let files = sandbox.files();
    stdout(&sandbox, "mkdir kept tree; echo x > kept/file; ln -s ../kept tree/link; ln -s kept link").await?;
    files.remove("tree".as_ref(), true).await?;
    files.remove("link".as_ref(), true).await?;
    assert!(!exists(&sandbox, "tree").await? && !exists(&sandbox, "link").await?);
    assert_eq!(stdout(&sandbox, "cat kept/file").await?, "x\n");
    // A deep tree needs neither a deep stack nor a long path.
    let deep = vec!["d"; 200].join("/");
    files.make_directory(deep.as_ref(), 0o755, true).await?;
    files.remove("d".as_ref(), true).await?;
    assert!(!exists(&sandbox, "d").await?);
    Ok(())
}

async fn a_rename_replaces(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let files = sandbox.files();
    stdout(&sandbox, "echo one > one; echo two > two; mkdir d; echo deep > d/file; ln -s one link").await?;
    files.rename("one".as_ref(), "two".as_ref()).await?;
    assert_eq!(read(&sandbox, "two").await?, b"one\n");
    assert!(!exists(&sandbox, "one").await?);
    files.rename("d".as_ref(), "moved".as_ref()).await?;
    assert_eq!(read(&sandbox, "moved/file").await?, b"deep\n");
    files.rename("link".as_ref(), "moved/link".as_ref()).await?;
    assert_eq!(files.stat("moved/link".as_ref()).await?.kind, EntryKind::Symlink { target: "one".into() });
    refused(files.rename("none".as_ref(), "x".as_ref()).await, ErrorKind::NotFound, "rename of nothing");
    refused(
        files.rename("two".as_ref(), "no/dir".as_ref()).await,
        ErrorKind::NotFound,
        "rename into nothing",
    );
    assert_eq!(read(&sandbox, "two").await?, b"one\n");
    Ok(())
}

async fn wrong_types_are_invalid_input(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let files = sandbox.files();
    stdout(&sandbox, "mkdir d; echo x > file").await?;
    let kind = ErrorKind::InvalidInput;
    refused(read(&sandbox, "d").await, kind, "reading a directory");
    refused(write(&sandbox, "d", b"x").await, kind, "writing over a directory");
    refused(files.list("file".as_ref()).await, kind, "listing a file");
    refused(files.stat("file/below".as_ref()).await, kind, "a path through a file");
    refused(write(&sandbox, "file/below", b"x").await, kind, "a write through a file");
    refused(files.rename("file".as_ref(), "d".as_ref()).await, kind, "a file over a directory");
    exited(&sh(&sandbox, "test -d d && test -f file").await?.verdict, 0);
    Ok(())
}

async fn links_are_verbatim(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let files = sandbox.files();
    let odd = OsString::from_vec(b"\xff odd/../target".to_vec());
    for (number, target) in
        ["file", "/nowhere/at/all", "../../x", "./a//b/"].iter().map(OsString::from).chain([odd]).enumerate()
    {
        let path = PathBuf::from(format!("link-{number}"));
        files.make_symlink(&path, target.as_ref()).await?;
        assert_eq!(files.stat(&path).await?.kind, EntryKind::Symlink { target: target.into() });
    }
    refused(
        files.make_symlink("link-0".as_ref(), "x".as_ref()).await,
        ErrorKind::AlreadyExists,
        "a link twice",
    );
    write(&sandbox, "file", b"followed").await?;
    assert_eq!(read(&sandbox, "link-0").await?, b"followed");
    refused(read(&sandbox, "link-1").await, ErrorKind::NotFound, "reading a dangling link");
    assert_eq!(stdout(&sandbox, "cat link-0").await?, "followed");
    stdout(&sandbox, "ln -s loop-b loop-a; ln -s loop-a loop-b").await?;
    assert!(read(&sandbox, "loop-a").await.is_err(), "a loop was read");
    Ok(())
}
