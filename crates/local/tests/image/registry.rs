//! Pulls from a real registry on loopback.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use leasehold_local::image::{
    CredentialSource, Digest, ImageStore, ImageStoreOptions, Platform, PullPolicy, RegistryCredentials,
    ResolveOptions,
};
use leasehold_model::{ErrorKind, ImageReference, Result, Retry, Secret};
use oci_client::client::{ClientConfig, ClientProtocol, Config, ImageLayer};
use oci_client::manifest::{
    ImageIndexEntry, OciImageIndex, OciImageManifest, OciManifest, Platform as OciPlatform,
};
use oci_client::secrets::RegistryAuth;
use oci_client::{Client, Reference};

use crate::fixture::{INDEX, Layer, MANIFEST, Packing, Place, TestImage, again, defaults, names};

/// The registry's password file: user `reader`, password `open sesame`, as bcrypt.
const PASSWORDS: &str = "reader:$2y$05$abcdefghijklmnopqrstuupx2xBUC4954936wVIjyyPHmUBFu0wCW\n";

/// Debian's `docker-registry` on a port of its own choice; gone with the test.
struct Registry {
    child: Child,
    host: String,
}

impl Registry {
    fn start(place: &Place, with_password: bool) -> Self {
        let data = place.join("registry");
        fs::create_dir_all(&data).unwrap();
        let mut config = format!(
            "version: 0.1\nstorage:\n  filesystem:\n    rootdirectory: {}\n  delete:\n    enabled: true\nhttp:\n  addr: 127.0.0.1:0\n",
            data.display()
        );
        if with_password {
            fs::write(place.join("passwords"), PASSWORDS).unwrap();
            let passwords = place.join("passwords");
            let lines = ["auth:", "  htpasswd:", "    realm: test", "    path: "];
            config.push_str(&lines.join("\n"));
            config.push_str(passwords.to_str().unwrap());
        }
        fs::write(place.join("registry.yml"), config).unwrap();
        let mut child = Command::new("docker-registry")
            .arg("serve")
            .arg(place.join("registry.yml"))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("`docker-registry` is not installed: run `cargo xtask setup`");
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut seen = String::new();
        let host = loop {
            let Some(line) = lines.next() else { panic!("the registry did not start:\n{seen}") };
            let line = line.unwrap();
            if let Some((_, rest)) = line.split_once("listening on ") {
                break rest.chars().take_while(|c| c.is_ascii_digit() || matches!(c, '.' | ':')).collect();
            }
            seen.push_str(&line);
            seen.push('\n');
        };
        // A full pipe would stop it.
        std::thread::spawn(move || lines.map_while(std::io::Result::ok).for_each(drop));
        Self { child, host }
    }

    fn reference(&self, rest: &str) -> ImageReference {
        ImageReference(format!("{}/{rest}", self.host))
    }

    fn client(&self) -> Client {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let protocol = ClientProtocol::HttpsExcept(vec![self.host.clone()]);
        let (proxy, exceptions) = ("http://127.0.0.1:9".into(), "127.0.0.1".into());
        let config = ClientConfig {
            protocol,
            http_proxy: Some(proxy),
            no_proxy: Some(exceptions),
            ..ClientConfig::default()
        };
        Client::try_from(config).unwrap()
    }

    async fn push(&self, rest: &str, image: &TestImage, auth: &RegistryAuth) {
        let name: Reference = self.reference(rest).0.parse().unwrap();
        let layer = |blob: &Vec<u8>| ImageLayer::new(blob.clone(), image.media_type.clone(), None);
        let layers: Vec<_> = image.blobs.iter().map(layer).collect();
        let config = Config::oci_v1(image.config.clone(), None);
        let manifest: OciImageManifest = serde_json::from_slice(&image.manifest).unwrap();
        self.client().push(&name, &layers, config, auth, Some(manifest)).await.unwrap();
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn with(policy: PullPolicy) -> ResolveOptions {
    ResolveOptions { policy, ..defaults() }
}

async fn store(place: &Place, credentials: Option<Arc<dyn CredentialSource>>) -> ImageStore {
    let options = ImageStoreOptions { credentials, ..ImageStoreOptions::default() };
    ImageStore::open(place.join("store"), options).await.unwrap()
}

#[tokio::test]
async fn an_image_is_pulled_once_and_a_moved_tag_is_followed_when_asked() {
    let place = Place::new();
    let registry = Registry::start(&place, false);
    let base = || Layer::new().file("base", &vec![b'b'; 3 << 20]);
    let image = |content: &str, packing| {
        TestImage::new(vec![base(), Layer::new().file("file", content.as_bytes())], packing)
    };
    let auth = RegistryAuth::Anonymous;
    registry.push("team/app:1", &image("one", Packing::Gzip), &auth).await;
    let reference = registry.reference("team/app:1");
    let store = store(&place, None).await;

    let absent = store.resolve(&reference, &with(PullPolicy::Never)).await.unwrap_err();
    assert_eq!(absent.kind(), ErrorKind::NotFound);
    let one = store.resolve(&reference, &defaults()).await.unwrap();
    assert_eq!(fs::read(one.layers[0].join("file")).unwrap(), b"one");
    assert_eq!(fs::metadata(one.layers[1].join("base")).unwrap().len(), 3 << 20);

    registry.push("team/app:1", &image("two", Packing::Zstd), &auth).await;
    let still = store.resolve(&reference, &defaults()).await.unwrap();
    assert_eq!(still.digest, one.digest, "if missing");
    let two = store.resolve(&reference, &with(PullPolicy::Always)).await.unwrap();
    assert_eq!(fs::read(two.layers[0].join("file")).unwrap(), b"two");
    assert_eq!(two.layers[1], one.layers[1], "the same layer in another packing is the same layer");

    let pinned = registry.reference(&format!("team/app@{}", one.digest));
    drop(registry);
    let offline = store.resolve(&reference, &with(PullPolicy::Never)).await.unwrap();
    assert_eq!(offline.digest, two.digest);
    let offline = store.resolve(&pinned, &with(PullPolicy::IfMissing)).await.unwrap();
    assert_eq!(offline.digest, one.digest, "a digest needs no registry");
    let error = store.resolve(&reference, &with(PullPolicy::Always)).await.unwrap_err();
    assert_eq!((error.kind(), error.retry()), (ErrorKind::Unavailable, Retry::Later), "{error:?}");
}

#[tokio::test]
async fn an_index_leads_to_this_platform() {
    let place = Place::new();
    let registry = Registry::start(&place, false);
    let auth = RegistryAuth::Anonymous;
    let ours = TestImage::small("ours");
    let theirs = TestImage::for_platform(vec![Layer::new().file("file", b"theirs")], Packing::Gzip, "mips");
    registry.push("multi:ours", &ours, &auth).await;
    registry.push("multi:theirs", &theirs, &auth).await;
    let host = Platform::host().architecture;
    let entry = |image: &TestImage, architecture: &str| ImageIndexEntry {
        media_type: MANIFEST.into(),
        digest: image.digest().to_string(),
        size: i64::try_from(image.manifest.len()).unwrap(),
        platform: serde_json::from_value::<OciPlatform>(
            serde_json::json!({"os": "linux", "architecture": architecture}),
        )
        .ok(),
        annotations: None,
        artifact_type: None,
    };
    let index = OciImageIndex {
        schema_version: 2,
        media_type: Some(INDEX.into()),
        manifests: vec![entry(&theirs, "mips"), entry(&ours, &host)],
        annotations: None,
        artifact_type: None,
    };
    let name: Reference = registry.reference("multi:all").0.parse().unwrap();
    registry.client().push_manifest(&name, &OciManifest::ImageIndex(index)).await.unwrap();
    let store = store(&place, None).await;
    let found = store.resolve(&registry.reference("multi:all"), &defaults()).await.unwrap();
    assert_eq!(found.digest, ours.digest());
    assert_eq!(fs::read(found.layers[0].join("file")).unwrap(), b"ours");
}

#[tokio::test]
async fn missing_and_damaged_images_are_told_apart() {
    let place = Place::new();
    let registry = Registry::start(&place, false);
    let store = store(&place, None).await;
    let missing = store.resolve(&registry.reference("no/such:1"), &defaults()).await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound, "{missing:?}");

    let image = TestImage::small("to be damaged");
    registry.push("app:1", &image, &RegistryAuth::Anonymous).await;
    let digest = Digest::of(&image.blobs[0]);
    let digits = &digest.as_str()["sha256:".len()..];
    let blob = format!("registry/docker/registry/v2/blobs/sha256/{}/{digits}/data", &digits[..2]);
    let mut content = image.blobs[0].clone();
    let middle = content.len() / 2;
    content[middle] ^= 1;
    fs::write(place.join(&blob), &content).unwrap();
    let damaged = store.resolve(&registry.reference("app:1"), &defaults()).await.unwrap_err();
    assert_eq!(damaged.kind(), ErrorKind::Corrupt, "{damaged:?}");
    for directory in ["layers/single", "temporary", "images"] {
        assert_eq!(names(&place.join("store").join(directory)), [""; 0], "{directory}");
    }
    fs::write(place.join(&blob), &image.blobs[0]).unwrap();
    store.resolve(&registry.reference("app:1"), &defaults()).await.unwrap();
}

#[derive(Debug)]
struct Keys {
    password: &'static str,
    asked: AtomicUsize,
}

#[async_trait]
impl CredentialSource for Keys {
    async fn credentials(&self, registry: &str) -> Result<Option<RegistryCredentials>> {
        assert!(registry.starts_with("127.0.0.1:"));
        self.asked.fetch_add(1, Ordering::Relaxed);
        Ok(Some(RegistryCredentials { user: "reader".into(), password: Secret::new(self.password) }))
    }
}

#[tokio::test]
async fn a_private_registry_wants_the_right_password() {
    let place = Place::new();
    let registry = Registry::start(&place, true);
    let auth = RegistryAuth::Basic("reader".into(), "open sesame".into());
    registry.push("private:1", &TestImage::small("secret"), &auth).await;
    let reference = registry.reference("private:1");
    let keys = |password| Arc::new(Keys { password, asked: AtomicUsize::new(0) });

    let anonymous = store(&place, None).await.resolve(&reference, &defaults()).await.unwrap_err();
    assert_eq!(anonymous.kind(), ErrorKind::PermissionDenied, "{anonymous:?}");
    let wrong = store(&place, Some(keys("guess"))).await.resolve(&reference, &defaults()).await.unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::PermissionDenied, "{wrong:?}");
    assert!(!format!("{wrong:?}").contains("guess"));
    let right = keys("open sesame");
    let image = store(&place, Some(right.clone())).await.resolve(&reference, &defaults()).await.unwrap();
    assert_eq!(fs::read(image.layers[0].join("file")).unwrap(), b"secret");
    assert_eq!(right.asked.load(Ordering::Relaxed), 1);
}

#[test]
fn a_proxy_in_the_environment_is_not_asked_for_a_registry_on_this_machine() {
    let output = again("registry::an_index_leads_to_this_platform", "")
        .env("http_proxy", "http://127.0.0.1:1")
        .env("HTTP_PROXY", "http://127.0.0.1:1")
        .env_remove("no_proxy")
        .env_remove("NO_PROXY")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}
