//! Which of an image's variants this machine runs.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A Linux platform in the image world's own words (those of Go).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Platform {
    /// Such as `amd64` or `arm64`.
    pub architecture: String,
    /// Such as `v7` for `arm`.
    pub variant: Option<String>,
}

impl Platform {
    /// The platform of this program.
    pub fn host() -> Self {
        let (architecture, variant) = match std::env::consts::ARCH {
            "x86_64" => ("amd64", None),
            "x86" => ("386", None),
            "aarch64" => ("arm64", None),
            "arm" => ("arm", Some("v7")),
            "powerpc64" if cfg!(target_endian = "little") => ("ppc64le", None),
            "loongarch64" => ("loong64", None),
            other => (other, None),
        };
        Self { architecture: architecture.to_owned(), variant: variant.map(str::to_owned) }
    }

    /// How well an offered platform fits: smaller is better, `None` is not at all.
    pub(super) fn rank(&self, offered: &PlatformFields) -> Option<u8> {
        if offered.os != "linux" || offered.architecture != self.architecture {
            return None;
        }
        let baseline = if self.architecture == "arm64" { Some("v8") } else { None };
        let wanted = self.variant.as_deref().or(baseline);
        let variant = offered.variant.as_deref().filter(|text| !text.is_empty()).or(baseline);
        match (wanted, variant) {
            (wanted, variant) if wanted == variant => Some(0),
            (_, None) => Some(1),
            // An arm machine runs what was built for an older one.
            (Some(wanted), Some(variant)) if variant < wanted => Some(2),
            _ => None,
        }
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "linux/{}", self.architecture)?;
        match &self.variant {
            Some(variant) => write!(formatter, "/{variant}"),
            None => Ok(()),
        }
    }
}

/// The `platform` object of an index entry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PlatformFields {
    #[serde(default)]
    pub(super) os: String,
    #[serde(default)]
    pub(super) architecture: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) variant: Option<String>,
}

impl fmt::Display for PlatformFields {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.os, self.architecture)?;
        match &self.variant {
            Some(variant) => write!(formatter, "/{variant}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(wanted: (&str, Option<&str>), offered: (&str, &str, Option<&str>)) -> Option<u8> {
        let platform = Platform { architecture: wanted.0.to_owned(), variant: wanted.1.map(str::to_owned) };
        platform.rank(&PlatformFields {
            os: offered.0.to_owned(),
            architecture: offered.1.to_owned(),
            variant: offered.2.map(str::to_owned),
        })
    }

    #[test]
    fn the_closest_variant_that_runs_is_best() {
        assert_eq!(rank(("amd64", None), ("linux", "amd64", None)), Some(0));
        assert_eq!(rank(("amd64", None), ("linux", "amd64", Some("v3"))), None);
        assert_eq!(rank(("amd64", None), ("windows", "amd64", None)), None);
        assert_eq!(rank(("arm64", None), ("linux", "arm64", Some("v8"))), Some(0));
        assert_eq!(rank(("arm64", None), ("linux", "arm64", Some("v9"))), None);
        assert_eq!(rank(("arm", Some("v7")), ("linux", "arm", Some("v6"))), Some(2));
        assert_eq!(rank(("arm", Some("v6")), ("linux", "arm", Some("v7"))), None);
    }
}
