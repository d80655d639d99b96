//! The suite as the `main` of a test target.

use std::future::Future;
use std::process::ExitCode;
use std::sync::Arc;

use leasehold_model::{Result, SandboxInfo};
use libtest_mimic::{Arguments, Failed, Trial};

use super::case::Outcome;
use super::workbench::run_labels;
use crate::provider::Provider;

/// What a run of the suite left behind: sandboxes that still carry its label.
pub type Leftovers = Vec<SandboxInfo>;

/// Every sandbox that still carries the label of this process's run of the suite.
pub async fn leftovers(provider: &Arc<dyn Provider>) -> Result<Leftovers> {
    provider.list(&run_labels()).await
}

/// Runs the suite as a test program: each case is one named test, run in parallel, chosen with the
/// arguments that `cargo test` passes on. Fails when a case fails or when a sandbox of the run is left.
///
/// `provider` is awaited on the runtime that the cases run on.
#[allow(clippy::print_stderr)] // a test program talks to its user
pub fn main<P>(provider: P) -> ExitCode
where
    P: Future<Output = Result<Arc<dyn Provider>>>,
{
    let arguments = Arguments::from_args();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("cannot start the runtime of the suite: {error}");
            return ExitCode::FAILURE;
        }
    };
    let provider = match runtime.block_on(provider) {
        Ok(provider) => provider,
        Err(error) => {
            eprintln!("cannot make the provider to test:\n{}", error.report());
            return ExitCode::FAILURE;
        }
    };
    let kind = provider.info().kind;
    let trials = super::cases(&provider.capabilities())
        .into_iter()
        .map(|case| {
            let (handle, provider) = (runtime.handle().clone(), Arc::clone(&provider));
            Trial::test(case.name(), move || {
                let case = case;
                // On the runtime's own threads, so that a provider may move work between them.
                let ended = handle.block_on(handle.spawn(async move { case.run(&provider).await }));
                match ended {
                    Ok(Ok(Outcome::Passed)) => Ok(()),
                    Ok(Ok(Outcome::Skipped(reason))) => {
                        eprintln!("{} showed nothing: {reason}", case.name());
                        Ok(())
                    }
                    Ok(Err(error)) => {
                        Err(Failed::from(format!("{}\nshows: {}", error.report(), case.shows())))
                    }
                    Err(error) => Err(Failed::from(error)),
                }
            })
            .with_kind(kind)
        })
        .collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    if arguments.list {
        return conclusion.exit_code();
    }
    match runtime.block_on(leftovers(&provider)) {
        Ok(left) if left.is_empty() => conclusion.exit_code(),
        Ok(left) => {
            eprintln!("the suite left {} sandboxes behind:", left.len());
            for info in left {
                eprintln!("  {} ({}) is {}", info.id, info.name, info.state.as_str());
            }
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("cannot tell whether the suite left something behind:\n{}", error.report());
            ExitCode::FAILURE
        }
    }
}
