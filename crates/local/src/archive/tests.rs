use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use leasehold_model::{AttemptName, SandboxId, SandboxSpec};
use proptest::prelude::*;

use super::format::{Item, MAGIC, put};
use super::*;
use crate::layer::sample::{Tree, build, look, tree};
use crate::layer::{Attributes, Node};
use crate::store::Store;

struct Place {
    directory: tempfile::TempDir,
    store: Store,
    state: PathBuf,
    record: Record,
}

impl Place {
    /// A state directory with these layers and a record that says that it is stopped.
    fn new(trees: &[(&str, Tree)]) -> Self {
        let directory = tempfile::Builder::new().prefix("leasehold-archive-").tempdir_in("/var/tmp").unwrap();
        let spec = SandboxSpec::new(AttemptName::new("archived").unwrap());
        let mut record = Record::new(SandboxId::new("sb1").unwrap(), &spec);
        record.state = SandboxState::Stopped;
        let store = Store::open(directory.path(), None).unwrap();
        let state = store.sandbox(&record.id);
        fs::create_dir(&state).unwrap();
        record.save(&state).unwrap();
        for (name, tree) in trees {
            let layer = state.join(name);
            fs::create_dir(&layer).unwrap();
            build(tree, &layer.join("upper"));
            fs::create_dir_all(layer.join("work/work")).unwrap();
        }
        fs::write(state.join("lock"), "").unwrap();
        Self { directory, store, state, record }
    }

    fn path(&self) -> &Path {
        &self.state
    }

    /// Removes it all, closed directories too.
    fn remove(self) {
        remove_tree(None, self.directory.path()).unwrap();
    }

    fn archive(&mut self) -> Result<()> {
        archive(&self.store, &mut self.record)
    }

    fn restore(&mut self) -> Result<()> {
        restore(&self.store, &mut self.record)
    }

    /// What a process that starts afresh reads, after the sweep.
    fn reload(&mut self) {
        self.record = Record::load(self.path()).unwrap().unwrap();
        tidy(&self.store, &self.record).unwrap();
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(self.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// Brings the layers back however far things got, and compares them.
    fn check(mut self, expected: &[(&str, Vec<String>)]) {
        self.reload();
        if self.record.state == SandboxState::Archived {
            self.restore().unwrap();
        }
        self.reload();
        assert_eq!(self.record.state, SandboxState::Stopped);
        let mut names: Vec<_> = expected.iter().map(|(name, _)| (*name).to_owned()).collect();
        names.extend(["lock".to_owned(), "record.json".to_owned()]);
        names.sort();
        assert_eq!(self.names(), names);
        for (name, lines) in expected {
            assert_eq!(&look(&self.path().join(name).join("upper")), lines, "{name}");
        }
        self.remove();
    }
}

/// The same layers, looked at elsewhere. Roots get a fixed time.
fn expectation<'a>(place: &Place, trees: &[(&'a str, Tree)]) -> Vec<(&'a str, Vec<String>)> {
    let other = Place::new(trees);
    let mut lines = Vec::new();
    for (name, _) in trees {
        let (mine, theirs) = (place.path().join(name).join("upper"), other.path().join(name).join("upper"));
        let modified = fs::symlink_metadata(&mine).unwrap().modified().unwrap();
        fs::File::open(&theirs).unwrap().set_modified(modified).unwrap();
        lines.push((*name, look(&theirs)));
    }
    other.remove();
    lines
}

fn sample() -> Vec<(&'static str, Tree)> {
    use crate::layer::sample::Thing;
    let file = Thing::File { pieces: vec![(5, b"content".to_vec())], size: 70_000, mode: 0o4711, mark: None };
    let inner = [(b"file".to_vec(), file.clone()), (vec![0xff, b'\n'], Thing::Deletion)].into();
    let closed = Thing::Directory { entries: inner, mode: 0, mark: Some(vec![1, 0, 2]), opaque: true };
    let entries = [
        (b"closed".to_vec(), closed),
        (b"file".to_vec(), file),
        (b"link".to_vec(), Thing::Symlink(b"../../../etc/passwd".to_vec())),
        (b"pipe".to_vec(), Thing::Pipe(0o640)),
    ];
    let tree =
        Tree { entries: entries.into(), times: vec![(-5, 7), (1_700_000_000, 123)], second_names: true };
    vec![("root", tree.clone()), ("tree-00", tree)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn archived_layers_come_back_exactly(tree in tree(), other in tree()) {
        let trees = [("root", tree), ("workspace", other)];
        let mut place = Place::new(&trees);
        let expected = expectation(&place, &trees);
        place.archive().unwrap();
        prop_assert_eq!(place.names(), ["layers.archive", "lock", "record.json"]);
        place.check(&expected);
    }
}

#[test]
fn a_damaged_or_missing_archive_is_told_and_nothing_is_lost() {
    let trees = sample();
    let mut place = Place::new(&trees);
    let expected = expectation(&place, &trees);
    place.archive().unwrap();
    let path = place.path().join(FILE);
    let whole = fs::read(&path).unwrap();
    let file = fs::File::options().write(true).open(&path).unwrap();
    for position in [0, whole.len() / 2, whole.len() - 1] {
        file.write_all_at(&[whole[position] ^ 1], position as u64).unwrap();
        assert_eq!(place.restore().unwrap_err().kind(), ErrorKind::Corrupt);
        file.write_all_at(&whole[position..=position], position as u64).unwrap();
    }
    file.set_len(whole.len() as u64 - 1).unwrap();
    assert_eq!(place.restore().unwrap_err().kind(), ErrorKind::Corrupt);
    place.reload();
    assert_eq!(fs::read(&path).unwrap(), whole[..whole.len() - 1], "a damaged archive is kept");
    fs::rename(&path, place.path().join("elsewhere")).unwrap();
    assert_eq!(place.restore().unwrap_err().kind(), ErrorKind::Corrupt);
    fs::remove_file(place.path().join("elsewhere")).unwrap();
    assert_eq!(place.record.state, SandboxState::Archived);
    fs::write(&path, &whole).unwrap();
    place.check(&expected);
}

#[test]
fn archiving_may_stop_after_every_step() {
    let steps: [fn(&mut Place); 5] = [
        |place| fs::write(place.path().join(SCRATCH), "half").unwrap(),
        |place| drop(write(place.path()).unwrap()),
        |place| {
            place.record.archive = Some(write(place.path()).unwrap());
            place.record.state = SandboxState::Archived;
            place.record.save_for_good(place.path()).unwrap();
        },
        |place| {
            place.archive().unwrap();
            // As if a layer's directory had not been removed whole.
            fs::create_dir_all(place.path().join("root/upper/half")).unwrap();
        },
        |place| {
            place.archive().unwrap();
            fs::create_dir_all(place.path().join("root")).unwrap();
        },
    ];
    for step in steps {
        let trees = sample();
        let mut place = Place::new(&trees);
        let expected = expectation(&place, &trees);
        step(&mut place);
        place.check(&expected);
    }
}

#[test]
fn restoring_may_stop_after_every_step() {
    let unpacked = |place: &Place| {
        let file = File::open(place.path().join(FILE)).unwrap();
        unpack::unpack(&file, &place.path().join(UNPACKING)).unwrap();
    };
    let steps: [&dyn Fn(&mut Place); 4] = [
        &|place| fs::create_dir_all(place.path().join(UNPACKING).join("root/upper/half")).unwrap(),
        &|place| {
            unpacked(place);
            fs::rename(place.path().join(UNPACKING).join("root"), place.path().join("root")).unwrap();
        },
        &|place| {
            unpacked(place);
            put_in_place(None, place.path()).unwrap();
        },
        &|place| {
            let archive = fs::read(place.path().join(FILE)).unwrap();
            place.restore().unwrap();
            fs::write(place.path().join(FILE), archive).unwrap();
        },
    ];
    for step in steps {
        let trees = sample();
        let mut place = Place::new(&trees);
        let expected = expectation(&place, &trees);
        place.archive().unwrap();
        step(&mut place);
        place.check(&expected);
    }
}

#[test]
fn a_record_that_lost_its_archive_does_not_lose_the_file() {
    let mut place = Place::new(&sample());
    place.archive().unwrap();
    place.record.archive = None;
    place.record.state = SandboxState::Stopped;
    tidy(&place.store, &place.record).unwrap();
    assert!(place.path().join(FILE).exists());
    place.remove();
}

/// An archive of these items.
fn forged(items: &[Item]) -> File {
    let file = tempfile::tempfile_in("/var/tmp").unwrap();
    let mut output = flate2::write::GzEncoder::new(&file, flate2::Compression::fast());
    std::io::Write::write_all(&mut output, MAGIC).unwrap();
    for item in items {
        put(&mut output, item).unwrap();
    }
    output.finish().unwrap();
    file
}

#[test]
fn no_forged_archive_leads_out_of_its_directory() {
    let plain = || Attributes { mode: 0o777, owner: (0, 0), modified: (0, 0), extended: Vec::new() };
    let layer = || Item::Layer(b"root".to_vec());
    let end = || Item::EndOfFile { size: 1, attributes: plain(), shared: None };
    let link = |name: &[u8], target: &[u8]| Item::Node {
        name: name.to_vec(),
        node: Node::Symlink(target.to_vec()),
        attributes: plain(),
        shared: None,
    };
    let forgeries = [
        vec![Item::Layer(b"..".to_vec())],
        vec![Item::Layer(b"a/../..".to_vec())],
        vec![layer(), Item::Enter(b"..".to_vec())],
        vec![layer(), Item::File(b"../outside".to_vec()), end()],
        vec![layer(), Item::File(b"/var/tmp/leasehold-outside".to_vec()), end()],
        vec![layer(), link(b"out", b"../../.."), Item::Enter(b"out".to_vec())],
        vec![layer(), link(b"out", b"../../../outside"), Item::File(b"out".to_vec()), end()],
        vec![layer(), Item::Link { name: b"first".to_vec(), number: 0 }],
        vec![layer(), Item::Leave(plain()), Item::Leave(plain())],
        vec![layer(), Item::Data { offset: 0, length: 1 }],
        vec![layer(), Item::File(b"file".to_vec()), Item::Data { offset: 0, length: u32::MAX }],
        vec![layer(), layer()],
        vec![layer()],
    ];
    for items in forgeries {
        let place = tempfile::Builder::new().tempdir_in("/var/tmp").unwrap();
        let to = place.path().join("to");
        let error = unpack::unpack(&forged(&items), &to).unwrap_err();
        let names: Vec<_> =
            fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["to"], "{items:?}: {error}");
        assert!(!Path::new("/var/tmp/leasehold-outside").exists());
    }
}
