//! A diagnosis as plain text.

use std::collections::HashMap;
use std::fmt;

use super::diagnosis::{Block, Diagnosis, Finding, Necessity, Rung, Status};

/// Columns before the third one: the mark and the block's name.
const MARK_WIDTH: usize = 8;
const NAME_WIDTH: usize = 19;

impl fmt::Display for Diagnosis {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fixed_by: HashMap<&str, Block> = HashMap::new();
        for finding in &self.findings {
            write_finding(formatter, finding, &mut fixed_by)?;
        }
        writeln!(formatter)?;
        let of = |rank: fn(Necessity) -> bool| -> Vec<&str> {
            self.findings
                .iter()
                .filter(|finding| matches!(finding.status, Status::Missing { .. }) && rank(finding.necessity))
                .map(|finding| finding.block.name())
                .collect()
        };
        match self.rung {
            Rung::Full => writeln!(formatter, "This host makes sandboxes with full isolation."),
            Rung::Reduced => writeln!(
                formatter,
                "This host makes sandboxes without: {}.",
                of(|necessity| matches!(necessity, Necessity::Recommended { .. })).join(", ")
            ),
            Rung::Refused => writeln!(
                formatter,
                "This host cannot make sandboxes yet. Missing: {}.",
                of(|necessity| necessity == Necessity::Required).join(", ")
            ),
        }
    }
}

/// One finding: its line, and where something is lost, what and how to get it back. A fix that was
/// printed before is only referred to.
fn write_finding<'text>(
    formatter: &mut fmt::Formatter<'_>,
    finding: &'text Finding,
    fixed_by: &mut HashMap<&'text str, Block>,
) -> fmt::Result {
    let text = match &finding.status {
        Status::Available { detail } => detail.clone(),
        Status::Missing { reason } | Status::NotNeeded { reason } => reason.clone(),
        Status::Blocked { by } => format!("not tried: needs {by}"),
    };
    let mark = mark_of(finding);
    writeln!(formatter, "{mark:MARK_WIDTH$} {:NAME_WIDTH$} {text}", finding.block)?;
    if !matches!(finding.status, Status::Missing { .. }) {
        return Ok(());
    }
    let indent = " ".repeat(MARK_WIDTH + 1);
    if let Necessity::Recommended { lost } | Necessity::Optional { lost } = finding.necessity {
        writeln!(formatter, "{indent}lost: {lost}")?;
    }
    let Some(fix) = &finding.fix else { return Ok(()) };
    if let Some(earlier) = fixed_by.get(fix.as_str()) {
        return writeln!(formatter, "{indent}fix:  as for {earlier}");
    }
    fixed_by.insert(fix, finding.block);
    writeln!(formatter, "{indent}fix:")?;
    for line in fix.lines() {
        writeln!(formatter, "{}", format!("{indent}  {line}").trim_end())?;
    }
    Ok(())
}

fn mark_of(finding: &Finding) -> &'static str {
    match (&finding.status, finding.necessity) {
        (Status::Available { .. }, _) => "ok",
        (Status::NotNeeded { .. }, _) => "-",
        (_, Necessity::Required) => "MISSING",
        (_, Necessity::Recommended { .. }) => "reduced",
        (_, Necessity::Optional { .. }) => "absent",
    }
}
