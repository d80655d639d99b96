//! Step 7: `/proc` of the new process namespace with what concerns the whole machine hidden or
//! read-only, and a small `/sys` that shows processors and memory nodes and nothing else.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use super::{Building, StepError, Subject, inside};
use crate::syscall::{MountRestrictions, descriptor_path};

/// Files of the machine that can be read and not written.
const READ_ONLY: [&str; 5] = ["/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs"];
/// Files of the machine that are hidden.
const HIDDEN: [&str; 5] =
    ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/latency_stats", "/proc/kallsyms"];
/// Directories of the machine that are hidden.
const HIDDEN_DIRECTORIES: [&str; 2] = ["/proc/acpi", "/proc/scsi"];
/// The parts of `/sys` that run-time libraries read to size themselves.
const SYSTEM_FACTS: [&str; 2] = ["/sys/devices/system/cpu", "/sys/devices/system/node"];

const HINT: &str = "run `leasehold doctor`: a new /proc needs an unmasked /proc outside";

fn exists<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

pub(super) fn run(building: &mut Building<'_>) -> Result<(), StepError> {
    let system = building.system;
    let process_files = system.new_filesystem("proc", &[], MountRestrictions::KERNEL).on("/proc", HINT)?;
    building.attach_at(process_files.as_fd(), Path::new("/proc"))?;

    no_user_namespaces_inside(building)?;
    for path in READ_ONLY {
        let Some(place) =
            exists(system.open_below(building.root()?, inside(Path::new(path)))).on(path, HINT)?
        else {
            continue;
        };
        let tree = system.clone_tree(place.as_fd()).on(path, HINT)?;
        let restrictions = MountRestrictions { read_only: true, ..MountRestrictions::KERNEL };
        system.restrict(tree.as_fd(), restrictions).on(path, HINT)?;
        system.attach(tree.as_fd(), place.as_fd()).on(path, HINT)?;
    }
    let nothing = system.open_place(Path::new("/dev/null")).on("/dev/null", HINT)?;
    for path in HIDDEN {
        if let Some(place) =
            exists(system.open_below(building.root()?, inside(Path::new(path)))).on(path, HINT)?
        {
            let tree = system.clone_tree(nothing.as_fd()).on(path, HINT)?;
            system.restrict(tree.as_fd(), MountRestrictions::DEVICE).on(path, HINT)?;
            system.attach(tree.as_fd(), place.as_fd()).on(path, HINT)?;
        }
    }
    for path in HIDDEN_DIRECTORIES {
        if let Some(place) =
            exists(system.open_below(building.root()?, inside(Path::new(path)))).on(path, HINT)?
        {
            let empty = system.new_filesystem("tmpfs", &[], MountRestrictions::READ_ONLY).on(path, HINT)?;
            system.attach(empty.as_fd(), place.as_fd()).on(path, HINT)?;
        }
    }
    system_facts(building)
}

/// Allows no user namespace below this one, before `/proc/sys` becomes read-only: a second barrier
/// behind the system-call filter.
fn no_user_namespaces_inside(building: &Building<'_>) -> Result<(), StepError> {
    let path = Path::new("/proc/sys/user/max_user_namespaces");
    let place = building.system.open_below(building.root()?, inside(path)).on(path.display(), HINT)?;
    building
        .system
        .write_kernel_file(Path::new(&descriptor_path(place.as_fd())), "0")
        .on(path.display(), HINT)
}

fn system_facts(building: &Building<'_>) -> Result<(), StepError> {
    let system = building.system;
    let options = [("size", "64k".to_owned()), ("mode", "0755".to_owned())];
    let tree = system.new_filesystem("tmpfs", &options, MountRestrictions::KERNEL).on("/sys", HINT)?;
    building.attach_at(tree.as_fd(), Path::new("/sys"))?;
    for path in SYSTEM_FACTS {
        let Some(place) = exists(system.open_place(Path::new(path))).on(path, HINT)? else {
            continue;
        };
        let facts = system.clone_tree(place.as_fd()).on(path, HINT)?;
        let restrictions = MountRestrictions { read_only: true, ..MountRestrictions::KERNEL };
        system.restrict(facts.as_fd(), restrictions).on(path, HINT)?;
        system.make_directory(building.root()?, inside(Path::new(path)), 0o755).on(path, HINT)?;
        building.attach_at(facts.as_fd(), Path::new(path))?;
    }
    let restrictions = MountRestrictions { read_only: true, ..MountRestrictions::KERNEL };
    // Only the mount of `/sys` itself: the facts have their own.
    system.restrict(tree.as_fd(), restrictions).on("/sys", HINT)
}
