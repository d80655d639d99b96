//! What a running program has at hand: its process, descriptors, environment and place.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use leasehold_model::{EndedBy, SignalNumber};

use super::Machine;
use super::descriptor::{Descriptor, Descriptors};
use super::process::{Process, TooMany, launch};
use super::program;
use super::shell::Shell;
use super::tree::Kind;

/// A word of a command line: any bytes.
pub(in crate::memory) type Word = Vec<u8>;

/// What a program may use. A child gets a copy.
#[derive(Debug, Clone)]
pub(in crate::memory) struct Task {
    pub(in crate::memory) machine: Arc<Machine>,
    pub(in crate::memory) process: Arc<Process>,
    pub(in crate::memory) descriptors: Descriptors,
    pub(in crate::memory) environment: BTreeMap<Word, Word>,
    pub(in crate::memory) directory: PathBuf,
    pub(in crate::memory) mask: u32,
}

/// What a file turned out to be when it was to be run.
#[derive(Debug, Clone)]
pub(in crate::memory) enum Runnable {
    /// A program of the simulation.
    Program(Word),
    /// A script and the words before its path.
    Script(Vec<Word>),
}

/// Where programs are looked for when nothing else is said.
pub(in crate::memory) const DEFAULT_PATH: &[u8] = b"/usr/bin:/bin";

pub(in crate::memory) fn path_of(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

impl Task {
    /// Finds the file of a program as `execvp` does.
    ///
    /// Errors: `NotFound`, `PermissionDenied`.
    pub(in crate::memory) fn find(&self, name: &[u8]) -> io::Result<PathBuf> {
        if name.contains(&b'/') {
            self.check_executable(path_of(name))?;
            return Ok(path_of(name).to_owned());
        }
        let path = self.environment.get(&b"PATH"[..]).map_or(DEFAULT_PATH, Vec::as_slice);
        let mut worst = io::ErrorKind::NotFound;
        for directory in path.split(|byte| *byte == b':').filter(|_| !name.is_empty()) {
            let candidate = path_of(directory).join(path_of(name));
            match self.check_executable(&candidate) {
                Ok(()) => return Ok(candidate),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => worst = error.kind(),
                Err(_) => {}
            }
        }
        Err(worst.into())
    }

    fn check_executable(&self, path: &Path) -> io::Result<()> {
        let inode = self.machine.tree.open(&self.directory, path, true)?;
        let attributes = inode.lock();
        match attributes.kind {
            Kind::File(_) if attributes.mode & 0o111 != 0 => Ok(()),
            _ => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }

    /// Looks at a file that is to be run.
    pub(in crate::memory) fn load(&self, path: &Path) -> io::Result<Runnable> {
        let inode = self.machine.tree.open(&self.directory, path, true)?;
        let attributes = inode.lock();
        let Kind::File(content) = &attributes.kind else {
            return Err(io::ErrorKind::PermissionDenied.into());
        };
        if let Some(name) = content.strip_prefix(program::MAGIC) {
            return Ok(Runnable::Program(name.to_vec()));
        }
        let first = content.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let words = first.strip_prefix(b"#!").unwrap_or(b"/bin/sh");
        let words = words.split(|byte| *byte == b' ').filter(|word| !word.is_empty()).map(<[u8]>::to_vec);
        Ok(Runnable::Script(words.collect()))
    }

    /// Runs a program in this process to its end.
    pub(in crate::memory) async fn run(mut self, file: PathBuf, mut words: Vec<Word>) -> u8 {
        self.process.reset_traps();
        let mut runnable = self.load(&file);
        // An interpreter may itself be a script; a few levels, as in the kernel.
        for _ in 0..4 {
            match runnable {
                Ok(Runnable::Program(name)) => {
                    return if name == b"sh" {
                        Box::pin(Shell::new(self).main(words)).await
                    } else {
                        Box::pin(program::run(&mut self, &name, &words)).await
                    };
                }
                Ok(Runnable::Script(interpreter)) => {
                    let script = file.as_os_str().as_bytes().to_vec();
                    runnable = self.load(path_of(&interpreter[0]));
                    words =
                        interpreter.into_iter().chain([script]).chain(words.into_iter().skip(1)).collect();
                }
                Err(_) => break,
            }
        }
        self.complain(&words[0], "cannot be run").await;
        126
    }

    /// A copy of this task in a new process.
    pub(in crate::memory) fn fork(&self) -> Result<Self, TooMany> {
        let process = self.machine.processes.make(
            self.process.tree,
            Some(&self.process),
            self.machine.most_processes(),
        )?;
        Ok(Self { process, ..self.clone() })
    }

    /// Starts a program in a new process.
    pub(in crate::memory) fn spawn(&self, file: PathBuf, words: Vec<Word>) -> Result<Arc<Process>, TooMany> {
        let child = self.fork()?;
        let process = Arc::clone(&child.process);
        launch(&Arc::clone(&self.machine), &process, child.run(file, words));
        Ok(process)
    }

    pub(in crate::memory) fn descriptor(&self, number: u32) -> io::Result<Descriptor> {
        self.descriptors.get(&number).cloned().ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }

    /// Reads from a descriptor; empty at the end.
    pub(in crate::memory) async fn read(&self, number: u32, most: usize) -> io::Result<Bytes> {
        self.descriptor(number)?.read(most).await
    }

    /// Writes to a descriptor. A pipe without a reader is SIGPIPE; a full disk leaves evidence.
    pub(in crate::memory) async fn write(&self, number: u32, bytes: impl Into<Bytes>) -> io::Result<()> {
        let written = self.descriptor(number)?.write(&self.machine.tree, bytes.into()).await;
        match written.as_ref().map_err(io::Error::kind) {
            Err(io::ErrorKind::BrokenPipe) => self.process.signal(SignalNumber(13), EndedBy::Other),
            Err(io::ErrorKind::StorageFull) => self.machine.note_full_disk(self.process.tree),
            _ => return written,
        }
        // Lets a deadly signal act before the program goes on.
        tokio::task::yield_now().await;
        written
    }

    /// Writes a message to standard error.
    pub(in crate::memory) async fn complain(&self, who: &[u8], what: impl std::fmt::Display) {
        let line = [who, format!(": {what}\n").as_bytes()].concat();
        // Where nobody hears it, there is nobody to tell.
        let _ = self.write(2, line).await;
    }
}
