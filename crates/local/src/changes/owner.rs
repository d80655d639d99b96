//! Whose files the owners in an upper directory stand for.

use serde::{Deserialize, Serialize};

use super::change::Owner;

/// How the ids of the upper directory's files relate to the host's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "map", rename_all = "snake_case")]
pub enum OwnerMap {
    /// One id only, the same inside and outside: owners are not carried. A replaced file keeps its
    /// owner where that is allowed, a new one belongs to whoever applies.
    Single,
    /// The sandbox has a range of ids of its own (running as root): an upper file of `outside_start + n`
    /// stands for a host file of `n`.
    Shifted {
        /// The first id of the range.
        outside_start: u32,
        /// How many ids it has.
        length: u32,
    },
}

impl OwnerMap {
    /// The host's owner for an upper file; ids outside the range become the workspace's.
    pub(super) fn translate(self, user: u32, group: u32, workspace: Owner) -> Option<Owner> {
        let Self::Shifted { outside_start, length } = self else { return None };
        let inside = |id: u32| id.checked_sub(outside_start).filter(|inside| *inside < length);
        Some(Owner {
            user: inside(user).unwrap_or(workspace.user),
            group: inside(group).unwrap_or(workspace.group),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_outside_the_range_become_the_workspaces() {
        let workspace = Owner { user: 1000, group: 100 };
        let map = OwnerMap::Shifted { outside_start: 100_000, length: 65_536 };
        assert_eq!(map.translate(100_033, 165_535, workspace), Some(Owner { user: 33, group: 65_535 }));
        assert_eq!(map.translate(0, 165_536, workspace), Some(workspace));
        assert_eq!(OwnerMap::Single.translate(0, 0, workspace), None);
    }
}
