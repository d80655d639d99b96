//! Trials of the overlay: on the data directory, which holds the upper layers, and with the
//! workspace as the lower one.

use std::ffi::CString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::XattrFlags;

use super::child;
use super::description::{MountEntry, file_system_of, mounts_beneath};
use super::namespaces::Entry;
use super::scratch::Scratch;
use super::script::{Call, Script, StepNumber, kernel_path};
use crate::doctor::facts::{LayerFacts, Trial};

/// Mounts an overlay of scratch directories and changes lower entries through it.
pub(super) fn probe_data_directory(
    directory: &Path,
    existing: &Path,
    scratch: &io::Result<Scratch>,
    mounts: &[MountEntry],
) -> LayerFacts {
    let mut facts = LayerFacts {
        directory: directory.to_owned(),
        file_system: file_system_of(existing, mounts),
        ..LayerFacts::default()
    };
    let scratch = match scratch {
        Ok(scratch) => scratch,
        Err(error) => {
            facts.access = error.into();
            return facts;
        }
    };
    facts.access = Trial::Worked;
    facts.user_attributes =
        rustix::fs::setxattr(scratch.path(), "user.leasehold", b"1", XattrFlags::empty()).into();
    if let Err(error) = fill_lower(scratch) {
        facts.access = (&error).into();
        return facts;
    }
    let mut script = Script::default();
    let entry = Entry::add_to(&mut script);
    let [enter, mount] = mount_overlay(&mut script, scratch, "own");
    let changes = [
        // Copied up, whited out, made opaque: the three things that an upper layer records.
        script.may(Call::Write { path: c"own-merged/changed".to_owned(), bytes: b"new".to_vec() }),
        script.may(Call::RemoveFile(c"own-merged/removed".to_owned())),
        script.may(Call::ReplaceDirectory(c"own-merged/replaced".to_owned())),
    ];
    let outcomes = child::run(&script);
    facts.overlay = outcomes.of_all(&[enter, mount]).after(entry.outcome(&outcomes));
    facts.changes = outcomes.of_all(&changes);
    facts
}

/// Mounts an overlay with the workspace as its lower layer. Nothing is written.
pub(super) fn probe_workspace(
    workspace: &Path,
    scratch: Option<&Scratch>,
    mounts: &[MountEntry],
) -> LayerFacts {
    let absolute = fs::canonicalize(workspace).unwrap_or_else(|_| workspace.to_owned());
    let mut facts = LayerFacts {
        file_system: file_system_of(&absolute, mounts),
        mounts_beneath: mounts_beneath(&absolute, mounts),
        directory: absolute,
        ..LayerFacts::default()
    };
    if let Err(error) = fs::read_dir(&facts.directory) {
        facts.access = (&error).into();
        return facts;
    }
    facts.access = Trial::Worked;
    let Some(scratch) = scratch else { return facts };
    let target = match make_directories(scratch, "workspace") {
        Ok(target) => target,
        Err(error) => {
            facts.overlay = (&error).into();
            return facts;
        }
    };
    let mut script = Script::default();
    let entry = Entry::add_to(&mut script);
    // Bound to a plain name first, so that no character of its path needs escaping in the options.
    let bind =
        script.must(Call::Bind { source: kernel_path(&facts.directory), target: kernel_path(&target) });
    let [enter, mount] = mount_overlay(&mut script, scratch, "workspace");
    let outcomes = child::run(&script);
    facts.overlay = outcomes.of_all(&[bind, enter, mount]).after(entry.outcome(&outcomes));
    facts
}

/// The directories of one overlay in the scratch directory. The lower one bears the plain name.
pub(super) fn make_directories(scratch: &Scratch, name: &str) -> io::Result<PathBuf> {
    for part in ["upper", "work", "merged"] {
        scratch.directory(&format!("{name}-{part}"))?;
    }
    scratch.directory(name)
}

/// Adds the steps that mount the overlay of [`make_directories`]. Relative names keep the options
/// free of escapes.
pub(super) fn mount_overlay(script: &mut Script, scratch: &Scratch, name: &str) -> [StepNumber; 2] {
    let options = format!("lowerdir={name},upperdir={name}-upper,workdir={name}-work,userxattr");
    [
        script.must(Call::Enter(kernel_path(scratch.path()))),
        script.must(Call::Mount {
            kind: c"overlay",
            target: CString::new(format!("{name}-merged")).unwrap_or_default(),
            options: CString::new(options).unwrap_or_default(),
        }),
    ]
}

fn fill_lower(scratch: &Scratch) -> io::Result<()> {
    let lower = make_directories(scratch, "own")?;
    fs::write(lower.join("changed"), "old")?;
    fs::write(lower.join("removed"), "old")?;
    fs::create_dir(lower.join("replaced"))
}
