//! The data directory: one directory a sandbox, and locks that tell who lives.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use leasehold_model::{Error, ErrorKind, Result, SandboxId, SandboxState};
use rustix::fs::FlockOperation;

use crate::archive;
use crate::hold;
use crate::launch::file_work;
use crate::record::Record;
use crate::scratch::Scratch;
use crate::template::{baseline, remove_unused};
use crate::workspace;

/// The directories that a sandbox on the host's own files starts from, with their modes.
const SKELETON: &[(&str, u32)] = &[
    ("dev", 0o755),
    ("etc", 0o755),
    ("home", 0o755),
    ("media", 0o755),
    ("mnt", 0o755),
    ("opt", 0o755),
    ("proc", 0o555),
    ("root", 0o700),
    ("run", 0o755),
    ("run/lock", 0o1777),
    ("srv", 0o755),
    ("sys", 0o555),
    ("tmp", 0o1777),
    ("usr", 0o755),
    ("var", 0o755),
    ("var/cache", 0o755),
    ("var/lib", 0o755),
    ("var/log", 0o755),
    ("var/tmp", 0o1777),
];
/// The links beside them: where older programs look for run-time files and locks.
const SKELETON_LINKS: [(&str, &str); 2] = [("var/run", "/run"), ("var/lock", "/run/lock")];

/// The data directory of one user.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    root: PathBuf,
    program: Option<PathBuf>,
}

/// What a sweep did.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct SweepReport {
    /// Sandboxes whose remains were removed, with the reason.
    pub removed: Vec<(String, &'static str)>,
    /// Sandboxes whose changes were kept because nobody had decided about them.
    pub kept_changes: Vec<String>,
    /// What could not be understood or removed; it is left as it is.
    pub unexplained: Vec<String>,
}

fn cannot(what: &str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let message = format!("cannot {what} {}", path.display());
    move |error| Error::io("store", message, error)
}

fn make_private(path: &Path) -> Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|error| {
        cannot("make the directory", path)(error)
            .with_hint("set LEASEHOLD_DATA_DIR to a directory that you can write")
    })
}

impl Store {
    /// Opens the directory, making what is missing.
    pub(crate) fn open(root: &Path, program: Option<&Path>) -> Result<Self> {
        let program = program.map(Path::to_path_buf);
        let store = Self { root: root.to_path_buf(), program: program.clone() };
        for part in ["sandboxes", "changes", "templates"] {
            let path = store.root.join(part);
            if !path.is_dir() {
                make_private(&path)?;
            }
        }
        let root = fs::canonicalize(root).map_err(cannot("resolve", root))?;
        let store = Self { root, program };
        store.make_skeleton()?;
        Ok(store)
    }

    fn make_skeleton(&self) -> Result<()> {
        let skeleton = self.skeleton();
        if skeleton.is_dir() {
            return Ok(());
        }
        // Made aside and renamed, so that nobody ever sees half of it.
        let scratch = self.root.join(format!(".skeleton-{}", std::process::id()));
        for (path, mode) in std::iter::once(&("", 0o755)).chain(SKELETON) {
            let path = scratch.join(path);
            fs::create_dir_all(&path).map_err(cannot("make the directory", &path))?;
            fs::set_permissions(&path, fs::Permissions::from_mode(*mode))
                .map_err(cannot("set the mode of", &path))?;
        }
        for (path, target) in SKELETON_LINKS {
            let path = scratch.join(path);
            std::os::unix::fs::symlink(target, &path).map_err(cannot("make the link", &path))?;
        }
        match fs::rename(&scratch, &skeleton) {
            Err(error) if !skeleton.is_dir() => Err(cannot("make", &skeleton)(error)),
            Err(_) => file_work::remove_tree(None, &scratch),
            Ok(()) => Ok(()),
        }
    }

    /// The program that works on files in a namespace; this one when not given.
    pub(crate) fn program(&self) -> Option<&Path> {
        self.program.as_deref()
    }

    /// The data directory itself.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The tree that a sandbox on the host's own files starts from. Its name changes with its content.
    pub(crate) fn skeleton(&self) -> PathBuf {
        self.root.join("skeleton-2")
    }

    /// Where sandboxes are.
    pub(crate) fn sandbox(&self, id: &SandboxId) -> PathBuf {
        self.root.join("sandboxes").join(id.as_str())
    }

    /// Where templates are.
    pub(crate) fn template(&self, id: &str) -> PathBuf {
        self.root.join("templates").join(id)
    }

    /// Where the changes that a finished sandbox left are kept.
    pub(crate) fn changes(&self) -> PathBuf {
        self.root.join("changes")
    }

    /// Makes the directory of a new sandbox with its record, and takes its lock.
    pub(crate) fn create(&self, record: &Record) -> Result<OwnedFd> {
        let path = self.sandbox(&record.id);
        // A sweep that runs at this moment must not take the new directory for remains.
        let guard = self.lock_sandboxes(FlockOperation::LockShared)?;
        fs::DirBuilder::new().mode(0o700).create(&path).map_err(cannot("make the directory", &path))?;
        let lock = try_lock(&path)?.ok_or_else(|| {
            Error::new(
                ErrorKind::Conflict,
                "store",
                format!("the new directory {} is in use", path.display()),
            )
        })?;
        drop(guard);
        record.save(&path)?;
        Ok(lock)
    }

    /// The same, once no other sandbox has its name. Of several processes that try, one succeeds.
    pub(crate) fn create_named(&self, record: &Record) -> Result<OwnedFd> {
        let path = self.root.join("names.lock");
        let file = File::create(&path).map_err(cannot("open", &path))?;
        rustix::fs::flock(&file, FlockOperation::LockExclusive)
            .map_err(io::Error::from)
            .map_err(cannot("lock", &path))?;
        if self
            .records()?
            .iter()
            .any(|(other, lives)| other.name == record.name && (*lives || !other.is_expired()))
        {
            return Err(Error::new(
                ErrorKind::AlreadyExists,
                "sandbox.create",
                format!("there is a sandbox named `{}` already", record.name),
            )
            .with_hint("choose another name, or delete that one"));
        }
        self.create(record)
    }

    pub(crate) fn lock_sandboxes(&self, operation: FlockOperation) -> Result<File> {
        let path = self.root.join("sandboxes");
        let directory = File::open(&path).map_err(cannot("open", &path))?;
        rustix::fs::flock(&directory, operation).map_err(io::Error::from).map_err(cannot("lock", &path))?;
        Ok(directory)
    }

    /// Every record, with whether pid 1 lives. Records that can't be read are left out here; the sweep
    /// tells of them.
    pub(crate) fn records(&self) -> Result<Vec<(Record, bool)>> {
        let mut records = Vec::new();
        for path in self.directories()? {
            if let Ok(Some(record)) = Record::load(&path) {
                let lives = lives(&path);
                records.push((record, lives));
            }
        }
        records.sort_by_key(|(left, _)| left.created_at);
        Ok(records)
    }

    fn directories(&self) -> Result<Vec<PathBuf>> {
        let path = self.root.join("sandboxes");
        let entries = fs::read_dir(&path).map_err(cannot("list", &path))?;
        Ok(entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect())
    }

    /// Removes what dead sandboxes left: those bound to a creator that is gone, expired ones, and
    /// creations that were interrupted. Undecided changes are kept. One failure stops nothing.
    pub(crate) fn sweep(&self) -> Result<SweepReport> {
        let mut report = SweepReport::default();
        for path in self.directories()? {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            if let Err(error) = self.sweep_one(&path, &name, &mut report) {
                report.unexplained.push(format!("{name}: {error}"));
            }
        }
        let templates = Scratch::sweep(self, &self.template("")).and_then(|()| remove_unused(self));
        if let Err(error) = templates {
            report.unexplained.push(format!("templates: {error}"));
        }
        Ok(report)
    }

    fn sweep_one(&self, path: &Path, name: &str, report: &mut SweepReport) -> Result<()> {
        if is_locked(path, CREATOR) {
            return Ok(());
        }
        // The lock of the whole directory is held only to learn that nobody is making this one.
        let guard = self.lock_sandboxes(FlockOperation::LockExclusive)?;
        if !path.is_dir() {
            return Ok(());
        }
        let Some(lock) = try_lock(path)? else {
            return match Record::load(path)? {
                Some(record) => hold::thaw_forgotten(path, &record),
                None => Ok(()),
            };
        };
        drop(guard);
        if is_locked(path, CREATOR) {
            return Ok(());
        }
        let Some(mut record) = Record::load(path)? else {
            report.removed.push((name.to_owned(), "its creation was interrupted"));
            return self.remove(path, lock);
        };
        if record.is_expired() {
            report.removed.push((name.to_owned(), "it expired"));
        } else if record.bound_to_creator {
            if self.keep_changes(&record)? {
                report.kept_changes.push(name.to_owned());
            }
            report.removed.push((name.to_owned(), "its creator is gone"));
        } else if record.state == SandboxState::Creating || record.state == SandboxState::Destroying {
            report.removed.push((name.to_owned(), "its creation or removal was interrupted"));
        } else {
            if matches!(record.state, SandboxState::Running | SandboxState::Paused) {
                record.state = SandboxState::Stopped;
                record.save(path)?;
            }
            Scratch::sweep(self, path)?;
            return archive::tidy(self, &record);
        }
        self.remove(path, lock)
    }

    /// Removes a sandbox's directory and cgroups. The locks go last, and in one step with the directory
    /// for everybody who looks at it under the lock of all: whoever came in between would make new ones.
    pub(crate) fn remove(&self, path: &Path, lock: OwnedFd) -> Result<()> {
        if let Some(id) = path.file_name().and_then(|name| name.to_str()) {
            crate::cgroup::remove(id);
        }
        let entries = fs::read_dir(path).map_err(cannot("list", path))?;
        for entry in entries {
            let entry = entry.map_err(cannot("list", path))?;
            if entry.file_name() != LOCK && entry.file_name() != CREATOR {
                file_work::remove_tree(self.program(), &entry.path())?;
            }
        }
        let _guard = self.lock_sandboxes(FlockOperation::LockExclusive)?;
        file_work::remove_tree(self.program(), path)?;
        drop(lock);
        Ok(())
    }

    /// Moves the workspace layer of a sandbox that is going away to the kept changes, when it or what it
    /// stacks on holds any. `true` when it did. The caller holds its lock.
    pub(crate) fn keep_changes(&self, record: &Record) -> Result<bool> {
        if record.workspace.as_ref().is_none_or(|workspace| workspace.source.is_none()) {
            return Ok(false);
        }
        let path = self.sandbox(&record.id);
        let mut record = record.clone();
        if record.state == SandboxState::Archived {
            archive::restore(self, &mut record)?;
        }
        let upper = path.join("workspace/upper");
        let is_stacked = workspace::has_layers_below(self, &record);
        if !is_stacked && !workspace::has_entries(&upper) {
            return Ok(false);
        }
        if let (Some(_), Some(map)) = (&record.image, file_work::subordinate()) {
            // The files may belong to other users inside; whoever decides about them must read them.
            file_work::take_over(self.program(), &map, None, &upper)?;
        }
        let kept = self.changes().join(record.id.as_str());
        make_private(&kept)?;
        let target = kept.join("upper");
        if is_stacked {
            let earliest = baseline(self, &record)?;
            if let Some(workspace) = &mut record.workspace {
                workspace.baseline = earliest;
            }
            let scratch = Scratch::make(self, &path)?;
            let merged = scratch.path().join("upper");
            workspace::merge_layers(self, &record, upper, workspace::on_disk(), &merged)?;
            record.save(&kept)?;
            fs::rename(&merged, &target).map_err(cannot("keep the changes in", &target))?;
        } else {
            record.save(&kept)?;
            fs::rename(&upper, &target).map_err(cannot("keep the changes in", &target))?;
        }
        Ok(true)
    }
}

/// Locked by the pid 1 of a sandbox, or by whoever works on its files while it is down.
const LOCK: &str = "lock";
/// Locked by the process that a sandbox is bound to. Between the end of pid 1 and the removal of the
/// directory, this alone tells a sweep of another process that the changes in it are being dealt with.
const CREATOR: &str = "creator";

/// Takes the lock of a sandbox's directory. `None` while its pid 1 or its creator holds it.
pub(crate) fn try_lock(directory: &Path) -> Result<Option<OwnedFd>> {
    lock_file(&directory.join(LOCK))
}

/// The same, with some patience for those who only look whether it is taken, or sweep past it.
pub(crate) fn lock_soon(directory: &Path) -> Result<Option<OwnedFd>> {
    for _ in 0..20 {
        if let Some(lock) = try_lock(directory)? {
            return Ok(Some(lock));
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    Ok(None)
}

/// Tells every sweep that this process deals with the sandbox, for as long as the descriptor is open.
pub(crate) fn hold_as_creator(directory: &Path) -> Result<OwnedFd> {
    let path = directory.join(CREATOR);
    lock_file(&path)?.ok_or_else(|| {
        Error::new(ErrorKind::Conflict, "store", format!("{} belongs to another process", path.display()))
    })
}

fn lock_file(path: &Path) -> Result<Option<OwnedFd>> {
    let file = File::options()
        .create(true)
        .write(true)
        .truncate(false)
        .open(path)
        .map_err(cannot("open the lock", path))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file.into())),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(cannot("lock", path)(error.into())),
    }
}

/// Whether somebody holds the lock of a sandbox's directory.
pub(crate) fn lives(directory: &Path) -> bool {
    is_locked(directory, LOCK)
}

fn is_locked(directory: &Path, name: &str) -> bool {
    let Ok(file) = File::open(directory.join(name)) else {
        return false;
    };
    // A shared lock that is let go at once: two askers don't see each other.
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) == Err(rustix::io::Errno::WOULDBLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_starts_with_the_places_for_run_time_files_and_locks() {
        let data = tempfile::tempdir().unwrap();
        let skeleton = Store::open(data.path(), None).unwrap().skeleton();
        for (path, target) in SKELETON_LINKS {
            assert_eq!(fs::read_link(skeleton.join(path)).unwrap(), Path::new(target));
        }
        for (path, mode) in [("tmp", 0o1777), ("var/tmp", 0o1777), ("run/lock", 0o1777)] {
            let found = fs::metadata(skeleton.join(path)).unwrap().permissions().mode();
            assert_eq!(found & 0o7777, mode, "{path}");
        }
    }
}
