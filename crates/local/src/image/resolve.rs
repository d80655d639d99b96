//! From a reference to leased layers.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use leasehold_model::{Deadline, Error, ErrorKind, ImageReference, Result};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::archive;
use super::cancel::{CancelOnDrop, Cancellation};
use super::config::{ConfigDocument, ImageConfig};
use super::digest::Digest;
use super::layout::{self, LayoutDirectory};
use super::lock::FileLock;
use super::note::UnpackNote;
use super::platform::Platform;
use super::record::{self, ImageRecord, ImageSummary};
use super::reference::ImageLocation;
use super::registry;
use super::source::FoundImage;
use super::store::{LeasedLayer, StoreInner, blocking};

/// Layers unpacked at once for one image.
const LAYERS_AT_ONCE: usize = 4;

/// When a registry is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PullPolicy {
    /// When the store does not have the reference, or not all layers of it.
    #[default]
    IfMissing,
    /// Always, so that a tag that moved is followed. Layers that the store has are not pulled again.
    Always,
    /// Never: the store has it or it is an error.
    Never,
}

/// How an image is resolved.
#[derive(Debug, Clone)]
pub struct ResolveOptions {
    /// When a registry is asked. Images at paths are always looked at.
    pub policy: PullPolicy,
    /// Which variant of the image.
    pub platform: Platform,
    /// When to give up.
    pub deadline: Option<Deadline>,
}

impl Default for ResolveOptions {
    fn default() -> Self {
        Self { policy: PullPolicy::default(), platform: Platform::host(), deadline: None }
    }
}

/// An unpacked image. Its layers stay in the store while this lives.
#[derive(Debug)]
pub struct Image {
    /// The digest of its manifest; of a Docker archive's image, of its configuration.
    pub digest: Digest,
    /// What its author wants commands to get.
    pub config: ImageConfig,
    /// The unpacked layers, top first: the order in which an overlay takes lower directories. Each
    /// layer once; empty for an image without layers.
    pub layers: Vec<PathBuf>,
    /// What unpacking left out or changed.
    pub notes: Vec<UnpackNote>,
    #[allow(dead_code)] // Held, not read.
    leases: Vec<FileLock>,
}

pub(super) async fn resolve(
    store: &Arc<StoreInner>,
    reference: &ImageReference,
    options: &ResolveOptions,
) -> Result<Image> {
    let work = resolve_unbounded(store, reference, options);
    let Some(deadline) = options.deadline else { return work.await };
    match tokio::time::timeout_at(deadline.instant().into(), work).await {
        Ok(result) => result,
        Err(_) => Err(Error::new(
            ErrorKind::DeadlineExceeded,
            "image.resolve",
            format!("the image {reference} was not there in time"),
        )
        .with_hint("try again: the layers that are complete are kept")),
    }
}

async fn resolve_unbounded(
    store: &Arc<StoreInner>,
    reference: &ImageReference,
    options: &ResolveOptions,
) -> Result<Image> {
    // Dropped with this future: the blocking work then stops at its next chunk.
    let (guard, cancellation) = Cancellation::pair();
    let location = {
        let reference = reference.clone();
        blocking(move || ImageLocation::find(&reference)).await?
    };
    let canonical = location.canonical();
    // The same name is another image on another platform.
    let key = if options.platform == Platform::host() {
        canonical
    } else {
        format!("{canonical} ({})", options.platform)
    };
    let mut stamp = None;
    match &location {
        ImageLocation::Registry(name) if options.policy != PullPolicy::Always => {
            let wanted = match name.digest() {
                Some(digest) => Wanted::Digest(digest.to_owned()),
                None => Wanted::Reference,
            };
            if let Some(image) = known(store, &key, wanted, options, &cancellation).await? {
                return Ok(image);
            }
            if options.policy == PullPolicy::Never {
                return Err(Error::new(
                    ErrorKind::NotFound,
                    "image.resolve",
                    format!("the image {reference} is not in the store, and pulling is off"),
                )
                .with_hint("allow pulling, or pull it once before"));
            }
        }
        ImageLocation::Archive { file, .. } => {
            // Taken before the file is read: should it change meanwhile, the stamp is the old one.
            let file = file.clone();
            stamp = blocking(move || Ok(record::stamp(&file))).await?;
            if let Some(stamp) = stamp.clone()
                && let Some(image) = known(store, &key, Wanted::Stamp(stamp), options, &cancellation).await?
            {
                return Ok(image);
            }
        }
        _ => {}
    }
    let found = find(store, location, options, &cancellation).await?;
    unpack(store, found, key, stamp, &guard, cancellation).await
}

/// Looks for the image at its source.
async fn find(
    store: &Arc<StoreInner>,
    location: ImageLocation,
    options: &ResolveOptions,
    cancellation: &Cancellation,
) -> Result<FoundImage> {
    let store = Arc::clone(store);
    let platform = options.platform.clone();
    match location {
        ImageLocation::Registry(name) => {
            let credentials = store.options.credentials.as_deref();
            registry::find(&name, &platform, credentials, &store.options.plain_http, cancellation).await
        }
        ImageLocation::Layout { directory, tag } => {
            blocking(move || layout::find(LayoutDirectory(directory), tag.as_deref(), &platform)).await
        }
        ImageLocation::Archive { file, tag } => {
            let cancellation = cancellation.clone();
            blocking(move || {
                let limits = &store.options.limits;
                archive::find(&file, tag.as_deref(), &platform, &store.temporary(), limits, &cancellation)
            })
            .await
        }
    }
}

/// By what an image is looked for in the store.
enum Wanted {
    /// The reference.
    Reference,
    /// The reference, or the digest that it ends in.
    Digest(String),
    /// The reference to an archive that has not changed.
    Stamp(String),
}

/// An image that the store has whole.
async fn known(
    store: &Arc<StoreInner>,
    key: &str,
    wanted: Wanted,
    options: &ResolveOptions,
    cancellation: &Cancellation,
) -> Result<Option<Image>> {
    let (store, key) = (Arc::clone(store), key.to_owned());
    let (platform, cancellation) = (options.platform.clone(), cancellation.clone());
    blocking(move || {
        let by_reference = store.records.by_reference(&key)?;
        let record = match wanted {
            Wanted::Reference => by_reference,
            Wanted::Digest(text) => match (by_reference, text.parse::<Digest>()) {
                (None, Ok(digest)) => store.records.get(&digest)?,
                (record, _) => record,
            },
            Wanted::Stamp(stamp) => by_reference.filter(|record| record.stamps.get(&key) == Some(&stamp)),
        };
        let Some(record) = record else { return Ok(None) };
        let document = ConfigDocument::parse(record.config.as_bytes())?;
        document.check_platform(&platform)?;
        let mut leased = HashMap::new();
        for diff_id in &document.diff_ids {
            if leased.contains_key(diff_id) {
                continue;
            }
            let Some(layer) = store.lease(diff_id, &cancellation)? else { return Ok(None) };
            leased.insert(diff_id.clone(), layer);
        }
        Ok(Some(assemble(record.summary.digest, document, leased)))
    })
    .await
}

/// Unpacks what is missing, several layers at once, and remembers the image.
async fn unpack(
    store: &Arc<StoreInner>,
    found: FoundImage,
    key: String,
    stamp: Option<String>,
    guard: &CancelOnDrop,
    cancellation: Cancellation,
) -> Result<Image> {
    let FoundImage { digest, config, layers, source } = found;
    let document = ConfigDocument::parse(&config)?;
    let permits = Arc::new(Semaphore::new(LAYERS_AT_ONCE));
    let mut seen = HashSet::new();
    let mut tasks = JoinSet::new();
    for layer in layers {
        // An image may hold the same (often empty) layer several times.
        if !seen.insert(layer.diff_id.clone()) {
            continue;
        }
        let (store, source) = (Arc::clone(store), Arc::clone(&source));
        let (permits, cancellation) = (Arc::clone(&permits), cancellation.clone());
        tasks.spawn(async move {
            // The semaphore is never closed.
            let _permit = permits.acquire().await.ok();
            blocking(move || {
                let leased = store.lease_or_unpack(&layer, &*source, &cancellation)?;
                Ok((layer.diff_id, leased))
            })
            .await
        });
    }
    let mut leased = HashMap::new();
    let mut failure = None;
    while let Some(joined) = tasks.join_next().await {
        match joined {
            Ok(Ok((diff_id, layer))) => {
                leased.insert(diff_id, layer);
            }
            Ok(Err(error)) => {
                // The others stop, and this waits for them: nothing goes on behind an error.
                guard.cancel();
                failure.get_or_insert(error);
            }
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(error) => {
                return Err(Error::new(ErrorKind::Cancelled, "image.resolve", "the runtime shuts down")
                    .with_source(error));
            }
        }
    }
    if let Some(error) = failure {
        return Err(error);
    }
    let config = String::from_utf8(config).map_err(|error| {
        Error::new(ErrorKind::Corrupt, "image.resolve", "the configuration is no text").with_source(error)
    })?;
    let summary = ImageSummary {
        digest: digest.clone(),
        references: Vec::new(),
        layers: document.diff_ids.clone(),
        recorded_at: SystemTime::now(),
    };
    let store = Arc::clone(store);
    blocking(move || {
        let stamps = stamp.map(|stamp| (key.clone(), stamp)).into_iter().collect();
        let record = ImageRecord { summary, config, stamps };
        // Writing waits for the disk, and starting a sandbox should not.
        if store.records.has(&record, &key) {
            return Ok(());
        }
        let _lock = store.lock()?;
        store.records.put(record, &key)
    })
    .await?;
    Ok(assemble(digest, document, leased))
}

/// Puts the layers in the overlay's order. Of a layer that comes twice the upper one counts: it
/// covers all that the lower one shows, and the kernel refuses the same directory twice.
fn assemble(digest: Digest, document: ConfigDocument, mut leased: HashMap<Digest, LeasedLayer>) -> Image {
    let mut image =
        Image { digest, config: document.config, layers: Vec::new(), notes: Vec::new(), leases: Vec::new() };
    for diff_id in document.diff_ids.iter().rev() {
        if let Some(layer) = leased.remove(diff_id) {
            image.layers.push(layer.tree);
            image.notes.extend(layer.report.notes);
            image.leases.push(layer.lock);
        }
    }
    image
}
