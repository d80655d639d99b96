//! Every crate takes its lints from the workspace; without that, unsafe code is not denied in it.

use std::fs;
use std::path::Path;

use leasehold_model::Result;

use super::Finding;
use crate::workspace::{self, Package};

/// Crates whose manifest does not inherit the workspace's lints.
pub(super) fn findings(packages: &[Package]) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for package in packages {
        let text = fs::read_to_string(&package.manifest)
            .map_err(|source| workspace::cannot_read(&package.manifest, source))?;
        findings.extend(finding(&package.manifest, &text));
    }
    Ok(findings)
}

fn finding(manifest: &Path, text: &str) -> Option<Finding> {
    let mut lines = text.lines().map(str::trim).skip_while(|&line| line != "[lints]").skip(1);
    let inherits =
        lines.by_ref().take_while(|line| !line.starts_with('[')).any(|line| line == "workspace = true");
    (!inherits).then(|| Finding {
        place: manifest.strip_prefix(workspace::root()).unwrap_or(manifest).display().to_string(),
        problem: "does not inherit the workspace's lints".to_owned(),
        fix: "add `[lints]` with `workspace = true`",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lints_must_be_inherited() {
        let path = Path::new("crates/x/Cargo.toml");
        assert_eq!(finding(path, "[package]\nname = \"x\"\n\n[lints]\nworkspace = true\n"), None);
        for missing in [
            "[package]\nname = \"x\"\n",
            "[lints.rust]\nunsafe_code = \"allow\"\n",
            "[lints]\n[dependencies]\nworkspace = true\n",
        ] {
            assert!(finding(path, missing).is_some(), "{missing}");
        }
    }
}
