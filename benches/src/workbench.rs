//! A place to measure in: a data directory and a small workspace, and the check that nothing stays.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use leasehold_local::{LocalConfig, LocalProvider};
use leasehold_model::{
    AttemptName, CommandSpec, Error, ErrorKind, Result, SandboxSpec, Verdict, WorkspaceSpec,
};
use leasehold_provider::{Provider, Sandbox};
use tempfile::TempDir;

use crate::processes;

/// Output that a short command may give.
const MOST_OUTPUT: usize = 1 << 20;

/// Where one measurement works.
#[derive(Debug)]
pub(crate) struct Workbench {
    place: TempDir,
    /// The embedded provider, as the command line opens it.
    pub(crate) provider: LocalProvider,
    /// The `leasehold` program.
    pub(crate) leasehold: Option<PathBuf>,
    quick: bool,
    next_name: AtomicU64,
    /// Every sandbox that was made, for the check at the end.
    made: Mutex<BTreeSet<String>>,
}

/// An error of this program's own surroundings.
pub(crate) fn cannot(what: impl std::fmt::Display) -> impl FnOnce(std::io::Error) -> Error {
    let message = format!("cannot {what}");
    move |error| Error::io("bench", message, error)
}

impl Workbench {
    /// Makes the place below `scratch`.
    pub(crate) async fn open(scratch: &Path, leasehold: Option<PathBuf>, quick: bool) -> Result<Self> {
        let place = tempfile::Builder::new()
            .prefix("leasehold-bench-")
            .tempdir_in(scratch)
            .map_err(cannot(format_args!("make a directory in {}", scratch.display())))?;
        let workspace = place.path().join("workspace");
        fs::create_dir(&workspace).map_err(cannot("make a workspace"))?;
        fs::write(workspace.join("file"), b"content\n").map_err(cannot("write into the workspace"))?;
        let mut config = LocalConfig::at(place.path().join("data"));
        config.home = std::env::var_os("HOME").map(PathBuf::from);
        let provider = LocalProvider::open(config).await?;
        Ok(Self { place, provider, leasehold, quick, next_name: AtomicU64::new(1), made: Mutex::default() })
    }

    /// How often to repeat: `full`, or a tenth of it in a quick run.
    pub(crate) fn rounds(&self, full: usize) -> usize {
        if self.quick { (full / 10).max(2) } else { full }
    }

    /// How often to repeat what takes seconds: `full`, or once in a quick run.
    pub(crate) fn few(&self, full: usize) -> usize {
        if self.quick { 1 } else { full }
    }

    /// A path of this measurement's own.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// A workspace with one file.
    pub(crate) fn workspace(&self) -> PathBuf {
        self.path("workspace")
    }

    /// A name that no other sandbox has.
    pub(crate) fn name(&self) -> Result<AttemptName> {
        AttemptName::new(format!("bench-{}", self.next_name.fetch_add(1, Ordering::Relaxed)))
    }

    /// The request for a sandbox of one run, with a tree as its workspace, as `leasehold run` makes it.
    pub(crate) fn spec(&self, workspace: &Path) -> Result<SandboxSpec> {
        let mut spec = SandboxSpec::new(self.name()?);
        spec.workspace =
            Some(WorkspaceSpec { source: Some(workspace.to_path_buf()), target: workspace.to_path_buf() });
        spec.bound_to_creator = true;
        Ok(spec)
    }

    /// Makes a sandbox.
    pub(crate) async fn create(&self, spec: SandboxSpec) -> Result<Arc<dyn Sandbox>> {
        let sandbox = self.provider.create(spec).await?;
        self.remember(&sandbox);
        Ok(sandbox)
    }

    /// Counts a sandbox among those that must be gone at the end.
    pub(crate) fn remember(&self, sandbox: &Arc<dyn Sandbox>) {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.insert(sandbox.id().to_string());
    }

    /// What is left after everything was deleted; removes the place.
    pub(crate) fn close(self) -> Vec<String> {
        let mut left = Vec::new();
        for process in processes::of_sandboxes() {
            left.push(format!("process {}", process.id));
        }
        let root = self.place.path();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let here = root.to_string_lossy().into_owned();
        left.extend(mounts.lines().filter(|line| line.contains(&here)).map(|line| format!("mount {line}")));
        for part in ["sandboxes", "changes", "templates"] {
            let entries = fs::read_dir(root.join("data").join(part)).into_iter().flatten().flatten();
            left.extend(entries.map(|entry| entry.path().display().to_string()));
        }
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        groups(Path::new("/sys/fs/cgroup"), 4, &mut |name, path| {
            if name.strip_prefix("leasehold-").is_some_and(|id| made.contains(id)) {
                left.push(format!("control group {}", path.display()));
            }
        });
        drop(made);
        if let Err(error) = self.place.close() {
            left.push(format!("files: {error}"));
        }
        left
    }
}

/// Visits control groups down to a depth.
fn groups(directory: &Path, depth: usize, visit: &mut dyn FnMut(&str, &Path)) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let path = entry.path();
            visit(&entry.file_name().to_string_lossy(), &path);
            if depth > 1 {
                groups(&path, depth - 1, visit);
            }
        }
    }
}

/// Runs a command to its end; anything but success is an error.
pub(crate) async fn succeed<S: Into<OsString>>(
    sandbox: &Arc<dyn Sandbox>,
    arguments: impl IntoIterator<Item = S>,
) -> Result<()> {
    let output = sandbox.exec(CommandSpec::new(arguments)).await?.collect(MOST_OUTPUT).await?;
    check(&output.verdict, &output.stderr)
}

/// An error unless a command succeeded.
pub(crate) fn check(verdict: &Verdict, stderr: &[u8]) -> Result<()> {
    if verdict.is_success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(stderr);
    Err(Error::new(ErrorKind::Unexpected, "bench", format!("a command in the sandbox {verdict}: {said}")))
}
