//! What an examination found.

use std::fmt;

use leasehold_model::Error;
use serde::Serialize;

use super::facts::HostFacts;
use super::judgement;

/// A building block of the embedded sandbox. Its name is stable: it is part of the JSON output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Block {
    /// A kernel that is new enough.
    Kernel,
    /// User namespaces with capabilities in them.
    UserNamespaces,
    /// Pid, ipc and uts namespaces.
    ProcessNamespaces,
    /// A `/proc` of the sandbox's own.
    Proc,
    /// Network namespaces.
    NetworkNamespace,
    /// The overlay on the data directory.
    Overlay,
    /// The overlay over the workspace.
    WorkspaceOverlay,
    /// Seccomp filters.
    Seccomp,
    /// Process descriptors.
    Pidfd,
    /// Path resolution beneath a root.
    Openat2,
    /// More than one user id inside.
    SubordinateIds,
    /// Id-mapped mounts.
    IdMappedMounts,
    /// Limits of memory, processes and CPU time.
    CgroupLimits,
    /// Freezing a whole sandbox.
    CgroupFreezer,
    /// Killing a whole cgroup at once.
    CgroupKill,
    /// The Landlock security module.
    Landlock,
    /// Terminals of the sandbox's own.
    Terminals,
    /// Extended attributes `user.…`.
    UserXattrs,
    /// Tunnel interfaces.
    Tun,
    /// The `clone3` call.
    Clone3,
    /// The `close_range` call.
    CloseRange,
    /// Files in memory.
    MemfdCreate,
}

impl Block {
    /// The stable name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::UserNamespaces => "user_namespaces",
            Self::ProcessNamespaces => "process_namespaces",
            Self::Proc => "proc",
            Self::NetworkNamespace => "network_namespace",
            Self::Overlay => "overlay",
            Self::WorkspaceOverlay => "workspace_overlay",
            Self::Seccomp => "seccomp",
            Self::Pidfd => "pidfd",
            Self::Openat2 => "openat2",
            Self::SubordinateIds => "subordinate_ids",
            Self::IdMappedMounts => "id_mapped_mounts",
            Self::CgroupLimits => "cgroup_limits",
            Self::CgroupFreezer => "cgroup_freezer",
            Self::CgroupKill => "cgroup_kill",
            Self::Landlock => "landlock",
            Self::Terminals => "terminals",
            Self::UserXattrs => "user_xattrs",
            Self::Tun => "tun",
            Self::Clone3 => "clone3",
            Self::CloseRange => "close_range",
            Self::MemfdCreate => "memfd_create",
        }
    }

    /// How badly a sandbox needs it.
    pub fn necessity(self) -> Necessity {
        match self {
            Self::Kernel
            | Self::UserNamespaces
            | Self::ProcessNamespaces
            | Self::Proc
            | Self::NetworkNamespace
            | Self::Overlay
            | Self::WorkspaceOverlay
            | Self::Seccomp
            | Self::Pidfd
            | Self::Openat2 => Necessity::Required,
            Self::SubordinateIds => Necessity::Recommended {
                lost: "one user id inside: package managers, `--user` and files of several owners fail",
            },
            Self::IdMappedMounts => Necessity::Recommended {
                lost: "workspace files of other owners show as `nobody` and cannot be changed inside",
            },
            Self::CgroupLimits => Necessity::Recommended {
                lost: "--memory, --cpus and --pids are refused; nothing but the machine stops a fork or memory bomb",
            },
            Self::CgroupFreezer => {
                Necessity::Recommended { lost: "a sandbox cannot be paused, only stopped" }
            }
            Self::Landlock => Necessity::Recommended {
                lost: "with `--network host`, abstract unix sockets of the host are in reach (also before Linux 6.12)",
            },
            Self::Terminals => Necessity::Recommended { lost: "`shell` and `-t` are refused" },
            Self::UserXattrs => {
                Necessity::Recommended { lost: "commands and images that set extended attributes fail" }
            }
            Self::CgroupKill => {
                Necessity::Optional { lost: "a process tree is killed through its pid namespace instead" }
            }
            Self::Tun => Necessity::Optional { lost: "no tunnel for filtered network access" },
            Self::Clone3 => Necessity::Optional {
                lost: "a command enters its cgroup just after its start instead of with it",
            },
            Self::CloseRange => Necessity::Optional { lost: "inherited descriptors are closed one by one" },
            Self::MemfdCreate => Necessity::Optional {
                lost: "what is handed to a sandbox in memory goes through a deleted file",
            },
        }
    }
}

impl fmt::Display for Block {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// How badly a sandbox needs a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "necessity", rename_all = "snake_case")]
pub enum Necessity {
    /// No sandbox starts without it.
    Required,
    /// Sandboxes start, with less isolation or fewer abilities.
    Recommended {
        /// What is lost.
        lost: &'static str,
    },
    /// There is another way, or a later feature wants it.
    Optional {
        /// What is lost.
        lost: &'static str,
    },
}

/// Whether a block works.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum Status {
    /// It works.
    Available {
        /// Particulars worth knowing.
        detail: String,
    },
    /// It does not.
    Missing {
        /// What was tried and how it failed.
        reason: String,
    },
    /// It could not be tried, because a block that it stands on is missing.
    Blocked {
        /// That block.
        by: Block,
    },
    /// Sandboxes of this user do without it and lose nothing.
    NotNeeded {
        /// Why.
        reason: String,
    },
}

impl Status {
    /// Whether something is lost.
    pub fn is_lacking(&self) -> bool {
        matches!(self, Self::Missing { .. } | Self::Blocked { .. })
    }
}

/// What was found of one block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The block.
    pub block: Block,
    /// Whether it works.
    #[serde(flatten)]
    pub status: Status,
    /// How badly a sandbox needs it.
    #[serde(flatten)]
    pub necessity: Necessity,
    /// What to do: commands to type, with comments. Absent where it works or nothing can be done.
    pub fix: Option<String>,
}

impl Finding {
    /// A finding of a block that works.
    pub(super) fn available(block: Block, detail: impl Into<String>) -> Self {
        Self::with(block, Status::Available { detail: detail.into() }, None)
    }

    /// A finding of a block that does not work.
    pub(super) fn missing(block: Block, reason: impl Into<String>, fix: Option<String>) -> Self {
        Self::with(block, Status::Missing { reason: reason.into() }, fix)
    }

    /// A finding of a block that could not be tried.
    pub(super) fn blocked(block: Block, by: Block) -> Self {
        Self::with(block, Status::Blocked { by }, None)
    }

    /// A finding of a block that this user does without.
    pub(super) fn not_needed(block: Block, reason: impl Into<String>) -> Self {
        Self::with(block, Status::NotNeeded { reason: reason.into() }, None)
    }

    fn with(block: Block, status: Status, fix: Option<String>) -> Self {
        Self { block, status, necessity: block.necessity(), fix }
    }
}

/// How well this host isolates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rung {
    /// With everything required and recommended.
    Full,
    /// With everything required; something recommended is lost.
    Reduced,
    /// Not at all: something required is missing.
    Refused,
}

/// The result of an examination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Diagnosis {
    /// How well this host isolates.
    pub rung: Rung,
    /// One finding per block, required ones first, each after those it stands on.
    pub findings: Vec<Finding>,
    /// What was seen, for reports of faults.
    pub facts: HostFacts,
}

impl Diagnosis {
    /// Judges what was seen.
    pub fn of(facts: HostFacts) -> Self {
        let findings = judgement::judge(&facts);
        let lacks = |wanted: fn(Necessity) -> bool| {
            findings.iter().any(|finding| finding.status.is_lacking() && wanted(finding.necessity))
        };
        let rung = if lacks(|necessity| necessity == Necessity::Required) {
            Rung::Refused
        } else if lacks(|necessity| matches!(necessity, Necessity::Recommended { .. })) {
            Rung::Reduced
        } else {
            Rung::Full
        };
        Self { rung, findings, facts }
    }

    /// The finding of one block.
    pub fn finding(&self, block: Block) -> Option<&Finding> {
        self.findings.iter().find(|finding| finding.block == block)
    }

    /// The error to refuse with when something required is missing: it names the first such block,
    /// and its hint is the exact fix.
    pub fn refusal(&self) -> Option<Error> {
        let mut lacking = self
            .findings
            .iter()
            .filter(|finding| finding.necessity == Necessity::Required && finding.status.is_lacking());
        let first = lacking.next()?;
        let reason = match &first.status {
            Status::Missing { reason } => reason.as_str(),
            _ => "it could not be tried",
        };
        let mut error = Error::unsupported(
            "doctor.refuse",
            format!("this host cannot make a sandbox: {} is missing: {reason}", first.block),
        )
        .with_context("block", first.block);
        let others: Vec<&str> = lacking
            .filter(|finding| matches!(finding.status, Status::Missing { .. }))
            .map(|finding| finding.block.name())
            .collect();
        if !others.is_empty() {
            error = error.with_context("also missing", others.join(", "));
        }
        Some(error.with_hint(first.fix.clone().unwrap_or_else(|| {
            "run `leasehold doctor` for all findings; this one has no known fix on this host".to_owned()
        })))
    }
}
