//! A Landlock domain around everything inside.
//!
//! Abstract unix sockets have no place in the file system: they belong to the network namespace, so that
//! a sandbox on the host's network would reach every one of the host's, desktop and system services among
//! them. The domain keeps those of the host and of other sandboxes out of reach. It also holds for
//! signals, as a second barrier behind the process namespace.
//!
//! It handles no file access: that would forbid the mounts of a sandbox, and the mount namespace does it.

use std::io;

use landlock::{Ruleset, RulesetAttr, RulesetCreatedAttr, Scope};

/// Puts this process, and all that it will start, into a domain of its own. On kernels before 6.12, and
/// without Landlock, it does nothing: then a sandbox on the host's network reaches abstract sockets,
/// which the doctor tells.
pub(super) fn confine() -> io::Result<()> {
    Ruleset::default()
        .scope(Scope::AbstractUnixSocket | Scope::Signal)
        .and_then(Ruleset::create)
        // Pid 1 has the capability that the kernel wants otherwise; a command gives its own promise later.
        .and_then(|rules| rules.no_new_privs(false).restrict_self())
        .map_err(io::Error::other)?;
    Ok(())
}
