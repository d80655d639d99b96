//! The attacker's side: runs inside a sandbox, tries, and tells of each try how it ended.

mod bombs;
mod devices;
mod files;
mod kernel;
mod memory_sharing;
mod mounts;
mod network;
mod process_files;
mod processes;
mod reveal;

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

/// The first argument by which this program knows that it attacks.
pub(crate) const WORD: &str = "attack-from-inside";
/// What the last line of a whole report starts with; the number of tries follows.
pub(crate) const END: &str = "end ";
/// What a line starts with when the sandbox held.
pub(crate) const HELD: &str = "held ";

/// How a sandbox says no. Any other error means that the attack itself was wrong and shows nothing.
const REFUSALS: &[i32] = &[
    libc::EPERM,
    libc::EACCES,
    libc::EROFS,
    libc::ENOSYS,
    libc::ENOENT,
    libc::ESRCH,
    libc::ENODEV,
    libc::ENXIO,
    libc::EXDEV,
    libc::ECONNREFUSED,
    libc::ENETUNREACH,
    libc::EAFNOSUPPORT,
    libc::ETXTBSY,
    libc::EBUSY,
    libc::EDQUOT,
    libc::ENOSPC,
];

/// What the attacker tells, line by line.
#[derive(Debug, Default)]
pub(crate) struct Report {
    count: usize,
}

impl Report {
    fn line(&mut self, held: bool, text: impl Display) {
        self.count += 1;
        let word = if held { HELD } else { "BREACH " };
        // Without a reader there is nobody to tell.
        let _ = writeln!(io::stdout(), "{word}{text}");
    }

    /// A try that must be refused.
    fn refused<T>(&mut self, what: impl Display, result: io::Result<T>) {
        match result {
            Ok(_) => self.line(false, format_args!("{what}: it succeeded")),
            Err(error) => {
                let known = error.raw_os_error().is_some_and(|number| REFUSALS.contains(&number));
                self.line(known, format_args!("{what}: {error}"));
            }
        }
    }

    /// Something that must be so.
    fn holds(&mut self, what: impl Display, is_so: bool) {
        self.line(is_so, what);
    }
}

type Attack = fn(&mut Report, &[String]) -> io::Result<()>;

/// The attacks by name. Arguments are what the host tells of itself.
const ATTACKS: &[(&str, Attack)] = &[
    ("mounts", mounts::classic),
    ("mounts_by_descriptor", mounts::by_descriptor),
    ("namespaces", mounts::namespaces),
    ("root_directory", mounts::root_directory),
    ("kernel_calls", kernel::calls),
    ("foreign_numbers", kernel::foreign_numbers),
    ("kernel_files", process_files::kernel_files),
    ("init_files", process_files::of_init),
    ("own_program", process_files::own_program),
    ("init", processes::init),
    ("init_scheduling", processes::init_scheduling),
    ("outside_processes", processes::outside),
    ("everybody", processes::everybody),
    ("devices", devices::nodes),
    ("shared_devices", devices::shared),
    ("terminal", devices::terminal),
    ("network", network::addresses),
    ("families", network::families),
    ("unix_sockets", network::unix_sockets),
    ("serve_abstract", network::serve_abstract),
    ("connect_abstract", network::connect_abstract),
    ("shared_memory", memory_sharing::objects),
    ("read_only", files::read_only),
    ("secrets", files::secrets),
    ("host_paths", files::host_paths),
    ("swap", files::swap),
    ("status", reveal::status),
    ("environment", reveal::environment),
    ("descriptors", reveal::descriptors),
    ("mount_flags", reveal::mount_flags),
    ("fork_bomb", bombs::processes),
    ("fork_bomb_of_many_users", bombs::processes_of_many_users),
    ("fork_storm", bombs::storm),
    ("memory_bomb", bombs::memory),
    ("disk_bomb", bombs::disk),
    ("inode_bomb", bombs::inodes),
    ("descriptor_bomb", bombs::descriptors),
    ("zombies", bombs::zombies),
    ("starve_init", bombs::starve_init),
];

/// Runs the attack that the first argument names.
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    let mut report = Report::default();
    let attack = arguments
        .first()
        .and_then(|wanted| ATTACKS.iter().find(|(name, _)| name == wanted))
        .map(|(_, attack)| *attack);
    let result = match attack {
        Some(attack) => attack(&mut report, &arguments[1..]),
        None => Err(io::Error::other("there is no such attack")),
    };
    if let Err(error) = result {
        let _ = writeln!(io::stdout(), "BREACH the attack could not be made: {error}");
        return ExitCode::FAILURE;
    }
    let _ = writeln!(io::stdout(), "{END}{}", report.count);
    ExitCode::SUCCESS
}

/// An argument that the attack needs.
fn argument(arguments: &[String], index: usize) -> io::Result<&str> {
    arguments.get(index).map(String::as_str).ok_or_else(|| io::Error::other("an argument is missing"))
}
