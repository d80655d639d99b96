//! Trials of what needs more than one id: subordinate ids, and id-mapped mounts as root.

use std::fs;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::thread::UnshareFlags;

use super::child::{self, Child};
use super::layers;
use super::scratch::Scratch;
use super::script::{Call, Script, kernel_path};
use crate::doctor::facts::{ErrorNumber, IdMappedTrials, SubordinateIds, Trial};

/// What is mapped as root, where `/etc/subuid` reserves nothing.
const USUAL_RANGE: (u64, u64) = (100_000, 65_536);

/// Tries both on the user namespace of one waiting child.
pub(super) fn probe(
    user_name: &str,
    source: &Path,
    scratch: Option<&Scratch>,
) -> (SubordinateIds, IdMappedTrials) {
    let user_id = rustix::process::geteuid();
    let tools = ["newuidmap", "newgidmap"].map(find_tool);
    let mut facts = SubordinateIds {
        user_range: reserved("/etc/subuid", user_name, user_id.as_raw()),
        group_range: reserved("/etc/subgid", user_name, user_id.as_raw()),
        first_free: first_free(&["/etc/subuid", "/etc/subgid"].map(read)),
        tools_privileged: tools.iter().all(|tool| tool.as_deref().is_some_and(is_privileged)),
        ..SubordinateIds::default()
    };
    [facts.newuidmap, facts.newgidmap] = tools;
    let mut id_mapped = IdMappedTrials::default();

    let mut script = Script::default();
    let user = script.must(Call::Unshare(UnshareFlags::NEWUSER));
    let hold = script.must(Call::Hold);
    let Ok(mut child) = Child::start(&script) else { return (facts, id_mapped) };
    if !child.wait_for(hold).worked() {
        facts.mapping = child.wait_for(user);
        return (facts, id_mapped);
    }
    if user_id.is_root() {
        facts.mapping = map_as_root(&child, &facts);
        if facts.mapping.worked() {
            id_mapped = probe_id_mapped(&child, source, scratch);
        }
    } else if let (Some((uids, gids)), Some(newuidmap), Some(newgidmap)) =
        (facts.user_range.zip(facts.group_range), &facts.newuidmap, &facts.newgidmap)
    {
        let own_group = rustix::process::getegid().as_raw();
        let outcome = map_by_tool(newuidmap, &child, user_id.as_raw(), uids)
            .and_then(|()| map_by_tool(newgidmap, &child, own_group, gids));
        match outcome {
            Ok(()) => facts.mapping = Trial::Worked,
            Err(complaint) => {
                facts.mapping = Trial::Failed(ErrorNumber::NOT_PERMITTED);
                facts.complaint = Some(complaint);
            }
        }
    }
    (facts, id_mapped)
}

/// The largest range that a file reserves for a user, by name or by number.
fn reserved(path: &str, user_name: &str, user_id: u32) -> Option<(u64, u64)> {
    largest_range(&read(path), user_name, user_id)
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The first id above every range of all files.
fn first_free(files: &[String]) -> u64 {
    let ends = files.iter().flat_map(|text| text.lines()).filter_map(|line| {
        let mut fields = line.trim().split(':').skip(1);
        let first: u64 = fields.next()?.parse().ok()?;
        let count: u64 = fields.next()?.parse().ok()?;
        first.checked_add(count)
    });
    ends.max().unwrap_or_default()
}

fn largest_range(text: &str, user_name: &str, user_id: u32) -> Option<(u64, u64)> {
    let user_id = user_id.to_string();
    text.lines()
        .filter_map(|line| {
            let mut fields = line.trim().split(':');
            let owner = fields.next()?;
            let first = fields.next()?.parse().ok()?;
            let count = fields.next()?.parse().ok()?;
            (owner == user_name || owner == user_id).then_some((first, count))
        })
        .max_by_key(|(_, count)| *count)
        .filter(|(_, count)| *count > 0)
}

fn find_tool(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/bin", "/usr/local/bin", "/bin", "/run/wrappers/bin"].map(PathBuf::from))
        .filter(|directory| directory.is_absolute())
        .map(|directory| directory.join(name))
        .find(|candidate| {
            fs::metadata(candidate)
                .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
        })
}

/// Whether a tool gains what it needs when executed: set-uid root, or file capabilities.
fn is_privileged(tool: &Path) -> bool {
    const SET_USER_ID: u32 = 0o4000;
    let set_uid_root =
        fs::metadata(tool).is_ok_and(|found| found.uid() == 0 && found.mode() & SET_USER_ID != 0);
    set_uid_root || rustix::fs::getxattr(tool, c"security.capability", &mut [0_u8; 64]).is_ok()
}

/// Writes the maps directly, as the parent with `CAP_SETUID` may.
fn map_as_root(child: &Child, facts: &SubordinateIds) -> Trial {
    let maps = [("uid_map", facts.user_range), ("gid_map", facts.group_range)];
    for (file, range) in maps {
        let (first, count) = range.unwrap_or(USUAL_RANGE);
        let path = format!("/proc/{}/{file}", child.pid());
        if let Err(error) = fs::write(path, format!("0 {first} {count}")) {
            return (&error).into();
        }
    }
    Trial::Worked
}

/// Lets a tool map the own id and a range. The error is what the tool said.
fn map_by_tool(tool: &Path, child: &Child, own: u32, range: (u64, u64)) -> Result<(), String> {
    const PATIENCE: Duration = Duration::from_secs(2);
    let pid = child.pid().to_string();
    let (own, first, count) = (own.to_string(), range.0.to_string(), range.1.to_string());
    let mut process = Command::new(tool)
        .args([&*pid, "0", &*own, "1", "1", &*first, &*count])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{}: {error}", tool.display()))?;
    let deadline = Instant::now() + PATIENCE;
    let status = loop {
        match process.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_micros(300)),
            outcome => {
                let _ = process.kill();
                let _ = process.wait();
                return Err(match outcome {
                    Err(error) => format!("{}: {error}", tool.display()),
                    Ok(_) => format!("{} gave no answer within 2 s", tool.display()),
                });
            }
        }
    };
    if status.success() {
        return Ok(());
    }
    let mut said = Vec::new();
    if let Some(stderr) = process.stderr.take() {
        let _ = stderr.take(512).read_to_end(&mut said);
    }
    let said = String::from_utf8_lossy(&said);
    let line = said.lines().next().unwrap_or_default().trim();
    Err(if line.is_empty() { format!("{}: {status}", tool.display()) } else { line.to_owned() })
}

fn probe_id_mapped(child: &Child, source: &Path, scratch: Option<&Scratch>) -> IdMappedTrials {
    let open_namespace = || -> std::io::Result<OwnedFd> {
        fs::File::open(format!("/proc/{}/ns/user", child.pid())).map(OwnedFd::from)
    };
    let (first, second) = match (open_namespace(), open_namespace()) {
        (Ok(first), Ok(second)) => (first, second),
        (Err(error), _) | (_, Err(error)) => {
            return IdMappedTrials { mount: (&error).into(), overlay: Trial::NotTried };
        }
    };
    let mut script = Script::default();
    let leave = script.must(Call::Unshare(UnshareFlags::NEWNS));
    let private = script.must(Call::PrivateMounts);
    let map = script.must(Call::MapIds { source: kernel_path(source), namespace: first });
    let over = scratch.and_then(|scratch| {
        let target = layers::make_directories(scratch, "mapped").ok()?;
        let bind = script.must(Call::BindMapped {
            source: kernel_path(source),
            target: kernel_path(&target),
            namespace: second,
        });
        let [enter, mount] = layers::mount_overlay(&mut script, scratch, "mapped");
        Some([bind, enter, mount])
    });
    let outcomes = child::run(&script);
    IdMappedTrials {
        mount: outcomes.of_all(&[leave, private, map]),
        overlay: over.map_or(Trial::NotTried, |steps| outcomes.of_all(&steps)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_belong_to_a_name_or_a_number_and_the_largest_counts() {
        let text = "root:1:5\nada:100000:65536\n1000:300000:70000\nbroken\nada:x:1\nbob:1:0\n";
        assert_eq!(largest_range(text, "ada", 1000), Some((300_000, 70_000)));
        assert_eq!(largest_range(text, "ada", 1001), Some((100_000, 65_536)));
        assert_eq!(largest_range(text, "bob", 7), None);
        assert_eq!(largest_range(text, "eve", 8), None);
        assert_eq!(first_free(&[text.to_owned(), "x:500000:10".to_owned()]), 500_010);
        assert_eq!(first_free(&[]), 0);
    }
}
