//! OCI and Docker archives: one tar file, perhaps compressed.
//!
//! Members are found once and then read in place, so an archive is never unpacked as a whole. A
//! compressed one is decompressed to a file without a name first, because it cannot be read in place.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use leasehold_model::{Error, ErrorKind, Result};
use serde::Deserialize;

use super::cancel::Cancellation;
use super::config::ConfigDocument;
use super::decompress::{Compression, decompressed};
use super::digest::Digest;
use super::layout::{self, LayoutFiles, blob_path, read_document};
use super::limits::UnpackLimits;
use super::manifest::{check_layer_count, json};
use super::platform::Platform;
use super::source::{BlobAddress, BlobSource, FoundImage, LayerBlob};
use super::tarball::{EntryKind, Skip, Tarball};

/// Members of a real archive: some for each layer.
const MEMBERS: usize = 100_000;

/// Links between members that are followed: old `docker save` shares layers by them.
const LINKS: usize = 8;

/// Opens an archive and finds the image of a tag and platform in it. `temporary` is where a
/// compressed archive is decompressed to.
pub(super) fn find(
    path: &Path,
    tag: Option<&str>,
    platform: &Platform,
    temporary: &Path,
    limits: &UnpackLimits,
    cancellation: &Cancellation,
) -> Result<FoundImage> {
    let file = File::open(path)
        .map_err(|error| Error::io("image.resolve", format!("cannot open {}", path.display()), error))?;
    let file = plain(file, path, temporary, limits, cancellation)?;
    let archive = Archive::scan(file, limits, cancellation)
        .map_err(|error| error.with_context("archive", path.display()))?;
    if archive.members.contains_key("oci-layout") {
        return layout::find(archive, tag, platform);
    }
    if archive.members.contains_key("manifest.json") {
        return find_docker(archive, tag, platform);
    }
    Err(Error::invalid("image.resolve", format!("{} is no image archive", path.display())).with_hint(
        "an image archive holds `oci-layout` or, as `docker save` writes it, `manifest.json`; \
         an archive of a root file system is not an image",
    ))
}

/// The archive as a file that can be read in place.
fn plain(
    mut file: File,
    path: &Path,
    temporary: &Path,
    limits: &UnpackLimits,
    cancellation: &Cancellation,
) -> Result<File> {
    let failed = |error| Error::io("image.resolve", format!("cannot read {}", path.display()), error);
    let mut start = Vec::new();
    (&file).take(4).read_to_end(&mut start).map_err(failed)?;
    file.seek(SeekFrom::Start(0)).map_err(failed)?;
    if Compression::of(&start) == Compression::None {
        return Ok(file);
    }
    let size = file.metadata().map_err(failed)?.len();
    let allowed = limits.total_bytes.min(size.saturating_mul(limits.ratio).max(limits.ratio_floor));
    let mut reader = decompressed(file).map_err(failed)?;
    let mut target = unnamed_file(temporary)?;
    let mut buffer = vec![0; 128 << 10];
    let mut written = 0;
    loop {
        cancellation.check()?;
        let count = reader.read(&mut buffer).map_err(|error| {
            Error::new(ErrorKind::Corrupt, "image.resolve", format!("cannot decompress {}", path.display()))
                .with_source(error)
        })?;
        if count == 0 {
            break;
        }
        written += count as u64;
        if written > allowed {
            let message = format!("{} decompresses to more than {allowed} bytes", path.display());
            return Err(Error::new(ErrorKind::LimitExceeded, "image.resolve", message)
                .with_hint("decompress the archive yourself if it is to be trusted"));
        }
        target
            .write_all(&buffer[..count])
            .map_err(|error| Error::io("image.resolve", "cannot write the decompressed archive", error))?;
    }
    target.rewind().map_err(failed)?;
    Ok(target)
}

/// A file that is gone with its descriptor. Made by name and unlinked, because not every file system
/// has `O_TMPFILE`; should we die in between, the sweep of temporaries finds it.
fn unnamed_file(directory: &Path) -> Result<File> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos());
    let path = directory.join(format!("archive-{}-{now}", std::process::id()));
    let made = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path);
    made.and_then(|file| std::fs::remove_file(&path).map(|()| file)).map_err(|error| {
        Error::io("image.resolve", format!("cannot make a temporary file in {}", directory.display()), error)
    })
}

enum Member {
    Content { offset: u64, size: u64 },
    Link(String),
}

struct Archive {
    file: Arc<File>,
    members: HashMap<String, Member>,
}

/// Skips by seeking.
struct Seekable<'file> {
    file: &'file File,
    end: u64,
}

impl Read for Seekable<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.file.read(buffer)
    }
}

impl Skip for Seekable<'_> {
    fn skip(&mut self, count: u64) -> std::io::Result<()> {
        let position = self.file.stream_position()?;
        match position.checked_add(count) {
            Some(target) if target <= self.end => self.file.seek(SeekFrom::Start(target)).map(|_| ()),
            _ => Err(std::io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

impl Archive {
    /// Finds the members without reading their content.
    fn scan(file: File, limits: &UnpackLimits, cancellation: &Cancellation) -> Result<Self> {
        let end = file
            .metadata()
            .map_err(|error| Error::io("image.resolve", "cannot examine the archive", error))?
            .len();
        let mut tarball = Tarball::new(Seekable { file: &file, end }, limits.header_bytes);
        let mut members = HashMap::new();
        while let Some(entry) = tarball.next()? {
            cancellation.check()?;
            if members.len() >= MEMBERS {
                return Err(Error::new(
                    ErrorKind::LimitExceeded,
                    "image.resolve",
                    "the archive has too many members",
                ));
            }
            // Names that are no text or endless are of no member we look for.
            if entry.path.len().max(entry.link.len()) > limits.path_bytes {
                continue;
            }
            let Ok(name) = String::from_utf8(entry.path) else { continue };
            let name = normalised("", &name);
            let member = match entry.kind {
                EntryKind::File if entry.sparse.is_none() => {
                    Member::Content { offset: entry.data_offset, size: entry.size }
                }
                EntryKind::Symlink => {
                    let directory = name.rsplit_once('/').map_or("", |(directory, _)| directory);
                    Member::Link(normalised(directory, &String::from_utf8_lossy(&entry.link)))
                }
                EntryKind::HardLink => Member::Link(normalised("", &String::from_utf8_lossy(&entry.link))),
                _ => continue,
            };
            members.insert(name, member);
        }
        Ok(Self { file: Arc::new(file), members })
    }

    fn member(&self, path: &str) -> Result<MemberReader> {
        let mut name = path;
        for _ in 0..LINKS {
            match self.members.get(name) {
                Some(Member::Link(target)) => name = target,
                Some(Member::Content { offset, size }) => {
                    return Ok(MemberReader { file: Arc::clone(&self.file), offset: *offset, left: *size });
                }
                None => break,
            }
        }
        Err(Error::new(
            ErrorKind::Corrupt,
            "image.resolve",
            format!("the archive has no member `{}`", path.escape_debug()),
        ))
    }
}

/// A member's path from the archive's root. It only ever names a member, never a file on disk.
fn normalised(directory: &str, path: &str) -> String {
    let mut components: Vec<&str> = directory.split('/').filter(|part| !part.is_empty()).collect();
    for component in path.split('/') {
        match component {
            "" | "." => {}
            ".." => {
                components.pop();
            }
            name => components.push(name),
        }
    }
    components.join("/")
}

impl LayoutFiles for Archive {
    fn file(&self, path: &str) -> Result<Box<dyn Read + Send>> {
        Ok(Box::new(self.member(path)?))
    }
}

impl BlobSource for Archive {
    fn open(&self, address: &BlobAddress) -> Result<Box<dyn Read + Send>> {
        self.file(&blob_path(address))
    }
}

struct MemberReader {
    file: Arc<File>,
    offset: u64,
    left: u64,
}

impl Read for MemberReader {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let want = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let count = self.file.read_at(&mut buffer[..want], self.offset)?;
        self.offset += count as u64;
        self.left -= count as u64;
        Ok(count)
    }
}

/// One image in the `manifest.json` of `docker save`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerEntry {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

impl DockerEntry {
    /// Docker's tags are whole names; the part after the last colon is enough where it is unique.
    fn has_tag(&self, tag: &str) -> bool {
        let matches =
            |known: &String| known == tag || known.rsplit_once(':').is_some_and(|(_, last)| last == tag);
        self.repo_tags.iter().flatten().any(matches)
    }
}

fn find_docker(archive: Archive, tag: Option<&str>, platform: &Platform) -> Result<FoundImage> {
    let content = read_document(archive.member("manifest.json")?, "manifest.json")?;
    let entries: Vec<DockerEntry> = json(&content, "manifest.json")?;
    let chosen: Vec<_> = entries.iter().filter(|entry| tag.is_none_or(|tag| entry.has_tag(tag))).collect();
    let [entry] = chosen.as_slice() else {
        let tags: Vec<_> =
            entries.iter().flat_map(|entry| entry.repo_tags.iter().flatten()).take(20).collect();
        let tags: Vec<_> = tags.into_iter().map(String::as_str).collect();
        let (kind, message) = match chosen.len() {
            0 => (ErrorKind::NotFound, "the archive holds no such image"),
            _ => (ErrorKind::InvalidInput, "the archive holds several images, and none was chosen"),
        };
        return Err(Error::new(kind, "image.resolve", message)
            .with_hint(format!("choose one as PATH:TAG; the tags are {}", tags.join(", "))));
    };
    let config = read_document(archive.member(&normalised("", &entry.config))?, "the image's configuration")?;
    let digest = Digest::of(&config);
    check_config_name(&entry.config, &digest)?;
    let document = ConfigDocument::parse(&config)?;
    document.check_platform(platform)?;
    if document.diff_ids.len() != entry.layers.len() {
        return Err(Error::new(
            ErrorKind::Corrupt,
            "image.resolve",
            "manifest.json and the image's configuration have different numbers of layers",
        ));
    }
    check_layer_count(document.diff_ids.len())?;
    let join = |(diff_id, path): (Digest, &String)| LayerBlob {
        diff_id,
        address: BlobAddress::Member(normalised("", path)),
    };
    let layers = document.diff_ids.into_iter().zip(&entry.layers).map(join).collect();
    Ok(FoundImage { digest, config, layers, source: Arc::new(archive) })
}

/// Docker names the configuration by its digest; a name that looks like one must be the right one.
fn check_config_name(path: &str, found: &Digest) -> Result<()> {
    let name = path.rsplit('/').next().unwrap_or(path);
    let named = format!("sha256:{}", name.strip_suffix(".json").unwrap_or(name)).parse::<Digest>();
    match named {
        Ok(named) if named != *found => Err(Error::new(
            ErrorKind::Corrupt,
            "image.resolve",
            "the image's configuration does not have the digest it is named by",
        )
        .with_context("expected", named)
        .with_context("found", found)),
        _ => Ok(()),
    }
}
