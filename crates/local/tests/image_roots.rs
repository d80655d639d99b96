//! Sandboxes whose root is a container image.
#![allow(clippy::unwrap_used, clippy::print_stderr)] // a test fails by panicking and tells why it shows nothing

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use leasehold_local::changes::{ApplyOptions, ApplyOutcome, apply, scan};
use leasehold_local::{LocalConfig, LocalProvider};
use leasehold_model::{
    AttemptName, CommandSpec, ImageReference, RootSource, SandboxSpec, UserSpec, Verdict, WorkspaceSpec,
};
use leasehold_provider::{Provider, Sandbox};
use serde_json::json;
use sha2::{Digest, Sha256};

/// Programs of the image: links to busybox.
const PROGRAMS: [&str; 9] = ["sh", "ls", "cat", "id", "chown", "chmod", "mkdir", "stat", "env"];

fn entry(kind: tar::EntryType, mode: u32, owner: u64, size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(owner);
    header.set_gid(owner);
    header.set_size(size);
    header.set_mtime(1_000_000_000);
    header
}

fn layer() -> Vec<u8> {
    let busybox = fs::read("/bin/busybox").expect("busybox is missing; run `cargo xtask setup`");
    let mut builder = tar::Builder::new(Vec::new());
    let mut directory = |path: &str, mode, owner| {
        builder.append_data(&mut entry(tar::EntryType::Directory, mode, owner, 0), path, &[][..]).unwrap();
    };
    for path in ["bin", "etc", "root", "home", "var"] {
        directory(path, 0o755, 0);
    }
    directory("tmp", 0o1777, 0);
    directory("home/app", 0o755, 1000);
    let mut file = |path: &str, mode, owner, content: &[u8]| {
        let mut header = entry(tar::EntryType::Regular, mode, owner, content.len() as u64);
        builder.append_data(&mut header, path, content).unwrap();
    };
    file("bin/busybox", 0o755, 0, &busybox);
    file("etc/passwd", 0o644, 0, b"root:x:0:0:root:/root:/bin/sh\napp:x:1000:1000::/home/app:/bin/sh\n");
    file("home/app/private", 0o600, 1000, b"of the app\n");
    for program in PROGRAMS {
        let mut header = entry(tar::EntryType::Symlink, 0o777, 0, 0);
        builder.append_link(&mut header, format!("bin/{program}"), "busybox").unwrap();
    }
    builder.into_inner().unwrap()
}

/// Writes an image layout with that one layer, whose commands run as `app` and start in its home.
fn write_image(directory: &Path) {
    let blobs = directory.join("blobs/sha256");
    fs::create_dir_all(&blobs).unwrap();
    let blob = |bytes: &[u8]| {
        let mut digest = String::new();
        for byte in Sha256::digest(bytes) {
            write!(digest, "{byte:02x}").unwrap();
        }
        fs::write(blobs.join(&digest), bytes).unwrap();
        (format!("sha256:{digest}"), bytes.len())
    };
    let (layer, layer_size) = blob(&layer());
    let config = json!({
        "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
        "os": "linux",
        "config": { "Env": ["PATH=/bin", "COLOUR=green"], "WorkingDir": "/home/app", "User": "app" },
        "rootfs": { "type": "layers", "diff_ids": [layer] },
    });
    let (config, config_size) = blob(config.to_string().as_bytes());
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": { "mediaType": "application/vnd.oci.image.config.v1+json", "digest": config, "size": config_size },
        "layers": [{ "mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": layer, "size": layer_size }],
    });
    let (manifest, manifest_size) = blob(manifest.to_string().as_bytes());
    let index = json!({
        "schemaVersion": 2,
        "manifests": [{
            "mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": manifest, "size": manifest_size,
        }],
    });
    fs::write(directory.join("index.json"), index.to_string()).unwrap();
    fs::write(directory.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
}

struct Bench {
    directory: tempfile::TempDir,
    provider: LocalProvider,
}

impl Bench {
    async fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("leasehold-image-").tempdir_in("/var/tmp").unwrap();
        fs::create_dir(directory.path().join("workspace")).unwrap();
        write_image(&directory.path().join("image"));
        let mut config = LocalConfig::at(directory.path().join("data"));
        config.init_program = Some(env!("CARGO_BIN_EXE_leasehold-init").into());
        Self { provider: LocalProvider::open(config).await.unwrap(), directory }
    }

    async fn sandbox(&self, user: Option<UserSpec>, workspace: bool) -> Arc<dyn Sandbox> {
        let mut spec = SandboxSpec::new(AttemptName::new("image").unwrap());
        spec.root =
            RootSource::Image(ImageReference(self.directory.path().join("image").display().to_string()));
        spec.user = user;
        let source = self.directory.path().join("workspace");
        spec.workspace = workspace.then(|| WorkspaceSpec { target: "/project".into(), source: Some(source) });
        self.provider.create(spec).await.unwrap()
    }
}

/// Whether several users can exist in an image's sandbox of this user on this host.
fn has_other_users() -> bool {
    let user = rustix::process::geteuid();
    let listed = |path: &str| {
        let own = std::process::Command::new("id").arg("-un").output().unwrap().stdout;
        let (name, number) = (String::from_utf8(own).unwrap(), user.as_raw().to_string());
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines()
            .any(|line| line.split(':').next().is_some_and(|owner| owner == name.trim() || owner == number))
    };
    user.is_root()
        || (listed("/etc/subuid") && listed("/etc/subgid") && Path::new("/usr/bin/newuidmap").exists())
}

async fn output(sandbox: &Arc<dyn Sandbox>, line: &str) -> String {
    let execution = sandbox.exec(CommandSpec::shell(line)).await.unwrap();
    let output = execution.collect(1 << 20).await.unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.verdict, Verdict::Exited { code: 0 }, "{line}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

const ROOT: UserSpec = UserSpec::Id { user: 0, group: None };

#[tokio::test]
async fn an_image_brings_its_files_environment_directory_and_user() {
    let bench = Bench::new().await;
    let user = if has_other_users() { None } else { Some(ROOT) };
    let sandbox = bench.sandbox(user.clone(), false).await;
    assert_eq!(output(&sandbox, "echo $COLOUR; pwd").await, "green\n/home/app\n");
    if user.is_none() {
        let seen =
            output(&sandbox, "id -u; cat private; stat -c %u private /bin/busybox; echo new > mine").await;
        assert_eq!(seen, "1000\nof the app\n1000\n0\n");
    }
    sandbox.delete().await.unwrap();
}

#[tokio::test]
async fn an_image_is_unpacked_once_and_collected_when_nobody_needs_it() {
    let bench = Bench::new().await;
    let sandbox = bench.sandbox(Some(ROOT), false).await;
    let images = bench.provider.images().await.unwrap();
    let reference = images.list().await.unwrap()[0].references[0].clone();
    images.remove(&ImageReference(reference)).await.unwrap();
    assert_eq!(bench.provider.collect_images().await.unwrap().layers_removed, 0, "a sandbox still needs it");
    sandbox.stop().await.unwrap();
    assert_eq!(bench.provider.collect_images().await.unwrap().layers_removed, 0, "a stopped one, too");
    sandbox.start().await.unwrap();
    assert_eq!(output(&sandbox, "echo again").await, "again\n");
    sandbox.delete().await.unwrap();
    drop(sandbox);
    assert_eq!(bench.provider.collect_images().await.unwrap().layers_removed, 1);
}

#[tokio::test]
async fn files_of_other_inner_users_reach_the_host_and_leave_nothing_behind() {
    let bench = Bench::new().await;
    if !has_other_users() {
        eprintln!("this user has no subordinate ids: there are no other users inside");
        return;
    }
    let sandbox = bench.sandbox(Some(ROOT), true).await;
    let line = "mkdir /project/closed /tmp/closed; echo kept > /project/closed/file; \
                chown -R 1000 /project/closed /tmp/closed; chmod 600 /project/closed/file; chmod 700 /project/closed /tmp/closed";
    output(&sandbox, line).await;
    bench.provider.end(sandbox.id()).await.unwrap();
    let changes = bench.provider.changes(sandbox.id()).await.unwrap().unwrap();
    let report = apply(&changes.source, &scan(&changes.source).unwrap(), &ApplyOptions::default()).unwrap();
    assert_eq!(report.outcome, ApplyOutcome::Applied, "{report:?}");
    let file = bench.directory.path().join("workspace/closed/file");
    if !rustix::process::geteuid().is_root() {
        // As root the file belongs to user 1000 now, as it did inside.
        assert_eq!(fs::read_to_string(&file).unwrap(), "kept\n");
    }
    sandbox.delete().await.unwrap();
    let left = fs::read_dir(bench.provider.data_directory().join("sandboxes")).unwrap().count();
    assert_eq!(left, 0);
}

#[tokio::test]
async fn files_of_other_inner_users_are_archived_forked_and_merged_with_their_owners() {
    let bench = Bench::new().await;
    if !has_other_users() {
        eprintln!("this user has no subordinate ids: there are no other users inside");
        return;
    }
    let sandbox = bench.sandbox(Some(ROOT), true).await;
    let line = "mkdir /project/closed; echo first > /project/closed/file; echo private > /home/app/made; \
                chown -R 1000 /project/closed /home/app/made; chmod 600 /home/app/made /project/closed/file; \
                chmod 500 /project/closed; chmod u+s /project/closed/file";
    output(&sandbox, line).await;
    let look = "stat -c '%n %u:%g %a' /project/closed /project/closed/file /home/app/made; \
                cat /project/closed/file /home/app/made /home/app/private";
    let before = output(&sandbox, look).await;
    assert!(before.contains("/project/closed/file 1000:0 4600\n"), "{before}");
    sandbox.archive().await.unwrap();
    sandbox.start().await.unwrap();
    assert_eq!(output(&sandbox, look).await, before);

    let fork = sandbox.fork(AttemptName::new("fork").unwrap()).await.unwrap();
    assert_eq!(output(&fork, look).await, before);
    output(
        &fork,
        "echo second > /project/closed/more; chown 7:7 /project/closed/more; chmod 000 /project/closed/more",
    )
    .await;
    bench.provider.end(fork.id()).await.unwrap();
    let changes = bench.provider.changes(fork.id()).await.unwrap().unwrap();
    let report = apply(&changes.source, &scan(&changes.source).unwrap(), &ApplyOptions::default()).unwrap();
    assert_eq!(report.outcome, ApplyOutcome::Applied, "{report:?}");
    let closed = bench.directory.path().join("workspace/closed");
    assert_eq!(fs::read_to_string(closed.join("file")).unwrap(), "first\n");
    assert!(closed.join("more").exists());
    drop(changes);
    // What the first one sees was only read.
    assert_eq!(output(&sandbox, look).await, before);
    for sandbox in [fork, sandbox] {
        sandbox.delete().await.unwrap();
    }
    let data = bench.provider.data_directory();
    for directory in ["sandboxes", "templates"] {
        assert_eq!(fs::read_dir(data.join(directory)).unwrap().count(), 0, "{directory}");
    }
}
