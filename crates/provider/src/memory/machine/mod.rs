//! What stands for the machine: a file tree, processes, pipes, terminals and a small POSIX shell, all
//! in memory. It knows the vocabulary of the behaviour suite, and no more.

pub(super) mod descriptor;
pub(super) mod pipe;
pub(super) mod process;
mod program;
mod shell;
pub(super) mod task;
pub(super) mod terminal;
pub(super) mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leasehold_model::ResourceLimits;
use tokio::io::DuplexStream;
use tokio::sync::mpsc;

use process::ProcessTable;
use tree::{Device, Tree};

/// Processes at one time when the spec does not say.
const DEFAULT_PROCESSES: u32 = 4096;

/// Simulated memory when the spec does not say: a bound, so that nothing grows without end.
const DEFAULT_MEMORY: u64 = 1 << 30;

/// One machine. Its tree outlives its processes.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) tree: Tree,
    pub(super) processes: ProcessTable,
    pub(super) limits: ResourceLimits,
    memory_used: AtomicU64,
    evidence: Mutex<BTreeSet<u64>>,
    ports: Mutex<BTreeMap<u16, mpsc::Sender<DuplexStream>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Machine {
    /// A machine with a fresh system.
    pub(super) fn new(limits: ResourceLimits) -> std::io::Result<Arc<Self>> {
        let tree = Tree::new(limits.disk.map(|size| size.0));
        let root = Path::new("/");
        for directory in ["/dev", "/etc", "/proc/net", "/root", "/usr/bin", "/workspace"] {
            tree.make_directory(root, Path::new(directory), 0o755, true)?;
        }
        tree.make_directory(root, Path::new("/tmp"), 0o1777, false)?;
        tree.make_symlink(root, Path::new("/bin"), Path::new("usr/bin"))?;
        for (path, device) in
            [("/dev/null", Device::Null), ("/dev/zero", Device::Zero), ("/dev/urandom", Device::Random)]
        {
            tree.make_device(Path::new(path), device)?;
        }
        tree.replace(root, Path::new("/etc/passwd"), b"root:x:0:0:root:/root:/bin/sh\n".to_vec(), 0o644)?;
        let interfaces =
            b"Inter-|   Receive  |  Transmit\n face |bytes packets|bytes packets\n    lo: 0 0 0 0\n";
        tree.replace(root, Path::new("/proc/net/dev"), interfaces.to_vec(), 0o444)?;
        let routes = b"Iface\tDestination\tGateway\n";
        tree.replace(root, Path::new("/proc/net/route"), routes.to_vec(), 0o444)?;
        for name in program::NAMES {
            let content = [program::MAGIC, name.as_bytes()].concat();
            tree.replace(root, &Path::new("/usr/bin").join(name), content, 0o755)?;
        }
        Ok(Self::around(tree, limits))
    }

    /// A machine around an existing file tree.
    pub(super) fn around(tree: Tree, limits: ResourceLimits) -> Arc<Self> {
        Arc::new(Self {
            tree,
            processes: ProcessTable::default(),
            limits,
            memory_used: AtomicU64::new(0),
            evidence: Mutex::default(),
            ports: Mutex::default(),
        })
    }

    pub(super) fn most_processes(&self) -> usize {
        self.limits.processes.unwrap_or(DEFAULT_PROCESSES) as usize
    }

    /// Counts simulated memory; `false` when it does not fit.
    fn take_memory(&self, bytes: u64) -> bool {
        let limit = self.limits.memory.map_or(DEFAULT_MEMORY, |size| size.0);
        self.memory_used.fetch_add(bytes, Ordering::Relaxed) + bytes <= limit
    }

    fn give_memory(&self, bytes: u64) {
        self.memory_used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Notes that a process of this tree found the disk full.
    fn note_full_disk(&self, tree: u64) {
        lock(&self.evidence).insert(tree);
    }

    /// Whether a process of this tree found the disk full.
    pub(super) fn found_full_disk(&self, tree: u64) -> bool {
        lock(&self.evidence).contains(&tree)
    }

    fn listen(&self, port: u16) -> Option<mpsc::Receiver<DuplexStream>> {
        let (sender, receiver) = mpsc::channel(16);
        let mut ports = lock(&self.ports);
        if ports.get(&port).is_some_and(|taken| !taken.is_closed()) {
            return None;
        }
        ports.insert(port, sender);
        Some(receiver)
    }

    /// Opens a connection to a listening process.
    pub(super) async fn connect(&self, port: u16) -> Option<DuplexStream> {
        let listener = lock(&self.ports).get(&port).cloned()?;
        let (near, far) = tokio::io::duplex(descriptor::PIECE);
        listener.send(far).await.ok()?;
        Some(near)
    }
}
