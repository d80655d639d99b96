//! Examines this host: `doctor DATA_DIRECTORY [WORKSPACE]`, with `--json` for a program to read.
#![allow(clippy::print_stdout)]

use leasehold_local::doctor::Doctor;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (options, paths): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|argument| argument.starts_with("--"));
    let mut doctor = Doctor::new(paths.first().map_or(".", String::as_str));
    if let Some(workspace) = paths.get(1) {
        doctor = doctor.with_workspace(workspace);
    }
    let start = std::time::Instant::now();
    let diagnosis = doctor.examine();
    let took = start.elapsed();
    if options.iter().any(|option| option == "--json") {
        println!("{}", serde_json::to_string_pretty(&diagnosis)?);
        return Ok(());
    }
    println!("{diagnosis}\nexamined in {took:.1?}");
    if let Some(refusal) = diagnosis.refusal() {
        println!("\n{}", refusal.report());
    }
    Ok(())
}
