//! Letting a normal user reach a checkout that lies in somebody's closed directory.
//!
//! Test programs have the absolute paths of the checkout and of the build directory compiled in, and
//! these may lie below `/root`. A copy elsewhere would need a second build. So the program runs in a
//! mount namespace of its own, in which the closed directory is covered by an empty open one that
//! holds nothing but the paths needed. Nothing changes for anybody else, and nothing is left to undo.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use leasehold_model::Result;

use crate::workspace::cannot_read;

/// What stands between a normal user and the paths.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct OpenPaths {
    /// Directories that others can't pass, outermost only.
    closed: BTreeSet<PathBuf>,
    /// What must stay visible below them.
    kept: BTreeSet<PathBuf>,
}

/// Covers the closed directories, brings back what is kept, and becomes the command.
/// Arguments: a directory for staging, the working directory, counts and lists of both, the command.
const SCRIPT: &str = r#"
set -eu
staging=$1 directory=$2 closed=$3 kept=$4
shift 4
mount -t tmpfs -o mode=0700 staging "$staging"
number=0
while [ "$number" -lt "$kept" ]; do
    # The list of what is kept stands behind the list of what is closed.
    eval "path=\${$((closed + number + 1))}"
    if [ -d "$path" ]; then mkdir "$staging/$number"; else : >"$staging/$number"; fi
    mount --rbind "$path" "$staging/$number"
    number=$((number + 1))
done
while [ "$closed" -gt 0 ]; do
    mount -t tmpfs -o mode=0755 covered "$1"
    closed=$((closed - 1))
    shift
done
number=0
while [ "$number" -lt "$kept" ]; do
    if [ -d "$staging/$number" ]; then mkdir -p "$1"; else mkdir -p "${1%/*}"; : >"$1"; fi
    mount --rbind "$staging/$number" "$1"
    number=$((number + 1))
    shift
done
umount -l "$staging"
cd "$directory"
exec "$@"
"#;

impl OpenPaths {
    /// Looks at every directory on the way to these paths.
    pub(crate) fn to<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Result<Self> {
        let mut plan = Self::default();
        for path in paths {
            let path = fs::canonicalize(path).map_err(|source| cannot_read(path, source))?;
            let mut ancestors: Vec<_> = path.ancestors().collect();
            ancestors.reverse();
            let Some(closed) = first_closed(&ancestors)? else { continue };
            plan.closed.insert(closed.to_path_buf());
            if is_closed(&path)? {
                // It would bring its mode along, so what is in it is kept, in an open directory.
                let entries = fs::read_dir(&path).map_err(|source| cannot_read(&path, source))?;
                for entry in entries {
                    plan.kept.insert(entry.map_err(|source| cannot_read(&path, source))?.path());
                }
            } else {
                plan.kept.insert(path);
            }
        }
        Ok(plan)
    }

    /// A command that runs `program` in `directory` with the paths open; its arguments follow.
    pub(crate) fn command(&self, staging: &Path, directory: &Path, program: &str) -> Command {
        if self.closed.is_empty() {
            let mut command = Command::new(program);
            command.current_dir(directory);
            return command;
        }
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--propagation=private", "--", "sh", "-c", SCRIPT, "open-paths"])
            .args([staging, directory])
            .args([self.closed.len().to_string(), self.kept.len().to_string()])
            .args(&self.closed)
            .args(&self.kept)
            .arg(program)
            .current_dir("/");
        command
    }
}

fn first_closed<'a>(ancestors: &[&'a Path]) -> Result<Option<&'a Path>> {
    for directory in ancestors {
        if is_closed(directory)? {
            return Ok(Some(directory));
        }
    }
    Ok(None)
}

/// Whether users other than the owner and its group can't pass.
fn is_closed(directory: &Path) -> Result<bool> {
    let metadata = fs::metadata(directory).map_err(|source| cannot_read(directory, source))?;
    Ok(metadata.permissions().mode() & 0o001 == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(path: &Path) {
        fs::set_permissions(path, fs::Permissions::from_mode(0o700)).unwrap();
    }

    /// `outer/closed/inner/file`, and its paths from outside to inside.
    fn tree() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let outer = tempfile::tempdir().unwrap();
        let closed = outer.path().canonicalize().unwrap().join("closed");
        let inner = closed.join("inner");
        fs::create_dir_all(&inner).unwrap();
        fs::write(inner.join("file"), "content").unwrap();
        fs::set_permissions(outer.path(), fs::Permissions::from_mode(0o755)).unwrap();
        close(&closed);
        (outer, closed, inner)
    }

    #[test]
    fn the_outermost_closed_directory_is_covered() {
        let (_outer, closed, inner) = tree();
        let plan = OpenPaths::to([inner.as_path()]).unwrap();
        // Where temporary directories are closed themselves, they are the outermost.
        assert!(closed.starts_with(plan.closed.first().unwrap()), "{plan:?}");
        assert_eq!(plan.kept, BTreeSet::from([inner]));
        assert_eq!(OpenPaths::to([Path::new("/usr")]).unwrap(), OpenPaths::default());
    }

    #[test]
    fn a_closed_path_keeps_what_is_in_it() {
        let (_outer, closed, inner) = tree();
        assert_eq!(OpenPaths::to([closed.as_path()]).unwrap().kept, BTreeSet::from([inner.clone()]));
        close(&inner);
        let plan = OpenPaths::to([inner.as_path()]).unwrap();
        assert!(closed.starts_with(plan.closed.first().unwrap()), "{plan:?}");
        assert_eq!(plan.kept, BTreeSet::from([inner.join("file")]));
    }

    #[test]
    fn a_normal_user_can_read_what_is_kept_and_nothing_else() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root can become another user");
            return;
        }
        let (outer, closed, inner) = tree();
        fs::write(closed.join("secret"), "secret").unwrap();
        let staging = outer.path().join("staging");
        fs::create_dir(&staging).unwrap();
        let plan = OpenPaths::to([inner.as_path()]).unwrap();
        let mut command = plan.command(&staging, &inner, "setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--", "sh", "-c"]);
        command.arg("cat file; pwd; ls ..");
        let output = command.output().unwrap();
        let expected = format!("content{}\ninner\n", inner.display());
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{output:?}");
        assert!(closed.join("secret").is_file(), "covered outside of the namespace too");
    }
}
