//! How busy the machine is with the work of others.

use std::time::Duration;

/// Below this share of busy processors a machine counts as quiet.
pub(crate) const QUIET: f64 = 0.1;
const WATCHED: Duration = Duration::from_millis(500);

/// The share of processor time that was not idle while this process slept; zero where the kernel does
/// not tell.
pub(crate) async fn busy_share() -> f64 {
    let before = processor_times();
    tokio::time::sleep(WATCHED).await;
    match (before, processor_times()) {
        (Some((idle, all)), Some((idle_after, all_after))) if all_after > all => {
            1.0 - (idle_after - idle) / (all_after - all)
        }
        _ => 0.0,
    }
}

/// Idle and all processor time since the start, in ticks.
fn processor_times() -> Option<(f64, f64)> {
    parse(&std::fs::read_to_string("/proc/stat").ok()?)
}

fn parse(text: &str) -> Option<(f64, f64)> {
    let times: Vec<f64> =
        text.lines().next()?.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
    // The fourth is idle, the fifth is waiting for a disk; the ninth and tenth are counted before.
    let idle = times.get(3)? + times.get(4)?;
    Some((idle, times.iter().take(8).sum()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_includes_waiting_for_disks() {
        let (idle, all) = parse("cpu  10 0 10 70 10 0 0 0 5 5\ncpu0 1 1 1 1\n").unwrap();
        assert_eq!((format!("{idle:.0}"), format!("{all:.0}")), ("80".to_owned(), "100".to_owned()));
        assert!(parse("").is_none());
    }
}
