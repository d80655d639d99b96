//! The behaviour suite on the embedded provider.

use std::process::ExitCode;
use std::sync::Arc;

use leasehold_local::{LocalConfig, LocalProvider};
use leasehold_model::{Error, Result};
use leasehold_provider::Provider;

fn main() -> ExitCode {
    // On a file system on disk: a sandbox's layers need one that takes an overlay.
    let data = match tempfile::Builder::new().prefix("leasehold-behaviour-").tempdir_in("/var/tmp") {
        Ok(data) => data,
        Err(error) => panic!("cannot make a data directory: {error}"),
    };
    let path = data.path().to_path_buf();
    let status = leasehold_provider::suite::main(async move {
        let mut config = LocalConfig::at(path);
        config.init_program = Some(env!("CARGO_BIN_EXE_leasehold-init").into());
        let provider: Result<Arc<dyn Provider>> = match LocalProvider::open(config).await {
            Ok(provider) => Ok(Arc::new(provider)),
            Err(error) => Err(Error::with_hint(error, "run `leasehold doctor`")),
        };
        provider
    });
    drop(data);
    status
}
