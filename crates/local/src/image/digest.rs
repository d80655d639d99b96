//! Content digests as OCI writes them.

use std::fmt;
use std::fmt::Write as _;
use std::str::FromStr;

use leasehold_model::{Error, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256, Sha512};

/// The digest of some content: `sha256:` and 64 hexadecimal digits, or `sha512:` and 128.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(String);

impl Digest {
    /// The SHA-256 digest of some bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let mut hasher = Hasher::Sha256(Sha256::new());
        hasher.update(bytes);
        hasher.finish()
    }

    /// The text, such as `sha256:9f86…`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The algorithm and the hexadecimal digits.
    pub(super) fn parts(&self) -> (&str, &str) {
        self.0.split_once(':').unwrap_or(("", &self.0))
    }

    /// The digest as the name of one file.
    pub(super) fn file_name(&self) -> String {
        self.0.replace(':', "-")
    }

    /// The digest that [`Digest::file_name`] names, if it does.
    pub(super) fn from_file_name(name: &str) -> Option<Self> {
        name.replacen('-', ":", 1).parse().ok()
    }

    /// A hasher of the same algorithm.
    pub(super) fn hasher(&self) -> Hasher {
        if self.0.starts_with("sha512:") {
            Hasher::Sha512(Sha512::new())
        } else {
            Hasher::Sha256(Sha256::new())
        }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl FromStr for Digest {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let digits = match text.split_once(':') {
            Some(("sha256", hex)) => (hex, 64),
            Some(("sha512", hex)) => (hex, 128),
            _ => ("", 1),
        };
        let (hex, length) = digits;
        if hex.len() == length && hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            return Ok(Self(text.to_owned()));
        }
        Err(Error::invalid("digest.parse", format!("`{}` is not a digest", text.escape_debug()))
            .with_hint("a digest is `sha256:` and 64 lower-case hexadecimal digits"))
    }
}

impl TryFrom<String> for Digest {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> String {
        digest.0
    }
}

/// A digest in the making.
pub(super) enum Hasher {
    Sha256(Sha256),
    Sha512(Sha512),
}

impl Hasher {
    pub(super) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::Sha512(hasher) => hasher.update(bytes),
        }
    }

    pub(super) fn finish(self) -> Digest {
        match self {
            Self::Sha256(hasher) => Digest(written("sha256:", &hasher.finalize())),
            Self::Sha512(hasher) => Digest(written("sha512:", &hasher.finalize())),
        }
    }
}

fn written(prefix: &str, bytes: &[u8]) -> String {
    let mut text = String::with_capacity(prefix.len() + 2 * bytes.len());
    text.push_str(prefix);
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_checked_and_named() {
        let empty = Digest::of(b"");
        assert_eq!(empty.as_str(), "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_eq!(Digest::from_file_name(&empty.file_name()), Some(empty.clone()));
        let long = format!("sha512:{}", "0".repeat(128));
        assert_eq!(long.parse::<Digest>().unwrap().parts(), ("sha512", &long[7..]));
        for bad in ["", "sha256:", "sha256:../../etc", "md5:00", &empty.as_str().to_uppercase()] {
            assert!(bad.parse::<Digest>().is_err(), "{bad}");
        }
    }
}
