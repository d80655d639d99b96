//! Many live sandboxes that do nothing: what each costs, and how long it takes to list them.

use std::time::{Duration, Instant};

use leasehold_model::{Labels, Result, SandboxSpec};
use leasehold_provider::Provider;

use crate::budget::Budget;
use crate::figure::Figure;
use crate::processes::{self, Process};
use crate::sampling::{Samples, timed};
use crate::workbench::Workbench;

const SIZES: [usize; 2] = [200, 1000];
/// A larger fleet is left out when a smaller one says that it would take longer than this.
const LONGEST: Duration = Duration::from_secs(120);
const KIBIBYTES: f64 = 1024.0;

pub(super) async fn run(bench: &Workbench) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let mut sandboxes = Vec::new();
    let available = processes::available_memory();
    let (start, mut created) = (Instant::now(), Samples::default());
    for size in SIZES {
        let size = if size > SIZES[0] { bench.rounds(size) } else { size };
        if size < sandboxes.len() {
            break;
        }
        let expected = start.elapsed().mul_f64(number(size) / number(sandboxes.len().max(1)));
        if !sandboxes.is_empty() && expected > LONGEST {
            let reason = format!("it would take {} s here", expected.as_secs());
            figures.push(Figure::absent(format!("{size} live sandboxes"), reason));
            break;
        }
        while sandboxes.len() < size {
            let spec = SandboxSpec::new(bench.name()?);
            let (time, sandbox) = timed(bench.create(spec)).await;
            sandboxes.push(sandbox?);
            created.push_time(time);
        }
        let rate = number(size) / start.elapsed().as_secs_f64();
        figures.push(
            Figure::new(format!("creating {size}, one after another"), "ms", &created)
                .noted(format!("{rate:.0} a second")),
        );
        figures.extend(cost(bench, size, available).await?);
    }
    for sandbox in sandboxes {
        sandbox.delete().await?;
    }
    Ok(figures)
}

/// A count as a number to divide by.
fn number(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::MAX, f64::from)
}

async fn cost(bench: &Workbench, size: usize, available: f64) -> Result<Vec<Figure>> {
    let mut listed = Samples::default();
    for _ in 0..bench.rounds(50) {
        let (time, list) = timed(bench.provider.list(&Labels::default())).await;
        assert_eq!(list?.len(), size, "every live sandbox is listed");
        listed.push_time(time);
    }
    let first: Vec<Process> = processes::of_sandboxes();
    let sum = |memory: fn(Process) -> Option<f64>| {
        let mut samples = Samples::default();
        first.iter().filter_map(|process| memory(*process)).for_each(|value| samples.push(value / KIBIBYTES));
        samples
    };
    let share = sum(Process::proportional_memory);
    let resident = sum(Process::resident_memory);
    let machine = (available - processes::available_memory()) / KIBIBYTES / number(size);
    let mut figures = Vec::new();
    let what = format!("memory of each of {size} (Pss of its pid 1)");
    figures.push(if share.count() == 0 {
        Figure::absent(what, "only root can read it")
    } else {
        Figure::new(what, "MiB", &share).bounded(|it| Budget::at_most("p99", it.p99, 2.0, "MiB"))
    });
    figures.push(Figure::new(
        format!("resident memory of each of {size}, shared pages in full"),
        "MiB",
        &resident,
    ));
    figures.push(
        Figure::single(format!("memory of the machine for each of {size}, kernel included"), "MiB", machine)
            .noted("what others used meanwhile counts too"),
    );
    let list = Figure::new(format!("listing all {size}"), "ms", &listed);
    // 50 ms for a thousand.
    figures.push(list.bounded(|it| Budget::within("p50", it.median, 50.0 * number(size) / 1000.0)));
    Ok(figures)
}
