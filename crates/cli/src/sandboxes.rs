//! `leasehold sandbox`: sandboxes that were kept.

use std::io::Write;
use std::sync::Arc;

use leasehold_local::{LocalConfig, LocalProvider};
use leasehold_model::{
    AttemptName, CommandSpec, Error, ErrorKind, Labels, Result, SandboxId, SandboxState, Span,
};
use leasehold_provider::{Provider, Sandbox, SandboxQuery};

use crate::arguments::SandboxCommand;
use crate::failure::{Failure, message};
use crate::run::execute;
use crate::streams::Signals;
use crate::terminal;

pub(crate) async fn dispatch(command: SandboxCommand) -> Result<u8, Failure> {
    let provider = LocalProvider::open(LocalConfig::from_environment()?).await?;
    match command {
        SandboxCommand::List { json } => list(&provider, json).await?,
        SandboxCommand::Exec { sandbox, tty, no_tty, timeout, command } => {
            let sandbox = find(&provider, &sandbox).await?;
            let mut signals = Signals::catch()?;
            if sandbox.state().await? != SandboxState::Running {
                sandbox.start().await?;
            }
            let mut command = CommandSpec::new(command);
            command.timeout = timeout.map(|Span(time)| time);
            let tty = terminal::is_wanted(tty, no_tty);
            let verdict = execute(&sandbox, command, None, tty, &mut signals).await?;
            return Ok(verdict.exit_status());
        }
        SandboxCommand::Stop { sandbox } => {
            find(&provider, &sandbox).await?.stop().await?;
        }
        SandboxCommand::Remove { sandboxes } => {
            let mut outcome = Ok(());
            for name in sandboxes {
                // One that can't be removed is no reason to leave the others.
                outcome = outcome.and(remove(&provider, &name).await);
            }
            outcome?;
        }
        SandboxCommand::Sweep => sweep(&provider).await?,
    }
    Ok(0)
}

/// Finds a sandbox by id, else by name.
async fn find(provider: &LocalProvider, text: &str) -> Result<Arc<dyn Sandbox>> {
    if let Some(sandbox) = provider.find(&SandboxQuery::Id(SandboxId::new(text)?)).await? {
        return Ok(sandbox);
    }
    if let Ok(name) = AttemptName::new(text)
        && let Some(sandbox) = provider.find(&SandboxQuery::Name(name)).await?
    {
        return Ok(sandbox);
    }
    Err(Error::new(ErrorKind::NotFound, "sandbox.find", format!("there is no sandbox `{text}`"))
        .with_hint("`leasehold sandbox list` shows those that exist"))
}

async fn remove(provider: &LocalProvider, name: &str) -> Result<()> {
    find(provider, name).await?.delete().await.map(drop)
}

async fn list(provider: &LocalProvider, json: bool) -> Result<(), Failure> {
    let sandboxes = provider.list(&Labels::default()).await?;
    let mut output = std::io::stdout().lock();
    if json {
        let text = serde_json::to_string(&sandboxes).map_err(std::io::Error::from)?;
        writeln!(output, "{text}")?;
        return Ok(());
    }
    for sandbox in sandboxes {
        let workspace = sandbox.workspace.map(|path| path.display().to_string()).unwrap_or_default();
        writeln!(output, "{}  {:8}  {}  {workspace}", sandbox.id, sandbox.state.as_str(), sandbox.name)?;
    }
    Ok(())
}

async fn sweep(provider: &LocalProvider) -> Result<(), Failure> {
    let report = provider.sweep().await?;
    for (sandbox, reason) in &report.removed {
        message(&format!("removed what {sandbox} left: {reason}"));
    }
    for sandbox in &report.kept_changes {
        message(&format!("kept the changes of {sandbox}"));
    }
    if report.unexplained.is_empty() {
        return Ok(());
    }
    for item in &report.unexplained {
        message(&format!("left as it is: {item}"));
    }
    Err(Error::new(
        ErrorKind::Unexpected,
        "sandbox.sweep",
        "something in the data directory is unaccounted for",
    )
    .into())
}
