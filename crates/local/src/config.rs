//! Where the embedded provider keeps what, and what it takes from its surroundings.

use std::path::{Path, PathBuf};

use leasehold_model::{Error, Result};

/// The configuration of a [`LocalProvider`](crate::LocalProvider).
#[derive(Debug, Clone)]
pub struct LocalConfig {
    /// Sandboxes, templates, images and kept changes live below this directory.
    pub data_directory: PathBuf,
    /// The program that becomes pid 1: one that calls [`run_if_asked`](crate::run_if_asked) first thing in
    /// `main`. This program itself when not given.
    pub init_program: Option<PathBuf>,
    /// The user's home directory, for toolchains.
    pub home: Option<PathBuf>,
}

impl LocalConfig {
    /// The configuration that the environment gives: `LEASEHOLD_DATA_DIR`, else
    /// `$XDG_DATA_HOME/leasehold`, else `~/.local/share/leasehold`.
    pub fn from_environment() -> Result<Self> {
        let absolute =
            |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let home = absolute("HOME");
        let data_directory = absolute("LEASEHOLD_DATA_DIR")
            .or_else(|| absolute("XDG_DATA_HOME").map(|path| path.join("leasehold")))
            .or_else(|| home.as_ref().map(|home| home.join(".local/share/leasehold")))
            .ok_or_else(|| {
                Error::invalid("config.load", "there is no place to keep sandboxes: HOME is not set")
                    .with_hint("set HOME, or LEASEHOLD_DATA_DIR to an absolute path")
            })?;
        Ok(Self { data_directory, init_program: None, home })
    }

    /// A configuration with another data directory and no toolchains.
    pub fn at(data_directory: impl AsRef<Path>) -> Self {
        Self { data_directory: data_directory.as_ref().to_path_buf(), init_program: None, home: None }
    }
}
