//! The kernel's own judgement: an unprivileged overlay over unpacked layers.

use std::process::Command;

use crate::fixture::{Layer, Packing, Place, TestImage, defaults, store};

#[tokio::test]
async fn an_unprivileged_overlay_shows_the_image() {
    let probe = Command::new("unshare").args(["--user", "--map-root-user", "--mount", "true"]).output();
    if !probe.is_ok_and(|output| output.status.success()) {
        println!("skipped: this kernel or host refuses user namespaces");
        return;
    }
    let place = Place::new();
    let bottom = Layer::new()
        .directory("etc", 0o755)
        .file("etc/kept", b"kept")
        .file("etc/gone", b"lower")
        .directory("var", 0o755)
        .file("var/old", b"lower")
        .directory("swap", 0o755)
        .file("swap/lower", b"lower")
        .file("changed", b"lower");
    let top = Layer::new()
        .directory("etc", 0o755)
        .file("etc/.wh.gone", b"")
        .directory("var", 0o755)
        .file("var/.wh..wh..opq", b"")
        .file("var/new", b"upper")
        .file(".wh.swap", b"")
        .directory("swap", 0o755)
        .file("swap/upper", b"upper")
        .file("changed", b"upper");
    let reference = TestImage::new(vec![bottom, top], Packing::Plain).write_layout(&place.join("layout"));
    let image = store(&place).await.resolve(&reference, &defaults()).await.unwrap();

    let lower: Vec<_> = image.layers.iter().map(|layer| layer.to_str().unwrap()).collect();
    let script = r#"
        set -e
        cd "$1"; mkdir upper work merged
        mount -t overlay overlay -o "userxattr,lowerdir=$2,upperdir=upper,workdir=work" merged
        cd merged; find . -type f | LC_ALL=C sort; cat changed; echo; rm etc/kept; test ! -e etc/kept
    "#;
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"])
        .arg(place.join("."))
        .arg(lower.join(":"))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() && errors.contains("wrong fs type") {
        println!("skipped: no overlay in a user namespace over this file system: {errors}");
        return;
    }
    assert!(output.status.success(), "{errors}");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "./changed\n./etc/kept\n./swap/upper\n./var/new\nupper\n"
    );
}
