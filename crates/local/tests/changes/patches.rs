use std::fs;
use std::process::Command;

use leasehold_local::changes::{DiffOptions, diff};

use super::layer::{Layer, list};

fn patch(layer: &Layer) -> Vec<u8> {
    let mut text = Vec::new();
    assert_eq!(diff(&layer.source(), &layer.scan(), &DiffOptions::default(), &mut text).unwrap(), []);
    text
}

/// What git can carry of a tree: no times, no directories, two modes.
fn as_git_sees(directory: &std::path::Path) -> Vec<String> {
    let mut seen = Vec::new();
    for line in list(directory) {
        let fields: Vec<_> = line.split('|').collect();
        if fields[1] == "d" || fields[1] == "p" {
            continue;
        }
        let executable = fields[1] == "f" && u32::from_str_radix(fields[2], 8).unwrap() & 0o100 != 0;
        seen.push(format!("{} {} {executable} {} {}", fields[0], fields[1], fields[4], fields[5]));
    }
    seen
}

#[test]
fn git_applies_the_patch_and_gets_the_sandboxs_tree() {
    let host =
        "printf '1\\n2\\n3\\n4\\n5\\n6\\n7\\n8\\n9\\n10\\n11\\n12\\n' > lines; printf 'no end' > no-end
        echo gone > gone; echo run > run; mkdir -p d/e; echo x > d/x; echo y > d/e/y; : > empty-gone
        ln -s a link; ln -s b link-gone; echo f > file-link; echo 'sp' > 'with space'; mkdir dir-file
        echo z > dir-file/z; echo cr > file-dir; printf 'a\\rb\\r\\nc' > returns; echo m > mode-content
        printf 'caf\\351\\n' > latin";
    let Some(layer) = Layer::over(host) else { return };
    layer.inside(
        r#"sed -i 's/^2$/two/; s/^11$/eleven/' lines; printf 'with end\n' > no-end; rm gone; chmod +x run
         rm -r d; rm empty-gone; : > empty-new; ln -sfn c link; rm link-gone; rm file-link; ln -s t file-link
         echo more >> 'with space'; echo n > 'new space'; printf 'q\n' > "$(printf 'quo"te\t\n\377')"
         rm -r dir-file; echo now > dir-file; rm file-dir; mkdir file-dir; echo in > file-dir/in
         printf 'a\rB\r\nc\n' > returns; echo M > mode-content; chmod 755 mode-content; printf 'caf\352\n' > latin
         echo x > new; chmod 755 new; mkdir empty-dir; touch -d @1 -- *; ln -s nowhere new-link; echo d > -dash"#,
    );
    let text = patch(&layer);
    let copy = layer.path("outside");
    let status = Command::new("cp").args(["-a"]).arg(layer.base(".")).arg(&copy).status().unwrap();
    assert!(status.success());
    let file = layer.path("patch");
    fs::write(&file, &text).unwrap();
    let output = Command::new("git")
        .arg("apply")
        .arg(&file)
        .current_dir(&copy)
        .env("GIT_CEILING_DIRECTORIES", copy.parent().unwrap())
        .env("HOME", layer.path("work"))
        .output()
        .unwrap();
    let patch_text = String::from_utf8_lossy(&text);
    assert!(output.status.success(), "{}\n{patch_text}", String::from_utf8_lossy(&output.stderr));
    layer.apply();
    assert_eq!(as_git_sees(&copy), as_git_sees(&layer.path("base")), "{patch_text}");
    for name in ["lines", "no-end", "with space", "returns", "latin", "file-dir/in"] {
        assert_eq!(fs::read(copy.join(name)).unwrap(), fs::read(layer.base(name)).unwrap(), "{name}");
    }
}

#[test]
fn the_patch_is_in_gits_words() {
    let Some(layer) = Layer::over("printf 'a\nb\n' > f; printf 'x\\0' > bin; echo t > touched; echo r > run")
    else {
        return;
    };
    layer.inside("printf 'a\nc\n' > f; printf 'y\\0' > bin; touch -d @1 touched; chmod +x run");
    let expected = "diff --git a/bin b/bin\nBinary files a/bin and b/bin differ\n\
        diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n\
        diff --git a/run b/run\nold mode 100644\nnew mode 100755\n";
    assert_eq!(String::from_utf8(patch(&layer)).unwrap(), expected);
}

#[test]
fn files_beyond_the_bound_are_only_said_to_differ() {
    let Some(layer) = Layer::over("truncate -s 9M same; truncate -s 9M other; truncate -s 9M gone") else {
        return;
    };
    layer.inside("chmod +x same; echo x >> other; rm gone");
    let expected = "diff --git a/gone b/gone\ndeleted file mode 100644\nBinary files a/gone and /dev/null differ\n\
        diff --git a/other b/other\nBinary files a/other and b/other differ\n\
        diff --git a/same b/same\nold mode 100644\nnew mode 100755\n";
    assert_eq!(String::from_utf8(patch(&layer)).unwrap(), expected);
}
