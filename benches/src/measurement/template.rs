//! Template and fork of a sandbox that holds 1 GiB, against a copy of those files.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use leasehold_model::{Result, SandboxSpec, TemplateId};
use leasehold_provider::{Provider, Sandbox};

use crate::budget::Budget;
use crate::figure::Figure;
use crate::rival;
use crate::sampling::{Samples, timed};
use crate::workbench::{Workbench, cannot, succeed};

const FILL: &str = "mkdir /srv/tree && for i in 1 2 3 4; do head -c 268435456 /dev/zero > /srv/tree/$i; done";
const FILL_LITTLE: &str = "mkdir /srv/tree && echo little > /srv/tree/1";

#[derive(Default)]
struct Times {
    capture: Samples,
    fork: Samples,
}

pub(super) async fn run(bench: &Workbench) -> Result<Vec<Figure>> {
    let (mut large, mut small, mut copied) = (Times::default(), Times::default(), Samples::default());
    for round in 0..bench.rounds(20) {
        let sandbox = filled(bench, FILL).await?;
        let layer = bench.path("data/sandboxes").join(sandbox.id().as_str()).join("root/upper/srv");
        // A copy takes a second and the disk with it: few rounds tell enough.
        if round < 3 {
            copied.push_time(copy(&layer, &bench.path("copy"))?);
        }
        measure(bench, &sandbox, &mut large, round).await?;
        let sandbox = filled(bench, FILL_LITTLE).await?;
        measure(bench, &sandbox, &mut small, round + 1_000_000).await?;
    }
    let copied = Figure::new("`cp -a` of 1 GiB in four files", "ms", &copied);
    let mut figures = Vec::new();
    for (what, large, small) in [
        ("template", &large.capture, &small.capture),
        ("fork, to a sandbox that runs", &large.fork, &small.fork),
    ] {
        let little = Figure::new(format!("{what}, of a few bytes"), "ms", small);
        let figure = Figure::new(format!("{what}, of 1 GiB"), "ms", large).against(&copied).against(&little);
        figures.push(figure.bounded(|it| Budget::within("p50", it.median, 10.0)).bounded(|it| {
            Budget::at_most("p50 of that of a few bytes", it.median / little.median, 1.5, "×")
        }));
        figures.push(little);
    }
    figures.push(copied);
    Ok(figures)
}

async fn filled(bench: &Workbench, line: &str) -> Result<Arc<dyn Sandbox>> {
    let sandbox = bench.create(SandboxSpec::new(bench.name()?)).await?;
    succeed(&sandbox, ["/bin/sh", "-c", line]).await?;
    Ok(sandbox)
}

async fn measure(
    bench: &Workbench,
    sandbox: &Arc<dyn Sandbox>,
    times: &mut Times,
    round: usize,
) -> Result<()> {
    let id = TemplateId::new(format!("bench-{round}"))?;
    let (time, captured) = timed(sandbox.capture_template(id.clone())).await;
    captured?;
    times.capture.push_time(time);
    let (time, forked) = timed(sandbox.fork(bench.name()?)).await;
    let forked = forked?;
    bench.remember(&forked);
    times.fork.push_time(time);
    // The fork must hold what was written before it was made.
    succeed(&forked, ["/bin/ls", "/srv/tree/1"]).await?;
    forked.delete().await?;
    sandbox.delete().await?;
    bench.provider.delete_template(&id).await
}

fn copy(tree: &Path, target: &Path) -> Result<std::time::Duration> {
    let time = rival::run(Command::new("/bin/cp").arg("-a").args([tree, target]))?;
    std::fs::remove_dir_all(target).map_err(cannot("remove a copy"))?;
    Ok(time)
}
