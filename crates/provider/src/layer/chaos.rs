//! Faults on purpose, the same ones for the same seed: for tests of everything above the seam.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use leasehold_model::{CommandSpec, Error, ErrorKind, Result};

use super::{Layer, Operation};
use crate::execution::{Execution, output_channel};

/// How often each fault happens: of 1000 calls, so many. The first that fits is taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChaosRates {
    /// The call fails and nothing was done.
    pub fail_before: u32,
    /// The call is done and its answer is lost.
    pub fail_after: u32,
    /// The call is done after a wait of up to [`ChaosRates::longest_delay`].
    pub delay: u32,
    /// The call never answers, and nothing was done.
    pub hang: u32,
    /// The output of a started command breaks off with an error.
    pub cut_output: u32,
    /// The longest wait.
    pub longest_delay: Duration,
}

/// Injects faults. Which call gets which fault depends on the seed, the operation's name, and how many
/// calls of that name came before; not on time, nor on calls of other names.
#[derive(Debug)]
pub struct ChaosLayer {
    seed: u64,
    rates: ChaosRates,
    calls: Mutex<BTreeMap<&'static str, u64>>,
}

/// The finalizer of the public-domain generator `SplitMix64`.
fn mix(mut value: u64) -> u64 {
    value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

impl ChaosLayer {
    /// A layer whose faults follow from `seed`.
    pub fn new(seed: u64, rates: ChaosRates) -> Self {
        Self { seed, rates, calls: Mutex::default() }
    }

    /// The next draw for calls of this name.
    fn draw(&self, name: &'static str) -> u64 {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let count = calls.entry(name).or_default();
        *count += 1;
        let named = name.bytes().fold(self.seed, |state, byte| mix(state ^ u64::from(byte)));
        mix(named ^ *count)
    }

    fn lost(operation: &'static str, when: &str) -> Error {
        Error::new(ErrorKind::Unavailable, operation, format!("chaos: the call failed {when}"))
    }
}

impl Layer for ChaosLayer {
    async fn around<T, F, C>(&self, operation: Operation<'_>, call: C) -> Result<T>
    where
        T: Send,
        F: Future<Output = Result<T>> + Send,
        C: Fn() -> F + Send + Sync,
    {
        let draw = self.draw(operation.name);
        let rates = self.rates;
        let mut point = draw % 1000;
        let mut hit = |rate: u32| {
            let hit = point < u64::from(rate);
            point = point.saturating_sub(u64::from(rate));
            hit
        };
        if hit(rates.fail_before) {
            return Err(Self::lost(operation.name, "before its effect"));
        }
        if hit(rates.fail_after) {
            drop(call().await?);
            return Err(Self::lost(operation.name, "after its effect"));
        }
        if hit(rates.delay) {
            let part = f64::from(u32::try_from(mix(draw) >> 32).unwrap_or(0)) / f64::from(u32::MAX);
            tokio::time::sleep(rates.longest_delay.mul_f64(part)).await;
        } else if hit(rates.hang) {
            std::future::pending::<()>().await;
        }
        call().await
    }

    fn execution(&self, _: &CommandSpec, execution: Execution) -> Execution {
        let draw = self.draw("execution.output");
        if draw % 1000 >= u64::from(self.rates.cut_output) {
            return execution;
        }
        let Execution { mut output, stdin, control } = execution;
        let (sender, cut) = output_channel(1);
        let chunks = mix(draw) % 4;
        tokio::spawn(async move {
            for _ in 0..chunks {
                let Some(chunk) = output.next().await else { return };
                if !sender.send(chunk).await {
                    return;
                }
            }
            sender.send(Err(Self::lost("execution.output", "while its output was on the way"))).await;
        });
        Execution { output: cut, stdin, control }
    }
}
