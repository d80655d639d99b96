//! Nothing leaves the root: the files API resolves every path inside the sandbox, and this machine's
//! own files stay untouched.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use leasehold_model::{Error, ErrorKind, Result, WorkspaceSpec};

use super::case::declare_cases;
use super::workbench::{WORKSPACE, Workbench, exists, read, refused, sh, stdout, write};
use crate::files::{EntryKind, WriteOptions};

declare_cases! {
    f64_host_files_are_not_reached: [], "F64, invariant 11: no path or link leads to this machine's files";
    f62_a_write_through_a_link_stays_inside: [], "F62: a planted link can't redirect a write out of the root";
    f62_links_resolve_inside_the_root: [], "F62: absolute and climbing links mean the sandbox's own root";
    f62_racing_links_never_lead_out: [], "F62: swapping a directory for a link while it is used leads nowhere";
    a_host_workspace_is_copied_on_write: [HostWorkspace], "the command sees the directory and changes only its own view";
    a_missing_host_workspace_is_refused: [HostWorkspace], "a workspace that does not exist is an error, nothing is made";
}

/// A directory of this machine with one secret file, gone at the end.
fn host_directory() -> Result<(tempfile::TempDir, PathBuf)> {
    let failed = |source| Error::io("suite.host_directory", "cannot make a temporary directory", source);
    let directory = tempfile::tempdir().map_err(failed)?;
    let path = directory.path().canonicalize().map_err(failed)?;
    std::fs::write(path.join("secret"), "of the host").map_err(failed)?;
    Ok((directory, path))
}

/// What the host's directory must still be.
#[track_caller]
fn untouched(path: &Path) {
    let names: Vec<_> = std::fs::read_dir(path)
        .expect("the directory is there")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    assert_eq!(names, ["secret"], "the host's directory was changed");
    assert_eq!(std::fs::read(path.join("secret")).expect("readable"), b"of the host");
}

async fn f64_host_files_are_not_reached(bench: Arc<Workbench>) -> Result<()> {
    let (_keep, host) = host_directory()?;
    let secret = host.join("secret");
    let sandbox = bench.sandbox().await?;
    let files = sandbox.files();
    let climbing = PathBuf::from(format!(
        "{}{}",
        "../".repeat(40),
        secret.display().to_string().trim_start_matches('/')
    ));
    files.make_symlink("absolute".as_ref(), &secret).await?;
    files.make_symlink("climbing".as_ref(), &climbing).await?;
    files.make_symlink("directory".as_ref(), &host).await?;
    let tries = [secret.clone(), climbing, "absolute".into(), "climbing".into(), "directory/secret".into()];
    for path in &tries {
        assert!(read(&sandbox, path).await.is_err(), "{} was read", path.display());
    }
    for path in &tries[..1] {
        assert!(!exists(&sandbox, path).await?, "{} exists inside", path.display());
    }
    assert!(files.list("directory".as_ref()).await.is_err(), "the host's directory was listed");
    let output = sh(&sandbox, "cat absolute climbing directory/secret").await?;
    assert!(output.stdout.is_empty());
    // The process table gives other roots in some designs; none may lead to the host's files.
    for root in ["/proc/1/root", "/proc/self/root", "/proc/2/root"] {
        let path = PathBuf::from(format!("{root}{}", secret.display()));
        assert!(read(&sandbox, &path).await.is_err(), "{} was read", path.display());
    }
    untouched(&host);
    Ok(())
}

async fn f62_a_write_through_a_link_stays_inside(bench: Arc<Workbench>) -> Result<()> {
    let (_keep, host) = host_directory()?;
    let sandbox = bench.sandbox().await?;
    let files = sandbox.files();
    files.make_symlink("directory".as_ref(), &host).await?;
    files.make_symlink("file".as_ref(), &host.join("secret")).await?;
    // Each may fail or make something inside; none may touch the host.
    let options = WriteOptions { create_parents: true, ..WriteOptions::default() };
    for path in ["directory/planted", "file", "directory/secret"] {
        let _ = files.write(path.as_ref(), super::workbench::reader(b"planted"), options).await;
        let _ = files.set_mode(path.as_ref(), 0o777).await;
        let _ = files.set_modified(path.as_ref(), std::time::SystemTime::UNIX_EPOCH).await;
        untouched(&host);
    }
    let _ = files.make_directory("directory/made".as_ref(), 0o755, true).await;
    let _ = files.rename("file".as_ref(), "directory/moved".as_ref()).await;
    let _ = files.remove("directory/secret".as_ref(), true).await;
    files.remove("directory".as_ref(), true).await?;
    untouched(&host);
    Ok(())
}

async fn f62_links_resolve_inside_the_root(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let files = sandbox.files();
    write(&sandbox, "/tmp/inside", b"inside").await?;
    for (link, target) in [
        ("absolute", "/tmp/inside"),
        ("relative", "../tmp/inside"),
        ("climbing", "../../../../../../../../../../tmp/inside"),
        ("through", "absolute"),
    ] {
        files.make_symlink(link.as_ref(), target.as_ref()).await?;
        assert_eq!(read(&sandbox, link).await?, b"inside", "{link}");
        assert_eq!(stdout(&sandbox, &format!("cat {link}")).await?, "inside", "{link}");
        assert!(matches!(files.stat(link.as_ref()).await?.kind, EntryKind::Symlink { .. }));
    }
    assert_eq!(read(&sandbox, "/../../../../tmp/inside").await?, b"inside");
    write(&sandbox, "absolute", b"changed").await?;
    assert_eq!(read(&sandbox, "/tmp/inside").await?, b"changed", "a write follows the last link, inside");
    Ok(())
}

async fn f62_racing_links_never_lead_out(bench: Arc<Workbench>) -> Result<()> {
    let (_keep, host) = host_directory()?;
    let sandbox = bench.sandbox().await?;
    let files = sandbox.files();
    let line = format!(
        "while [ ! -e end ]; do mkdir d; echo mine > d/secret; rm -rf d; ln -s {} d; rm -f d; done",
        host.display()
    );
    let swapping = super::workbench::start(&sandbox, &line).await?;
    for round in 0..200 {
        if let Ok(content) = read(&sandbox, "d/secret").await {
            assert_ne!(content, b"of the host", "round {round}");
        }
        let _ = write(&sandbox, "d/planted", b"planted").await;
        let _ = files.remove("d/secret".as_ref(), false).await;
        let _ = files.set_mode("d/secret".as_ref(), 0o600).await;
    }
    untouched(&host);
    swapping.control.cancel().await?;
    drop(swapping.output);
    swapping.control.verdict().await;
    untouched(&host);
    Ok(())
}

async fn a_host_workspace_is_copied_on_write(bench: Arc<Workbench>) -> Result<()> {
    let (_keep, host) = host_directory()?;
    let mut spec = bench.spec();
    spec.workspace = Some(WorkspaceSpec { source: Some(host.clone()), target: WORKSPACE.into() });
    let sandbox = bench.provider().create(spec).await?;
    assert_eq!(stdout(&sandbox, "cat secret").await?, "of the host");
    assert_eq!(read(&sandbox, "secret").await?, b"of the host");
    stdout(&sandbox, "echo changed > secret; echo new > new; chmod 600 secret; mkdir d").await?;
    write(&sandbox, "written", b"from outside").await?;
    untouched(&host);
    assert_eq!(stdout(&sandbox, "cat secret new written").await?, "changed\nnew\nfrom outside");
    sandbox.files().remove("secret".as_ref(), false).await?;
    assert!(!exists(&sandbox, "secret").await?);
    sandbox.delete().await?;
    untouched(&host);
    Ok(())
}

async fn a_missing_host_workspace_is_refused(bench: Arc<Workbench>) -> Result<()> {
    let (_keep, host) = host_directory()?;
    for (source, kind) in [("missing", ErrorKind::NotFound), ("secret", ErrorKind::InvalidInput)] {
        let mut spec = bench.spec();
        spec.workspace = Some(WorkspaceSpec { source: Some(host.join(source)), target: WORKSPACE.into() });
        refused(bench.provider().create(spec).await, kind, "create with a workspace that is no directory");
    }
    assert!(bench.provider().list(&bench.labels()).await?.is_empty());
    untouched(&host);
    Ok(())
}
