//! From nothing to the end of the first command.

use std::process::Command;

use leasehold_model::Result;

use crate::budget::Budget;
use crate::figure::Figure;
use crate::rival::{self, Bundle};
use crate::sampling::{Samples, timed};
use crate::workbench::{Workbench, succeed};

/// Container runtimes take long; a few rounds tell enough.
const ROUNDS_FOR_ONE_OF_CONTAINERS: usize = 5;

pub(super) async fn run(bench: &Workbench) -> Result<Vec<Figure>> {
    let workspace = bench.workspace();
    let bwrap = rival::find("bwrap");
    let mut runc = match rival::find("runc") {
        Some(program) => Bundle::make(&program, bench.path("bundle")),
        None => Err(leasehold_model::Error::unsupported("bench", "runc is not installed")),
    };
    if let Ok(bundle) = &mut runc
        && let Err(error) = bundle.run()
    {
        runc = Err(error);
    }
    let mut docker = rival::docker();
    let (mut embedded, mut created, mut program) =
        (Samples::default(), Samples::default(), Samples::default());
    let (mut comparable, mut least) = (Samples::default(), Samples::default());
    let (mut containers, mut daemon, mut bare) = (Samples::default(), Samples::default(), Samples::default());

    for round in 0..bench.rounds(200) {
        let spec = bench.spec(&workspace)?;
        let (time, sandbox) = timed(bench.create(spec)).await;
        let sandbox = sandbox?;
        let (first, done) = timed(succeed(&sandbox, ["/bin/true"])).await;
        done?;
        created.push_time(time);
        embedded.push_time(time + first);
        sandbox.delete().await?;

        if let Some(leasehold) = &bench.leasehold {
            let mut command = Command::new(leasehold);
            command.args(["run", "--", "/bin/true"]).current_dir(&workspace);
            command.env("LEASEHOLD_DATA_DIR", bench.path("data"));
            program.push_time(rival::run(&mut command)?);
        }
        if let Some(bwrap) = &bwrap {
            comparable.push_time(rival::run(&mut rival::bwrap(bwrap, &workspace))?);
            least.push_time(rival::run(&mut rival::bare_bwrap(bwrap))?);
        }
        bare.push_time(rival::run(&mut rival::bare())?);
        if round % ROUNDS_FOR_ONE_OF_CONTAINERS == 0 {
            if let Ok(bundle) = &mut runc {
                containers.push_time(bundle.run()?);
            }
            if let Ok(command) = &mut docker {
                daemon.push_time(rival::run(command)?);
            }
        }
    }

    let bare = Figure::new("`posix_spawn` of `true`", "ms", &bare);
    let least = rival_figure("`bwrap --unshare-all --dev-bind / /`", &least, None);
    let comparable = rival_figure("`bwrap` with the same places mounted", &comparable, None);
    let containers = rival_figure("`runc run`, busybox", &containers, runc.err());
    let daemon = rival_figure("`docker run`, busybox", &daemon, docker.err());
    let mut ours = Figure::new("create, run `true`, verdict (library)", "ms", &embedded)
        .against(&comparable)
        .against(&least)
        .against(&containers)
        .against(&daemon)
        .against(&bare)
        .bounded(|it| Budget::within("p50", it.median, 3.0))
        .bounded(|it| Budget::within("p99", it.p99, 10.0));
    if comparable.median > 0.0 {
        // 3 ms where `bwrap` took 4.0 to 4.7 ms: the same budget on a machine of any speed.
        ours = ours.bounded(|it| Budget::at_most("p50 of bwrap", it.median / comparable.median, 0.75, "×"));
    }
    let mut figures = vec![ours, Figure::new("of which create", "ms", &created)];
    if bench.leasehold.is_some() {
        let whole = Figure::new("`leasehold run -- true`, the whole program", "ms", &program);
        figures.push(whole.against(&comparable).against(&containers).against(&daemon));
    }
    figures.extend([comparable, least, containers, daemon, bare]);
    Ok(figures)
}

fn rival_figure(what: &str, samples: &Samples, problem: Option<leasehold_model::Error>) -> Figure {
    match problem {
        Some(error) => Figure::absent(what, error.to_string()),
        None if samples.count() == 0 => Figure::absent(what, "not installed"),
        None => Figure::new(what, "ms", samples),
    }
}
