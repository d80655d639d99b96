//! Trials of namespaces and of what is mounted in them.

use std::ffi::CString;

use rustix::thread::UnshareFlags;

use super::child::{self, Outcomes};
use super::scratch::Scratch;
use super::script::{Call, Script, StepNumber, kernel_path};
use crate::doctor::facts::NamespaceTrials;

/// The first steps of most scripts: a user namespace with one mapped id, and a mount namespace.
pub(super) struct Entry {
    user: StepNumber,
    id_map: [StepNumber; 2],
    mount: [StepNumber; 2],
}

impl Entry {
    /// Adds the steps to a script.
    pub(super) fn add_to(script: &mut Script) -> Self {
        let user = script.must(Call::Unshare(UnshareFlags::NEWUSER));
        let write = |path: &std::ffi::CStr, text: String| Call::Write {
            path: path.to_owned(),
            bytes: text.into_bytes(),
        };
        // Kernels before 3.19 have no such file; then the group map needs no consent either.
        script.may(write(c"/proc/self/setgroups", "deny".to_owned()));
        let user_id = rustix::process::geteuid().as_raw();
        let group_id = rustix::process::getegid().as_raw();
        let id_map = [
            script.must(write(c"/proc/self/uid_map", format!("0 {user_id} 1"))),
            script.must(write(c"/proc/self/gid_map", format!("0 {group_id} 1"))),
        ];
        let mount = [script.must(Call::Unshare(UnshareFlags::NEWNS)), script.must(Call::PrivateMounts)];
        Self { user, id_map, mount }
    }

    /// The trial of all of it.
    pub(super) fn outcome(&self, outcomes: &Outcomes) -> crate::doctor::facts::Trial {
        let [map, group_map] = self.id_map;
        let [mount, private] = self.mount;
        outcomes.of_all(&[self.user, map, group_map, mount, private])
    }
}

/// Tries all namespaces. Without a scratch directory mounts are tried over `/tmp`, which is safe: they
/// are seen only within the child's mount namespace.
pub(super) fn probe(scratch: Option<&Scratch>) -> NamespaceTrials {
    let place = scratch
        .and_then(|scratch| scratch.directory("mount").ok())
        .map_or_else(|| c"/tmp".to_owned(), |directory| kernel_path(&directory));
    let mount = |kind: &'static std::ffi::CStr, options: &str| Call::Mount {
        kind,
        target: place.clone(),
        options: CString::new(options).unwrap_or_default(),
    };
    let mut script = Script::default();
    let entry = Entry::add_to(&mut script);
    // Each mount covers the one before, in the same place.
    let tmpfs = script.may(mount(c"tmpfs", "mode=700"));
    let ipc_and_uts = script.may(Call::Unshare(UnshareFlags::NEWIPC | UnshareFlags::NEWUTS));
    let network = script.may(Call::Unshare(UnshareFlags::NEWNET));
    let tunnel_device = script.may(Call::Open(c"/dev/net/tun".to_owned()));
    let tunnel = script.may(Call::Tunnel(c"/dev/net/tun".to_owned()));
    let devpts = script.may(mount(c"devpts", "newinstance,ptmxmode=0666,mode=620"));
    let multiplexer = format!("{}/ptmx", place.to_string_lossy());
    let terminal = script.may(Call::Open(CString::new(multiplexer).unwrap_or_default()));
    let pid = script.must(Call::Unshare(UnshareFlags::NEWPID));
    let first_process = script.must(Call::ContinueInChild);
    let proc = script.may(mount(c"proc", ""));
    let outcomes = child::run(&script);
    NamespaceTrials {
        user: outcomes.of(entry.user),
        id_map: outcomes.of_all(&entry.id_map),
        mount: outcomes.of_all(&entry.mount),
        tmpfs: outcomes.of(tmpfs),
        ipc_and_uts: outcomes.of(ipc_and_uts),
        network: outcomes.of(network),
        tunnel_device: outcomes.of(tunnel_device),
        tunnel: outcomes.of(tunnel),
        devpts: outcomes.of(devpts),
        terminal: outcomes.of(terminal),
        pid: outcomes.of_all(&[pid, first_process]),
        proc: outcomes.of(proc),
    }
}
