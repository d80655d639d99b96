//! What a run reports when its command has ended.

use std::time::Duration;

use leasehold_model::{SandboxId, Verdict};

use crate::arguments::SandboxOptions;
use crate::changes::{Outcome, tell_report};
use crate::failure::message;

/// The facts of one run.
pub(crate) struct Report<'a> {
    pub(crate) options: &'a SandboxOptions,
    pub(crate) sandbox: &'a SandboxId,
    pub(crate) verdict: &'a Verdict,
    pub(crate) changes: &'a Outcome,
    pub(crate) elapsed: Duration,
}

impl Report<'_> {
    /// Tells it on standard error: the output is the command's.
    pub(crate) fn tell(&self) {
        if self.options.json {
            return message(&self.json().to_string());
        }
        if !matches!(self.verdict, Verdict::Exited { .. } | Verdict::Signalled { .. }) {
            message(&format!("the command {}", self.verdict));
        }
        self.tell_changes();
        if self.options.keep && !self.options.quiet {
            let id = self.sandbox;
            message(&format!("kept sandbox {id}; run in it with `leasehold sandbox exec {id} -- COMMAND`"));
        }
    }

    fn tell_changes(&self) {
        let id = self.sandbox;
        match self.changes {
            Outcome::None => {}
            Outcome::Applied(_, report) => {
                if !self.options.quiet || !report.withheld.is_empty() {
                    tell_report(report, id.as_str());
                }
            }
            Outcome::Kept(set, refused) => {
                if let Some(report) = refused {
                    tell_report(report, id.as_str());
                }
                if self.options.keep {
                    return message(&format!("{} in the workspace of {id}", set.summary()));
                }
                if self.options.quiet && refused.is_none() {
                    return;
                }
                message(&format!("{}, kept as {id}", set.summary()));
                message(&format!("hint: `leasehold changes show|diff|apply|discard {id}`"));
            }
        }
    }

    fn json(&self) -> serde_json::Value {
        let changes = match self.changes {
            Outcome::None => serde_json::json!({ "state": "none" }),
            Outcome::Applied(set, report) => {
                serde_json::json!({ "state": "applied", "set": set, "report": report })
            }
            Outcome::Kept(set, report) => {
                serde_json::json!({ "state": "kept", "id": self.sandbox, "set": set, "report": report })
            }
        };
        serde_json::json!({
            "sandbox": self.sandbox,
            "sandbox_kept": self.options.keep,
            "result": self.verdict,
            "exit_status": self.verdict.exit_status(),
            "seconds": self.elapsed.as_secs_f64(),
            "changes": changes,
        })
    }
}
