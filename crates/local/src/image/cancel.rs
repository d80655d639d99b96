//! Stopping blocking work whose caller has gone.

use leasehold_model::{Error, ErrorKind, Result};
use tokio::sync::watch;

/// Asked by blocking work at every chunk.
#[derive(Debug, Clone)]
pub(super) struct Cancellation(watch::Receiver<bool>);

/// Cancels on drop, so that dropping a future stops the threads that work for it.
#[derive(Debug)]
pub(super) struct CancelOnDrop(watch::Sender<bool>);

impl Cancellation {
    /// A pair: the work holds one end, the future that waits for it the other.
    pub(super) fn pair() -> (CancelOnDrop, Self) {
        let (sender, receiver) = watch::channel(false);
        (CancelOnDrop(sender), Self(receiver))
    }

    /// Fails once the caller has gone.
    pub(super) fn check(&self) -> Result<()> {
        if *self.0.borrow() {
            return Err(Error::new(ErrorKind::Cancelled, "image.resolve", "the caller has gone"));
        }
        Ok(())
    }

    /// Ends when the caller has gone.
    pub(super) async fn cancelled(&mut self) {
        // An error means that the other end is dropped, which is the same news.
        let _ = self.0.wait_for(|cancelled| *cancelled).await;
    }
}

impl CancelOnDrop {
    /// Stops the work now.
    pub(super) fn cancel(&self) {
        self.0.send_replace(true);
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.cancel();
    }
}
