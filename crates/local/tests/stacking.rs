//! Sandboxes that stack on others: the changes of all generations together, kept and archived.
#![allow(clippy::unwrap_used)] // A test ends with the first thing that is not as it should be.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use leasehold_local::changes::{ApplyOptions, ApplyOutcome, ChangeKind, ChangeSource, apply, scan};
use leasehold_local::{LocalConfig, LocalProvider};
use leasehold_model::{
    AttemptName, CommandSpec, ErrorKind, RootSource, SandboxSpec, SandboxState, TemplateId, Verdict,
    WorkspaceSpec,
};
use leasehold_provider::{Provider, Sandbox};

struct Place {
    directory: tempfile::TempDir,
    provider: LocalProvider,
}

impl Place {
    async fn new() -> Self {
        let directory =
            tempfile::Builder::new().prefix("leasehold-stacking-").tempdir_in("/var/tmp").unwrap();
        let mut config = LocalConfig::at(directory.path().join("data"));
        config.init_program = Some(env!("CARGO_BIN_EXE_leasehold-init").into());
        let host = directory.path().join("host");
        fs::create_dir_all(host.join("kept")).unwrap();
        for name in ["edited", "removed", "twice", "kept/inner", "untouched"] {
            fs::write(host.join(name), "host\n").unwrap();
        }
        Self { provider: LocalProvider::open(config).await.unwrap(), directory }
    }

    fn host(&self) -> std::path::PathBuf {
        self.directory.path().join("host")
    }

    fn spec(&self, name: &str) -> SandboxSpec {
        let mut spec = SandboxSpec::new(AttemptName::new(name).unwrap());
        spec.workspace = Some(WorkspaceSpec { source: Some(self.host()), target: "/workspace".into() });
        spec
    }

    async fn sandbox(&self, name: &str) -> Arc<dyn Sandbox> {
        self.provider.create(self.spec(name)).await.unwrap()
    }

    /// The changes of a stopped sandbox, by path.
    async fn changes(&self, sandbox: &Arc<dyn Sandbox>) -> BTreeMap<String, ChangeKind> {
        sandbox.stop().await.unwrap();
        let changes = self.provider.changes(sandbox.id()).await.unwrap().unwrap();
        listed(&changes.source)
    }
}

fn listed(source: &ChangeSource) -> BTreeMap<String, ChangeKind> {
    let set = scan(source).unwrap();
    assert!(set.problems.is_empty(), "{:?}", set.problems);
    // Directories change their times with what is in them; that is told too, and not looked at here.
    let files = set.changes.iter().filter(|change| change.kind != ChangeKind::MetadataChanged);
    files.map(|change| (change.path.to_string(), change.kind)).collect()
}

async fn run(sandbox: &Arc<dyn Sandbox>, line: &str) -> String {
    let execution = sandbox.exec(CommandSpec::shell(line)).await.unwrap();
    let output = execution.collect(1 << 20).await.unwrap();
    assert!(matches!(output.verdict, Verdict::Exited { code: 0 }), "{line}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

const FIRST: &str = "echo first > edited; rm removed; echo first > twice; echo first > made; mkdir d; \
                     echo first > d/inner; rm -r kept; echo first > short";
const SECOND: &str = "echo second > twice; rm short; mkdir kept; echo second > kept/new; \
                      echo second > d/more; echo back > removed";

/// What both generations changed, as `FIRST` and `SECOND` say.
fn both() -> BTreeMap<String, ChangeKind> {
    let created = ["made", "d", "d/inner", "d/more", "kept/new"].map(|path| (path, ChangeKind::Created));
    let modified = ["edited", "twice", "removed"].map(|path| (path, ChangeKind::Modified));
    let deleted = [("kept/inner", ChangeKind::Deleted)];
    let all = created.into_iter().chain(modified).chain(deleted);
    all.map(|(path, kind)| (path.to_owned(), kind)).collect()
}

fn scratch_in(directory: &Path) -> usize {
    let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.as_encoded_bytes().starts_with(b".scratch-")).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_changes_of_a_fork_show_both_generations_and_are_applied_as_one() {
    let place = Place::new().await;
    let sandbox = place.sandbox("first").await;
    run(&sandbox, FIRST).await;
    let fork = sandbox.fork(AttemptName::new("second").unwrap()).await.unwrap();
    run(&fork, SECOND).await;
    // The first one has its own changes and no others.
    let first = place.changes(&sandbox).await;
    assert_eq!(first.get("short"), Some(&ChangeKind::Created));
    assert_eq!(first.get("removed"), Some(&ChangeKind::Deleted));
    assert!(!first.contains_key("d/more"), "{first:?}");

    fork.stop().await.unwrap();
    let state = place.directory.path().join("data/sandboxes").join(fork.id().as_str());
    let changes = place.provider.changes(fork.id()).await.unwrap().unwrap();
    assert_eq!(listed(&changes.source), both());
    let set = scan(&changes.source).unwrap();
    let report = apply(&changes.source, &set, &ApplyOptions::default()).unwrap();
    assert!(matches!(report.outcome, ApplyOutcome::Applied), "{report:?}");
    let read = |name: &str| fs::read_to_string(place.host().join(name)).unwrap();
    assert_eq!(
        (read("edited"), read("twice"), read("d/inner")),
        ("first\n".into(), "second\n".into(), "first\n".into())
    );
    assert_eq!(
        (read("removed"), read("kept/new"), read("untouched")),
        ("back\n".into(), "second\n".into(), "host\n".into())
    );
    assert!(!place.host().join("kept/inner").exists() && !place.host().join("short").exists());
    assert_eq!(scratch_in(&state), 1);
    drop(changes);
    assert_eq!(scratch_in(&state), 0);
    for sandbox in [fork, sandbox] {
        sandbox.delete().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_all_generations_are_kept_when_the_sandbox_goes() {
    let place = Place::new().await;
    let sandbox = place.sandbox("first").await;
    run(&sandbox, FIRST).await;
    let template = TemplateId::new("base").unwrap();
    sandbox.capture_template(template.clone()).await.unwrap();
    sandbox.delete().await.unwrap();
    let mut spec = place.spec("second");
    spec.root = RootSource::Template(template.clone());
    let made = place.provider.create(spec).await.unwrap();
    run(&made, SECOND).await;
    made.stop().await.unwrap();
    place.provider.keep_changes(made.id()).await.unwrap();
    made.delete().await.unwrap();
    place.provider.delete_template(&template).await.unwrap();
    let kept = place.provider.find_kept_changes(made.id()).await.unwrap().unwrap();
    assert_eq!(listed(&kept.source()), both());
    kept.discard().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_file_that_changed_after_the_first_generation_is_a_conflict_of_the_second() {
    let place = Place::new().await;
    let sandbox = place.sandbox("first").await;
    run(&sandbox, "echo first > edited").await;
    let template = TemplateId::new("base").unwrap();
    sandbox.capture_template(template.clone()).await.unwrap();
    sandbox.delete().await.unwrap();
    fs::write(place.host().join("edited"), "the host's own edit\n").unwrap();
    let mut spec = place.spec("second");
    spec.root = RootSource::Template(template.clone());
    let made = place.provider.create(spec).await.unwrap();
    run(&made, "echo second > made").await;
    made.stop().await.unwrap();
    let changes = place.provider.changes(made.id()).await.unwrap().unwrap();
    let set = scan(&changes.source).unwrap();
    let report = apply(&changes.source, &set, &ApplyOptions::default()).unwrap();
    assert_eq!(report.conflicts.len(), 1, "{report:?}");
    assert_eq!(fs::read_to_string(place.host().join("edited")).unwrap(), "the host's own edit\n");
    drop(changes);
    made.delete().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_archived_sandbox_is_left_alone_until_it_is_started() {
    let place = Place::new().await;
    let sandbox = place.sandbox("archived").await;
    run(&sandbox, "echo made > made; rm removed; chmod 000 kept").await;
    sandbox.archive().await.unwrap();
    sandbox.archive().await.unwrap();
    // Nothing but the archive holds its files.
    let state = place.directory.path().join("data/sandboxes").join(sandbox.id().as_str());
    assert!(state.join("layers.archive").is_file() && !state.join("workspace").exists());
    sandbox.stop().await.unwrap();
    assert_eq!(place.provider.sweep().await.unwrap().unexplained, Vec::<String>::new());
    assert_eq!(sandbox.state().await.unwrap(), SandboxState::Archived);
    let name = AttemptName::new("fork").unwrap();
    assert_eq!(sandbox.fork(name).await.unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(place.provider.changes(sandbox.id()).await.unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(sandbox.exec(CommandSpec::shell("true")).await.unwrap_err().kind(), ErrorKind::Conflict);

    // Damage is told, and undone damage leaves nothing behind.
    let whole = fs::read(state.join("layers.archive")).unwrap();
    fs::write(state.join("layers.archive"), &whole[..whole.len() / 2]).unwrap();
    assert_eq!(sandbox.start().await.unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(sandbox.state().await.unwrap(), SandboxState::Archived);
    fs::write(state.join("layers.archive"), &whole).unwrap();
    sandbox.start().await.unwrap();
    assert_eq!(sandbox.state().await.unwrap(), SandboxState::Running);
    assert_eq!(
        run(&sandbox, "cat made; stat -c %a kept; ls").await,
        "made\n0\nedited\nkept\nmade\ntwice\nuntouched\n"
    );
    assert!(!state.join("layers.archive").exists());
    let changes = place.changes(&sandbox).await;
    assert_eq!(changes.get("removed"), Some(&ChangeKind::Deleted));
    assert_eq!(changes.get("made"), Some(&ChangeKind::Created));
    sandbox.delete().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_changes_of_an_archived_sandbox_can_be_kept() {
    let place = Place::new().await;
    let sandbox = place.sandbox("archived").await;
    run(&sandbox, FIRST).await;
    let before = place.changes(&sandbox).await;
    sandbox.archive().await.unwrap();
    place.provider.keep_changes(sandbox.id()).await.unwrap();
    sandbox.delete().await.unwrap();
    let kept = place.provider.find_kept_changes(sandbox.id()).await.unwrap().unwrap();
    assert_eq!(listed(&kept.source()), before);
    kept.discard().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_sandbox_is_forked_as_it_is_and_stays_paused() {
    use leasehold_provider::Capability;
    let place = Place::new().await;
    if !place.provider.capabilities().has(Capability::Pause) {
        eprintln!("skipped: this host gives no control group that can be frozen");
        return;
    }
    let sandbox = place.sandbox("first").await;
    let execution = sandbox
        .exec(CommandSpec::shell(
            "echo begun > begun; until [ -e end ]; do sleep 0.05; done; echo ended > ended",
        ))
        .await
        .unwrap();
    while sandbox.files().stat(Path::new("begun")).await.is_err() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    sandbox.pause().await.unwrap();
    let fork = sandbox.fork(AttemptName::new("second").unwrap()).await.unwrap();
    assert_eq!(sandbox.state().await.unwrap(), SandboxState::Paused);
    run(&fork, "grep begun begun; touch end").await;
    sandbox.resume().await.unwrap();
    run(&sandbox, "touch end").await;
    assert!(matches!(execution.control.verdict().await, Verdict::Exited { code: 0 }));
    assert_eq!(run(&sandbox, "cat ended").await, "ended\n");
    assert_eq!(run(&fork, "ls").await.lines().filter(|name| *name == "ended").count(), 0);
    // The fork's own layers stand on the copy, which goes with the fork.
    let templates = place.directory.path().join("data/templates");
    assert_eq!(fs::read_dir(&templates).unwrap().count(), 1);
    fork.delete().await.unwrap();
    assert_eq!(fs::read_dir(&templates).unwrap().count(), 0);
    sandbox.delete().await.unwrap();
}
