//! Step 8: a `/dev` with the devices that programs need, terminals of its own, and shared memory.

use std::os::fd::AsFd;
use std::path::Path;

use super::{Building, StepError, Subject, inside};
use crate::syscall::MountRestrictions;

const DEVICES: [&str; 6] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"];
const LINKS: [(&str, &str); 5] = [
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/stdin", "/proc/self/fd/0"),
    ("/dev/stdout", "/proc/self/fd/1"),
    ("/dev/stderr", "/proc/self/fd/2"),
    ("/dev/ptmx", "pts/ptmx"),
];

pub(super) fn run(building: &mut Building<'_>) -> Result<(), StepError> {
    let hint = "run `leasehold doctor`";
    let system = building.system;
    // Shared memory lives here too; the bounds keep one sandbox from filling the machine's memory, and
    // from going around its disk limit.
    let half = system.total_memory() / 2;
    let size = building.plan.mounts.disk_limit.map_or(half, |limit| limit.min(half));
    let options =
        [("size", size.to_string()), ("nr_inodes", "100000".to_owned()), ("mode", "0755".to_owned())];
    let tree = system.new_filesystem("tmpfs", &options, MountRestrictions::KERNEL).on("/dev", hint)?;
    building.attach_at(tree.as_fd(), Path::new("/dev"))?;
    let root = building.root()?;
    for device in DEVICES {
        let place = system.open_place(Path::new(device)).on(device, hint)?;
        let node = system.clone_tree(place.as_fd()).on(device, hint)?;
        system.restrict(node.as_fd(), MountRestrictions::DEVICE).on(device, hint)?;
        system.write_below(root, inside(Path::new(device)), b"", 0o666).on(device, hint)?;
        building.attach_at(node.as_fd(), Path::new(device))?;
    }
    for (path, target) in LINKS {
        system.make_symlink(root, inside(Path::new(path)), target).on(path, hint)?;
    }
    for (path, mode) in [("/dev/pts", 0o755), ("/dev/shm", 0o1777)] {
        system.make_directory(root, inside(Path::new(path)), mode).on(path, hint)?;
    }
    let options =
        [("newinstance", String::new()), ("ptmxmode", "0666".to_owned()), ("mode", "0620".to_owned())];
    let restrictions = MountRestrictions { no_devices: false, ..MountRestrictions::KERNEL };
    let terminals = system.new_filesystem("devpts", &options, restrictions).on("/dev/pts", hint)?;
    building.attach_at(terminals.as_fd(), Path::new("/dev/pts"))
}
