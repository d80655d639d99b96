//! A path inside a workspace: any bytes, never leading outside.

use std::cmp::Ordering;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::ops::Deref;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};

use leasehold_model::{Error, Result};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::quoting::quoted;

/// The longest path that one system call takes, without its end mark (`PATH_MAX`).
pub(super) const LONGEST_PATH: usize = 4095;

/// A path relative to the workspace, made of plain names only. Its order puts a directory directly
/// before what it holds. In JSON it is a string where it is UTF-8, else `{"bytes": [..]}`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RelativePath(PathBuf);

impl RelativePath {
    /// The workspace itself.
    pub(super) fn root() -> Self {
        Self(PathBuf::new())
    }

    /// Checks that a path consists of plain names: not empty, not absolute, without `.` and `..`.
    pub fn new(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let bytes = path.as_os_str().as_bytes();
        let plain = !bytes.is_empty()
            && bytes.len() <= LONGEST_PATH
            && !bytes.contains(&0)
            && bytes
                .split(|byte| *byte == b'/')
                .all(|name| !name.is_empty() && name != b"." && name != b"..");
        debug_assert!(!plain || path.components().all(|part| matches!(part, Component::Normal(_))));
        if plain {
            return Ok(Self(path));
        }
        Err(Error::invalid("changes.path", format!("{} is not a path inside a workspace", quoted(bytes)))
            .with_hint("give a relative path of plain names"))
    }

    /// The path of an entry in this directory; `None` when it would be too long to be used.
    pub(super) fn child(&self, name: &OsStr) -> Option<Self> {
        let path = self.0.join(name);
        (path.as_os_str().len() <= LONGEST_PATH).then_some(Self(path))
    }

    /// The directory that holds it, and its name there.
    pub(super) fn split(&self) -> (Self, &OsStr) {
        let parent = self.0.parent().unwrap_or(Path::new("")).to_owned();
        (Self(parent), self.0.file_name().unwrap_or_default())
    }

    /// Whether it is the workspace itself.
    pub(super) fn is_root(&self) -> bool {
        self.0.as_os_str().is_empty()
    }

    /// The bytes of the path.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_os_str().as_bytes()
    }
}

impl Deref for RelativePath {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<Path> for RelativePath {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl PartialOrd for RelativePath {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for RelativePath {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.cmp(&other.0)
    }
}

/// As text for people: quoted as git quotes when it holds anything but printable ASCII.
impl fmt::Display for RelativePath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&quoted(self.as_bytes()))
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Wire {
    Text(String),
    Bytes { bytes: Vec<u8> },
}

impl Serialize for RelativePath {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match self.0.to_str() {
            Some(text) => Wire::Text(text.to_owned()),
            None => Wire::Bytes { bytes: self.as_bytes().to_vec() },
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RelativePath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let path = match Wire::deserialize(deserializer)? {
            Wire::Text(text) => OsString::from(text),
            Wire::Bytes { bytes } => OsString::from_vec(bytes),
        };
        Self::new(path).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_lead_outside_are_refused() {
        for bad in ["", "/etc", "..", "a/../b", "./a", "a//b", "a/", "a/.", "a\0b"] {
            assert!(RelativePath::new(bad).is_err(), "{bad:?}");
        }
        assert!(RelativePath::new("a".repeat(LONGEST_PATH + 1)).is_err());
        assert!(serde_json::from_str::<RelativePath>("\"../x\"").is_err());
    }

    #[test]
    fn any_bytes_survive_json() {
        for bytes in [&b"plain"[..], b"new\nline", b"\xff\xfe/x", "ü".as_bytes()] {
            let path = RelativePath::new(OsString::from_vec(bytes.to_vec())).unwrap();
            let json = serde_json::to_string(&path).unwrap();
            assert_eq!(serde_json::from_str::<RelativePath>(&json).unwrap(), path, "{json}");
        }
    }

    #[test]
    fn a_directory_comes_directly_before_what_it_holds() {
        let mut paths: Vec<_> =
            ["a-b", "a/b", "a", "a/b/c"].map(|text| RelativePath::new(text).unwrap()).to_vec();
        paths.sort();
        let text: Vec<_> = paths.iter().map(ToString::to_string).collect();
        assert_eq!(text, ["a", "a/b", "a/b/c", "a-b"]);
    }
}
