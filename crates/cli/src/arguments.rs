//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use leasehold_model::{AttemptName, ByteSize, CpuQuota, Exposure, NetworkPolicy, Span, UserSpec};

const RUN_EXAMPLES: &str = "\
Examples:
  leasehold run -- cargo test                      this project's tests, unable to change the host
  leasehold run --apply -- npm install             and then keep what it changed
  leasehold run --network host -- curl example.org with the host's network
  leasehold run --timeout 10m --memory 2G -- make  with bounds

What the command changed is kept until you decide: `leasehold changes --help` tells how.

Exit status: the command's own; 128+n when signal n ended it; 124 when its time was up; 125 when
Leasehold itself failed; 126 when the command can't be executed; 127 when it is not there.";

/// Leases sandboxes to AI agents, runs their work exactly, and leaves nothing behind.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command in a fresh sandbox on a copy-on-write view of the current directory
    #[command(after_help = RUN_EXAMPLES)]
    Run(RunOptions),
    /// Open a terminal in a fresh sandbox
    Shell(SandboxOptions),
    /// See, apply or discard what runs changed
    #[command(subcommand)]
    Changes(ChangesCommand),
    /// See and use sandboxes that were kept
    #[command(subcommand)]
    Sandbox(SandboxCommand),
    /// See and remove the container images on this machine
    #[command(subcommand)]
    Image(ImageCommand),
    /// Tell what this host can and cannot isolate, and how to fix it
    Doctor {
        /// Also check a directory that is to be a workspace
        #[arg(long, value_name = "DIR")]
        workspace: Option<PathBuf>,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
}

/// How a command is run.
#[derive(Debug, Args)]
pub(crate) struct RunOptions {
    #[command(flatten)]
    pub(crate) sandbox: SandboxOptions,
    /// Give the command a terminal, whatever the streams are
    #[arg(short = 't', long = "tty", conflicts_with = "no_tty")]
    pub(crate) tty: bool,
    /// Give the command no terminal, whatever the streams are
    #[arg(short = 'T', long = "no-tty")]
    pub(crate) no_tty: bool,
    /// Kill the command and all it started after this time, such as 90s or 1h30m
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<Span>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// What the sandbox is.
#[derive(Debug, Args)]
#[allow(clippy::struct_excessive_bools)] // flags of a command line
pub(crate) struct SandboxOptions {
    /// The directory to work on [default: the current one]
    #[arg(long, value_name = "DIR")]
    pub(crate) workspace: Option<PathBuf>,
    /// Where the command starts, inside [default: the same place as outside]
    #[arg(long, value_name = "DIR")]
    pub(crate) cwd: Option<PathBuf>,
    /// Apply the changes to the workspace when the command succeeds
    #[arg(long)]
    pub(crate) apply: bool,
    /// Start from a container image: an OCI layout directory, an archive, or a registry reference
    #[arg(long, value_name = "IMAGE")]
    pub(crate) image: Option<String>,
    /// Show a path of this machine inside, read-only; with :rw the command changes the host's own files
    #[arg(long, value_name = "PATH[:ro|rw]")]
    pub(crate) expose: Vec<Exposure>,
    /// What the sandbox can reach: none, or host (all that this machine can, its own services included)
    #[arg(long, value_name = "POLICY", default_value = "none")]
    pub(crate) network: NetworkPolicy,
    /// Set a variable inside; with a name alone, pass the one that is set here
    #[arg(short = 'e', long, value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<OsString>,
    /// Set the variables of a file with lines NAME=VALUE
    #[arg(long, value_name = "FILE")]
    pub(crate) env_file: Vec<PathBuf>,
    /// Run as this user of the sandbox: a name, a number, or USER:GROUP
    #[arg(short = 'u', long, value_name = "USER")]
    pub(crate) user: Option<UserSpec>,
    /// Bound memory, such as 512M or 2G
    #[arg(short = 'm', long, value_name = "SIZE")]
    pub(crate) memory: Option<ByteSize>,
    /// Bound processor time, such as 2 or 0.5 processors
    #[arg(long, value_name = "NUMBER")]
    pub(crate) cpus: Option<CpuQuota>,
    /// Bound the number of processes and threads [default: 4096]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pids: Option<u32>,
    /// Bound what can be written, such as 512M or 2G; the files then live in memory
    #[arg(long, value_name = "SIZE")]
    pub(crate) disk: Option<ByteSize>,
    /// Name the sandbox
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<AttemptName>,
    /// Keep the sandbox when the command has ended
    #[arg(long)]
    pub(crate) keep: bool,
    /// Report on standard error as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Report nothing unless something failed
    #[arg(short = 'q', long, conflicts_with = "json")]
    pub(crate) quiet: bool,
}

/// What to do with kept sandboxes.
#[derive(Debug, Subcommand)]
pub(crate) enum SandboxCommand {
    /// List the sandboxes of this data directory
    List {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Run a command in a kept sandbox, starting it if it is stopped
    Exec {
        /// The sandbox, by id or name
        sandbox: String,
        /// Give the command a terminal, whatever the streams are
        #[arg(short = 't', long = "tty", conflicts_with = "no_tty")]
        tty: bool,
        /// Give the command no terminal, whatever the streams are
        #[arg(short = 'T', long = "no-tty")]
        no_tty: bool,
        /// Kill the command and all it started after this time
        #[arg(long, value_name = "TIME")]
        timeout: Option<Span>,
        /// The command and its arguments
        #[arg(last = true, required = true, value_name = "COMMAND")]
        command: Vec<OsString>,
    },
    /// End every process of a sandbox and keep its files
    Stop {
        /// The sandbox, by id or name
        sandbox: String,
    },
    /// Remove a sandbox and everything in it, unapplied changes included
    Remove {
        /// The sandboxes, by id or name
        #[arg(required = true)]
        sandboxes: Vec<String>,
    },
    /// Remove what sandboxes left that ended without cleaning up
    Sweep,
}

/// What to do with changes.
#[derive(Debug, Subcommand)]
pub(crate) enum ChangesCommand {
    /// List the changes that wait for a decision
    List {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// List the files that a run created (A), modified (M) or deleted (D)
    Show {
        /// The changes, by the id or name of their sandbox
        changes: String,
        /// As JSON, with sizes, modes and times
        #[arg(long)]
        json: bool,
    },
    /// Show the changes as a patch that `git apply` takes
    Diff {
        /// The changes, by the id or name of their sandbox
        changes: String,
    },
    /// Carry the changes to the host, then forget them
    Apply {
        /// The changes, by the id or name of their sandbox
        changes: String,
        /// What to do with files that the host changed meanwhile
        #[arg(long, value_enum, default_value = "refuse", value_name = "POLICY")]
        on_conflict: OnConflict,
        /// Carry set-user-id and set-group-id bits that the host's files did not have
        #[arg(long)]
        allow_set_id: bool,
        /// Only tell whether something stands in the way
        #[arg(long)]
        dry_run: bool,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove the changes for good
    Discard {
        /// The changes, by the id or name of their sandbox
        #[arg(required = true)]
        changes: Vec<String>,
    },
}

/// What to do with files that the host changed meanwhile.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum OnConflict {
    /// Write nothing at all
    Refuse,
    /// Leave those files as they are and write the others
    Skip,
    /// Write them all
    Overwrite,
}

/// What to do with images.
#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// List the images
    List,
    /// Unpack an image, so that the first run need not wait for it
    Pull {
        /// An OCI layout directory, an archive, or a registry reference
        image: String,
    },
    /// Forget images and remove what no sandbox needs
    Remove {
        /// The images, by reference or digest
        #[arg(required = true)]
        images: Vec<String>,
    },
    /// Remove what neither a reference nor a sandbox needs
    Prune,
}
