//! What cargo knows of this workspace, and the files in it.

use std::fs;
use std::path::{Path, PathBuf};

use leasehold_model::{Error, ErrorKind, Result};
use serde_json::Value;

use crate::subprocess;

/// One crate of the workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Package {
    /// Its name on crates.io.
    pub(crate) name: String,
    /// Its `Cargo.toml`.
    pub(crate) manifest: PathBuf,
    /// The names of all crates it imports: normal, build and test dependencies.
    pub(crate) dependencies: Vec<String>,
}

/// The workspace as `cargo metadata` describes it.
#[derive(Debug)]
pub(crate) struct Workspace {
    /// Its crates.
    pub(crate) packages: Vec<Package>,
    /// Where cargo builds.
    pub(crate) target: PathBuf,
}

impl Workspace {
    /// Asks cargo.
    pub(crate) fn load() -> Result<Self> {
        let output =
            subprocess::capture(subprocess::cargo().args(["metadata", "--format-version=1", "--no-deps"]))?;
        Self::parse(&output)
    }

    fn parse(metadata: &[u8]) -> Result<Self> {
        let unreadable = |what: &str| {
            Error::new(
                ErrorKind::Corrupt,
                "xtask.metadata",
                format!("the output of `cargo metadata` has no {what}"),
            )
        };
        let document: Value =
            serde_json::from_slice(metadata).map_err(|source| unreadable("JSON").with_source(source))?;
        let target = document["target_directory"].as_str().ok_or_else(|| unreadable("target directory"))?;
        let packages = document["packages"].as_array().ok_or_else(|| unreadable("packages"))?;
        let packages = packages
            .iter()
            .map(|package| {
                let dependencies = package["dependencies"].as_array().map(Vec::as_slice).unwrap_or_default();
                Some(Package {
                    name: package["name"].as_str()?.to_owned(),
                    manifest: PathBuf::from(package["manifest_path"].as_str()?),
                    dependencies: dependencies
                        .iter()
                        .filter_map(|dependency| dependency["name"].as_str().map(str::to_owned))
                        .collect(),
                })
            })
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| unreadable("package names"))?;
        Ok(Self { packages, target: PathBuf::from(target) })
    }
}

/// The root directory of the repository.
pub(crate) fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

/// One Rust source file of the repository.
#[derive(Debug)]
pub(crate) struct SourceFile {
    /// Its path from the root.
    pub(crate) path: PathBuf,
    /// Its text.
    pub(crate) text: String,
}

/// All Rust source files, in the order of their paths. Hidden directories and build results are left
/// out.
pub(crate) fn source_files(root: &Path) -> Result<Vec<SourceFile>> {
    let mut files = Vec::new();
    let mut pending = vec![root.to_path_buf()];
    while let Some(directory) = pending.pop() {
        let entries = fs::read_dir(&directory).map_err(|source| cannot_read(&directory, source))?;
        for entry in entries {
            let entry = entry.map_err(|source| cannot_read(&directory, source))?;
            let path = entry.path();
            let kind = entry.file_type().map_err(|source| cannot_read(&path, source))?;
            let name = entry.file_name();
            if kind.is_dir() {
                let skipped =
                    name == "target" || name == "node_modules" || name.as_encoded_bytes()[0] == b'.';
                if !skipped {
                    pending.push(path);
                }
            } else if kind.is_file() && path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).map_err(|source| cannot_read(&path, source))?;
                let path = path.strip_prefix(root).unwrap_or(&path).to_path_buf();
                files.push(SourceFile { path, text });
            }
        }
    }
    files.sort_by(|left, right| left.path.cmp(&right.path));
    Ok(files)
}

/// The error for a path that cannot be read.
pub(crate) fn cannot_read(path: &Path, source: std::io::Error) -> Error {
    Error::io("xtask.read", format!("cannot read {}", path.display()), source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_becomes_packages_with_all_kinds_of_dependencies() {
        let text =
            br#"{"target_directory": "/t", "packages": [{"name": "a", "manifest_path": "/w/a/Cargo.toml",
            "dependencies": [{"name": "b", "kind": null}, {"name": "c", "kind": "dev"}]}]}"#;
        let workspace = Workspace::parse(text).unwrap();
        assert_eq!(workspace.target, Path::new("/t"));
        assert_eq!(workspace.packages[0].name, "a");
        assert_eq!(workspace.packages[0].dependencies, ["b", "c"]);
        assert!(Workspace::parse(b"{}").is_err());
        assert!(Workspace::parse(b"not json").is_err());
    }

    #[test]
    fn source_files_leave_out_build_results_and_hidden_directories() {
        let directory = tempfile::tempdir().unwrap();
        for path in ["a.rs", "b/c.rs", "b/note.md", "target/d.rs", ".git/e.rs"] {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "//! x\n").unwrap();
        }
        let files = source_files(directory.path()).unwrap();
        let paths: Vec<_> = files.iter().map(|file| file.path.to_str().unwrap()).collect();
        assert_eq!(paths, ["a.rs", "b/c.rs"]);
    }
}
