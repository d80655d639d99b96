//! `leasehold changes`: what runs changed and nobody has decided about yet.

use std::io::{self, Write};

use leasehold_local::changes::{
    ApplyOptions, ApplyOutcome, ApplyReport, Change, ChangeSet, ChangeSource, ConflictPolicy, DiffOptions,
    Problem, apply, diff, scan,
};
use leasehold_local::{KeptChanges, LocalConfig, LocalProvider};
use leasehold_model::{Error, ErrorKind, Result, SandboxId};

use crate::arguments::{ChangesCommand, OnConflict};
use crate::failure::{Failure, message};

/// Lines of a report before it is cut; `--json` has everything.
const MOST_LINES: usize = 40;

pub(crate) async fn dispatch(command: ChangesCommand) -> Result<u8, Failure> {
    let provider = LocalProvider::open(LocalConfig::from_environment()?).await?;
    match command {
        ChangesCommand::List { json } => list(&provider, json).await,
        ChangesCommand::Show { changes, json } => {
            let source = find(&provider, &changes).await?.source();
            let set = blocking(move || scan(&source)).await?;
            if json {
                print_json(&set)?
            } else {
                print_changes(&set)?
            }
            Ok(0)
        }
        ChangesCommand::Diff { changes } => {
            let source = find(&provider, &changes).await?.source();
            blocking(move || write_diff(&source)).await?;
            Ok(0)
        }
        ChangesCommand::Apply { changes, on_conflict, allow_set_id, dry_run, json } => {
            let kept = find(&provider, &changes).await?;
            let source = kept.source();
            let options = ApplyOptions {
                conflicts: policy(on_conflict),
                allow_set_id,
                durable: true,
                check_only: dry_run,
            };
            let report = blocking(move || apply(&source, &scan(&source)?, &options)).await?;
            if json {
                print_json(&report)?
            } else {
                tell_report(&report, kept.id.as_str())
            }
            if report.outcome == ApplyOutcome::Applied {
                blocking(move || kept.discard()).await?;
            }
            Ok(status(&report))
        }
        ChangesCommand::Discard { changes } => {
            for name in changes {
                let kept = find(&provider, &name).await?;
                blocking(move || kept.discard()).await?;
            }
            Ok(0)
        }
    }
}

/// Runs work that blocks away from the runtime.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Error::new(ErrorKind::Unexpected, "changes", format!("a worker failed: {error}")))?
}

fn policy(on_conflict: OnConflict) -> ConflictPolicy {
    match on_conflict {
        OnConflict::Refuse => ConflictPolicy::Refuse,
        OnConflict::Skip => ConflictPolicy::Skip,
        OnConflict::Overwrite => ConflictPolicy::Overwrite,
    }
}

/// Exit status: 0 when everything is on the host, 1 when something is not.
fn status(report: &ApplyReport) -> u8 {
    u8::from(matches!(report.outcome, ApplyOutcome::Incomplete | ApplyOutcome::Refused))
}

/// Finds kept changes by the id of their sandbox, else by its name.
async fn find(provider: &LocalProvider, text: &str) -> Result<KeptChanges> {
    if let Ok(id) = SandboxId::new(text)
        && let Some(kept) = provider.find_kept_changes(&id).await?
    {
        return Ok(kept);
    }
    let all = provider.list_kept_changes().await?;
    all.into_iter().rev().find(|kept| kept.name.as_str() == text).ok_or_else(|| {
        Error::new(ErrorKind::NotFound, "changes.find", format!("there are no changes `{text}`"))
            .with_hint("`leasehold changes list` shows those that wait")
    })
}

async fn list(provider: &LocalProvider, json: bool) -> Result<u8, Failure> {
    let all = provider.list_kept_changes().await?;
    if json {
        let items: Vec<_> = all
            .iter()
            .map(|kept| serde_json::json!({ "id": kept.id, "name": kept.name, "workspace": kept.workspace.to_string_lossy() }))
            .collect();
        print_json(&items)?;
        return Ok(0);
    }
    let mut output = io::stdout().lock();
    for kept in all {
        writeln!(output, "{}  {}  {}", kept.id, kept.name, kept.workspace.display())?;
    }
    Ok(0)
}

fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value).map_err(io::Error::from)?;
    writeln!(io::stdout().lock(), "{text}")?;
    Ok(())
}

fn line_of(change: &Change) -> String {
    format!("{} {}", change.kind.letter(), change.path)
}

fn print_changes(set: &ChangeSet) -> Result<(), Failure> {
    let mut output = io::stdout().lock();
    for change in &set.changes {
        writeln!(output, "{}", line_of(change))?;
    }
    tell_problems(&set.problems);
    Ok(())
}

fn write_diff(source: &ChangeSource) -> Result<()> {
    let set = scan(source)?;
    let mut output = io::BufWriter::new(io::stdout().lock());
    let written = diff(source, &set, &DiffOptions::default(), &mut output);
    match output.flush() {
        // A pager that was closed has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
        Err(error) => return Err(Error::io("changes.diff", "cannot write the patch", error)),
        Ok(()) => {}
    }
    tell_problems(&written?);
    Ok(())
}

/// Tells people what could not be looked at.
fn tell_problems(problems: &[Problem]) {
    for problem in problems {
        match &problem.path {
            Some(path) => message(&format!("{path}: {}", problem.message)),
            None => message(&problem.message),
        }
    }
}

/// Tells people what applying did, and what it did not do and why.
pub(crate) fn tell_report(report: &ApplyReport, id: &str) {
    message(&report.summary());
    let conflicts =
        report.conflicts.iter().map(|conflict| format!("conflict: {}: {}", conflict.path, conflict.reason));
    let failures =
        report.failures.iter().map(|failure| format!("failed: {}: {}", failure.path, failure.message));
    let withheld =
        report.withheld.iter().map(|withheld| format!("withheld: {}: {}", withheld.path, withheld.what));
    let lines: Vec<String> = conflicts.chain(failures).chain(withheld).collect();
    for line in lines.iter().take(MOST_LINES) {
        message(line);
    }
    if lines.len() > MOST_LINES {
        message(&format!("and {} more", lines.len() - MOST_LINES));
    }
    if report.outcome == ApplyOutcome::Refused {
        message(&format!(
            "hint: the host changed these files meanwhile; see `leasehold changes diff {id}`, then `leasehold changes apply {id} --on-conflict skip|overwrite`"
        ));
    }
}

/// What became of the changes of a run.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// There were none.
    None,
    /// They are on the host.
    Applied(ChangeSet, ApplyReport),
    /// They wait for a decision, with the reason when they were to be applied.
    Kept(ChangeSet, Option<ApplyReport>),
}

/// Looks at the changes of an ended sandbox, and applies them when that is wanted.
pub(crate) async fn settle(
    provider: &LocalProvider,
    sandbox: &SandboxId,
    wants_apply: bool,
) -> Result<Outcome> {
    let Some(changes) = provider.changes(sandbox).await? else {
        return Ok(Outcome::None);
    };
    let set = {
        let changes = changes.clone();
        blocking(move || scan(&changes.source)).await?
    };
    if set.is_empty() {
        return Ok(Outcome::None);
    }
    if !wants_apply {
        return Ok(Outcome::Kept(set, None));
    }
    let (set, report) = blocking(move || {
        let report =
            apply(&changes.source, &set, &ApplyOptions { durable: true, ..ApplyOptions::default() })?;
        Ok((set, report))
    })
    .await?;
    Ok(match report.outcome {
        ApplyOutcome::Applied => Outcome::Applied(set, report),
        _ => Outcome::Kept(set, Some(report)),
    })
}
