//! Templates and forks: file systems that live on in other sandboxes.

use std::sync::Arc;

use leasehold_model::{ErrorKind, Result, RootSource};

use super::case::declare_cases;
use super::workbench::{
    Workbench, exists, exited, name, noise, read, refused, same_bytes, start, stdout, until, write,
};
use crate::sandbox::Sandbox;

declare_cases! {
    a_template_carries_the_files_into_new_sandboxes: [Templates], "capture freezes the file system, the workspace included, and others start from it";
    sandboxes_of_one_template_are_independent: [Templates], "what one changes, neither the template nor another sees";
    a_template_outlives_its_sandbox: [Templates], "a template needs no sandbox, a sandbox no template";
    templates_are_listed_and_removed: [Templates], "listing and idempotent removal";
    f67_a_fork_of_a_busy_sandbox_has_every_acknowledged_write: [Fork, Pause], "F67: a fork in the middle of writes is one moment of the file system, and the writer goes on";
    a_fork_has_the_files_and_goes_its_own_way: [Fork], "fork copies the file system as it is now; both go on alone";
    twelve_generations_of_forks: [Fork], "a fork of a fork of a fork holds what each of them wrote";
}

async fn a_template_carries_the_files_into_new_sandboxes(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let bytes = noise(100_000);
    write(&sandbox, "bytes", &bytes).await?;
    stdout(&sandbox, "echo tool > tool; chmod 750 tool; ln -s tool link; mkdir -p a/b; rm -rf a").await?;
    let template = bench.template();
    assert_eq!(sandbox.capture_template(template.clone()).await?.id, template);
    stdout(&sandbox, "echo later > later").await?;
    let mut spec = bench.spec();
    spec.root = RootSource::Template(template);
    let made = bench.provider().create(spec).await?;
    same_bytes(&read(&made, "bytes").await?, &bytes, "a file of the template");
    assert_eq!(made.files().stat("tool".as_ref()).await?.mode & 0o7777, 0o750);
    assert_eq!(stdout(&made, "cat link").await?, "tool\n");
    assert!(!exists(&made, "a").await?, "what was removed before the capture is back");
    assert!(!exists(&made, "later").await?, "the template follows the sandbox it was made from");
    Ok(())
}

async fn sandboxes_of_one_template_are_independent(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    stdout(&sandbox, "echo original > file; echo original > gone").await?;
    let template = bench.template();
    sandbox.capture_template(template.clone()).await?;
    let mut made = Vec::new();
    for _ in 0..2 {
        let mut spec = bench.spec();
        spec.root = RootSource::Template(template.clone());
        made.push(bench.provider().create(spec).await?);
    }
    stdout(&made[0], "echo changed > file; rm gone; echo new > new").await?;
    for other in [&made[1], &sandbox] {
        assert_eq!(stdout(other, "cat file gone").await?, "original\noriginal\n");
        assert!(!exists(other, "new").await?);
    }
    Ok(())
}

async fn a_template_outlives_its_sandbox(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    stdout(&sandbox, "echo kept > file").await?;
    let template = bench.template();
    sandbox.capture_template(template.clone()).await?;
    sandbox.delete().await?;
    let mut spec = bench.spec();
    spec.root = RootSource::Template(template.clone());
    let made = bench.provider().create(spec).await?;
    bench.provider().delete_template(&template).await?;
    assert_eq!(stdout(&made, "cat file").await?, "kept\n");
    Ok(())
}

async fn templates_are_listed_and_removed(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    let template = bench.template();
    sandbox.capture_template(template.clone()).await?;
    let again = sandbox.capture_template(template.clone()).await;
    refused(again, ErrorKind::AlreadyExists, "a second capture by this name");
    let listed = bench.provider().list_templates().await?;
    assert!(listed.iter().any(|info| info.id == template), "{listed:?}");
    bench.provider().delete_template(&template).await?;
    bench.provider().delete_template(&template).await?;
    let listed = bench.provider().list_templates().await?;
    assert!(!listed.iter().any(|info| info.id == template), "{listed:?}");
    let mut spec = bench.spec();
    spec.root = RootSource::Template(template);
    refused(bench.provider().create(spec).await, ErrorKind::NotFound, "create from a removed template");
    Ok(())
}

async fn f67_a_fork_of_a_busy_sandbox_has_every_acknowledged_write(bench: Arc<Workbench>) -> Result<()> {
    const WRITER: &str = "mkdir made; for i in $(seq 1 5000); do [ -e end ] && exit 0; \
        echo $i > made/$i; echo $i > next; mv next last; sleep 0.01; done";
    let sandbox = bench.sandbox().await?;
    let last = async |sandbox: &Arc<dyn Sandbox>| -> Result<usize> {
        if !exists(sandbox, "last").await? {
            return Ok(0);
        }
        let text = String::from_utf8(read(sandbox, "last").await?).expect("digits");
        Ok(text.trim().parse().expect("a number"))
    };
    let execution = start(&sandbox, WRITER).await?;
    until(|| async { Ok(last(&sandbox).await? > 10) }).await?;
    let bytes = noise(200_000);
    write(&sandbox, "acknowledged", &bytes).await?;
    let before = last(&sandbox).await?;
    let fork = sandbox.fork(name()).await?;
    let reached = last(&sandbox).await?;
    // The writer never noticed.
    until(|| async { Ok(last(&sandbox).await? > reached + 5) }).await?;
    write(&sandbox, "end", b"").await?;
    exited(&execution.control.verdict().await, 0);

    same_bytes(&read(&fork, "acknowledged").await?, &bytes, "a file written before the fork");
    let number = last(&fork).await?;
    assert!(number >= before, "{before} was acknowledged before the fork, which knows of {number}");
    let made = fork.files().list("made".as_ref()).await?.len();
    assert!((number..=number + 1).contains(&made), "{made} files, of which {number} are acknowledged");
    for number in 1..=number {
        assert_eq!(read(&fork, format!("made/{number}")).await?, format!("{number}\n").into_bytes());
    }
    assert!(!exists(&fork, "end").await?, "the fork follows the sandbox it was made from");
    Ok(())
}

async fn a_fork_has_the_files_and_goes_its_own_way(bench: Arc<Workbench>) -> Result<()> {
    let sandbox = bench.sandbox().await?;
    stdout(&sandbox, "echo original > file; mkdir d; echo deep > d/file; echo x > gone; rm gone").await?;
    let name = name();
    let fork = sandbox.fork(name.clone()).await?;
    assert_ne!(fork.id(), sandbox.id());
    let info = fork.refresh().await?;
    assert_eq!(info.name, name);
    assert!(info.labels.contains_all(&bench.labels()), "a fork keeps the labels: {:?}", info.labels);
    assert_eq!(stdout(&fork, "cat file d/file").await?, "original\ndeep\n");
    assert!(!exists(&fork, "gone").await?);
    stdout(&fork, "echo fork > file").await?;
    stdout(&sandbox, "echo first > d/file").await?;
    assert_eq!(stdout(&sandbox, "cat file d/file").await?, "original\nfirst\n");
    assert_eq!(stdout(&fork, "cat file d/file").await?, "fork\ndeep\n");
    sandbox.delete().await?;
    assert_eq!(stdout(&fork, "cat file d/file").await?, "fork\ndeep\n");
    refused(fork.fork(name).await, ErrorKind::AlreadyExists, "a fork by a taken name");
    Ok(())
}

async fn twelve_generations_of_forks(bench: Arc<Workbench>) -> Result<()> {
    let mut sandbox = bench.sandbox().await?;
    for generation in 0..12 {
        stdout(&sandbox, &format!("echo {generation} >> file")).await?;
        let fork = sandbox.fork(name()).await?;
        sandbox.delete().await?;
        sandbox = fork;
    }
    let expected: Vec<String> = (0..12).map(|generation| generation.to_string()).collect();
    assert_eq!(stdout(&sandbox, "cat file").await?.trim_end(), expected.join("\n"));
    sandbox.delete().await?;
    Ok(())
}
