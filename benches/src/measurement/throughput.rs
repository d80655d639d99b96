//! Output of a command through the library, against a pipe between two processes. Every byte is counted,
//! and every chunk must start where the last one ended.

use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use leasehold_model::{CommandSpec, Error, ErrorKind, Result, StreamKind};
use leasehold_provider::Sandbox;

use crate::budget::Budget;
use crate::figure::Figure;
use crate::processes;
use crate::sampling::Samples;
use crate::workbench::{Workbench, cannot, check};

const GIBIBYTE: u64 = 1 << 30;
/// One stream, all of it.
const ONE: &str = "exec head -c 1073741824 /dev/zero";
/// Half of it on each stream.
const BOTH: &str = "head -c 536870912 /dev/zero & head -c 536870912 /dev/zero >&2; wait";

pub(super) async fn run(bench: &Workbench) -> Result<Vec<Figure>> {
    let sandbox = bench.create(bench.spec(&bench.workspace())?).await?;
    let (mut one, mut both, mut growth) = (Samples::default(), Samples::default(), Samples::default());
    let (mut pipe, mut pipes) = (Samples::default(), Samples::default());
    let (mut work, mut plain_work) = (Samples::default(), Samples::default());
    for _ in 0..bench.rounds(20) {
        processes::forget_own_peak_memory();
        let before = processes::own_peak_memory();
        let start = processes::own_processor_time();
        one.push(through_library(&sandbox, ONE).await?);
        work.push_time(processes::own_processor_time().saturating_sub(start));
        both.push(through_library(&sandbox, BOTH).await?);
        growth.push((processes::own_peak_memory() - before) / 1024.0);
        let start = processes::own_processor_time();
        pipe.push(through_pipe(ONE)?);
        plain_work.push_time(processes::own_processor_time().saturating_sub(start));
        pipes.push(through_pipe(BOTH)?);
    }
    sandbox.delete().await?;
    let pipe = Figure::new("a pipe between two processes, 1 GiB", "MiB/s", &pipe);
    let pipes = Figure::new("two pipes at once, 512 MiB each", "MiB/s", &pipes);
    let one = Figure::new("standard output through the library, 1 GiB", "MiB/s", &one);
    let both = Figure::new("both streams at once, 512 MiB each", "MiB/s", &both);
    let growth = Figure::new("memory that the reader needed more", "MiB", &growth);
    let plain_work = Figure::new("the same from a pipe", "ms", &plain_work);
    let work = Figure::new("processor time of the reader for 1 GiB", "ms", &work).against(&plain_work);
    Ok(vec![
        one.against(&pipe).bounded(|it| share(it, &pipe)),
        both.against(&pipes).bounded(|it| share(it, &pipes)),
        growth.bounded(|it| Budget::at_most("p99", it.p99, 16.0, "MiB")),
        pipe,
        pipes,
        work.noted("the same however busy the machine is"),
        plain_work,
    ])
}

fn share(ours: &Figure, theirs: &Figure) -> Budget {
    Budget::at_least("share of the pipe", ours.median / theirs.median, 0.8, "")
}

fn rate(start: Instant) -> f64 {
    1024.0 / start.elapsed().as_secs_f64()
}

fn whole(count: u64) -> Result<()> {
    if count == GIBIBYTE {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Corrupt, "bench", format!("{count} bytes came instead of {GIBIBYTE}")))
}

/// Mebibytes a second.
async fn through_library(sandbox: &Arc<dyn Sandbox>, line: &str) -> Result<f64> {
    let start = Instant::now();
    let mut execution = sandbox.exec(CommandSpec::shell(line)).await?;
    let mut counts = [0_u64; 2];
    while let Some(chunk) = execution.output.next().await {
        let chunk = chunk?;
        let count = &mut counts[usize::from(chunk.stream == StreamKind::Stderr)];
        if chunk.offset.0 != *count {
            return Err(Error::new(ErrorKind::Corrupt, "bench", "the output has a gap or a repeat"));
        }
        *count += chunk.bytes.len() as u64;
    }
    check(&execution.control.verdict().await, b"")?;
    let rate = rate(start);
    whole(counts.iter().sum())?;
    Ok(rate)
}

/// The same without a sandbox: a thread a stream, and a buffer as large as the library's.
fn through_pipe(line: &str) -> Result<f64> {
    let start = Instant::now();
    let mut child = Command::new("/bin/sh")
        .args(["-c", line])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(cannot("start a producer"))?;
    let streams: [Option<Box<dyn Read + Send>>; 2] =
        [child.stdout.take().map(|it| Box::new(it) as _), child.stderr.take().map(|it| Box::new(it) as _)];
    let readers = streams.map(|stream| std::thread::spawn(move || count(stream)));
    let mut total = 0;
    for reader in readers {
        let counted =
            reader.join().map_err(|_| Error::new(ErrorKind::Unexpected, "bench", "a reader failed"))?;
        total += counted.map_err(cannot("read a pipe"))?;
    }
    child.wait().map_err(cannot("wait for a producer"))?;
    let rate = rate(start);
    whole(total)?;
    Ok(rate)
}

fn count(stream: Option<Box<dyn Read + Send>>) -> std::io::Result<u64> {
    let Some(mut stream) = stream else {
        return Ok(0);
    };
    let mut buffer = vec![0_u8; 256 << 10];
    let mut total = 0;
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(total),
            count => total += count as u64,
        }
    }
}
