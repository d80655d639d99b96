//! Programs that do the same as ours, each started the way its own manual shows.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use leasehold_model::{Error, ErrorKind, Result};

use crate::workbench::cannot;

/// Where a program is.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
}

/// Runs a program to its end, silently; the time from start to end.
pub(crate) fn run(command: &mut Command) -> Result<Duration> {
    let program = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let start = Instant::now();
    let status = command.status().map_err(cannot(format_args!("start {program}")))?;
    let time = start.elapsed();
    if status.success() {
        return Ok(time);
    }
    Err(Error::new(ErrorKind::Unexpected, "bench", format!("`{program}` failed: {status}")))
}

/// `bwrap` with the mounts that our sandbox has: system directories, `/etc`, kernel file systems, a private
/// `/tmp` and the workspace.
pub(crate) fn bwrap(program: &Path, workspace: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(["--unshare-all", "--die-with-parent", "--new-session"]);
    for path in ["/usr", "/opt", "/etc", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"] {
        match fs::read_link(path) {
            Ok(target) => command.arg("--symlink").arg(target).arg(path),
            Err(_) => command.args(["--ro-bind-try", path, path]),
        };
    }
    command.args(["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/run"]);
    command.arg("--ro-bind").args([workspace, workspace]).arg("--chdir").arg(workspace).arg("/bin/true");
    command
}

/// `bwrap` with the whole host as it is: the least that it can do.
pub(crate) fn bare_bwrap(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(["--unshare-all", "--dev-bind", "/", "/", "/bin/true"]);
    command
}

/// A bundle for `runc`: one static program and the configuration that `runc` itself proposes.
pub(crate) struct Bundle {
    program: PathBuf,
    place: PathBuf,
    next: u32,
}

impl Bundle {
    /// Makes the bundle. The error says what stands in the way.
    pub(crate) fn make(program: &Path, place: PathBuf) -> Result<Self> {
        let busybox =
            find("busybox").ok_or_else(|| Error::unsupported("bench", "busybox is not installed"))?;
        let binaries = place.join("rootfs/bin");
        fs::create_dir_all(&binaries).map_err(cannot("make a root for runc"))?;
        fs::copy(busybox, binaries.join("busybox")).map_err(cannot("copy busybox"))?;
        std::os::unix::fs::symlink("busybox", binaries.join("true")).map_err(cannot("make a link"))?;
        let mut command = Command::new(program);
        command.arg("spec").current_dir(&place);
        if !rustix::process::geteuid().is_root() {
            command.arg("--rootless");
        }
        run(&mut command)?;
        let path = place.join("config.json");
        let unreadable = |error: serde_json::Error| {
            Error::new(ErrorKind::Corrupt, "bench", format!("runc's configuration is no JSON: {error}"))
        };
        let text = fs::read(&path).map_err(cannot("read runc's configuration"))?;
        let mut config: serde_json::Value = serde_json::from_slice(&text).map_err(unreadable)?;
        config["process"]["terminal"] = false.into();
        config["process"]["args"] = vec!["/bin/true"].into();
        let text = serde_json::to_vec(&config).map_err(unreadable)?;
        fs::write(&path, text).map_err(cannot("write runc's configuration"))?;
        Ok(Self { program: program.to_path_buf(), place, next: 0 })
    }

    /// Runs `true` in a new container and takes the container down.
    pub(crate) fn run(&mut self) -> Result<Duration> {
        self.next += 1;
        let id = format!("leasehold-bench-{}-{}", std::process::id(), self.next);
        let mut command = Command::new(&self.program);
        run(command
            .arg("--root")
            .arg(self.place.join("state"))
            .arg("run")
            .arg("--bundle")
            .arg(&self.place)
            .arg(id))
    }
}

/// `docker run` of a small image that the daemon already has; why not, where it can't.
pub(crate) fn docker() -> Result<Command> {
    let program = find("docker").ok_or_else(|| Error::unsupported("bench", "docker is not installed"))?;
    if run(Command::new(&program).arg("version")).is_err() {
        return Err(Error::unsupported("bench", "no docker daemon answers"));
    }
    if run(Command::new(&program).args(["image", "inspect", "busybox"])).is_err() {
        return Err(Error::unsupported("bench", "the docker daemon has no image `busybox`; pull it first"));
    }
    let mut command = Command::new(program);
    command.args(["run", "--rm", "--network", "none", "busybox", "true"]);
    Ok(command)
}

/// The program alone, which the standard library starts by `posix_spawn`.
pub(crate) fn bare() -> Command {
    Command::new("/bin/true")
}
