//! `leasehold run` and `leasehold shell`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use leasehold_local::{LocalConfig, LocalProvider};
use leasehold_model::{
    AttemptName, CommandSpec, Error, ErrorKind, Exposure, ImageReference, ResourceLimits, Result, RootSource,
    SandboxSpec, Span, StdinMode, Verdict, WorkspaceSpec,
};
use leasehold_provider::{Provider, Sandbox};

use crate::arguments::{RunOptions, SandboxOptions};
use crate::changes::{self, Outcome};
use crate::doctor;
use crate::environment;
use crate::failure::Failure;
use crate::report::Report;
use crate::streams::{self, Signals};
use crate::terminal::{self, RawMode};

/// Programs that `shell` opens, the first that is there.
const SHELLS: &str =
    "for shell in \"$SHELL\" bash sh; do command -v \"$shell\" >/dev/null 2>&1 && exec \"$shell\" -i; done";

/// Runs a command in a fresh sandbox.
pub(crate) async fn run(options: RunOptions) -> Result<u8, Failure> {
    let mut command = CommandSpec::new(options.command);
    command.timeout = options.timeout.map(|Span(time)| time);
    in_fresh_sandbox(&options.sandbox, command, terminal::is_wanted(options.tty, options.no_tty)).await
}

/// Opens a shell in a fresh sandbox.
pub(crate) async fn shell(options: SandboxOptions) -> Result<u8, Failure> {
    let command = CommandSpec::shell(SHELLS);
    in_fresh_sandbox(&options, command, terminal::is_wanted(false, false)).await
}

async fn in_fresh_sandbox(options: &SandboxOptions, command: CommandSpec, tty: bool) -> Result<u8, Failure> {
    let started = Instant::now();
    let mut signals = Signals::catch()?;
    let spec = sandbox_spec(options)?;
    let provider = LocalProvider::open(LocalConfig::from_environment()?).await?;
    let sandbox = match provider.create(spec).await {
        Ok(sandbox) => sandbox,
        Err(error) => return Err(explain(error, options).await.into()),
    };
    let outcome = execute(&sandbox, command, options.cwd.clone(), tty, &mut signals).await;
    let succeeded = matches!(&outcome, Ok(verdict) if verdict.is_success());
    let settled = finish(&provider, &sandbox, options, succeeded).await;
    let verdict = outcome?;
    let changes = settled?;
    Report {
        options,
        sandbox: sandbox.id(),
        verdict: &verdict,
        changes: &changes,
        elapsed: started.elapsed(),
    }
    .tell();
    // The command did its part; that its changes are not where they were wanted is our failure.
    let not_applied = options.apply && succeeded && matches!(changes, Outcome::Kept(..));
    Ok(if not_applied { 125 } else { verdict.exit_status() })
}

/// The reason why a sandbox can't be made here, when the host as a whole can't make any.
async fn explain(error: Error, options: &SandboxOptions) -> Error {
    if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::AlreadyExists | ErrorKind::NotFound) {
        return error;
    }
    match doctor::examine(options.workspace.clone()).await.map(|diagnosis| diagnosis.refusal()) {
        Ok(Some(refusal)) => refusal.with_source(error),
        _ => error,
    }
}

/// Runs one command in a sandbox, joined to this process's streams.
pub(crate) async fn execute(
    sandbox: &Arc<dyn Sandbox>,
    mut command: CommandSpec,
    directory: Option<PathBuf>,
    tty: bool,
    signals: &mut Signals,
) -> Result<Verdict, Failure> {
    command.directory = directory;
    command.stdin = StdinMode::Stream;
    if tty {
        command.terminal = Some(terminal::size());
    }
    let execution = sandbox.exec(command).await.map_err(Failure::of_start)?;
    let raw = if tty { RawMode::enter() } else { None };
    let verdict = streams::attach(execution, signals).await;
    drop(raw);
    Ok(verdict?)
}

/// Settles the changes, then takes the sandbox down, or leaves it when it is to be kept.
async fn finish(
    provider: &LocalProvider,
    sandbox: &Arc<dyn Sandbox>,
    options: &SandboxOptions,
    succeeded: bool,
) -> Result<Outcome> {
    if options.keep {
        sandbox.stop().await?;
    } else {
        provider.end(sandbox.id()).await?;
    }
    let settled = changes::settle(provider, sandbox.id(), options.apply && succeeded).await;
    if !options.keep {
        // Whatever went wrong, what the command did is not lost.
        if !matches!(settled, Ok(Outcome::None | Outcome::Applied(..))) {
            provider.keep_changes(sandbox.id()).await?;
        }
        sandbox.delete().await?;
    }
    // What others left is removed on the way out, when nobody waits for a command any more.
    provider.sweep().await?;
    settled
}

/// A name for a sandbox that was given none.
fn fresh_name() -> Result<AttemptName> {
    let nanoseconds = std::time::SystemTime::now()
        .duration_since(std::time::SystemTime::UNIX_EPOCH)
        .map_or(0, |elapsed| elapsed.subsec_nanos());
    AttemptName::new(format!("run-{}-{nanoseconds:08x}", std::process::id()))
}

fn sandbox_spec(options: &SandboxOptions) -> Result<SandboxSpec> {
    let mut spec = SandboxSpec::new(match &options.name {
        Some(name) => name.clone(),
        None => fresh_name()?,
    });
    spec.workspace = Some(workspace(options.workspace.as_deref())?);
    if let Some(image) = &options.image {
        spec.root = RootSource::Image(ImageReference(image.clone()));
    }
    spec.exposures = options.expose.iter().map(absolute).collect::<Result<_>>()?;
    spec.network = options.network;
    spec.environment = variables(options)?;
    spec.user.clone_from(&options.user);
    spec.limits = ResourceLimits {
        memory: options.memory,
        cpus: options.cpus,
        processes: options.pids,
        disk: options.disk,
    };
    spec.bound_to_creator = !options.keep;
    Ok(spec)
}

fn variables(options: &SandboxOptions) -> Result<Vec<(OsString, OsString)>> {
    let mut variables = environment::base(options.image.is_some(), |name| std::env::var_os(name));
    variables.extend(environment::locale(std::env::vars_os()));
    for path in &options.env_file {
        variables.extend(environment::file(path)?);
    }
    for text in &options.env {
        variables.push(environment::flag(text, |name| std::env::var_os(name))?);
    }
    Ok(variables)
}

fn resolve(path: &Path, flag: &str) -> Result<PathBuf> {
    std::fs::canonicalize(path).map_err(|error| {
        Error::io("run.arguments", format!("cannot use {} as {flag}", path.display()), error)
            .with_hint("check that it exists and that you may read it")
    })
}

fn absolute(exposure: &Exposure) -> Result<Exposure> {
    Ok(Exposure { path: resolve(&exposure.path, "--expose")?, access: exposure.access })
}

/// The workspace: a directory given by name, or the current one, as long as that is no more than a
/// project. A whole home or file system must be asked for by name.
fn workspace(given: Option<&Path>) -> Result<WorkspaceSpec> {
    let path = resolve(given.unwrap_or(Path::new(".")), "the workspace")?;
    if !path.is_dir() {
        return Err(Error::invalid(
            "run.workspace",
            format!("the workspace {} is not a directory", path.display()),
        ));
    }
    if path == Path::new("/") {
        return Err(Error::invalid("run.workspace", "the whole file system can't be the workspace")
            .with_hint("run in a project directory, or give one with --workspace DIR"));
    }
    let home = std::env::var_os("HOME").and_then(|home| std::fs::canonicalize(home).ok());
    if given.is_none() && home.is_some_and(|home| home == path) {
        return Err(Error::invalid(
            "run.workspace",
            "the current directory is your home, with all your keys in it",
        )
        .with_hint("run in a project directory, or say that you mean it with --workspace ."));
    }
    Ok(WorkspaceSpec { source: Some(path.clone()), target: path })
}
