//! Which users of this host stand for which users inside.

use std::ops::Range;

use leasehold_model::{Error, Result};
use serde::{Deserialize, Serialize};

/// How many users a sandbox made by root has.
pub(crate) const SHIFTED_LENGTH: u32 = 0x1_0000;
/// The host ids that sandboxes made by root use: far above those of people and services, so that nobody
/// of the host owns anything a sandbox could reach, and root of a sandbox is nobody outside.
const SHIFTED: Range<u32> = 0x6000_0000..0x7000_0000;

/// The mapping between users outside and inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum IdentityMap {
    /// One user and group of the host, for a caller without privileges.
    Single {
        /// The caller's ids on the host: user and group.
        outside: (u32, u32),
        /// The ids that stand for it inside.
        inside: (u32, u32),
    },
    /// The caller and its subordinate ids, mapped by `newuidmap` and `newgidmap`.
    Subordinate {
        /// The caller's ids on the host.
        outside: (u32, u32),
        /// The caller's subordinate users and groups: first and count.
        users: (u32, u32),
        /// And groups.
        groups: (u32, u32),
    },
    /// A range of the host far above all others, for a caller with root rights; mostly a different one
    /// for each sandbox. Files are mapped back by id-mapped mounts, so that on disk inner user `n` is
    /// host user `n`.
    Shifted {
        /// The host id of inner user 0.
        start: u32,
    },
}

impl IdentityMap {
    /// The user and group inside that own the sandbox.
    pub(crate) fn owner(&self) -> (u32, u32) {
        match self {
            Self::Single { inside, .. } => *inside,
            Self::Subordinate { .. } | Self::Shifted { .. } => (0, 0),
        }
    }

    /// Whether other users than the owner exist inside.
    pub(crate) fn has_other_users(&self) -> bool {
        !matches!(self, Self::Single { .. })
    }

    /// Whether the new process may write its maps itself, and so needs no gate.
    pub(crate) fn maps_itself(&self) -> bool {
        matches!(self, Self::Single { .. })
    }

    /// The lines of `uid_map` and `gid_map`.
    pub(crate) fn map_lines(&self) -> (String, String) {
        match self {
            Self::Single { outside, inside } => {
                (format!("{} {} 1\n", inside.0, outside.0), format!("{} {} 1\n", inside.1, outside.1))
            }
            Self::Subordinate { outside, users, groups } => (
                format!("0 {} 1\n1 {} {}\n", outside.0, users.0, users.1),
                format!("0 {} 1\n1 {} {}\n", outside.1, groups.0, groups.1),
            ),
            Self::Shifted { start } => {
                let line = format!("0 {start} {SHIFTED_LENGTH}\n");
                (line.clone(), line)
            }
        }
    }
}

/// The caller's subordinate range in the text of `/etc/subuid` or `/etc/subgid`: the first of at least
/// two ids, cut to what fits a 16-bit id space.
fn subordinate_range(text: &str, name: Option<&str>, id: u32) -> Option<(u32, u32)> {
    text.lines().find_map(|line| {
        let mut fields = line.trim().split(':');
        let owner = fields.next()?;
        if Some(owner) != name && owner.parse() != Ok(id) {
            return None;
        }
        let (first, count): (u32, u32) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        (count > 1 && first.checked_add(count).is_some()).then_some((first, count.min(65_535)))
    })
}

/// The name of a user in `/etc/passwd`.
fn user_name(id: u32) -> Option<String> {
    let users = std::fs::read_to_string("/etc/passwd").ok()?;
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(id)).then(|| name.to_owned())
    })
}

/// The ids of a user of this host by name.
pub(crate) fn lookup(wanted: &str) -> Option<(u32, u32)> {
    let users = std::fs::read_to_string("/etc/passwd").ok()?;
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let (user, group) = (fields.nth(1)?, fields.next()?);
        (name == wanted).then_some(())?;
        Some((user.parse().ok()?, group.parse().ok()?))
    })
}

/// The range of the sandbox with this id.
fn shifted_range(id: &str) -> IdentityMap {
    let slots = (SHIFTED.end - SHIFTED.start) / SHIFTED_LENGTH;
    let hash =
        id.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    IdentityMap::Shifted { start: SHIFTED.start + (hash % slots) * SHIFTED_LENGTH }
}

/// Chooses the mapping for the sandbox `id` of this process's user.
///
/// Without root rights, `many` asks for the caller's subordinate ids; `inside` is who the caller is
/// when one id must do.
pub(crate) fn choose(id: &str, many: bool, inside: (u32, u32)) -> Result<IdentityMap> {
    let outside = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    if outside.0 == 0 {
        return Ok(shifted_range(id));
    }
    if !many {
        return Ok(IdentityMap::Single { outside, inside });
    }
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let name = user_name(outside.0);
    let users = subordinate_range(&read("/etc/subuid"), name.as_deref(), outside.0);
    let groups = subordinate_range(&read("/etc/subgid"), name.as_deref(), outside.0);
    match (users, groups) {
        (Some(users), Some(groups)) => Ok(IdentityMap::Subordinate { outside, users, groups }),
        _ => Err(Error::unsupported(
            "sandbox.identity",
            "other users inside the sandbox need subordinate ids, and this user has none",
        )
        .with_hint("run `leasehold doctor`; it prints the line that adds them")),
    }
}

/// Whether this user could have other users inside.
pub(crate) fn has_subordinate_ids() -> bool {
    matches!(choose("", true, (0, 0)), Ok(IdentityMap::Subordinate { .. })) && newuidmap_exists()
}

fn newuidmap_exists() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join("newuidmap").exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sandbox_of_root_lies_in_the_range_and_most_lie_apart() {
        let starts: std::collections::BTreeSet<u32> = (0..100)
            .map(|number| match shifted_range(&format!("sb{number:016x}")) {
                IdentityMap::Shifted { start } => start,
                other => panic!("{other:?}"),
            })
            .collect();
        assert!(starts.len() > 90, "{}", starts.len());
        assert!(starts.iter().all(|start| SHIFTED.contains(start) && start % SHIFTED_LENGTH == 0));
    }

    #[test]
    fn ranges_belong_to_a_name_or_a_number() {
        let text = "other:1:5\napp:100000:65536\n1001:200000:10\nbad\napp:x:y\n";
        assert_eq!(subordinate_range(text, Some("app"), 1000), Some((100_000, 65_535)));
        assert_eq!(subordinate_range(text, None, 1001), Some((200_000, 10)));
        assert_eq!(subordinate_range(text, Some("nobody"), 7), None);
        assert_eq!(subordinate_range("a:4294967295:5", Some("a"), 1), None);
    }
}
