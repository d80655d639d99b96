//! The floor rule: a crate imports only from floors below its own.

use super::Finding;
use crate::workspace::Package;

/// Where a crate lives in the house.
struct Room {
    name: &'static str,
    floor: u8,
    /// Crates on the same floor that it may import all the same.
    beside: &'static [&'static str],
    /// Crates on lower floors that it must not know.
    never: &'static [&'static str],
}

const PROVIDERS: &[&str] = &["leasehold-local", "leasehold-daytona", "leasehold-opensandbox"];

/// The house, as `ARCHITECTURE.md` draws it. Change both together.
const HOUSE: &[Room] = &[
    // The tooling stands above the house: it may use everything, and nothing may use it.
    room("xtask", 6),
    room("leasehold-benches", 6),
    room("leasehold", 5),
    room("leasehold-server", 4),
    room("leasehold-worker", 4),
    // The engine knows no concrete provider: the binary registers them.
    Room { name: "leasehold-lease", floor: 3, beside: &[], never: PROVIDERS },
    Room { name: "leasehold-workspace", floor: 3, beside: &["leasehold-lease"], never: &[] },
    room("leasehold-sync", 2),
    room("leasehold-credentials", 2),
    room("leasehold-local", 2),
    room("leasehold-daytona", 2),
    room("leasehold-opensandbox", 2),
    room("leasehold-provider", 1),
    room("leasehold-model", 0),
];

const fn room(name: &'static str, floor: u8) -> Room {
    Room { name, floor, beside: &[], never: &[] }
}

fn room_of(name: &str) -> Option<&'static Room> {
    HOUSE.iter().find(|room| room.name == name)
}

/// Crates without a floor, and imports that go up or sideways. Test dependencies count: a test that
/// needs an upper floor belongs there.
pub(super) fn findings(packages: &[Package]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in packages {
        let Some(room) = room_of(&package.name) else {
            findings.push(Finding {
                place: package.name.clone(),
                problem: "this crate has no floor in the house".to_owned(),
                fix: "add it to the table in xtask/src/check/floors.rs and to ARCHITECTURE.md",
            });
            continue;
        };
        // A crate may name itself, to switch on a feature for its own tests.
        let others = package.dependencies.iter().filter(|name| **name != package.name);
        let imported = others.filter_map(|name| room_of(name));
        findings.extend(imported.filter_map(|below| forbidden(room, below)));
    }
    findings
}

fn forbidden(room: &Room, imported: &Room) -> Option<Finding> {
    let problem = if room.never.contains(&imported.name) {
        format!("imports {}, which it must not know", imported.name)
    } else if imported.floor < room.floor || room.beside.contains(&imported.name) {
        return None;
    } else {
        format!("on floor {} imports {} on floor {}", room.floor, imported.name, imported.floor)
    };
    Some(Finding {
        place: room.name.to_owned(),
        problem,
        fix: "move what both need to a lower floor, or pass it in from above",
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn package(name: &str, dependencies: &[&str]) -> Package {
        Package {
            name: name.to_owned(),
            manifest: PathBuf::new(),
            dependencies: dependencies.iter().map(|&name| name.to_owned()).collect(),
        }
    }

    fn problems(name: &str, dependencies: &[&str]) -> Vec<String> {
        findings(&[package(name, dependencies)]).into_iter().map(|finding| finding.problem).collect()
    }

    #[test]
    fn imports_from_below_are_fine() {
        assert!(problems("leasehold", &["leasehold-local", "leasehold-model", "clap"]).is_empty());
        assert!(problems("leasehold-lease", &["leasehold-sync", "leasehold-provider"]).is_empty());
        assert!(problems("leasehold-workspace", &["leasehold-lease"]).is_empty());
    }

    #[test]
    fn imports_from_above_or_beside_are_not() {
        assert_eq!(
            problems("leasehold-provider", &["leasehold-local"]),
            ["on floor 1 imports leasehold-local on floor 2"]
        );
        assert_eq!(problems("leasehold-local", &["leasehold-daytona"]).len(), 1);
        assert_eq!(problems("leasehold-lease", &["leasehold-workspace"]).len(), 1);
        assert_eq!(problems("leasehold", &["xtask"]).len(), 1);
    }

    #[test]
    fn the_engine_knows_no_concrete_provider() {
        assert_eq!(
            problems("leasehold-lease", &["leasehold-local"]),
            ["imports leasehold-local, which it must not know"]
        );
    }

    #[test]
    fn a_new_crate_must_be_given_a_floor() {
        assert_eq!(problems("leasehold-attic", &[]), ["this crate has no floor in the house"]);
    }

    #[test]
    fn the_table_itself_is_sound() {
        for room in HOUSE {
            for name in room.beside {
                assert_eq!(room_of(name).map(|beside| beside.floor), Some(room.floor), "{name}");
            }
            for name in room.never {
                assert!(room_of(name).is_some_and(|below| below.floor < room.floor), "{name}");
            }
        }
    }
}
