//! Images in registries, by the OCI distribution protocol.

use std::fmt;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use leasehold_model::{Error, ErrorKind, Result, Secret};
use oci_client::client::{ClientConfig, ClientProtocol};
use oci_client::errors::{DigestError, OciDistributionError, OciErrorCode};
use oci_client::manifest::OciDescriptor;
use oci_client::secrets::RegistryAuth;
use oci_client::{Client, Reference};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::cancel::Cancellation;
use super::config::ConfigDocument;
use super::digest::Digest;
use super::manifest::{Descriptor, Document, MANIFEST_TYPES, Manifest, NESTING};
use super::platform::Platform;
use super::reference::is_loopback;
use super::source::{BlobAddress, BlobSource, FoundImage};

/// A registry that says nothing for so long is given up.
const SILENCE: Duration = Duration::from_secs(60);
const CONNECT: Duration = Duration::from_secs(20);

/// Chunks that wait between the network and the unpacking thread.
const CHUNKS_WAITING: usize = 16;

/// A user name and password (or access token) for a registry.
#[derive(Debug, Clone)]
pub struct RegistryCredentials {
    /// The user.
    pub user: String,
    /// The password or token.
    pub password: Secret,
}

/// Where credentials come from. Asked once for each pull, with the registry's host name as the
/// reference has it, such as `ghcr.io` or `localhost:5000`.
#[async_trait]
pub trait CredentialSource: Send + Sync + fmt::Debug {
    /// The credentials for a registry; `None` pulls anonymously.
    async fn credentials(&self, registry: &str) -> Result<Option<RegistryCredentials>>;
}

/// Finds an image in its registry.
pub(super) async fn find(
    name: &Reference,
    platform: &Platform,
    credentials: Option<&dyn CredentialSource>,
    plain_http: &[String],
    cancellation: &Cancellation,
) -> Result<FoundImage> {
    let auth = match credentials {
        Some(source) => authentication(source.credentials(name.registry()).await?)?,
        None => RegistryAuth::Anonymous,
    };
    let registry = Registry { client: client(name, plain_http)?, auth, name: name.clone() };
    let (digest, manifest) = registry.manifest(platform).await?;
    manifest.check_is_image()?;
    let config = registry.small_blob(&manifest.config, "the image's configuration").await?;
    let document = ConfigDocument::parse(&config)?;
    document.check_platform(platform)?;
    let layers = manifest.layers(&document.diff_ids)?;
    let source = RegistryBlobs {
        registry: Arc::new(registry),
        runtime: Handle::current(),
        cancellation: cancellation.clone(),
    };
    Ok(FoundImage { digest, config, layers, source: Arc::new(source) })
}

fn authentication(credentials: Option<RegistryCredentials>) -> Result<RegistryAuth> {
    let Some(credentials) = credentials else { return Ok(RegistryAuth::Anonymous) };
    let password = std::str::from_utf8(credentials.password.reveal())
        .map_err(|_| Error::invalid("image.pull", "the registry password is not UTF-8"))?;
    Ok(RegistryAuth::Basic(credentials.user, password.to_owned()))
}

fn client(name: &Reference, plain_http: &[String]) -> Result<Client> {
    // Two cryptography back ends could be linked; without a choice the library would panic. An error
    // means that the choice was made already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let registry = name.resolve_registry().to_owned();
    let loopback = is_loopback(&registry);
    let plain = loopback || plain_http.contains(&registry);
    // A proxy from the environment would carry what is meant to stay on this machine, in plain text.
    // Naming one (that nobody is) replaces the environment's; the exceptions are reached directly.
    let direct = loopback.then(|| ("http://127.0.0.1:9".to_owned(), "127.0.0.0/8,::1,localhost".to_owned()));
    let (nobody, exceptions) = direct.unzip();
    let config = ClientConfig {
        http_proxy: nobody,
        no_proxy: exceptions,
        protocol: ClientProtocol::HttpsExcept(if plain { vec![registry] } else { Vec::new() }),
        read_timeout: Some(SILENCE),
        connect_timeout: Some(CONNECT),
        user_agent: concat!("leasehold/", env!("CARGO_PKG_VERSION")),
        ..ClientConfig::default()
    };
    Client::try_from(config).map_err(|error| {
        Error::unsupported("image.pull", "cannot set up the registry client")
            .with_source(error)
            .with_hint("install the system's certificate authorities (package `ca-certificates`)")
    })
}

struct Registry {
    client: Client,
    auth: RegistryAuth,
    name: Reference,
}

impl Registry {
    /// Follows indexes to the manifest for a platform.
    async fn manifest(&self, platform: &Platform) -> Result<(Digest, Manifest)> {
        let mut name = self.name.clone();
        let mut expected: Option<Descriptor> = None;
        for _ in 0..=NESTING {
            let (content, _) = self
                .client
                .pull_manifest_raw(&name, &self.auth, &MANIFEST_TYPES)
                .await
                .map_err(|error| self.failed("cannot get the manifest of", error))?;
            if let Some(descriptor) = &expected {
                descriptor.check(&content, "the manifest")?;
            }
            match Document::parse(&content)? {
                Document::Manifest(manifest) => {
                    let digest =
                        expected.map_or_else(|| Digest::of(&content), |descriptor| descriptor.digest);
                    return Ok((digest, manifest));
                }
                Document::Index(index) => {
                    let descriptor = index.choose(None, platform)?.clone();
                    descriptor.check_size("the manifest")?;
                    name = self.name.clone_with_digest(descriptor.digest.to_string());
                    expected = Some(descriptor);
                }
            }
        }
        Err(Error::invalid("image.pull", format!("indexes are nested more than {NESTING} deep")))
    }

    async fn small_blob(&self, descriptor: &Descriptor, what: &str) -> Result<Vec<u8>> {
        descriptor.check_size(what)?;
        let mut stream = self.stream(&descriptor.digest, descriptor.size).await?;
        let mut content = Vec::new();
        while let Some(chunk) = stream.next().await {
            let chunk = chunk.map_err(|error| self.broken(error))?;
            if content.len() + chunk.len() > usize::try_from(descriptor.size).unwrap_or(usize::MAX) {
                break;
            }
            content.extend_from_slice(&chunk);
        }
        descriptor.check(&content, what)?;
        Ok(content)
    }

    async fn stream(
        &self,
        digest: &Digest,
        size: u64,
    ) -> Result<futures_util::stream::BoxStream<'static, std::io::Result<Bytes>>> {
        let descriptor = OciDescriptor {
            digest: digest.to_string(),
            size: i64::try_from(size).unwrap_or(i64::MAX),
            ..OciDescriptor::default()
        };
        let blob = self.client.pull_blob_stream(&self.name, &descriptor).await;
        blob.map(|blob| blob.stream).map_err(|error| self.failed("cannot get a blob of", error))
    }

    fn broken(&self, error: std::io::Error) -> Error {
        Error::new(
            ErrorKind::Unavailable,
            "image.pull",
            format!("the download of {} broke off", self.name.whole()),
        )
        .with_source(error)
        .with_hint("try again: the layers that are complete are kept")
    }

    fn failed(&self, what: &str, error: OciDistributionError) -> Error {
        let kind = kind_of(&error);
        let message = format!("{what} {}", self.name.whole());
        let error = Error::new(kind, "image.pull", message).with_source(error);
        match kind {
            ErrorKind::PermissionDenied => {
                error.with_hint("check the name; a private image needs credentials for its registry")
            }
            ErrorKind::NotFound => error.with_hint("check the name and the tag"),
            _ => error,
        }
    }
}

fn kind_of(error: &OciDistributionError) -> ErrorKind {
    let by_status = |code: u16| match code {
        401 | 403 => ErrorKind::PermissionDenied,
        404 => ErrorKind::NotFound,
        408 | 425 | 429 | 500..=599 => ErrorKind::Unavailable,
        _ => ErrorKind::Unexpected,
    };
    match error {
        OciDistributionError::UnauthorizedError { .. } | OciDistributionError::AuthenticationFailure(_) => {
            ErrorKind::PermissionDenied
        }
        OciDistributionError::ImageManifestNotFoundError(_) => ErrorKind::NotFound,
        OciDistributionError::DigestError(_) => ErrorKind::Corrupt,
        OciDistributionError::ServerError { code, .. } => by_status(*code),
        OciDistributionError::RequestError(error) => {
            error.status().map_or(ErrorKind::Unavailable, |status| by_status(status.as_u16()))
        }
        OciDistributionError::IoError(_) => ErrorKind::Unavailable,
        OciDistributionError::RegistryError { envelope, .. } => {
            match envelope.errors.first().map(|e| &e.code) {
                Some(OciErrorCode::Unauthorized | OciErrorCode::Denied) => ErrorKind::PermissionDenied,
                Some(
                    OciErrorCode::ManifestUnknown
                    | OciErrorCode::NameUnknown
                    | OciErrorCode::BlobUnknown
                    | OciErrorCode::NotFound,
                ) => ErrorKind::NotFound,
                Some(OciErrorCode::Toomanyrequests) => ErrorKind::Unavailable,
                _ => ErrorKind::Unexpected,
            }
        }
        _ => ErrorKind::Unexpected,
    }
}

/// Blobs as blocking readers: a task downloads, the unpacking thread reads.
struct RegistryBlobs {
    registry: Arc<Registry>,
    runtime: Handle,
    cancellation: Cancellation,
}

impl BlobSource for RegistryBlobs {
    fn open(&self, address: &BlobAddress) -> Result<Box<dyn Read + Send>> {
        let BlobAddress::Digest { digest, size } = address.clone() else {
            return Err(Error::new(ErrorKind::Unexpected, "image.pull", "a registry has no archive members"));
        };
        let (sender, receiver) = mpsc::channel(CHUNKS_WAITING);
        let registry = Arc::clone(&self.registry);
        let mut cancellation = self.cancellation.clone();
        self.runtime.spawn(async move {
            tokio::select! {
                () = download(&registry, &digest, size, &sender) => {}
                () = cancellation.cancelled() => {}
                () = sender.closed() => {}
            }
        });
        Ok(Box::new(Download { receiver, chunk: Bytes::new(), complete: false }))
    }
}

async fn download(
    registry: &Registry,
    digest: &Digest,
    size: u64,
    sender: &mpsc::Sender<Result<Option<Bytes>>>,
) {
    let mut stream = match registry.stream(digest, size).await {
        Ok(stream) => stream,
        Err(error) => {
            // The reader may have gone, which ends this task all the same.
            let _ = sender.send(Err(error)).await;
            return;
        }
    };
    while let Some(chunk) = stream.next().await {
        let item = chunk.map(Some).map_err(|error| {
            // The library checks the digest, too, and says so in this way.
            if error.get_ref().is_none_or(|inner| inner.downcast_ref::<DigestError>().is_none()) {
                return registry.broken(error);
            }
            let message = "a layer's blob does not have the digest that its manifest names";
            Error::new(ErrorKind::Corrupt, "image.pull", message).with_source(error)
        });
        let failed = item.is_err();
        if sender.send(item).await.is_err() || failed {
            return;
        }
    }
    let _ = sender.send(Ok(None)).await;
}

struct Download {
    receiver: mpsc::Receiver<Result<Option<Bytes>>>,
    chunk: Bytes,
    complete: bool,
}

impl Read for Download {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        while self.chunk.is_empty() && !self.complete {
            match self.receiver.blocking_recv() {
                Some(Ok(Some(chunk))) => self.chunk = chunk,
                Some(Ok(None)) => self.complete = true,
                Some(Err(error)) => return Err(std::io::Error::other(error)),
                // The task ended without a word: cancelled, or its runtime shuts down.
                None => {
                    let error = Error::new(ErrorKind::Cancelled, "image.pull", "the download was cancelled");
                    return Err(std::io::Error::other(error));
                }
            }
        }
        let count = self.chunk.len().min(buffer.len());
        buffer[..count].copy_from_slice(&self.chunk.split_to(count));
        Ok(count)
    }
}
