//! Who owns the unpacked files.

use leasehold_model::{Error, Result};

use super::digest::Digest;

/// The user and group that stand for ids without a mapping, as in the kernel.
const OVERFLOW_ID: u32 = 65_534;

/// A run of ids inside the sandbox and where it lies outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnerRange {
    /// The first id as the image names it.
    pub inside: u32,
    /// The first id as the host (or the namespace that unpacks) names it.
    pub outside: u32,
    /// How many ids.
    pub length: u32,
}

/// How owners in the image become owners on disk. Two maps have two unpacked trees.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum OwnerMap {
    /// Everything is owned by the caller: the only way for a normal user without subordinate ids.
    #[default]
    Single,
    /// Owners are mapped by ranges. The unpacking process must be allowed to give files to these
    /// ids: root, or a helper inside a user namespace that has them.
    Ranges {
        /// User ids.
        users: Vec<OwnerRange>,
        /// Group ids.
        groups: Vec<OwnerRange>,
    },
}

/// An owner on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) user: u32,
    pub(super) group: u32,
    /// Whether both ids were in the map. Where not, set-id bits must go: they would lend the
    /// overflow owner's rights to a program that was somebody else's.
    pub(super) exact: bool,
}

impl OwnerMap {
    /// Checks that ranges neither overlap nor overflow and that ids without a mapping have a place.
    pub fn check(&self) -> Result<()> {
        let Self::Ranges { users, groups } = self else { return Ok(()) };
        for (what, ranges) in [("user", users), ("group", groups)] {
            check_ranges(what, ranges)?;
        }
        Ok(())
    }

    /// Where the store keeps the trees of this map.
    pub(super) fn key(&self) -> String {
        match self {
            Self::Single => "single".to_owned(),
            Self::Ranges { .. } => {
                let digest = Digest::of(format!("{self:?}").as_bytes());
                format!("ranges-{}", &digest.parts().1[..16])
            }
        }
    }

    /// The owner on disk; `None` where it stays the caller.
    pub(super) fn owner(&self, user: u64, group: u64) -> Option<Owner> {
        let Self::Ranges { users, groups } = self else { return None };
        let mapped_user = lookup(users, user);
        let mapped_group = lookup(groups, group);
        Some(Owner {
            user: mapped_user.unwrap_or_else(|| overflow(users)),
            group: mapped_group.unwrap_or_else(|| overflow(groups)),
            exact: mapped_user.is_some() && mapped_group.is_some(),
        })
    }

    /// What the image's root user is outside; needed to bind file capabilities to it.
    pub(super) fn root_user(&self) -> Option<u32> {
        match self {
            Self::Single => None,
            Self::Ranges { users, .. } => lookup(users, 0),
        }
    }
}

fn lookup(ranges: &[OwnerRange], id: u64) -> Option<u32> {
    let id = u32::try_from(id).ok()?;
    ranges.iter().find_map(|range| {
        let offset = id.checked_sub(range.inside)?;
        (offset < range.length).then(|| range.outside + offset)
    })
}

fn overflow(ranges: &[OwnerRange]) -> u32 {
    lookup(ranges, u64::from(OVERFLOW_ID)).or_else(|| lookup(ranges, 0)).unwrap_or(OVERFLOW_ID)
}

fn check_ranges(what: &str, ranges: &[OwnerRange]) -> Result<()> {
    let bad = |message: String| Err(Error::invalid("image.owner_map", message));
    for (index, range) in ranges.iter().enumerate() {
        // The last id, u32::MAX, means "no change" to chown and can't own anything.
        let fits = |first: u32| first.checked_add(range.length).is_some();
        if range.length == 0 || !fits(range.inside) || !fits(range.outside) {
            return bad(format!("the {what} range {range:?} is empty or goes beyond the last id"));
        }
        for other in &ranges[..index] {
            let meet = |a: u32, b: u32| a < b + other.length && b < a + range.length;
            if meet(range.inside, other.inside) || meet(range.outside, other.outside) {
                return bad(format!("the {what} ranges {other:?} and {range:?} overlap"));
            }
        }
    }
    if lookup(ranges, 0).is_none() && lookup(ranges, u64::from(OVERFLOW_ID)).is_none() {
        return bad(format!("the {what} ranges hold neither id 0 nor the overflow id {OVERFLOW_ID}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(list: &[(u32, u32, u32)]) -> OwnerMap {
        let list: Vec<_> =
            list.iter().map(|&(inside, outside, length)| OwnerRange { inside, outside, length }).collect();
        OwnerMap::Ranges { users: list.clone(), groups: list }
    }

    #[test]
    fn ids_go_through_their_range_and_strangers_to_the_overflow() {
        let map = ranges(&[(0, 1_000, 1), (1, 100_000, 65_535)]);
        map.check().unwrap();
        assert_eq!(map.owner(0, 5), Some(Owner { user: 1_000, group: 100_004, exact: true }));
        let stranger = map.owner(70_000, 0).unwrap();
        assert_eq!((stranger.user, stranger.group, stranger.exact), (165_533, 1_000, false));
        assert_eq!(map.owner(u64::MAX, 0).unwrap().user, 165_533);
        assert_eq!(ranges(&[(0, 7, 1)]).owner(9, 0).unwrap().user, 7);
        assert_eq!(OwnerMap::Single.owner(0, 0), None);
    }

    #[test]
    fn maps_that_make_no_sense_are_refused() {
        for bad in [
            ranges(&[]),
            ranges(&[(0, 0, 0)]),
            ranges(&[(0, u32::MAX, 2)]),
            ranges(&[(0, 0, 10), (5, 100, 10)]),
            ranges(&[(0, 0, 10), (10, 9, 10)]),
            ranges(&[(1, 1, 10)]),
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn each_map_has_its_own_place() {
        let one = ranges(&[(0, 1, 1)]);
        assert_eq!(one.key(), ranges(&[(0, 1, 1)]).key());
        assert_ne!(one.key(), ranges(&[(0, 2, 1)]).key());
        assert_ne!(one.key(), OwnerMap::Single.key());
    }
}
