//! Create, find, list, destroy.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leasehold_model::{
    ErrorKind, ImageReference, ReceiptOutcome, Result, RootSource, SandboxId, SandboxState, TemplateId,
    UserSpec, Verdict,
};

use super::case::declare_cases;
use super::workbench::{WORKSPACE, Workbench, name, refused, sh, start, stdout, until};
use crate::capabilities::Capability;
use crate::provider::SandboxQuery;

declare_cases! {
    a_new_sandbox_runs_and_says_who_it_is: [], "create answers a sandbox that takes commands, with its name, labels and workspace (F12)";
    a_sandbox_is_found_by_id_and_by_name: [], "find observes what create made";
    what_was_never_made_is_not_found: [], "invariant 2: an explicit not-found is `None`, not an error";
    a_list_holds_exactly_what_carries_the_labels: [], "labels are kept from the first moment and all must match";
    a_name_is_used_once: [], "one attempt, one sandbox: a taken name is `AlreadyExists` (F06)";
    one_of_many_racing_creates_wins: [], "the same name at the same time gives exactly one sandbox (F06)";
    destroying_gives_a_receipt_and_again_the_same_end: [], "destroy is idempotent and proves its end (F05, F13)";
    a_destroyed_sandbox_takes_nothing: [], "a destroyed sandbox stays destroyed (invariant 4)";
    a_destroyed_sandbox_ends_its_commands: [], "a command under a destroyed sandbox ends with `SandboxStopped`, not with a hang (F41)";
    a_dropped_handle_changes_nothing: [], "a handle is not the sandbox";
    a_failed_create_leaves_nothing: [], "create is a transaction (F07)";
    two_sandboxes_share_nothing: [], "sandboxes don't see each other's files";
    what_is_not_claimed_is_refused: [], "invariant 15: a missing capability fails closed";
}

async fn a_new_sandbox_runs_and_says_who_it_is(bench: Arc<Workbench>) -> Result<()> {
    let before = SystemTime::now() - Duration::from_secs(3600);
    let spec = bench.spec();
    let sandbox = bench.provider().create(spec.clone()).await?;
    let info = sandbox.refresh().await?;
    assert_eq!(&info.id, sandbox.id());
    assert_eq!(info.name, spec.name);
    assert!(info.labels.contains_all(&spec.labels), "labels are missing: {:?}", info.labels);
    assert_eq!(info.state, SandboxState::Running);
    assert_eq!(sandbox.state().await?, SandboxState::Running);
    assert_eq!(info.workspace.as_deref(), Some(WORKSPACE.as_ref()));
    assert!(info.created_at > before, "made at {:?}", info.created_at);
    assert_eq!(info.expires_at, None);
    assert_eq!(stdout(&sandbox, "echo ready").await?, "ready\n");
    Ok(())
}

async fn a_sandbox_is_found_by_id_and_by_name(bench: Arc<Workbench>) -> Result<()> {
    let spec = bench.spec();
    let sandbox = bench.provider().create(spec.clone()).await?;
    stdout(&sandbox, "echo kept > file").await?;
    for query in [SandboxQuery::Id(sandbox.id().clone()), SandboxQuery::Name(spec.name.clone())] {
        let found = bench.provider().find(&query).await?;
        let found = found.unwrap_or_else(|| panic!("{query:?} is not found"));
        assert_eq!(found.id(), sandbox.id());
        assert_eq!(stdout(&found, "cat file").await?, "kept\n");
    }
    Ok(())
}

async fn what_was_never_made_is_not_found(bench: Arc<Workbench>) -> Result<()> {
    let id = SandboxId::new(name().as_str())?;
    assert!(bench.provider().find(&SandboxQuery::Id(id)).await?.is_none());
    assert!(bench.provider().find(&SandboxQuery::Name(name())).await?.is_none());
    Ok(())
}

async fn a_list_holds_exactly_what_carries_the_labels(bench: Arc<Workbench>) -> Result<()> {
    let mut made = BTreeSet::new();
    for colour in ["red", "blue"] {
        let mut spec = bench.spec();
        spec.labels.0.insert("colour".into(), colour.into());
        made.insert(bench.provider().create(spec).await?.id().clone());
    }
    let ids = |list: Vec<leasehold_model::SandboxInfo>| list.into_iter().map(|info| info.id).collect();
    let all: BTreeSet<_> = ids(bench.provider().list(&bench.labels()).await?);
    assert_eq!(all, made);
    let mut red = bench.labels();
    red.0.insert("colour".into(), "red".into());
    let red: BTreeSet<_> = ids(bench.provider().list(&red).await?);
    assert_eq!(red.len(), 1, "{red:?}");
    let mut green = bench.labels();
    green.0.insert("colour".into(), "green".into());
    assert!(bench.provider().list(&green).await?.is_empty());
    Ok(())
}

async fn a_name_is_used_once(bench: Arc<Workbench>) -> Result<()> {
    let spec = bench.spec();
    let sandbox = bench.provider().create(spec.clone()).await?;
    refused(bench.provider().create(spec).await, ErrorKind::AlreadyExists, "a second create by this name");
    assert_eq!(stdout(&sandbox, "echo alive").await?, "alive\n");
    assert_eq!(bench.provider().list(&bench.labels()).await?.len(), 1);
    Ok(())
}

async fn one_of_many_racing_creates_wins(bench: Arc<Workbench>) -> Result<()> {
    let spec = bench.spec();
    let creates = (0..8).map(|_| {
        let (bench, spec) = (Arc::clone(&bench), spec.clone());
        tokio::spawn(async move { bench.provider().create(spec).await })
    });
    let mut won = 0;
    for create in futures_util::future::join_all(creates).await {
        match create.expect("create does not panic") {
            Ok(_) => won += 1,
            Err(error) => assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error:?}"),
        }
    }
    assert_eq!(won, 1);
    assert_eq!(bench.provider().list(&bench.labels()).await?.len(), 1);
    Ok(())
}

async fn destroying_gives_a_receipt_and_again_the_same_end(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let id = sandbox.id().clone();
    let receipt = sandbox.delete().await?;
    assert_eq!((&receipt.sandbox, receipt.outcome), (&id, ReceiptOutcome::Destroyed));
    assert!(!receipt.steps.is_empty(), "a receipt names what was removed");
    assert_eq!(sandbox.delete().await?.outcome, ReceiptOutcome::AlreadyGone);
    assert_eq!(bench.provider().destroy(&id).await?.outcome, ReceiptOutcome::AlreadyGone);
    assert!(bench.provider().find(&SandboxQuery::Id(id)).await?.is_none());
    let other = bench.sandbox().await?;
    assert_eq!(bench.provider().destroy(other.id()).await?.outcome, ReceiptOutcome::Destroyed);
    Ok(())
}

async fn a_destroyed_sandbox_takes_nothing(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    sandbox.delete().await?;
    refused(sandbox.refresh().await, ErrorKind::Lost, "refresh of a destroyed sandbox");
    assert!(start(&sandbox, "echo no").await.is_err(), "a destroyed sandbox ran a command");
    assert!(sandbox.files().list("/".as_ref()).await.is_err(), "a destroyed sandbox listed files");
    Ok(())
}

async fn a_destroyed_sandbox_ends_its_commands(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let execution = start(&sandbox, "trap '' TERM; while :; do sleep 1; done").await?;
    sandbox.delete().await?;
    assert_eq!(execution.control.verdict().await, Verdict::SandboxStopped);
    Ok(())
}

async fn a_dropped_handle_changes_nothing(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let id = sandbox.id().clone();
    drop(start(&sandbox, "while :; do echo x >> beat; sleep 0.1; done").await?);
    drop(sandbox);
    let again = bench.provider().find(&SandboxQuery::Id(id)).await?.expect("it lives on");
    let first = super::workbench::size(&again, "beat").await?;
    until(|| async { Ok(super::workbench::size(&again, "beat").await? > first + 4) }).await
}

async fn a_failed_create_leaves_nothing(bench: Arc<Workbench>) -> Result<()> {
    let mut spec = bench.spec();
    spec.root = RootSource::Template(TemplateId::new(name().as_str())?);
    let kind = if bench.can(Capability::Templates) { ErrorKind::NotFound } else { ErrorKind::Unsupported };
    refused(bench.provider().create(spec.clone()).await, kind, "create from a template that does not exist");
    assert!(bench.provider().list(&bench.labels()).await?.is_empty());
    spec.root = RootSource::Host;
    bench.provider().create(spec).await.map(drop)
}

async fn two_sandboxes_share_nothing(bench: Arc<Workbench>) -> Result<()> {
    let (left, right) = (bench.sandbox().await?, bench.sandbox().await?);
    stdout(&left, "echo secret > only-here; echo secret > /tmp/only-here").await?;
    let seen = sh(&right, "cat only-here /tmp/only-here").await?;
    assert!(seen.stdout.is_empty() && !seen.verdict.is_success(), "{seen:?}");
    Ok(())
}

async fn what_is_not_claimed_is_refused(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let unclaimed = |capability| !bench.can(capability);
    let kind = ErrorKind::Unsupported;
    if unclaimed(Capability::StopStart) {
        refused(sandbox.stop().await, kind, "stop");
        refused(sandbox.start().await, kind, "start");
    }
    if unclaimed(Capability::Pause) {
        refused(sandbox.pause().await, kind, "pause");
        refused(sandbox.resume().await, kind, "resume");
    }
    if unclaimed(Capability::Archive) {
        refused(sandbox.archive().await, kind, "archive");
    }
    if unclaimed(Capability::Expiry) {
        refused(sandbox.set_expiry(Some(Duration::from_secs(60))).await, kind, "set_expiry");
        let mut spec = bench.spec();
        spec.expire_after = Some(Duration::from_secs(60));
        refused(bench.provider().create(spec).await, kind, "create with an expiry");
    }
    if unclaimed(Capability::IdleStop) {
        refused(sandbox.set_idle_stop(Some(Duration::from_secs(60))).await, kind, "set_idle_stop");
    }
    if unclaimed(Capability::Templates) {
        refused(sandbox.capture_template(TemplateId::new("suite-none")?).await, kind, "capture_template");
        refused(bench.provider().list_templates().await, kind, "list_templates");
    }
    if unclaimed(Capability::Fork) {
        refused(sandbox.fork(name()).await, kind, "fork");
    }
    if unclaimed(Capability::Connect) {
        refused(sandbox.connect(80).await, kind, "connect");
    }
    for (capability, limit) in super::limits::each_limit() {
        if unclaimed(capability) {
            let mut spec = bench.spec();
            spec.limits = limit;
            refused(bench.provider().create(spec).await, kind, "create with an unsupported limit");
        }
    }
    if unclaimed(Capability::HostWorkspace) {
        let mut spec = bench.spec();
        spec.workspace.as_mut().expect("the suite's spec has one").source = Some("/".into());
        refused(bench.provider().create(spec).await, kind, "create with a directory of the host");
    }
    if unclaimed(Capability::Images) {
        let mut spec = bench.spec();
        spec.root = RootSource::Image(ImageReference("leasehold.invalid/none:1".into()));
        refused(bench.provider().create(spec).await, kind, "create from an image");
    }
    if unclaimed(Capability::OtherUsers) {
        let mut command = leasehold_model::CommandSpec::new(["id", "-u"]);
        command.user = Some(UserSpec::Id { user: 54_321, group: None });
        refused(sandbox.exec(command).await, kind, "exec as another user");
    }
    if unclaimed(Capability::Stdin) {
        let command = leasehold_model::CommandSpec::new(["cat"]).with_stdin();
        refused(sandbox.exec(command).await, kind, "exec with a stream as input");
    }
    if unclaimed(Capability::Terminal) {
        let command = leasehold_model::CommandSpec::shell("true")
            .with_terminal(leasehold_model::TerminalSize::default());
        refused(sandbox.exec(command).await, kind, "exec on a terminal");
    }
    Ok(())
}
