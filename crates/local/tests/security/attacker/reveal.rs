//! What a command can learn of itself, for the host to compare.

use std::fs;
use std::io::{self, Write};

use super::Report;

/// Who this is and what it may do.
pub(super) fn status(report: &mut Report, _: &[String]) -> io::Result<()> {
    const SHOWN: [&str; 10] =
        ["Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp"];
    for line in fs::read_to_string("/proc/self/status")?.lines() {
        if line.split_once(':').is_some_and(|(name, _)| SHOWN.contains(&name)) {
            writeln!(io::stdout(), "{}", line.split_whitespace().collect::<Vec<_>>().join(" "))?;
        }
    }
    for line in fs::read_to_string("/proc/self/limits")?.lines() {
        if line.starts_with("Max processes") {
            writeln!(io::stdout(), "{}", line.split_whitespace().collect::<Vec<_>>().join(" "))?;
        }
    }
    report.holds("told", true);
    Ok(())
}

/// The names of all variables.
pub(super) fn environment(report: &mut Report, _: &[String]) -> io::Result<()> {
    for variable in fs::read("/proc/self/environ")?.split(|byte| *byte == 0).filter(|text| !text.is_empty()) {
        writeln!(io::stdout(), "variable {}", String::from_utf8_lossy(variable))?;
    }
    report.holds("told", true);
    Ok(())
}

/// The numbers of all open descriptors.
pub(super) fn descriptors(report: &mut Report, _: &[String]) -> io::Result<()> {
    let mut numbers: Vec<i32> = Vec::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        numbers.extend(entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
    }
    numbers.sort_unstable();
    // The fourth is the directory that is being read.
    report.holds(format_args!("descriptors {numbers:?}"), numbers == [0, 1, 2, 3]);
    Ok(())
}

/// The flags of every mount.
pub(super) fn mount_flags(report: &mut Report, _: &[String]) -> io::Result<()> {
    for line in fs::read_to_string("/proc/self/mountinfo")?.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let (place, flags) = (fields[4], fields[5]);
        let has = |flag: &str| flags.split(',').any(|found| found == flag);
        let hidden =
            ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/latency_stats", "/proc/kallsyms"];
        let is_node = place.starts_with("/dev/") || hidden.contains(&place);
        report.holds(format_args!("{place} has no set-id programs: {flags}"), has("nosuid"));
        report.holds(format_args!("{place} has no devices: {flags}"), has("nodev") || is_node);
        let is_system = ["/usr", "/bin", "/lib", "/lib64", "/opt", "/sys", "/proc/sys"].contains(&place);
        report.holds(format_args!("{place} is read-only where it must be: {flags}"), has("ro") || !is_system);
        let is_shared =
            fields[6..].iter().take_while(|field| **field != "-").any(|field| field.contains(':'));
        report.holds(format_args!("{place} is private"), !is_shared);
    }
    Ok(())
}
