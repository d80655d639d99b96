//! The messages themselves.

use leasehold_model::BytePath;
use serde::{Deserialize, Serialize};

use crate::archive::Archive;
use crate::image::{UnpackLimits, UnpackReport};

/// Ties a reply to its request, on one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Tag(pub(crate) u64);

/// How a directory of this machine appears inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum TreeAccess {
    /// The tree itself, read-only.
    ReadOnly,
    /// The tree itself, writable.
    ReadWrite,
}

/// A tree of the host shown inside as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SharedTree {
    /// The place on the host.
    pub(crate) source: BytePath,
    /// The place inside.
    pub(crate) target: BytePath,
    /// What can be done with it.
    pub(crate) access: TreeAccess,
}

/// An overlay: lower trees seen through a layer of their own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OverlayPlan {
    /// The trees below, the uppermost first. At least one.
    pub(crate) lower: Vec<BytePath>,
    /// The layer's directory, relative to the sandbox's state directory; holds `upper` and `work`.
    pub(crate) layer: BytePath,
    /// The place inside.
    pub(crate) target: BytePath,
}

/// The mounts of a sandbox, in the order in which they are made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MountPlan {
    /// The sandbox's state directory on the host.
    pub(crate) state: BytePath,
    /// Places of the host whose owners the host maps; their trees come as descriptors in this order and
    /// are laid over the places before anything else looks at them.
    pub(crate) mapped: Vec<BytePath>,
    /// The root; its target is `/`.
    pub(crate) root: OverlayPlan,
    /// System directories of the host.
    pub(crate) system: Vec<SharedTree>,
    /// Links that stand for system directories: place and target.
    pub(crate) links: Vec<(BytePath, String)>,
    /// Further overlays: `/etc`, toolchains, the workspace.
    pub(crate) overlays: Vec<OverlayPlan>,
    /// Directories that must exist inside, with their modes.
    pub(crate) directories: Vec<(BytePath, u32)>,
    /// Small files made inside before anything runs.
    pub(crate) files: Vec<(BytePath, Vec<u8>)>,
    /// Trees and files of the host that the user asked to see.
    pub(crate) exposures: Vec<SharedTree>,
    /// With a bound, every layer lives in memory, on a file system of this many bytes.
    pub(crate) disk_limit: Option<u64>,
}

/// Everything that pid 1 needs to build the sandbox around itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StartPlan {
    /// The host name inside.
    pub(crate) host_name: String,
    /// The mounts.
    pub(crate) mounts: MountPlan,
    /// Whose network it has.
    pub(crate) network: NetworkOwner,
    /// The user and group, inside, that pid 1 itself builds and owns the sandbox as.
    pub(crate) owner: (u32, u32),
    /// The user that commands and file access run as when they don't say.
    pub(crate) user: User,
    /// Where relative paths start.
    pub(crate) directory: BytePath,
    /// Which users exist inside.
    pub(crate) users: InnerUsers,
    /// What its life depends on.
    pub(crate) lifetime: Lifetime,
    /// Milliseconds until the sandbox destroys itself.
    pub(crate) expire_after: Option<u64>,
    /// Milliseconds without a running command until it stops itself.
    pub(crate) idle_stop_after: Option<u64>,
    /// How many control files follow the mapped trees as descriptors; each command writes itself into
    /// all of them.
    pub(crate) cgroup_files: u8,
    /// The most processes of one user inside.
    pub(crate) process_limit: u32,
    /// Whether a listening socket follows as the last descriptor.
    pub(crate) listens: bool,
}

/// Whose network a sandbox has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum NetworkOwner {
    /// A network namespace of its own, with nothing but a loopback.
    Sandbox,
    /// The host's.
    Host,
}

/// Which users exist inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum InnerUsers {
    /// The owner alone; groups can't be changed.
    OwnerAlone,
    /// A whole range.
    Many,
}

/// What a sandbox's life depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Lifetime {
    /// It ends with its first connection.
    Creator,
    /// It ends when it is told to, or by its own clocks.
    Independent,
}

/// A user by name or number, as asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum User {
    /// By number.
    Id { user: u32, group: Option<u32> },
    /// By name, from the user database inside.
    Name(String),
}

/// One command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RunCommand {
    /// Program and arguments.
    pub(crate) arguments: Vec<Vec<u8>>,
    /// The whole environment.
    pub(crate) environment: Vec<(Vec<u8>, Vec<u8>)>,
    /// Where it starts; relative to the sandbox's own directory.
    pub(crate) directory: Option<BytePath>,
    /// Who it runs as.
    pub(crate) user: Option<User>,
    /// Columns and rows of its terminal; without one, its streams come with the message: two for output,
    /// and before them one for input when the host writes it.
    pub(crate) terminal: Option<(u16, u16)>,
    /// Milliseconds until its tree is killed.
    pub(crate) timeout: Option<u64>,
}

/// Whom a signal reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SignalTarget {
    /// The leader's process group, or the terminal's foreground group.
    Group,
    /// Every process of the command.
    Tree,
}

/// What the host asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Request {
    /// Ties the answer to it.
    pub(crate) tag: Tag,
    /// The question.
    pub(crate) body: RequestBody,
}

/// The questions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RequestBody {
    /// The first message on the first connection.
    Start(Box<StartPlan>),
    /// The first message to a process that only works on files.
    Work(FileWork),
    /// Runs a command; the tag names it from then on.
    Run(RunCommand),
    /// Sends a signal to the command of that tag.
    Signal { command: Tag, signal: i32, target: SignalTarget },
    /// Kills the whole tree of the command of that tag.
    Cancel { command: Tag },
    /// Opens a file server for the sandbox's user.
    OpenFiles,
    /// Connects to a TCP port on the loopback inside.
    Connect { port: u16 },
    /// Replaces the expiry: milliseconds from now.
    SetExpiry { after: Option<u64> },
    /// Replaces the idle stop.
    SetIdleStop { after: Option<u64> },
    /// Ends the sandbox if nothing runs in it.
    EndIfIdle,
    /// Ends every process and then the sandbox.
    Stop { grace: u64 },
}

/// File work in a user namespace with many ids.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FileWork {
    /// Removes a tree.
    Remove { path: BytePath },
    /// Gives a tree to the caller; a descriptor that comes along is where the path starts.
    TakeOver { path: BytePath },
    /// Unpacks the archive that comes as a pipe.
    Unpack { destination: BytePath, limits: UnpackLimits },
    /// Packs the layers in a state directory into its archive.
    PackLayers { state: BytePath },
    /// Unpacks the archive in a state directory beside it.
    UnpackLayers { state: BytePath },
    /// Copies a layer whose processes are frozen; owners keep their numbers.
    CopyLayer { from: BytePath, to: BytePath },
    /// Merges layers, the lowest first; the result belongs to the caller.
    MergeLayers { layers: Vec<BytePath>, to: BytePath },
}

/// What pid 1 says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Event {
    /// The request it answers, or the command it is about.
    pub(crate) tag: Tag,
    /// What happened.
    pub(crate) body: EventBody,
}

/// The events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum EventBody {
    /// The sandbox is built and takes commands.
    Ready,
    /// It could not be built; pid 1 ends after this.
    StartFailed(StartFailure),
    /// The request was done. A descriptor may come with it.
    Done,
    /// A layer was unpacked.
    Unpacked(UnpackReport),
    /// The layers were packed.
    Packed(Archive),
    /// The request was not done.
    Refused(Refusal),
    /// The command runs. The master side of its terminal comes with it, if it has one.
    Started,
    /// The command's leader ended, and if its tree was to be killed, that is done.
    Ended(Ending),
}

/// The step that failed, on what, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StartFailure {
    /// The step's name, as in the architecture page.
    pub(crate) step: String,
    /// What it worked on.
    pub(crate) subject: String,
    /// The kernel's error number, 0 when it is not the kernel's.
    pub(crate) errno: i32,
    /// What can be done about it.
    pub(crate) hint: String,
}

/// Why a request was not done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Refusal {
    /// What failed and on what.
    pub(crate) message: String,
    /// The kernel's error number, 0 when it is not the kernel's.
    pub(crate) errno: i32,
    /// Whether it is the program itself that can't be run, as a shell tells it by 126 and 127.
    pub(crate) about_program: bool,
}

/// What made pid 1 kill a command's tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum KillCause {
    /// Its deadline passed.
    Deadline,
    /// The host cancelled it.
    Cancel,
    /// The sandbox is being stopped or has expired.
    Stop,
}

/// How a leader ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ending {
    /// The exit status, when it exited.
    pub(crate) code: Option<u8>,
    /// The signal, when one ended it.
    pub(crate) signal: Option<i32>,
    /// Why its tree was killed, when pid 1 did that before it ended.
    pub(crate) killed: Option<KillCause>,
    /// Whether the host had sent that very signal.
    pub(crate) signal_was_sent: bool,
}

/// What the host asks of a file server. Paths are resolved inside by the kernel, as the user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FilesRequest {
    /// Opens a regular file for reading; its descriptor comes back.
    OpenRead { path: BytePath },
    /// Makes a scratch file beside the target and opens it for writing; its descriptor comes back.
    OpenScratch { path: BytePath, mode: u32, parents: bool },
    /// Puts the scratch file in its place.
    CommitScratch,
    /// Removes the scratch file.
    AbandonScratch,
    /// Looks at one path, not following its last component.
    Stat { path: BytePath },
    /// The entries of a directory.
    List { path: BytePath },
    /// Makes a directory.
    MakeDirectory { path: BytePath, mode: u32, parents: bool },
    /// Makes a symbolic link.
    MakeSymlink { path: BytePath, target: BytePath },
    /// Removes a file, link or tree.
    Remove { path: BytePath, recursive: bool },
    /// Renames.
    Rename { from: BytePath, to: BytePath },
    /// Changes permission bits.
    SetMode { path: BytePath, mode: u32 },
    /// Changes the time of last write.
    SetModified { path: BytePath, seconds: i64, nanoseconds: u32 },
}

/// What is known of one entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StatRecord {
    /// The last component.
    pub(crate) name: Vec<u8>,
    /// Type and permission bits as the kernel gives them.
    pub(crate) mode: u32,
    /// Bytes.
    pub(crate) size: u64,
    /// Owner inside.
    pub(crate) user: u32,
    /// Group inside.
    pub(crate) group: u32,
    /// Time of last write: whole seconds.
    pub(crate) seconds: i64,
    /// And the nanoseconds after them.
    pub(crate) nanoseconds: u32,
    /// A link's target.
    pub(crate) target: Option<Vec<u8>>,
}

/// What a file server answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FilesReply {
    /// Done. A descriptor may come with it.
    Done,
    /// One entry.
    Entry(StatRecord),
    /// A part of a directory; `last` ends it.
    Entries { entries: Vec<StatRecord>, last: bool },
    /// Not done.
    Refused(Refusal),
}
