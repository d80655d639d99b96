//! `leasehold doctor`: what this host can and cannot isolate, and how to fix it.

use std::io::Write;
use std::path::PathBuf;

use leasehold_local::LocalConfig;
use leasehold_local::doctor::{Diagnosis, Doctor};
use leasehold_model::Result;

use crate::changes::blocking;
use crate::failure::Failure;

/// Examines the host. Exit status 1 when sandboxes can't run here.
pub(crate) async fn doctor(workspace: Option<PathBuf>, json: bool) -> Result<u8, Failure> {
    let diagnosis = examine(workspace).await?;
    let mut output = std::io::stdout().lock();
    if json {
        let text = serde_json::to_string(&diagnosis).map_err(std::io::Error::from)?;
        writeln!(output, "{text}")?;
    } else {
        write!(output, "{diagnosis}")?;
    }
    Ok(u8::from(diagnosis.refusal().is_some()))
}

/// Examines the host for a workspace.
pub(crate) async fn examine(workspace: Option<PathBuf>) -> Result<Diagnosis> {
    let config = LocalConfig::from_environment()?;
    blocking(move || {
        let mut doctor = Doctor::new(config.data_directory);
        if let Some(workspace) = workspace {
            doctor = doctor.with_workspace(workspace);
        }
        Ok(doctor.examine())
    })
    .await
}
