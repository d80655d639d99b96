//! A command in a live sandbox, over the same command started plainly.

use leasehold_model::Result;

use crate::budget::Budget;
use crate::figure::Figure;
use crate::rival;
use crate::sampling::{Samples, milliseconds, timed};
use crate::workbench::{Workbench, succeed};

pub(super) async fn run(bench: &Workbench) -> Result<Vec<Figure>> {
    let sandbox = bench.create(bench.spec(&bench.workspace())?).await?;
    let (mut inside, mut plain, mut added) = (Samples::default(), Samples::default(), Samples::default());
    for _ in 0..bench.rounds(1000) {
        let (time, done) = timed(succeed(&sandbox, ["/bin/true"])).await;
        done?;
        let reference = rival::run(&mut rival::bare())?;
        inside.push_time(time);
        plain.push_time(reference);
        added.push(milliseconds(time) - milliseconds(reference));
    }
    sandbox.delete().await?;
    let plain = Figure::new("`posix_spawn` of `true`", "ms", &plain);
    let added = Figure::new("added, round by round", "ms", &added);
    Ok(vec![
        Figure::new("`true` in a live sandbox, to its verdict", "ms", &inside).against(&plain),
        plain,
        added.bounded(|it| Budget::within("p50", it.median, 1.0)),
    ])
}
