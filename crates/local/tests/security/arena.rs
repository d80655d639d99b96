//! Where the attacks happen: one provider, sandboxes of both kinds of attacker, and the host's facts.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold_local::{LocalConfig, LocalProvider};
use leasehold_model::{
    AttemptName, CommandSpec, Exposure, ExposureAccess, Labels, Result, SandboxSpec, UserSpec, Verdict,
    WorkspaceSpec,
};
use leasehold_provider::{CollectedOutput, Provider, Sandbox};

use crate::attacker::{END, HELD, WORD};

/// Ends a stuck attack; no check depends on how long one takes.
const PATIENCE: Duration = Duration::from_secs(300);
/// More than any report.
const REPORT_LIMIT: usize = 16 << 20;

/// As whom the attacker runs inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// A user without rights.
    User,
    /// Root of the sandbox.
    Root,
}

impl Side {
    pub(crate) const BOTH: [Self; 2] = [Self::User, Self::Root];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::User => "as_user",
            Self::Root => "as_mapped_root",
        }
    }

    /// The user and group inside.
    pub(crate) fn ids(self) -> (u32, u32) {
        let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        match self {
            Self::Root => (0, 0),
            Self::User if own.0 == 0 => (1000, 1000),
            Self::User => own,
        }
    }
}

/// Whether this host's root runs the suite: its sandboxes have many users, others one.
pub(crate) fn is_host_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Everything that trials share.
#[derive(Debug)]
pub(crate) struct Arena {
    runtime: tokio::runtime::Runtime,
    provider: LocalProvider,
    program: PathBuf,
    directory: tempfile::TempDir,
}

impl Arena {
    pub(crate) fn open() -> Self {
        // On a file system on disk: a sandbox's layers need one that takes an overlay.
        let directory = tempfile::Builder::new()
            .prefix("leasehold-security-")
            .tempdir_in("/var/tmp")
            .expect("a directory on disk for sandboxes");
        // A copy: the program's own directory may be closed to the sandboxed user.
        let program = directory.path().join("attacker");
        std::fs::copy(std::env::current_exe().expect("this program's path"), &program)
            .expect("a copy of this program");
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
        let mut config = LocalConfig::at(directory.path().join("data"));
        config.init_program = Some(env!("CARGO_BIN_EXE_leasehold-init").into());
        let provider = runtime.block_on(LocalProvider::open(config)).expect("the embedded provider");
        Self { runtime, provider, program, directory }
    }

    /// Destroys what failed trials left, and removes everything.
    pub(crate) fn close(self) {
        let left = self.wait(self.provider.list(&Labels::default())).unwrap_or_default();
        for info in left {
            if let Err(error) = self.wait(self.provider.destroy(&info.id)) {
                eprintln!("cannot destroy a sandbox that a trial left:\n{}", error.report());
            }
        }
        self.directory.close().expect("the suite's directory can be removed");
    }

    pub(crate) fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    /// A fresh directory of the host, removed with the arena.
    pub(crate) fn host_directory(&self) -> PathBuf {
        let path = self.directory.path().join(unique("host"));
        std::fs::create_dir(&path).expect("a directory of the host");
        path
    }

    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// A sandbox in which commands run as this side, and see the attacker's program.
    pub(crate) fn spec(&self, side: Side) -> SandboxSpec {
        let mut spec = SandboxSpec::new(AttemptName::new(unique("security")).expect("a valid name"));
        let (user, group) = side.ids();
        spec.user = Some(UserSpec::Id { user, group: Some(group) });
        spec.workspace = Some(WorkspaceSpec { source: None, target: "/workspace".into() });
        spec.exposures.push(read_only(&self.program));
        spec.bound_to_creator = true;
        spec
    }

    pub(crate) fn try_create(&self, spec: SandboxSpec) -> Result<Arc<dyn Sandbox>> {
        self.wait(self.provider.create(spec))
    }

    #[track_caller]
    pub(crate) fn create(&self, spec: SandboxSpec) -> Arc<dyn Sandbox> {
        match self.try_create(spec) {
            Ok(sandbox) => sandbox,
            Err(error) => panic!("cannot make a sandbox:\n{}", error.report()),
        }
    }

    #[track_caller]
    pub(crate) fn delete(&self, sandbox: &Arc<dyn Sandbox>) {
        if let Err(error) = self.wait(sandbox.delete()) {
            panic!("cannot delete the sandbox:\n{}", error.report());
        }
    }

    /// The command that makes an attack.
    pub(crate) fn command(&self, attack: &str, arguments: &[String]) -> CommandSpec {
        let program = self.program.to_string_lossy().into_owned();
        let words =
            [program, WORD.to_owned(), attack.to_owned()].into_iter().chain(arguments.iter().cloned());
        let mut command = CommandSpec::new(words).with_timeout(PATIENCE);
        command.directory = Some("/tmp".into());
        command
    }

    #[track_caller]
    pub(crate) fn run(&self, sandbox: &Arc<dyn Sandbox>, command: CommandSpec) -> CollectedOutput {
        let run = async { sandbox.exec(command).await?.collect(REPORT_LIMIT).await };
        match self.wait(run) {
            Ok(output) => output,
            Err(error) => panic!("cannot run the command:\n{}", error.report()),
        }
    }

    /// Makes an attack, every try of which must have been refused; answers the whole report.
    #[track_caller]
    pub(crate) fn attack(
        &self,
        sandbox: &Arc<dyn Sandbox>,
        attack: &str,
        arguments: &[String],
    ) -> Vec<String> {
        let output = self.run(sandbox, self.command(attack, arguments));
        judge(attack, &output)
    }

    /// The sandbox still works.
    #[track_caller]
    pub(crate) fn alive(&self, sandbox: &Arc<dyn Sandbox>) {
        let output = self.run(sandbox, CommandSpec::shell("echo alive"));
        assert_eq!(String::from_utf8_lossy(&output.stdout), "alive\n", "{}", output.verdict);
    }
}

/// Checks a report: whole, with something in it, and nothing that got through.
#[track_caller]
pub(crate) fn judge(attack: &str, output: &CollectedOutput) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines: Vec<String> = text.lines().map(|line| line.trim_end().to_owned()).collect();
    let breaches: Vec<&String> = lines.iter().filter(|line| line.starts_with("BREACH")).collect();
    assert!(breaches.is_empty(), "{attack} got through: {breaches:#?}");
    assert!(
        output.verdict == Verdict::Exited { code: 0 },
        "{attack} {}: {text}{}",
        output.verdict,
        String::from_utf8_lossy(&output.stderr)
    );
    let held = lines.iter().filter(|line| line.starts_with(HELD)).count();
    assert!(
        held > 0 && lines.contains(&format!("{END}{held}")),
        "the report of {attack} is not whole: {text}"
    );
    lines
}

pub(crate) fn read_only(path: &Path) -> Exposure {
    Exposure { path: path.to_path_buf(), access: ExposureAccess::ReadOnly }
}

pub(crate) fn unique(word: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    format!("{word}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// What an attack could have changed on the host.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HostFacts(Vec<(String, String)>);

impl HostFacts {
    pub(crate) fn now(arena: &Arena) -> Self {
        let mut facts = Vec::new();
        for path in [
            "/proc/sys/kernel/core_pattern",
            "/proc/sys/kernel/hostname",
            "/proc/sys/kernel/domainname",
            "/proc/sys/kernel/modprobe",
            "/proc/sys/kernel/pid_max",
            "/proc/sys/vm/overcommit_memory",
            "/proc/sys/fs/suid_dumpable",
            "/proc/sys/net/ipv4/ip_forward",
            "/proc/sys/user/max_user_namespaces",
            "/proc/self/autogroup",
            "/proc/irq/default_smp_affinity",
        ] {
            let content = std::fs::read_to_string(path).unwrap_or_default();
            // The number of a group is no promise, its rank is.
            facts.push((path.to_owned(), content.rsplit("nice").next().unwrap_or_default().to_owned()));
        }
        for path in ["/dev/null", "/dev/zero", "/dev/urandom", "/dev/tty", "/usr/bin/env", "/etc/passwd"] {
            if let Ok(found) = std::fs::metadata(path) {
                let times = if path.starts_with("/dev/") { 0 } else { found.mtime() };
                let shown =
                    format!("{:o} {} {} {} {times}", found.mode(), found.uid(), found.gid(), found.len());
                facts.push((path.to_owned(), shown));
            }
        }
        let program = std::fs::metadata(arena.program()).expect("the attacker's program is there");
        facts.push((
            "the attacker".to_owned(),
            format!("{:o} {} {}", program.mode(), program.len(), program.mtime()),
        ));
        Self(facts)
    }
}
