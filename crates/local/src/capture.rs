//! Templates of a sandbox's layers: moved when nothing runs in it, copied under frozen processes else.

use std::sync::Arc;

use leasehold_model::{Error, ErrorKind, Result, SandboxState, TemplateId};

use crate::hold::{Frozen, Hold};
use crate::protocol::RequestBody;
use crate::provider::blocking;
use crate::record::Record;
use crate::sandbox::{Live, LocalSandbox};
use crate::scratch::Scratch;
use crate::store::{lives, lock_soon};
use crate::template::{self, Template};

/// A template that was just made.
#[derive(Debug)]
pub(crate) struct Captured {
    pub(crate) template: Template,
    /// Keeps a hidden template that nothing stacks on yet.
    _lease: Option<Scratch>,
}

/// Whether the pid 1 of a sandbox was ended for the capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pid1 {
    Ended,
    WasNotThere,
}

impl LocalSandbox {
    /// Makes a template of its layers. A running sandbox without a command is stopped and started again
    /// around it, in milliseconds, whatever it holds. Running commands would lose their files under
    /// their feet, so they are frozen instead while the layers are copied, which takes the longer the
    /// more was changed.
    pub(crate) async fn capture(
        &self,
        operation: &'static str,
        id: TemplateId,
        hidden: bool,
    ) -> Result<Captured> {
        let hold = self.hold().await?;
        let record = self.record(operation).await?;
        hold.thaw_forgotten(&record)?;
        if record.limits.disk.is_some() {
            return Err(Error::unsupported(
                operation,
                "the files of a sandbox with a disk limit live in memory",
            ));
        }
        if record.state == SandboxState::Archived {
            return Err(Error::new(
                ErrorKind::Conflict,
                operation,
                format!("sandbox {} is archived", self.id),
            )
            .with_hint("start it first"));
        }
        if !lives(&self.state()) {
            return self.move_layers(operation, id, hidden, Pid1::WasNotThere).await;
        }
        let live = self.live(operation).await?;
        if record.state != SandboxState::Paused {
            match live.link.ask(operation, RequestBody::EndIfIdle).await {
                Ok(_) => {
                    self.wait_until_ended(operation, &live).await?;
                    return self.move_layers(operation, id, hidden, Pid1::Ended).await;
                }
                Err(_) if live.cgroup.as_ref().is_some_and(|cgroup| cgroup.can_freeze()) => {}
                Err(error) => {
                    return Err(Error::new(
                        ErrorKind::Conflict,
                        operation,
                        format!(
                            "sandbox {} has processes running, and this host gives no control group that \
                             could freeze them meanwhile",
                            self.id
                        ),
                    )
                    .with_hint("wait for its commands to end, or stop it first")
                    .with_source(error));
                }
            }
        }
        self.copy_layers(operation, hold, &live, record, (id, hidden)).await
    }

    async fn move_layers(
        &self,
        operation: &'static str,
        id: TemplateId,
        hidden: bool,
        pid1: Pid1,
    ) -> Result<Captured> {
        let path = self.state();
        let lock = blocking(move || lock_soon(&path)).await?.ok_or_else(|| self.in_use(operation))?;
        let record = self.record(operation).await?;
        let shared = Arc::clone(&self.shared);
        let (made, record) = blocking(move || {
            let mut record = record;
            let made = template::freeze(&shared.store, &mut record, id, hidden);
            Ok((made, record))
        })
        .await?;
        if pid1 == Pid1::Ended {
            let live = self.shared.start(record, lock).await?;
            self.reach.replace(live).await;
        }
        Ok(Captured { template: made?, _lease: None })
    }

    async fn copy_layers(
        &self,
        operation: &'static str,
        hold: Hold,
        live: &Live,
        record: Record,
        (id, hidden): (TemplateId, bool),
    ) -> Result<Captured> {
        let Some(cgroup) = live.cgroup.clone() else { return Err(self.in_use(operation)) };
        // File servers are outside the frozen group; those of this process wait here.
        let quiet = self.reach.keep_files_quiet().await;
        let shared = Arc::clone(&self.shared);
        let path = self.state();
        // All of it in one piece of work: a caller who goes away must not thaw the processes too early.
        let (template, lease) = blocking(move || {
            let _quiet = quiet;
            let frozen = hold.freeze(cgroup, record.state == SandboxState::Paused)?;
            let check = || ended_meanwhile(operation, &frozen, &record, lives(&path));
            template::copy(&shared.store, &record, id, hidden, check)
        })
        .await
        .map_err(|error| match error.kind() {
            ErrorKind::PermissionDenied => {
                error.with_hint("some files belong to users that only root can copy; stop the sandbox first")
            }
            _ => error,
        })?;
        Ok(Captured { template, _lease: Some(lease) })
    }
}

/// Fails when the processes did not stay frozen until the copy was complete.
fn ended_meanwhile(operation: &'static str, frozen: &Frozen, record: &Record, lives: bool) -> Result<()> {
    match frozen.is_still() {
        Ok(true) if lives => Ok(()),
        _ => Err(Error::new(
            ErrorKind::Conflict,
            operation,
            format!("sandbox {} was stopped or resumed in the middle of it", record.id),
        )
        .with_hint("try again")),
    }
}
