//! `leasehold run` and `leasehold shell`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_local::{LocalConfig, LocalProvider};
use leasehold_model::{
    AttemptName, CommandSpec, Error, Exposure, ImageReference, ResourceLimits, Result, RootSource,
    SandboxSpec, Span, StdinMode, Verdict, WorkspaceSpec,
};
use leasehold_provider::{Provider, Sandbox};

use crate::arguments::{RunOptions, SandboxOptions};
use crate::environment;
use crate::failure::{Failure, message};
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
    let sandbox = provider.create(spec).await?;
    let outcome = execute(&sandbox, command, options.cwd.clone(), tty, &mut signals).await;
    let ending = finish(&provider, &sandbox, options).await;
    let verdict = outcome?;
    ending?;
    report(options, &sandbox, &verdict, started.elapsed());
    Ok(verdict.exit_status())
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

/// Takes the sandbox down, or leaves it when it is to be kept.
async fn finish(
    provider: &LocalProvider,
    sandbox: &Arc<dyn Sandbox>,
    options: &SandboxOptions,
) -> Result<()> {
    if options.keep {
        sandbox.stop().await?;
    } else {
        sandbox.delete().await?;
    }
    // What others left is removed on the way out, when nobody waits for a command any more.
    provider.sweep().await.map(drop)
}

fn report(options: &SandboxOptions, sandbox: &Arc<dyn Sandbox>, verdict: &Verdict, elapsed: Duration) {
    if options.json {
        let report = serde_json::json!({
            "sandbox": sandbox.id(),
            "kept": options.keep,
            "result": verdict,
            "exit_status": verdict.exit_status(),
            "seconds": elapsed.as_secs_f64(),
        });
        message(&report.to_string());
        return;
    }
    match verdict {
        Verdict::Exited { .. } | Verdict::Signalled { .. } => {}
        Verdict::DiskFull { .. } => message(&format!("the command {verdict}")),
        _ => message(&format!("the command was {verdict}")),
    }
    if options.keep && !options.quiet {
        message(&format!(
            "kept sandbox {}; run in it with `leasehold sandbox exec {0} -- COMMAND`",
            sandbox.id()
        ));
    }
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
