//! Pid 1 of an embedded sandbox as a program of its own, for tests and for programs that can't call
//! [`leasehold_local::run_if_asked`] in their own `main`.

use std::process::ExitCode;

fn main() -> ExitCode {
    leasehold_local::run_if_asked();
    ExitCode::FAILURE
}
