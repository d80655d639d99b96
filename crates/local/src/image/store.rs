//! The store on disk.
//!
//! ```text
//! store/                          mode 0700: unpacked set-id files must not be reachable for others
//!   lock                          held while records change
//!   images/<digest>.json          one record for each image
//!   layers/<owners>/<diff id>/    tree/ is the overlay's lower directory, report.json its notes
//!   locks/<owners>.<diff id>      shared: somebody uses the layer; exclusive: it is made or removed
//!   temporary/                    work in progress
//! ```
//!
//! A layer appears by one rename, complete. Processes share a store; a crash leaves only temporaries.

use std::fmt;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use leasehold_model::{Error, ErrorKind, ImageReference, Result};

use super::cancel::Cancellation;
use super::digest::Digest;
use super::garbage::{self, GarbageReport};
use super::layer::unpack_checked;
use super::limits::UnpackLimits;
use super::lock::{self, FileLock, LockMode};
use super::note::UnpackReport;
use super::owner::OwnerMap;
use super::record::{ImageSummary, Records};
use super::reference::ImageLocation;
use super::registry::CredentialSource;
use super::resolve::{self, Image, ResolveOptions};
use super::source::{BlobSource, LayerBlob};
use super::temporary::{self, TemporaryDirectory};
use super::unpack::unpack_layer;
use crate::removal::remove_tree;

/// What unpacking did, beside the tree; written last.
const REPORT: &str = "report.json";

/// Writes and removes unpacked trees. The store runs in one process, which may not be allowed to
/// give files to the ids of its owner map; then this is where a helper in a user namespace is put.
pub trait LayerUnpacker: Send + Sync {
    /// Unpacks a tar archive into an empty directory, as [`unpack_layer`] does. Blocking.
    fn unpack(
        &self,
        reader: &mut (dyn Read + Send),
        destination: &Path,
        owners: &OwnerMap,
        limits: &UnpackLimits,
    ) -> Result<UnpackReport>;

    /// Removes a tree, as [`remove_tree`] does. Blocking.
    fn remove(&self, tree: &Path) -> Result<()>;
}

/// Unpacks in this process: right for [`OwnerMap::Single`], and for ranges as root.
#[derive(Debug, Clone, Copy, Default)]
pub struct InProcessUnpacker;

impl LayerUnpacker for InProcessUnpacker {
    fn unpack(
        &self,
        reader: &mut (dyn Read + Send),
        destination: &Path,
        owners: &OwnerMap,
        limits: &UnpackLimits,
    ) -> Result<UnpackReport> {
        unpack_layer(reader, destination, owners, limits)
    }

    fn remove(&self, tree: &Path) -> Result<()> {
        remove_tree(tree)
    }
}

/// How a store works.
#[derive(Clone)]
pub struct ImageStoreOptions {
    /// Who owns the unpacked files.
    pub owners: OwnerMap,
    /// The bounds of unpacking.
    pub limits: UnpackLimits,
    /// Where registry credentials come from; `None` pulls anonymously.
    pub credentials: Option<Arc<dyn CredentialSource>>,
    /// Registries (`host` or `host:port`) that are spoken to without TLS. Those on this machine
    /// always are.
    pub plain_http: Vec<String>,
    /// Who writes and removes trees.
    pub unpacker: Arc<dyn LayerUnpacker>,
}

impl Default for ImageStoreOptions {
    fn default() -> Self {
        Self {
            owners: OwnerMap::Single,
            limits: UnpackLimits::default(),
            credentials: None,
            plain_http: Vec::new(),
            unpacker: Arc::new(InProcessUnpacker),
        }
    }
}

impl fmt::Debug for ImageStoreOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ImageStoreOptions")
            .field("owners", &self.owners)
            .field("limits", &self.limits)
            .field("credentials", &self.credentials)
            .field("plain_http", &self.plain_http)
            .finish_non_exhaustive()
    }
}

/// A content-addressed store of unpacked images, shared by any number of processes of one user.
#[derive(Debug, Clone)]
pub struct ImageStore {
    inner: Arc<StoreInner>,
}

#[derive(Debug)]
pub(super) struct StoreInner {
    pub(super) directory: PathBuf,
    pub(super) options: ImageStoreOptions,
    pub(super) records: Records,
}

impl ImageStore {
    /// Opens a store, makes it where there is none, and removes what killed processes left in it.
    ///
    /// Fails with [`ErrorKind::PermissionDenied`] when the directory belongs to another user.
    pub async fn open(directory: PathBuf, options: ImageStoreOptions) -> Result<Self> {
        blocking(move || {
            options.owners.check()?;
            let directory = prepare(&directory)?;
            temporary::sweep(&directory.join("temporary"), &*options.unpacker)?;
            let records = Records(directory.join("images"));
            Ok(Self { inner: Arc::new(StoreInner { directory, options, records }) })
        })
        .await
    }

    /// Finds an image, unpacks the layers that are not in the store, and leases them.
    ///
    /// Dropping the future stops the work; layers that were complete by then are kept.
    pub async fn resolve(&self, reference: &ImageReference, options: &ResolveOptions) -> Result<Image> {
        resolve::resolve(&self.inner, reference, options).await
    }

    /// The images of the store.
    pub async fn list(&self) -> Result<Vec<ImageSummary>> {
        let inner = Arc::clone(&self.inner);
        let records = blocking(move || inner.records.all()).await?;
        Ok(records.into_iter().map(|record| record.summary).collect())
    }

    /// Forgets a reference, or with a digest (`sha256:…`) a whole image. Its layers go with the next
    /// [`ImageStore::collect_garbage`], so sandboxes that use them are not disturbed.
    pub async fn remove(&self, reference: &ImageReference) -> Result<()> {
        let inner = Arc::clone(&self.inner);
        let reference = reference.clone();
        blocking(move || {
            let _lock = inner.lock()?;
            let missing = || {
                Error::new(
                    ErrorKind::NotFound,
                    "image.remove",
                    format!("the image store has no `{reference}`"),
                )
                .with_hint("`leasehold image list` shows what it has")
            };
            if let Ok(digest) = reference.0.parse::<Digest>() {
                inner.records.get(&digest)?.ok_or_else(missing)?;
                return inner.records.remove(&digest);
            }
            let canonical = ImageLocation::canonical_or_text(&reference);
            let mut record = inner.records.by_reference(&canonical)?.ok_or_else(missing)?;
            record.summary.references.retain(|known| *known != canonical);
            if record.summary.references.is_empty() {
                return inner.records.remove(&record.summary.digest);
            }
            inner.records.write(&record)
        })
        .await
    }

    /// Removes images without a reference and layers without an image, except layers that are leased
    /// or for which `in_use` says so: a stopped sandbox holds no lease and needs its layers.
    /// `in_use` is given the path of the layer's tree, as [`Image::layers`] has it.
    pub async fn collect_garbage(
        &self,
        in_use: impl Fn(&Path) -> bool + Send + 'static,
    ) -> Result<GarbageReport> {
        let inner = Arc::clone(&self.inner);
        blocking(move || garbage::collect(&inner, &in_use)).await
    }
}

/// Makes the store's directories and checks whose they are.
fn prepare(directory: &Path) -> Result<PathBuf> {
    let failed = |error| {
        Error::io("image.store", format!("cannot make the image store {}", directory.display()), error)
    };
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(0o700);
    for name in ["images", "layers", "locks", "temporary"] {
        builder.create(directory.join(name)).map_err(failed)?;
    }
    // Lower directories are named to the kernel: from the root, without links.
    let directory = directory.canonicalize().map_err(failed)?;
    let metadata = fs::metadata(&directory).map_err(failed)?;
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(Error::new(
            ErrorKind::PermissionDenied,
            "image.store",
            format!("the image store {} belongs to user {}", directory.display(), metadata.uid()),
        )
        .with_hint("use a directory of your own"));
    }
    if metadata.mode() & 0o077 != 0 {
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).map_err(failed)?;
    }
    Ok(directory)
}

/// Runs blocking work beside the runtime's own threads.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(error) => {
            Err(Error::new(ErrorKind::Cancelled, "image.store", "the runtime shuts down").with_source(error))
        }
    }
}

/// A layer that stays while this lives.
#[derive(Debug)]
pub(super) struct LeasedLayer {
    pub(super) tree: PathBuf,
    pub(super) report: UnpackReport,
    pub(super) lock: FileLock,
}

impl StoreInner {
    /// Takes the lock under which records change. Held for moments only.
    pub(super) fn lock(&self) -> Result<FileLock> {
        FileLock::take(&self.directory.join("lock"), LockMode::Exclusive, &|| Ok(()))
    }

    pub(super) fn temporary(&self) -> PathBuf {
        self.directory.join("temporary")
    }

    fn layer_directory(&self, diff_id: &Digest) -> PathBuf {
        self.directory.join("layers").join(self.options.owners.key()).join(diff_id.file_name())
    }

    pub(super) fn layer_lock(&self, owners: &str, diff_id: &Digest) -> PathBuf {
        self.directory.join("locks").join(format!("{owners}.{}", diff_id.file_name()))
    }

    /// Leases a layer that is in the store; `None` when it is not.
    pub(super) fn lease(&self, diff_id: &Digest, cancellation: &Cancellation) -> Result<Option<LeasedLayer>> {
        let path = self.layer_lock(&self.options.owners.key(), diff_id);
        let lock = FileLock::take(&path, LockMode::Shared, &|| cancellation.check())?;
        self.leased(diff_id, lock)
    }

    /// The layer under a lock that is held, if it is there.
    fn leased(&self, diff_id: &Digest, lock: FileLock) -> Result<Option<LeasedLayer>> {
        let directory = self.layer_directory(diff_id);
        let path = directory.join(REPORT);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(Error::io("image.store", format!("cannot read {}", path.display()), error));
            }
        };
        // Notes are for people; a report of another version is no reason to lose the layer.
        let report = serde_json::from_slice(&text).unwrap_or_default();
        Ok(Some(LeasedLayer { tree: directory.join("tree"), report, lock }))
    }

    /// Leases a layer, unpacking it first where it is not in the store. When several want it at
    /// once, one unpacks and the others wait.
    ///
    /// Each turn looks again: whoever unpacked the layer meanwhile keeps sharing its lock for as long
    /// as the image is used, so waiting for an exclusive one could take for ever.
    pub(super) fn lease_or_unpack(
        &self,
        layer: &LayerBlob,
        source: &dyn BlobSource,
        cancellation: &Cancellation,
    ) -> Result<LeasedLayer> {
        let path = self.layer_lock(&self.options.owners.key(), &layer.diff_id);
        let directory = self.layer_directory(&layer.diff_id);
        let is_there = || directory.join(REPORT).exists();
        loop {
            let mode = if is_there() { LockMode::Shared } else { LockMode::Exclusive };
            let Some(lock) = FileLock::try_take(&path, mode)? else {
                cancellation.check()?;
                std::thread::sleep(lock::POLL);
                continue;
            };
            if mode == LockMode::Exclusive {
                if !is_there() {
                    // Nothing of ours leaves a layer without its report; somebody meddled.
                    self.options.unpacker.remove(&directory)?;
                    self.unpack(layer, source, cancellation)?;
                }
                // Sharing lets go for a moment in which a collector may take the layer away again.
                if !lock.share()? {
                    continue;
                }
            }
            if let Some(leased) = self.leased(&layer.diff_id, lock)? {
                return Ok(leased);
            }
        }
    }

    /// Unpacks a layer beside the store and moves it there whole.
    fn unpack(&self, layer: &LayerBlob, source: &dyn BlobSource, cancellation: &Cancellation) -> Result<()> {
        let ImageStoreOptions { owners, limits, unpacker, .. } = &self.options;
        let failed = |what: &str, path: &Path, error| {
            Error::io("image.store", format!("cannot {what} {}", path.display()), error)
        };
        let temporary = TemporaryDirectory::create(&self.temporary(), &**unpacker)?;
        let layer_directory = temporary.path().join("layer");
        let tree = layer_directory.join("tree");
        fs::create_dir_all(&tree).map_err(|error| failed("make", &tree, error))?;
        let reader = source.open(&layer.address)?;
        let report = unpack_checked(reader, layer, &tree, &**unpacker, owners, limits, cancellation)?;

        let path = layer_directory.join(REPORT);
        let text = serde_json::to_vec(&report).unwrap_or_default();
        fs::write(&path, text).map_err(|error| failed("write", &path, error))?;
        // After a power cut a layer is there whole or not at all.
        let directory =
            fs::File::open(&layer_directory).map_err(|error| failed("open", &layer_directory, error))?;
        rustix::fs::syncfs(&directory).map_err(|error| failed("sync", &layer_directory, error.into()))?;

        let target = self.layer_directory(&layer.diff_id);
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent).map_err(|error| failed("make", parent, error))?;
        }
        fs::rename(&layer_directory, &target).map_err(|error| failed("move a layer to", &target, error))
    }
}
