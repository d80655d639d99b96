//! The figures as a table for people and a document for programs.

use leasehold_model::{Error, ErrorKind, Result};
use serde::Serialize;

use crate::figure::Figure;

/// Everything that a run found.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// Few rounds only.
    quick: bool,
    processors: usize,
    kernel: String,
    sections: Vec<Section>,
}

/// One measurement.
#[derive(Debug, Serialize)]
struct Section {
    name: &'static str,
    /// How busy others kept the machine just before.
    busy: f64,
    figures: Vec<Figure>,
    /// What it left behind.
    leftovers: Vec<String>,
}

impl Report {
    pub(crate) fn new(quick: bool) -> Self {
        Self {
            quick,
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            sections: Vec::new(),
        }
    }

    pub(crate) fn add(
        &mut self,
        name: &'static str,
        busy: f64,
        figures: Vec<Figure>,
        leftovers: Vec<String>,
    ) {
        self.sections.push(Section { name, busy, figures, leftovers });
    }

    /// Bounds that are missed and count, and everything left behind.
    pub(crate) fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        for section in &self.sections {
            for figure in &section.figures {
                let missed = figure.budgets.iter().filter(|one| !one.is_met() && one.counts(section.busy));
                failures.extend(
                    missed.map(|budget| format!("{}: {}: {}", section.name, figure.what, budget.describe())),
                );
            }
            failures.extend(section.leftovers.iter().map(|left| format!("{}: left {left}", section.name)));
        }
        failures
    }

    pub(crate) fn json(&self) -> Result<String> {
        serde_json::to_string_pretty(self)
            .map_err(|error| Error::new(ErrorKind::Unexpected, "bench.report", error.to_string()))
    }

    /// What the run is about, for the top of the page.
    pub(crate) fn heading(&self) -> String {
        let quick = if self.quick { ", few rounds" } else { "" };
        format!("{} processors, Linux {}{quick}\n", self.processors, self.kernel)
    }

    /// The newest measurement as a table.
    pub(crate) fn newest(&self) -> String {
        self.sections.last().map(Section::markdown).unwrap_or_default()
    }
}

impl Section {
    fn markdown(&self) -> String {
        let busy = self.busy * 100.0;
        let mut text = format!("### {} (others kept the processors busy for {busy:.0} %)\n\n", self.name);
        text.push_str("| what | p50 | p99 | rounds | compared | budget |\n|---|---|---|---|---|---|\n");
        for figure in &self.figures {
            text.push_str(&line(figure, self.busy));
        }
        let left = if self.leftovers.is_empty() { "nothing".to_owned() } else { self.leftovers.join("; ") };
        text.push_str("\nLeft behind: ");
        text.push_str(&left);
        text.push_str(".\n");
        text
    }
}

fn line(figure: &Figure, busy: f64) -> String {
    let value = |value: f64| {
        if figure.rounds == 0 { "–".to_owned() } else { format!("{value:.2} {}", figure.unit) }
    };
    let compared: Vec<_> =
        figure.compared.iter().map(|(other, ratio)| format!("{ratio:.2} × {other}")).collect();
    let budgets: Vec<_> = figure
        .budgets
        .iter()
        .map(|budget| {
            let verdict = match (budget.is_met(), budget.counts(busy)) {
                (true, _) => "met",
                (false, true) => "**missed**",
                (false, false) => "missed, for information: the machine is busy",
            };
            format!("{}: {verdict}", budget.describe())
        })
        .collect();
    let note = figure.note.as_ref().map(|note| format!(" ({note})")).unwrap_or_default();
    format!(
        "| {}{note} | {} | {} | {} | {} | {} |\n",
        figure.what,
        value(figure.median),
        value(figure.p99),
        figure.rounds,
        compared.join("<br>"),
        budgets.join("<br>")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;

    fn report(busy: f64, leftovers: Vec<String>) -> Report {
        let figure = Figure::single("ours", "ms", 4.0)
            .against(&Figure::single("theirs", "ms", 2.0))
            .bounded(|it| Budget::within("p50", it.median, 3.0))
            .bounded(|it| Budget::at_most("of theirs", it.compared[0].1, 1.0, "×"));
        let mut report = Report::new(true);
        report.add("acquire", busy, vec![figure], leftovers);
        report
    }

    #[test]
    fn a_busy_machine_excuses_times_and_nothing_else() {
        assert_eq!(report(0.9, Vec::new()).failures().len(), 1);
        assert_eq!(report(0.0, Vec::new()).failures().len(), 2);
        assert_eq!(report(0.9, vec!["a mount".to_owned()]).failures().len(), 2);
        let text = report(0.9, Vec::new()).newest();
        assert!(text.contains("| ours | 4.00 ms | 4.00 ms | 1 | 2.00 × theirs |"), "{text}");
        assert!(text.contains("for information"), "{text}");
    }
}
