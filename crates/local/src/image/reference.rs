//! What an image reference points at.

use std::path::{Path, PathBuf};

use leasehold_model::{Error, ImageReference, Result};
use oci_client::Reference;

/// The place of an image.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ImageLocation {
    /// A directory with `oci-layout`, `index.json` and `blobs`.
    Layout { directory: PathBuf, tag: Option<String> },
    /// A file: an OCI layout as tar archive, or what `docker save` writes.
    Archive { file: PathBuf, tag: Option<String> },
    /// A name in a registry.
    Registry(Box<Reference>),
}

/// How a reference reads when it is a path: so that a name in a registry and a file of this
/// directory can never be taken for one another.
fn looks_like_path(text: &str) -> bool {
    text.starts_with('/') || text == "." || text == ".." || text.starts_with("./") || text.starts_with("../")
}

impl ImageLocation {
    /// Tells paths from names, and looks at what lies at a path.
    pub(super) fn find(reference: &ImageReference) -> Result<Self> {
        let text = reference.0.as_str();
        if looks_like_path(text) {
            return Self::at_path(text);
        }
        if let Ok(name) = text.parse::<Reference>() {
            return Ok(Self::Registry(Box::new(name)));
        }
        let error =
            Error::invalid("image.resolve", format!("`{}` is no image reference", text.escape_debug()));
        let first = text.split(':').next().unwrap_or(text);
        if Path::new(first).exists() {
            return Err(error.with_hint(format!("for the local image write `./{text}`")));
        }
        Err(error.with_hint(
            "write a path as ./PATH or /PATH, perhaps with :TAG, or a name such as docker.io/library/alpine:3",
        ))
    }

    fn at_path(text: &str) -> Result<Self> {
        let (path, tag) = match text.split_once(':') {
            // A path that exists as it is may hold colons.
            _ if Path::new(text).exists() => (Path::new(text), None),
            // The first colon after which a path ends that exists: tags hold colons too.
            Some(_) => text
                .match_indices(':')
                .map(|(at, _)| (Path::new(&text[..at]), Some(text[at + 1..].to_owned())))
                .find(|(path, _)| path.exists())
                .unwrap_or((Path::new(text), None)),
            None => (Path::new(text), None),
        };
        let path = path.canonicalize().map_err(|error| {
            Error::io("image.resolve", format!("cannot find the image at `{}`", path.display()), error)
        })?;
        if path.is_file() {
            return Ok(Self::Archive { file: path, tag });
        }
        if path.join("oci-layout").is_file() {
            return Ok(Self::Layout { directory: path, tag });
        }
        Err(not_an_image(&path))
    }

    /// One text for each image, the same from every working directory.
    pub(super) fn canonical(&self) -> String {
        let with_tag = |path: &Path, tag: &Option<String>| match tag {
            Some(tag) => format!("{}:{tag}", path.display()),
            None => path.display().to_string(),
        };
        match self {
            Self::Layout { directory, tag } => with_tag(directory, tag),
            Self::Archive { file, tag } => with_tag(file, tag),
            Self::Registry(name) => name.whole(),
        }
    }

    /// What a reference would be called if its files were still there: to remove images whose
    /// layout is gone.
    pub(super) fn canonical_or_text(reference: &ImageReference) -> String {
        Self::find(reference).map_or_else(|_| reference.0.clone(), |location| location.canonical())
    }
}

fn not_an_image(path: &Path) -> Error {
    let shown = path.display();
    let error = Error::invalid("image.resolve", format!("{shown} is no image"));
    let looks_like_root = ["bin", "usr", "etc"].iter().any(|name| path.join(name).exists());
    if looks_like_root {
        return error.with_hint(format!(
            "it looks like an unpacked root file system, which is not an image; make one of it, for example \
             with `tar -C {shown} -c . | docker import - NAME` and `docker save -o image.tar NAME`"
        ));
    }
    error.with_hint(
        "an image is a directory with `oci-layout` and `index.json`, an archive of one, or an archive of `docker save`",
    )
}

/// Whether a registry is on this machine, where plain HTTP exposes nothing to a network.
pub(super) fn is_loopback(registry: &str) -> bool {
    let host = match registry.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => registry.split(':').next().unwrap_or(registry),
    };
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn find(text: impl Into<String>) -> Result<ImageLocation> {
        ImageLocation::find(&ImageReference(text.into()))
    }

    #[test]
    fn names_are_of_a_registry() {
        let location = find("alpine").unwrap();
        assert_eq!(location.canonical(), "docker.io/library/alpine:latest");
        assert_eq!(find("localhost:5000/a/b:1").unwrap().canonical(), "localhost:5000/a/b:1");
        for bad in ["", "UPPER", "a b", "-x"] {
            assert!(find(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn paths_are_layouts_or_archives_and_a_root_is_refused_with_a_hint() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().canonicalize().unwrap();
        let shown = root.display();
        fs::create_dir(root.join("layout")).unwrap();
        fs::write(root.join("layout/oci-layout"), "{}").unwrap();
        fs::write(root.join("a:b.tar"), "").unwrap();
        let tagged = ImageLocation::Layout { directory: root.join("layout"), tag: Some("x:1".into()) };
        assert_eq!(find(format!("{shown}/layout:x:1")).unwrap(), tagged);
        let archive = ImageLocation::Archive { file: root.join("a:b.tar"), tag: None };
        assert_eq!(find(format!("{shown}/a:b.tar")).unwrap(), archive);
        fs::create_dir_all(root.join("rootfs/usr")).unwrap();
        let hint = find(format!("{shown}/rootfs")).unwrap_err();
        assert!(hint.hint().unwrap().contains("root file system"), "{hint:?}");
        let missing = find(format!("{shown}/nothing")).unwrap_err();
        assert_eq!(missing.kind(), leasehold_model::ErrorKind::NotFound);
    }

    #[test]
    fn loopback_is_by_address_not_by_prefix() {
        for yes in ["localhost", "localhost:5000", "127.0.0.1:80", "127.9.9.9", "[::1]:5000"] {
            assert!(is_loopback(yes), "{yes}");
        }
        for no in ["localhost.example.org", "127.0.0.1.example.org:80", "docker.io", "10.0.0.1", "1270.0.0.1"]
        {
            assert!(!is_loopback(no), "{no}");
        }
    }
}
