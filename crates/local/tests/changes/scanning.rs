use std::os::unix::ffi::OsStrExt as _;

use leasehold_local::changes::{Below, ChangeKind, ChangeSet, FileType, Note, scan};

use super::layer::{Layer, find, short};

#[test]
fn each_kind_of_change_is_told_from_the_others() {
    let Some(layer) = Layer::over(
        "echo same > same; echo old > modified; echo gone > gone; echo touched > touched
         echo mode > mode; echo back > back; mkdir tree tree/below; echo x > tree/below/x; echo y > tree/y
         echo file > became-link; mkdir became-file; echo z > became-file/z; ln -s a link; mkdir touched-dir",
    ) else {
        return;
    };
    layer.inside(
        "touch -r same stamp; echo same > same; touch -r stamp same; rm stamp
         echo new > modified; rm gone; touch -d @1 touched; chmod 600 mode
         chmod 600 back; chmod 644 back; rm -r tree; rm became-link; ln -s x became-link
         rm -r became-file; echo new > became-file; ln -sfn b link; echo new > new; mkdir -p dir/sub
         mkfifo pipe; touch -d @5 touched-dir",
    );
    let set = layer.scan();
    assert_eq!(
        short(&set),
        [
            "T became-file",
            "T became-link",
            "A dir",
            "A dir/sub",
            "D gone",
            "M link",
            "m mode",
            "M modified",
            "A new",
            "A pipe",
            "m touched",
            "m touched-dir",
            "D tree"
        ]
    );
    assert_eq!(find(&set, "touched").notes, [Note::TimesOnly]);
    assert_eq!(find(&set, "mode").notes, []);
    assert_eq!(find(&set, "became-file").previous_type, Some(FileType::Directory));
    let below = Below { files: 2, directories: 1, bytes: 4 };
    assert_eq!(find(&set, "tree").below, Some(below));
    let expected = "4 created, 2 modified, 6 deleted, 2 changed in type, 1 changed in metadata, 2 touched";
    assert_eq!(set.summary(), expected);
    let json = serde_json::to_string(&set).unwrap();
    assert_eq!(serde_json::from_str::<ChangeSet>(&json).unwrap(), set);
}

#[test]
fn an_untouched_workspace_has_no_changes() {
    let Some(layer) = Layer::over("mkdir a; echo b > a/b") else { return };
    layer.inside(
        "cat a/b; ls -lR; echo t > a/temporary; mv a/b a/c; mv a/c a/b; rm a/temporary; touch -r . a",
    );
    let set = layer.scan();
    // Only the time of the directory can differ: its names changed back and forth.
    assert!(set.changes.iter().all(|change| change.notes == [Note::TimesOnly]), "{set:?}");
}

#[test]
fn an_opaque_directory_deletes_what_it_does_not_hold() {
    let Some(layer) =
        Layer::over("mkdir -p dir/sub; echo 1 > dir/kept; echo 2 > dir/lost; echo 3 > dir/sub/x")
    else {
        return;
    };
    layer.inside("rm -rf dir; mkdir dir; echo other > dir/kept; echo n > dir/new");
    assert_eq!(short(&layer.scan()), ["M dir/kept", "D dir/lost", "A dir/new", "D dir/sub"]);
    assert_eq!(layer.apply().failures, []);
    assert_eq!(layer.listed().len(), 3);
    assert!(layer.scan().is_empty());
}

#[test]
fn an_opaque_directory_hides_the_base_at_every_depth() {
    let Some(layer) = Layer::over("mkdir -p a/b/c; echo 1 > a/b/c/x; echo 2 > a/b/y; touch -d @1 a") else {
        return;
    };
    layer.inside("rm -rf a; mkdir -p a/b/c; echo 3 > a/b/c/new");
    assert_eq!(short(&layer.scan()), ["m a", "A a/b/c/new", "D a/b/c/x", "D a/b/y"]);
}

#[test]
fn marked_deletions_are_understood() {
    let Some(layer) = Layer::over("mkdir dir; echo 1 > dir/lost; echo 2 > dir/empty") else { return };
    layer.inside("touch dir/other; : > dir/empty");
    let upper = layer.path("upper/dir");
    std::fs::write(upper.join("lost"), "").unwrap();
    let set = |path: &std::path::Path, name: &str, value: &[u8]| {
        rustix::fs::setxattr(path, name, value, rustix::fs::XattrFlags::empty()).unwrap();
    };
    set(&upper.join("lost"), "user.overlay.whiteout", b"y");
    set(&upper, "user.overlay.opaque", b"x");
    assert_eq!(short(&layer.scan()), ["M dir/empty", "D dir/lost", "A dir/other"]);
}

#[test]
fn f66_any_byte_in_a_name_is_listed_lossless_and_carried() {
    let Some(layer) = Layer::over("mkdir old") else { return };
    let long = "l".repeat(255);
    layer.inside(&format!(
        r#"for name in 'sp ace' "$(printf 'tab\t')" "$(printf 'new\nline')" '"a.py"' -leading '%2F' \
             "$(printf 'e\314\201')" "$(printf '\303\251')" "$(printf '\377\376')" {long} "$(printf '\360\237\246\200')" \
             Case case 'back\slash' .hidden "$(printf '\001')"; do
             echo "$name" > ./"$name"; mkdir ./"d$name" 2>/dev/null && echo x > ./"d$name/$name" || true
           done"#
    ));
    let set = layer.scan();
    assert!(set.changes.iter().any(|change| change.path.as_os_str().as_bytes() == b"\xff\xfe"));
    assert!(set.changes.iter().any(|change| change.path.as_os_str().as_bytes() == b"dnew\nline/new\nline"));
    let json = serde_json::to_string(&set).unwrap();
    assert_eq!(serde_json::from_str::<ChangeSet>(&json).unwrap(), set);
    let inside = layer.inside_listed(":");
    assert_eq!(layer.apply().failures, []);
    assert_eq!(layer.listed(), inside);
}

#[test]
fn paths_beyond_the_longest_are_said_not_to_be_carried() {
    let Some(layer) = Layer::over("echo a > a") else { return };
    let name = "d".repeat(250);
    layer.inside(&format!(
        "i=0; while [ $i -lt 40 ]; do mkdir {name}; cd -P {name}; i=$((i+1)); done; echo x > x"
    ));
    let set = scan(&layer.source()).unwrap();
    assert_eq!(set.problems.len(), 1);
    assert!(set.problems[0].message.contains("4095"), "{:?}", set.problems);
    assert_eq!(set.counts.created, 16);
}

#[test]
fn hard_links_are_told_by_their_first_name() {
    let Some(layer) = Layer::over("echo host > host; echo b > other") else { return };
    layer.inside("ln host again; echo n > n1; ln n1 n2; ln n1 n3");
    let set = layer.scan();
    assert_eq!(short(&set), ["A again", "A n1", "A n2", "A n3"]);
    let leader = |path| find(&set, path).same_file_as.as_ref().and_then(|path| path.to_str());
    assert_eq!((leader("again"), leader("n1"), leader("n3")), (Some("host"), None, Some("n1")));
    assert!(set.changes.iter().all(|change| change.kind == ChangeKind::Created));
}

#[test]
fn a_cancelled_scan_stops() {
    let Some(layer) = Layer::over("echo a > a") else { return };
    let source = layer.source();
    source.cancellation.cancel();
    assert_eq!(scan(&source).unwrap_err().kind(), leasehold_model::ErrorKind::Cancelled);
}
