//! Taking a sandbox down. That nothing is left is checked after every measurement, and after this one too.

use leasehold_model::Result;

use crate::figure::Figure;
use crate::sampling::{Samples, timed};
use crate::workbench::{Workbench, succeed};

const BUSY: &str = "for i in 1 2 3 4 5 6 7 8; do sleep 1000 & done; mkdir d; for i in 1 2 3 4 5 6 7 8 9; do echo $i > d/$i; done; exit 0";

pub(super) async fn run(bench: &Workbench) -> Result<Vec<Figure>> {
    let (mut idle, mut busy) = (Samples::default(), Samples::default());
    for _ in 0..bench.rounds(200) {
        for (line, samples) in [("true", &mut idle), (BUSY, &mut busy)] {
            let sandbox = bench.create(bench.spec(&bench.workspace())?).await?;
            succeed(&sandbox, ["/bin/sh", "-c", line]).await?;
            let (time, receipt) = timed(sandbox.delete()).await;
            receipt?;
            samples.push_time(time);
        }
    }
    Ok(vec![
        Figure::new("deleting a sandbox that ran `true`", "ms", &idle),
        Figure::new("deleting one with eight processes and nine files", "ms", &busy),
    ])
}
