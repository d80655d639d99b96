//! Paths as bytes.

use std::fmt;
use std::ops::Deref;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::de::{self, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A path that keeps every byte through any record or message. In text formats it is a string where it
/// is UTF-8, else a map `{"bytes": […]}`; in binary formats it is its bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BytePath(pub PathBuf);

impl Deref for BytePath {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl<T: Into<PathBuf>> From<T> for BytePath {
    fn from(path: T) -> Self {
        Self(path.into())
    }
}

impl AsRef<Path> for BytePath {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Serialize for BytePath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let bytes = self.0.as_os_str().as_bytes();
        if !serializer.is_human_readable() {
            return serializer.serialize_bytes(bytes);
        }
        if let Some(text) = self.0.to_str() {
            return serializer.serialize_str(text);
        }
        let mut map = serializer.serialize_map(Some(1))?;
        map.serialize_entry("bytes", bytes)?;
        map.end()
    }
}

struct PathVisitor;

fn from_bytes(bytes: Vec<u8>) -> BytePath {
    BytePath(PathBuf::from(std::ffi::OsString::from_vec(bytes)))
}

impl<'de> Visitor<'de> for PathVisitor {
    type Value = BytePath;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a path as text or bytes")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<BytePath, E> {
        Ok(BytePath(PathBuf::from(text)))
    }

    fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<BytePath, E> {
        Ok(from_bytes(bytes.to_vec()))
    }

    fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<BytePath, A::Error> {
        match map.next_entry::<String, Vec<u8>>()? {
            Some((key, bytes)) if key == "bytes" => Ok(from_bytes(bytes)),
            _ => Err(de::Error::custom("expected the one key `bytes`")),
        }
    }
}

impl<'de> Deserialize<'de> for BytePath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            deserializer.deserialize_any(PathVisitor)
        } else {
            deserializer.deserialize_bytes(PathVisitor)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_byte_survives_a_text_record(bytes in proptest::collection::vec(1_u8.., 0..20)) {
            let path = from_bytes(bytes);
            let text = serde_json::to_string(&path).unwrap();
            prop_assert_eq!(serde_json::from_str::<BytePath>(&text).unwrap(), path);
        }
    }
}
