//! Toolchains in the user's home that a sandbox on the host's own files may use.
//!
//! Each entry names directories of programs, libraries and caches. Files with credentials
//! (`~/.cargo/credentials.toml`, `~/.npmrc`, `~/.config` and so on) lie beside them and are never shown.

use std::path::{Path, PathBuf};

/// One kind of toolchain below the home directory.
struct Toolchain {
    /// The variable that moves it elsewhere, with its place when the variable is not set.
    home: (&'static str, &'static str),
    /// The directories below that place that are shown.
    parts: &'static [&'static str],
}

const TOOLCHAINS: &[Toolchain] = &[
    Toolchain { home: ("RUSTUP_HOME", ".rustup"), parts: &[""] },
    Toolchain { home: ("CARGO_HOME", ".cargo"), parts: &["bin", "registry", "git"] },
    Toolchain { home: ("PYENV_ROOT", ".pyenv"), parts: &[""] },
    Toolchain { home: ("NVM_DIR", ".nvm"), parts: &[""] },
    Toolchain { home: ("FNM_DIR", ".local/share/fnm"), parts: &[""] },
    Toolchain { home: ("VOLTA_HOME", ".volta"), parts: &["bin", "tools"] },
    Toolchain { home: ("GOPATH", "go"), parts: &["bin", "pkg/mod"] },
    Toolchain { home: ("BUN_INSTALL", ".bun"), parts: &["bin", "install/cache"] },
    Toolchain { home: ("DENO_INSTALL", ".deno"), parts: &["bin"] },
    Toolchain { home: ("UV_PYTHON_INSTALL_DIR", ".local/share/uv/python"), parts: &[""] },
];

/// The variables that tell programs where their toolchain is. None of them holds a credential.
pub const TOOLCHAIN_VARIABLES: &[&str] = &[
    "RUSTUP_HOME",
    "RUSTUP_TOOLCHAIN",
    "CARGO_HOME",
    "PYENV_ROOT",
    "PYENV_VERSION",
    "NVM_DIR",
    "FNM_DIR",
    "VOLTA_HOME",
    "GOPATH",
    "GOROOT",
    "BUN_INSTALL",
    "DENO_INSTALL",
    "JAVA_HOME",
];

/// The existing toolchain directories, given the user's home and environment.
pub(crate) fn find(home: &Path, variable: impl Fn(&str) -> Option<PathBuf>) -> Vec<PathBuf> {
    TOOLCHAINS
        .iter()
        .flat_map(|toolchain| {
            let (name, default) = toolchain.home;
            let place =
                variable(name).filter(|path| path.is_absolute()).unwrap_or_else(|| home.join(default));
            toolchain
                .parts
                .iter()
                .map(move |part| if part.is_empty() { place.clone() } else { place.join(part) })
        })
        .filter(|path| path.starts_with(home) && path != home && path.is_dir())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_exists_is_shown_and_never_the_credentials_beside_it() {
        let home = tempfile::tempdir().unwrap();
        for path in [".cargo/bin", ".cargo/registry", ".ssh", "elsewhere/rustup"] {
            std::fs::create_dir_all(home.path().join(path)).unwrap();
        }
        std::fs::write(home.path().join(".cargo/credentials.toml"), "secret").unwrap();
        let moved = home.path().join("elsewhere/rustup");
        let found = find(home.path(), |name| (name == "RUSTUP_HOME").then(|| moved.clone()));
        let expected: Vec<_> =
            [moved.clone(), home.path().join(".cargo/bin"), home.path().join(".cargo/registry")].into();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_variable_cannot_point_at_the_whole_home() {
        let home = tempfile::tempdir().unwrap();
        let whole = home.path().to_path_buf();
        assert!(find(home.path(), |_| Some(whole.clone())).iter().all(|path| path != home.path()));
    }
}
