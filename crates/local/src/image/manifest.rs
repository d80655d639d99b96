//! Manifests and indexes: what they look like on the wire, and how one image is chosen.

use std::collections::BTreeMap;

use leasehold_model::{Error, ErrorKind, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::digest::Digest;
use super::platform::{Platform, PlatformFields};
use super::source::{BlobAddress, LayerBlob};

/// The largest manifest, index or configuration that is read; the distribution specification asks
/// registries to take 4 MiB.
pub(super) const DOCUMENT_BYTES: u64 = 8 << 20;

/// Indexes within indexes: real ones have one level, or two in a layout.
pub(super) const NESTING: usize = 4;

/// The most layers of one image: what the kernel takes as lower layers of one overlay.
const LAYERS: usize = 500;

/// The manifest and index types asked of a registry.
pub(super) const MANIFEST_TYPES: [&str; 4] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
];

/// A reference to a blob.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Descriptor {
    #[serde(default)]
    pub(super) media_type: String,
    pub(super) digest: Digest,
    pub(super) size: u64,
    #[serde(default)]
    pub(super) platform: Option<PlatformFields>,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

/// A list of images.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Index {
    pub(super) manifests: Vec<Descriptor>,
}

/// One image.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Manifest {
    pub(super) config: Descriptor,
    pub(super) layers: Vec<Descriptor>,
}

/// What a digest or a tag leads to.
#[derive(Debug)]
pub(super) enum Document {
    Index(Index),
    Manifest(Manifest),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Shape {
    #[serde(default)]
    schema_version: Option<u32>,
    #[serde(default)]
    media_type: Option<String>,
    #[serde(default)]
    manifests: Option<serde::de::IgnoredAny>,
    #[serde(default)]
    layers: Option<serde::de::IgnoredAny>,
    #[serde(default)]
    config: Option<serde::de::IgnoredAny>,
}

impl Document {
    /// Tells an index from a manifest. One that is both at once is refused: readers that disagree
    /// about it would run different images under one digest (CVE-2021-41190).
    pub(super) fn parse(bytes: &[u8]) -> Result<Self> {
        let shape: Shape = json(bytes, "the manifest")?;
        if shape.schema_version == Some(1) {
            return Err(Error::unsupported("image.resolve", "the image has the retired manifest schema 1")
                .with_hint("build or push the image again with a current tool"));
        }
        let single = shape.layers.is_some() || shape.config.is_some();
        let says_index = shape
            .media_type
            .as_deref()
            .map(|text| text.ends_with(".index.v1+json") || text.ends_with(".manifest.list.v2+json"));
        match (shape.manifests.is_some(), single, says_index) {
            (true, false, None | Some(true)) => Ok(Self::Index(json(bytes, "the index")?)),
            (false, true, None | Some(false)) => Ok(Self::Manifest(json(bytes, "the manifest")?)),
            _ => {
                Err(Error::invalid("image.resolve", "the manifest is neither an image nor an index, or both"))
            }
        }
    }
}

/// Parses a document of the image.
pub(super) fn json<T: DeserializeOwned>(bytes: &[u8], what: &str) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|error| {
        Error::new(ErrorKind::Corrupt, "image.resolve", format!("{what} cannot be understood"))
            .with_source(error)
    })
}

impl Descriptor {
    /// The tags by which a layout or archive knows the entry: the OCI one, and the full name that
    /// containerd and Docker add.
    fn tags(&self) -> impl Iterator<Item = &str> {
        const KEYS: [&str; 2] = ["org.opencontainers.image.ref.name", "io.containerd.image.name"];
        KEYS.iter().filter_map(|key| self.annotations.as_ref()?.get(*key)).map(String::as_str)
    }

    fn has_tag(&self, tag: &str) -> bool {
        self.digest.as_str() == tag || self.tags().any(|known| known == tag)
    }

    /// Whether the entry is about another one (a signature or attestation) and no image.
    fn is_attached(&self) -> bool {
        let unknown = self.platform.as_ref().is_some_and(|platform| platform.os == "unknown");
        let refers =
            |annotations: &BTreeMap<String, String>| annotations.contains_key("vnd.docker.reference.type");
        unknown || self.annotations.as_ref().is_some_and(refers)
    }

    /// Compares content with the descriptor.
    pub(super) fn check(&self, content: &[u8], what: &str) -> Result<()> {
        let mut hasher = self.digest.hasher();
        hasher.update(content);
        let found = hasher.finish();
        if content.len() as u64 == self.size && found == self.digest {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Corrupt,
            "image.resolve",
            format!("{what} does not have the digest it is named by"),
        )
        .with_context("expected", &self.digest)
        .with_context("found", found)
        .with_hint("the image is damaged; build, save or pull it again"))
    }

    /// Refuses documents too large to be real before they are read.
    pub(super) fn check_size(&self, what: &str) -> Result<()> {
        if self.size <= DOCUMENT_BYTES {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::LimitExceeded,
            "image.resolve",
            format!("{what} has {} bytes; {DOCUMENT_BYTES} are allowed", self.size),
        ))
    }
}

impl Index {
    /// Chooses by tag, if one is given, then by platform.
    pub(super) fn choose(&self, tag: Option<&str>, platform: &Platform) -> Result<&Descriptor> {
        let images: Vec<_> = self.manifests.iter().filter(|entry| !entry.is_attached()).collect();
        let tagged: Vec<_> =
            images.iter().copied().filter(|entry| tag.is_none_or(|tag| entry.has_tag(tag))).collect();
        if let Some(tag) = tag
            && tagged.is_empty()
        {
            return Err(Error::new(
                ErrorKind::NotFound,
                "image.resolve",
                format!("there is no image tagged `{tag}`"),
            )
            .with_hint(self.known_tags()));
        }
        let runs = |entry: &Descriptor| match &entry.platform {
            Some(offered) => platform.rank(offered),
            // Not said: the configuration will tell.
            None => Some(u8::MAX),
        };
        let mut ranked: Vec<_> =
            tagged.iter().copied().filter_map(|entry| Some((runs(entry)?, entry))).collect();
        ranked.sort_by_key(|(rank, _)| *rank);
        let best = ranked.first().map(|(rank, _)| *rank);
        ranked.retain(|(rank, _)| Some(*rank) == best);
        ranked.dedup_by(|(_, one), (_, other)| one.digest == other.digest);
        match ranked.as_slice() {
            [(_, entry)] => Ok(entry),
            [] => {
                let offered: Vec<_> =
                    images.iter().filter_map(|entry| Some(entry.platform.as_ref()?.to_string())).collect();
                Err(Error::unsupported("image.resolve", format!("the image is not made for {platform}"))
                    .with_context("offered", offered.join(", ")))
            }
            _ => Err(Error::invalid("image.resolve", "there are several images, and none was chosen")
                .with_hint(self.known_tags())),
        }
    }

    fn known_tags(&self) -> String {
        let tags: Vec<_> = self.manifests.iter().flat_map(|entry| entry.tags().take(1)).take(20).collect();
        if tags.is_empty() {
            return "choose one by digest: PATH:sha256:…".to_owned();
        }
        format!("choose one as PATH:TAG; the tags are {}", tags.join(", "))
    }
}

impl Manifest {
    /// The layers from the bottom up, joined with the diff ids of the configuration.
    pub(super) fn layers(&self, diff_ids: &[Digest]) -> Result<Vec<LayerBlob>> {
        if self.layers.len() != diff_ids.len() {
            return Err(Error::new(
                ErrorKind::Corrupt,
                "image.resolve",
                format!(
                    "the manifest has {} layers and the configuration {}",
                    self.layers.len(),
                    diff_ids.len()
                ),
            ));
        }
        check_layer_count(diff_ids.len())?;
        let join = |(layer, diff_id): (&Descriptor, &Digest)| {
            check_layer_type(&layer.media_type)?;
            let address = BlobAddress::Digest { digest: layer.digest.clone(), size: layer.size };
            Ok(LayerBlob { diff_id: diff_id.clone(), address })
        };
        self.layers.iter().zip(diff_ids).map(join).collect()
    }

    /// Refuses what shares the format with images and is none, such as charts and signatures.
    pub(super) fn check_is_image(&self) -> Result<()> {
        match self.config.media_type.as_str() {
            ""
            | "application/vnd.oci.image.config.v1+json"
            | "application/vnd.docker.container.image.v1+json"
            | "application/octet-stream" => Ok(()),
            other => {
                Err(Error::invalid("image.resolve", format!("this is no container image but a `{other}`")))
            }
        }
    }
}

/// Refuses images that no overlay can hold.
pub(super) fn check_layer_count(count: usize) -> Result<()> {
    if count <= LAYERS {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::LimitExceeded,
        "image.resolve",
        format!("the image has {count} layers; an overlay holds {LAYERS}"),
    )
    .with_hint("squash the image"))
}

/// Layers are tar archives, plain or compressed; the first bytes tell how.
fn check_layer_type(media_type: &str) -> Result<()> {
    const PLAIN: [&str; 3] = [
        "application/vnd.oci.image.layer.v1.tar",
        "application/vnd.oci.image.layer.nondistributable.v1.tar",
        "application/vnd.docker.image.rootfs.diff.tar",
    ];
    const FOREIGN: &str = "application/vnd.docker.image.rootfs.foreign.diff.tar";
    let base = ["+gzip", "+zstd", ".gzip", ".zstd"]
        .iter()
        .find_map(|suffix| media_type.strip_suffix(suffix))
        .unwrap_or(media_type);
    if PLAIN.contains(&base) || base == FOREIGN {
        return Ok(());
    }
    let error = Error::unsupported("image.resolve", format!("a layer has the unknown type `{media_type}`"));
    if media_type.contains("encrypted") {
        return Err(error.with_hint("decrypt the image first; encrypted layers are not supported"));
    }
    Err(error)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn host() -> Platform {
        Platform { architecture: "amd64".into(), variant: None }
    }

    fn entry(content: &str, platform: Option<&str>, tag: Option<&str>) -> serde_json::Value {
        let mut entry = json!({
            "mediaType": MANIFEST_TYPES[1], "digest": Digest::of(content.as_bytes()), "size": 1,
        });
        if let Some(architecture) = platform {
            let os = if architecture == "unknown" { "unknown" } else { "linux" };
            entry["platform"] = json!({"os": os, "architecture": architecture});
        }
        if let Some(tag) = tag {
            entry["annotations"] = json!({"org.opencontainers.image.ref.name": tag});
        }
        entry
    }

    fn index(entries: &[serde_json::Value]) -> Index {
        serde_json::from_value(json!({"manifests": entries})).unwrap()
    }

    #[test]
    fn platform_and_tag_choose_and_doubt_is_an_error() {
        let many = index(&[
            entry("a", Some("arm64"), None),
            entry("b", Some("amd64"), None),
            entry("c", Some("unknown"), None),
        ]);
        assert_eq!(many.choose(None, &host()).unwrap().digest, Digest::of(b"b"));
        let tagged = index(&[entry("a", None, Some("1")), entry("b", None, Some("2"))]);
        assert_eq!(tagged.choose(Some("2"), &host()).unwrap().digest, Digest::of(b"b"));
        assert_eq!(tagged.choose(Some(Digest::of(b"a").as_str()), &host()).unwrap().digest, Digest::of(b"a"));
        let doubt = tagged.choose(None, &host()).unwrap_err();
        assert!(doubt.hint().unwrap().contains("1, 2"), "{doubt:?}");
        assert_eq!(tagged.choose(Some("3"), &host()).unwrap_err().kind(), ErrorKind::NotFound);
        let foreign = index(&[entry("a", Some("s390x"), None)]);
        assert_eq!(foreign.choose(None, &host()).unwrap_err().kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn documents_that_are_two_things_are_refused() {
        let descriptor = entry("a", None, None);
        let both = json!({"schemaVersion": 2, "manifests": [], "layers": [], "config": descriptor});
        let lying = json!({"mediaType": MANIFEST_TYPES[0], "layers": [], "config": descriptor});
        for bad in [both, lying, json!({}), json!([])] {
            assert!(Document::parse(bad.to_string().as_bytes()).is_err(), "{bad}");
        }
        let old = Document::parse(br#"{"schemaVersion":1,"fsLayers":[]}"#).unwrap_err();
        assert_eq!(old.kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn layer_types_of_both_worlds_are_known() {
        for good in [
            "application/vnd.oci.image.layer.v1.tar",
            "application/vnd.oci.image.layer.v1.tar+gzip",
            "application/vnd.oci.image.layer.v1.tar+zstd",
            "application/vnd.docker.image.rootfs.diff.tar.gzip",
        ] {
            check_layer_type(good).unwrap();
        }
        for bad in ["", "application/vnd.oci.image.layer.v1.tar+gzip+encrypted", "text/plain"] {
            assert_eq!(check_layer_type(bad).unwrap_err().kind(), ErrorKind::Unsupported);
        }
    }
}
