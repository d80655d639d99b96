//! The behaviour suite on the in-memory reference provider.

use std::process::ExitCode;
use std::sync::Arc;

use leasehold_provider::memory::MemoryProvider;
use leasehold_provider::{Provider, suite};

fn main() -> ExitCode {
    suite::main(async { Ok(Arc::new(MemoryProvider::new()) as Arc<dyn Provider>) })
}
