//! The host's files.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use leasehold_model::{CommandSpec, Verdict};
use leasehold_provider::WriteOptions;
use tokio::io::AsyncReadExt as _;

use crate::arena::{Arena, Side, read_only, unique};

/// Every file of a tree with all that could be changed about it.
fn snapshot(directory: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![directory.to_path_buf()];
    while let Some(path) = waiting.pop() {
        let metadata = path.symlink_metadata().expect("it is there");
        let content = if metadata.is_file() { std::fs::read(&path).expect("readable") } else { Vec::new() };
        let shown = format!(
            "{:o} {}:{} {} links, {}.{}, {content:?}",
            metadata.mode(),
            metadata.uid(),
            metadata.gid(),
            metadata.nlink(),
            metadata.mtime(),
            metadata.mtime_nsec(),
        );
        if metadata.is_dir() {
            let entries = std::fs::read_dir(&path).expect("listable");
            waiting.extend(entries.map(|entry| entry.expect("an entry").path()));
        }
        found.insert(path, shown);
    }
    found
}

fn host_tree(arena: &Arena) -> PathBuf {
    let root = arena.host_directory();
    std::fs::create_dir(root.join("directory")).expect("a directory");
    std::fs::write(root.join("file"), "of the host").expect("a file");
    std::fs::write(root.join("secret"), "of the host").expect("a file");
    std::fs::write(root.join("directory/inner"), "of the host").expect("a file");
    root
}

pub(super) fn root_directory(arena: &Arena, side: Side) {
    let root = host_tree(arena);
    let sandbox = arena.create(arena.spec(side));
    arena.attack(&sandbox, "root_directory", &[root.join("secret").to_string_lossy().into_owned()]);
    arena.delete(&sandbox);
}

pub(super) fn read_only_exposure(arena: &Arena, side: Side) {
    let root = host_tree(arena);
    let before = snapshot(&root);
    let mut spec = arena.spec(side);
    spec.exposures.push(read_only(&root));
    let sandbox = arena.create(spec);
    arena.attack(&sandbox, "read_only", &[root.to_string_lossy().into_owned()]);
    // The files API has no more rights than the command.
    arena.wait(async {
        let files = sandbox.files();
        let file = root.join("file");
        let content = || Box::new(std::io::Cursor::new(b"planted".to_vec()));
        assert!(files.write(&file, content(), WriteOptions::default()).await.is_err());
        assert!(files.write(&root.join("made"), content(), WriteOptions::default()).await.is_err());
        assert!(files.remove(&file, true).await.is_err());
        assert!(files.rename(&file, Path::new("/tmp/renamed")).await.is_err());
        assert!(files.set_mode(&file, 0o777).await.is_err());
        assert!(files.set_modified(&file, std::time::SystemTime::UNIX_EPOCH).await.is_err());
        assert!(files.make_directory(&root.join("made"), 0o755, true).await.is_err());
        assert!(files.make_symlink(&root.join("made"), Path::new("/tmp")).await.is_err());
    });
    arena.delete(&sandbox);
    assert_eq!(snapshot(&root), before);
}

pub(super) fn secrets(arena: &Arena, side: Side) {
    let home = std::env::var("HOME").unwrap_or_else(|_| "/root".to_owned());
    let sandbox = arena.create(arena.spec(side));
    arena.attack(&sandbox, "secrets", &[home]);
    arena.delete(&sandbox);
}

pub(super) fn host_paths(arena: &Arena, side: Side) {
    let name = unique("left-by-a-sandbox");
    let sandbox = arena.create(arena.spec(side));
    arena.attack(&sandbox, "host_paths", std::slice::from_ref(&name));
    let outside = |when: &str| {
        for directory in
            ["/tmp", "/var/tmp", "/run", "/dev/shm", "/etc", "/root", "/home", "/var/lib", "/usr", "/"]
        {
            let path = Path::new(directory).join(&name);
            assert!(path.symlink_metadata().is_err(), "{} is on the host {when}", path.display());
        }
    };
    outside("while the sandbox lives");
    arena.delete(&sandbox);
    outside("after the sandbox");
}

/// The files API works on a name that a command changes all the time between a directory and a link to
/// the host. Whatever each call answers, it never shows or changes anything of the host.
pub(super) fn racing_names(arena: &Arena, side: Side) {
    const ROUNDS: usize = 40;
    let root = host_tree(arena);
    let before = snapshot(&root);
    let sandbox = arena.create(arena.spec(side));
    let made = arena.run(&sandbox, CommandSpec::shell("mkdir -m 777 -p /tmp/race"));
    assert!(made.verdict.is_success(), "{}", made.verdict);
    let ended: leasehold_model::Result<Verdict> = arena.wait(async {
        let mut command = arena.command("swap", &[root.to_string_lossy().into_owned()]);
        command.directory = Some("/tmp/race".into());
        // It ends with the rounds, however long they take.
        command.timeout = None;
        let mut swapping = sandbox.exec(command).await?;
        swapping.output.next().await.expect("it says that it is ready")?;
        let files = sandbox.files();
        for round in 0..ROUNDS {
            let path = |name: &str| PathBuf::from(format!("/tmp/race/swapped{name}"));
            if let Ok(mut reader) = files.read(&path("/secret"), 0).await {
                let mut content = Vec::new();
                reader.read_to_end(&mut content).await.expect("readable");
                assert_ne!(content, b"of the host", "round {round}");
            }
            if let Ok(entries) = files.list(&path("")).await {
                assert!(entries.iter().all(|entry| entry.name != "directory"), "round {round}: {entries:?}");
            }
            let content = || Box::new(std::io::Cursor::new(b"planted".to_vec()));
            let options = WriteOptions { create_parents: true, ..WriteOptions::default() };
            let _ = files.write(&path("/planted"), content(), options).await;
            let _ = files.write(&path("/secret"), content(), WriteOptions::default()).await;
            let _ = files.make_directory(&path("/made/deep"), 0o755, true).await;
            let _ = files.set_mode(&path("/secret"), 0o600).await;
            let _ = files.set_modified(&path("/secret"), std::time::SystemTime::UNIX_EPOCH).await;
            let _ = files.rename(&path("/secret"), Path::new("/tmp/stolen")).await;
            let _ = files.rename(Path::new("/tmp/stolen"), &path("/back")).await;
            let _ = files.remove(&path("/directory"), true).await;
            let _ = files.remove(&path(""), true).await;
        }
        swapping.control.cancel().await?;
        drop(swapping.output);
        Ok(swapping.control.verdict().await)
    });
    assert_eq!(ended.expect("the race can be run"), Verdict::Cancelled);
    arena.delete(&sandbox);
    assert_eq!(snapshot(&root), before);
}
