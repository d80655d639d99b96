//! Layers and images made by the tests.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use leasehold_local::image::{Digest, ImageStore, ImageStoreOptions, Platform, ResolveOptions};
use leasehold_local::image::{OwnerMap, UnpackLimits, UnpackReport, remove_tree, unpack_layer};
use leasehold_model::{Error, ImageReference, Result};
use serde_json::{Value, json};
use tar::{EntryType, Header};
use tempfile::TempDir;

/// The time that fixture entries have unless they say otherwise.
pub(crate) const MTIME: i64 = 1_000_000_000;

/// Whether the tests run as root.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A temporary directory that can be removed whatever its modes.
pub(crate) struct Place(TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.0.path().canonicalize().unwrap().join(name)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for entry in fs::read_dir(self.0.path()).unwrap() {
            remove_tree(&entry.unwrap().path()).unwrap();
        }
    }
}

/// A layer's archive in the making. It writes what it is told, sane or not.
#[derive(Default)]
pub(crate) struct Layer(Vec<u8>);

impl Layer {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn entry(self, kind: EntryType, path: &[u8], mode: u32, link: &[u8], data: &[u8]) -> Self {
        self.full(&[], kind, path, mode, link, data)
    }

    /// An entry with PAX records before it.
    pub(crate) fn full(
        mut self,
        records: &[(&str, &[u8])],
        kind: EntryType,
        path: &[u8],
        mode: u32,
        link: &[u8],
        data: &[u8],
    ) -> Self {
        let mut records = records.to_vec();
        if path.len() > 100 || path.contains(&0) {
            records.push(("path", path));
        }
        if link.len() > 100 || link.contains(&0) {
            records.push(("linkpath", link));
        }
        if !records.is_empty() {
            let mut builder = tar::Builder::new(&mut self.0);
            builder.append_pax_extensions(records.iter().copied()).unwrap();
            // Finishing would write the archive's end.
            std::mem::forget(builder);
        }
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(MTIME.unsigned_abs());
        header.set_size(data.len() as u64);
        let fields = header.as_ustar_mut().unwrap();
        let cut =
            |bytes: &[u8]| bytes.iter().copied().take(100).take_while(|byte| *byte != 0).collect::<Vec<_>>();
        fields.name[..cut(path).len()].copy_from_slice(&cut(path));
        fields.linkname[..cut(link).len()].copy_from_slice(&cut(link));
        header.set_cksum();
        self.0.extend_from_slice(header.as_bytes());
        self.0.extend_from_slice(data);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    pub(crate) fn file(self, path: &str, data: &[u8]) -> Self {
        self.entry(EntryType::Regular, path.as_bytes(), 0o644, b"", data)
    }

    pub(crate) fn directory(self, path: &str, mode: u32) -> Self {
        self.entry(EntryType::Directory, path.as_bytes(), mode, b"", b"")
    }

    pub(crate) fn symlink(self, path: &str, target: &str) -> Self {
        self.entry(EntryType::Symlink, path.as_bytes(), 0o777, target.as_bytes(), b"")
    }

    pub(crate) fn hard_link(self, path: &str, target: &str) -> Self {
        self.entry(EntryType::Link, path.as_bytes(), 0o644, target.as_bytes(), b"")
    }

    pub(crate) fn bytes(mut self, raw: &[u8]) -> Self {
        self.0.extend_from_slice(raw);
        self
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.0.extend_from_slice(&[0; 1024]);
        self.0
    }
}

/// Unpacks a layer into a new directory.
pub(crate) fn unpack_with(
    place: &Place,
    layer: Layer,
    limits: &UnpackLimits,
) -> Result<(PathBuf, UnpackReport)> {
    let tree = place.join("tree");
    fs::create_dir(&tree).unwrap();
    let archive = layer.finish();
    let report = unpack_layer(archive.as_slice(), &tree, &OwnerMap::Single, limits)?;
    Ok((tree, report))
}

pub(crate) fn unpack(place: &Place, layer: Layer) -> Result<(PathBuf, UnpackReport)> {
    unpack_with(place, layer, &UnpackLimits::default())
}

/// The error of unpacking a layer; whatever it is, nothing may have appeared beside the tree.
pub(crate) fn refusal(layer: Layer) -> Error {
    let place = Place::new();
    let error = unpack(&place, layer).unwrap_err();
    let names: Vec<_> =
        fs::read_dir(place.join(".")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["tree"], "something was written outside");
    error
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub(crate) fn zstd(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}

/// How an image's layers are stored.
#[derive(Clone, Copy)]
pub(crate) enum Packing {
    Plain,
    Gzip,
    Zstd,
}

/// The parts of an image.
pub(crate) struct TestImage {
    /// As stored, from the bottom up.
    pub(crate) blobs: Vec<Vec<u8>>,
    pub(crate) diff_ids: Vec<Digest>,
    pub(crate) media_type: String,
    pub(crate) config: Vec<u8>,
    pub(crate) manifest: Vec<u8>,
}

impl TestImage {
    pub(crate) fn new(layers: Vec<Layer>, packing: Packing) -> Self {
        Self::for_platform(layers, packing, &Platform::host().architecture)
    }

    pub(crate) fn for_platform(layers: Vec<Layer>, packing: Packing, architecture: &str) -> Self {
        let archives: Vec<_> = layers.into_iter().map(Layer::finish).collect();
        let diff_ids: Vec<_> = archives.iter().map(|archive| Digest::of(archive)).collect();
        let suffix = match packing {
            Packing::Plain => "",
            Packing::Gzip => "+gzip",
            Packing::Zstd => "+zstd",
        };
        let pack = |archive: &Vec<u8>| match packing {
            Packing::Plain => archive.clone(),
            Packing::Gzip => gzip(archive),
            Packing::Zstd => zstd(archive),
        };
        let blobs = archives.iter().map(pack).collect();
        Self::from_parts(
            blobs,
            diff_ids,
            format!("application/vnd.oci.image.layer.v1.tar{suffix}"),
            architecture,
        )
    }

    pub(crate) fn from_parts(
        blobs: Vec<Vec<u8>>,
        diff_ids: Vec<Digest>,
        media_type: String,
        architecture: &str,
    ) -> Self {
        let config = json!({
            "architecture": architecture, "os": "linux",
            "config": {"Env": ["PATH=/bin"], "Cmd": ["sh"], "WorkingDir": "/w"},
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        });
        let config = config.to_string().into_bytes();
        let layers: Vec<_> = blobs.iter().map(|blob| descriptor(blob, &media_type)).collect();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": descriptor(&config, "application/vnd.oci.image.config.v1+json"),
            "layers": layers,
        });
        Self { blobs, diff_ids, media_type, config, manifest: manifest.to_string().into_bytes() }
    }

    /// A small image with one file.
    pub(crate) fn small(content: &str) -> Self {
        Self::new(vec![Layer::new().directory("./", 0o755).file("file", content.as_bytes())], Packing::Gzip)
    }

    pub(crate) fn digest(&self) -> Digest {
        Digest::of(&self.manifest)
    }

    /// Adds the blobs to a layout.
    pub(crate) fn add_blobs(&self, layout: &Path) {
        for blob in self.blobs.iter().chain([&self.config, &self.manifest]) {
            write_blob(layout, blob);
        }
    }

    /// Writes a layout that holds this image alone.
    pub(crate) fn write_layout(&self, layout: &Path) -> ImageReference {
        self.add_blobs(layout);
        write_index(layout, &[descriptor(&self.manifest, MANIFEST)]);
        reference(layout)
    }
}

pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";

pub(crate) fn descriptor(content: &[u8], media_type: &str) -> Value {
    json!({"mediaType": media_type, "digest": Digest::of(content), "size": content.len()})
}

pub(crate) fn write_blob(layout: &Path, content: &[u8]) -> PathBuf {
    let directory = layout.join("blobs/sha256");
    fs::create_dir_all(&directory).unwrap();
    let path = directory.join(&Digest::of(content).as_str()["sha256:".len()..]);
    fs::write(&path, content).unwrap();
    path
}

pub(crate) fn index(entries: &[Value]) -> Vec<u8> {
    json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}).to_string().into_bytes()
}

pub(crate) fn write_index(layout: &Path, entries: &[Value]) {
    fs::write(layout.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    fs::write(layout.join("index.json"), index(entries)).unwrap();
}

pub(crate) fn reference(path: &Path) -> ImageReference {
    ImageReference(path.to_str().unwrap().to_owned())
}

pub(crate) fn tagged(path: &Path, tag: &str) -> ImageReference {
    ImageReference(format!("{}:{tag}", path.display()))
}

pub(crate) async fn store(place: &Place) -> ImageStore {
    ImageStore::open(place.join("store"), ImageStoreOptions::default()).await.unwrap()
}

pub(crate) fn defaults() -> ResolveOptions {
    ResolveOptions::default()
}

/// Names in one of the store's directories.
pub(crate) fn names(path: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(path)
        .map(|entries| entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect())
        .unwrap_or_default();
    names.sort();
    names
}

/// This test program as another process that runs one test, which asks by [`TASK`] what it is to do.
pub(crate) fn again(test: &str, task: &str) -> std::process::Command {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(TASK, task);
    command
}

/// The environment variable by which a test knows that it is the second process of another test.
pub(crate) const TASK: &str = "LEASEHOLD_IMAGE_TEST_TASK";
