//! A workspace of any size in a fresh sandbox, up to the first look at one file.

use std::fs;
use std::path::Path;
use std::process::Command;

use leasehold_model::Result;

use crate::budget::Budget;
use crate::figure::Figure;
use crate::rival;
use crate::sampling::{Samples, timed};
use crate::workbench::{Workbench, cannot, succeed};

const SIZES: [(usize, &str); 3] = [(10, "10"), (10_000, "10 000"), (100_000, "100 000")];
const FILES_IN_A_DIRECTORY: usize = 100;
/// Copying takes seconds; a few times tell enough.
const COPIES: usize = 3;

pub(super) async fn run(bench: &Workbench) -> Result<Vec<Figure>> {
    let trees = SIZES.map(|(count, _)| bench.path(&format!("tree-{count}")));
    for (tree, (count, _)) in trees.iter().zip(SIZES) {
        plant(tree, count)?;
    }
    let mut ours = [(); 3].map(|()| Samples::default());
    for _ in 0..bench.rounds(60) {
        for (tree, samples) in trees.iter().zip(&mut ours) {
            let spec = bench.spec(tree)?;
            let (time, sandbox) = timed(async {
                let sandbox = bench.create(spec).await?;
                succeed(&sandbox, ["/bin/ls".into(), tree.join("0/0")]).await?;
                Ok::<_, leasehold_model::Error>(sandbox)
            })
            .await;
            sandbox?.delete().await?;
            samples.push_time(time);
        }
    }
    let mut copies = [(); 3].map(|()| Samples::default());
    for (tree, samples) in trees.iter().zip(&mut copies) {
        for _ in 0..bench.few(COPIES) {
            samples.push_time(copy(tree, &bench.path("copy"))?);
        }
    }
    let mut figures = Vec::new();
    let smallest = ours[0].median();
    for (index, (_, size)) in SIZES.into_iter().enumerate() {
        let reference = Figure::new(format!("`tar c | tar x` of {size} files"), "ms", &copies[index]);
        let mut figure = Figure::new(format!("create with {size} files, `ls` of one"), "ms", &ours[index])
            .against(&reference);
        if index > 0 {
            figure = figure
                .bounded(|it| Budget::at_most("p50 of that with 10 files", it.median / smallest, 1.25, "×"));
        }
        figures.extend([figure, reference]);
    }
    Ok(figures)
}

fn plant(tree: &Path, count: usize) -> Result<()> {
    for number in 0..count {
        let directory = tree.join((number / FILES_IN_A_DIRECTORY).to_string());
        let name = number % FILES_IN_A_DIRECTORY;
        if name == 0 {
            fs::create_dir_all(&directory).map_err(cannot("make a tree"))?;
        }
        fs::write(directory.join(name.to_string()), format!("file {number}\n"))
            .map_err(cannot("make a tree"))?;
    }
    Ok(())
}

fn copy(tree: &Path, target: &Path) -> Result<std::time::Duration> {
    fs::create_dir(target).map_err(cannot("make a target"))?;
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "tar -C \"$1\" -c . | tar -C \"$2\" -x", "copy"]).args([tree, target]);
    let time = rival::run(&mut command)?;
    fs::remove_dir_all(target).map_err(cannot("remove a copy"))?;
    Ok(time)
}
