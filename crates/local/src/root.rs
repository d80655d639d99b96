//! Root file systems other than the host's own files: what is kept of an image in a record.

use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use leasehold_model::{BytePath, Deadline, Error, ErrorKind, ImageReference, Result};
use serde::{Deserialize, Serialize};

use crate::identity::IdentityMap;
use crate::image::{
    Image, ImageStore, ImageStoreOptions, LayerUnpacker, OwnerMap, OwnerRange, ResolveOptions, UnpackLimits,
    UnpackReport,
};
use crate::launch::file_work;
use crate::protocol::User;
use crate::store::Store;

/// How long an image may take to arrive.
const PULL_TIME: Duration = Duration::from_secs(1800);

/// What a sandbox needs of its image to be started again, whatever becomes of the reference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ImageRoot {
    /// The unpacked layers, the uppermost first.
    pub(crate) layers: Vec<BytePath>,
    /// Where commands start.
    pub(crate) directory: Option<BytePath>,
    /// Variables that commands get.
    pub(crate) environment: Vec<(BytePath, BytePath)>,
    /// Who commands run as, as the image writes it.
    pub(crate) user: Option<String>,
}

impl ImageRoot {
    fn of(image: &Image) -> Self {
        let bytes = |text: &std::ffi::OsString| BytePath::from(PathBuf::from(text.clone()));
        Self {
            layers: image.layers.iter().cloned().map(BytePath).collect(),
            directory: image.config.working_directory.clone().map(BytePath),
            environment: image
                .config
                .environment
                .iter()
                .map(|(name, value)| (bytes(name), bytes(value)))
                .collect(),
            user: image.config.user.clone().filter(|user| !user.is_empty()),
        }
    }

    /// The user that the image asks for; root when it asks for nobody.
    pub(crate) fn user(&self) -> User {
        let Some(text) = &self.user else {
            return User::Id { user: 0, group: None };
        };
        let (user, group) =
            text.split_once(':').map_or((text.as_str(), None), |(user, group)| (user, Some(group)));
        match user.parse() {
            Ok(user) => User::Id { user, group: group.and_then(|group| group.parse().ok()) },
            Err(_) => User::Name(user.to_owned()),
        }
    }
}

/// Opens the image store of a data directory.
pub(crate) async fn open_images(store: &Store) -> Result<ImageStore> {
    let mut options = ImageStoreOptions::default();
    let program = store.program().map(Path::to_path_buf);
    if rustix::process::geteuid().is_root() {
        // On disk, owners keep their numbers; sandboxes see the layers through an id-mapped mount.
        let all = || vec![OwnerRange { inside: 0, outside: 0, length: 65_536 }];
        options.owners = OwnerMap::Ranges { users: all(), groups: all() };
    } else if let Some(map) = file_work::subordinate() {
        options.owners = owners_of(&map);
        options.unpacker = Arc::new(NamespaceUnpacker { program, map });
    }
    ImageStore::open(store.root().join("images"), options).await
}

/// The owners on disk of an image that is unpacked with subordinate ids.
fn owners_of(map: &IdentityMap) -> OwnerMap {
    let IdentityMap::Subordinate { outside, users, groups } = map else {
        return OwnerMap::Single;
    };
    let ranges = |owner: u32, (first, count): (u32, u32)| {
        vec![
            OwnerRange { inside: 0, outside: owner, length: 1 },
            OwnerRange { inside: 1, outside: first, length: count },
        ]
    };
    OwnerMap::Ranges { users: ranges(outside.0, *users), groups: ranges(outside.1, *groups) }
}

/// Unpacks and removes layers in a user namespace that maps this user's subordinate ids.
struct NamespaceUnpacker {
    program: Option<PathBuf>,
    map: IdentityMap,
}

impl LayerUnpacker for NamespaceUnpacker {
    fn unpack(
        &self,
        reader: &mut (dyn Read + Send),
        destination: &Path,
        _owners: &OwnerMap,
        limits: &UnpackLimits,
    ) -> Result<UnpackReport> {
        file_work::unpack(self.program.as_deref(), &self.map, reader, destination, limits)
    }

    fn remove(&self, tree: &Path) -> Result<()> {
        file_work::remove_tree(self.program.as_deref(), tree)
    }
}

/// Finds an image and unpacks what is missing of it. The layers are leased while the image lives.
pub(crate) async fn resolve(images: &ImageStore, reference: &ImageReference) -> Result<(ImageRoot, Image)> {
    let options = ResolveOptions { deadline: Some(Deadline::after(PULL_TIME)), ..ResolveOptions::default() };
    let image = images.resolve(reference, &options).await?;
    if image.layers.is_empty() {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            "sandbox.create",
            format!("the image {reference} has no layers"),
        ));
    }
    Ok((ImageRoot::of(&image), image))
}

/// A variable's name or value as the kernel takes it.
pub(crate) fn raw((name, value): &(BytePath, BytePath)) -> (Vec<u8>, Vec<u8>) {
    let bytes = |text: &BytePath| text.as_os_str().as_bytes().to_vec();
    (bytes(name), bytes(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_users_are_names_or_numbers_with_or_without_a_group() {
        let user = |text: Option<&str>| {
            ImageRoot { layers: vec![], directory: None, environment: vec![], user: text.map(str::to_owned) }
                .user()
        };
        assert_eq!(user(None), User::Id { user: 0, group: None });
        assert_eq!(user(Some("5:6")), User::Id { user: 5, group: Some(6) });
        assert_eq!(user(Some("web:web")), User::Name("web".into()));
    }
}
