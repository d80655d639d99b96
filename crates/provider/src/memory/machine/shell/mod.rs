//! A small POSIX shell.

mod built_in;
mod expand;
mod parse;

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use super::descriptor::{Descriptor, Descriptors};
use super::pipe::pipe;
use super::process::{Process, launch};
use super::program;
use super::task::{Task, Word, path_of};
use super::tree::Device;
use parse::{Body, Command, Item, Join, Pipeline, Redirect, RedirectKind};

/// Why a list of commands was left early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leave {
    Exit(u8),
    Break,
    Continue,
}

type Status = Result<u8, Leave>;
type Running<'a> = Pin<Box<dyn Future<Output = Status> + Send + 'a>>;

/// The number that stands for the end of the shell in its traps.
const AT_EXIT: i32 = 0;

#[derive(Debug, Clone)]
pub(super) struct Shell {
    task: Task,
    /// Variables that are not in the environment.
    variables: BTreeMap<Word, Word>,
    positional: Vec<Word>,
    /// `$$`: the number of the shell that is no subshell.
    number: usize,
    traps: BTreeMap<i32, Word>,
    background: Vec<Arc<Process>>,
    status: u8,
}

impl Shell {
    pub(super) fn new(task: Task) -> Self {
        Self {
            number: task.process.id as usize,
            task,
            variables: BTreeMap::new(),
            positional: Vec::new(),
            traps: BTreeMap::new(),
            background: Vec::new(),
            status: 0,
        }
    }

    /// `sh`, `sh -c script [name [argument…]]`, `sh file [argument…]`.
    pub(super) async fn main(mut self, words: Vec<Word>) -> u8 {
        let script = match &words[1..] {
            [flag, script, rest @ ..] if flag == b"-c" => {
                self.positional = if rest.is_empty() { vec![words[0].clone()] } else { rest.to_vec() };
                Ok(script.clone())
            }
            [file, ..] => {
                self.positional = words[1..].to_vec();
                self.read_script(file)
            }
            [] => {
                self.positional = vec![words[0].clone()];
                self.read_input().await
            }
        };
        let script = match script {
            Ok(script) => script,
            Err(error) => {
                self.task.complain(b"sh", error).await;
                return 127;
            }
        };
        let status = self.script(&script).await;
        self.finish(status).await
    }

    fn read_script(&self, file: &[u8]) -> io::Result<Word> {
        let inode = self.task.machine.tree.open(&self.task.directory, path_of(file), true)?;
        Ok(super::descriptor::read_at(&inode, 0, usize::MAX)?.to_vec())
    }

    async fn read_input(&self) -> io::Result<Word> {
        let mut script = Word::new();
        loop {
            let piece = self.task.read(0, super::descriptor::PIECE).await?;
            if piece.is_empty() {
                return Ok(script);
            }
            script.extend_from_slice(&piece);
        }
    }

    async fn script(&mut self, script: &[u8]) -> u8 {
        match parse::parse(script) {
            Ok(items) => match self.items(&items).await {
                Ok(status) | Err(Leave::Exit(status)) => status,
                Err(Leave::Break | Leave::Continue) => self.status,
            },
            Err(error) => {
                self.task.complain(b"sh", format!("{} at byte {}", error.message, error.position)).await;
                2
            }
        }
    }

    /// The trap for the end, then the end.
    async fn finish(mut self, status: u8) -> u8 {
        let Some(script) = self.traps.remove(&AT_EXIT) else { return status };
        match parse::parse(&script) {
            Ok(items) => match self.items(&items).await {
                Err(Leave::Exit(status)) => status,
                _ => status,
            },
            Err(_) => status,
        }
    }

    fn items<'a>(&'a mut self, items: &'a [Item]) -> Running<'a> {
        Box::pin(async move {
            let mut status = 0;
            for item in items {
                status = if item.background { self.in_background(item)? } else { self.item(item).await? };
                self.status = status;
                self.run_traps().await?;
                // A loop that only computes must let others run, and can be killed here.
                tokio::task::yield_now().await;
            }
            Ok(status)
        })
    }

    async fn item(&mut self, item: &Item) -> Status {
        let mut status = self.pipeline(&item.first).await?;
        for (join, pipeline) in &item.rest {
            self.status = status;
            if (status == 0) == (*join == Join::And) {
                status = self.pipeline(pipeline).await?;
            }
        }
        Ok(status)
    }

    /// A copy of this shell in a new process. It exits with 2 where a real one can't fork.
    fn fork(&self) -> Result<Self, Leave> {
        let task = self.task.fork().map_err(|_| Leave::Exit(2))?;
        Ok(Self { task, traps: BTreeMap::new(), background: Vec::new(), ..self.clone() })
    }

    /// Runs commands in a copy of this shell.
    fn start(&self, items: Vec<Item>, change: impl FnOnce(&mut Descriptors)) -> Result<Arc<Process>, Leave> {
        let mut child = self.fork()?;
        change(&mut child.task.descriptors);
        let process = Arc::clone(&child.task.process);
        launch(&Arc::clone(&self.task.machine), &process, async move {
            let status = match child.items(&items).await {
                Ok(status) | Err(Leave::Exit(status)) => status,
                Err(Leave::Break | Leave::Continue) => 0,
            };
            child.finish(status).await
        });
        Ok(process)
    }

    fn in_background(&mut self, item: &Item) -> Status {
        let item = Item { background: false, ..item.clone() };
        let process = self.start(vec![item], |descriptors| {
            descriptors.insert(0, Descriptor::Device(Device::Null));
        })?;
        self.background.push(process);
        Ok(0)
    }

    async fn pipeline(&mut self, pipeline: &Pipeline) -> Status {
        let status = match pipeline.commands.as_slice() {
            [command] => self.command(command).await?,
            commands => {
                let mut processes = Vec::new();
                let mut input = None;
                for (number, command) in commands.iter().enumerate() {
                    let (next, output) =
                        if number + 1 < commands.len() { Some(pipe()).unzip() } else { (None, None) };
                    let first = Pipeline { negated: false, commands: vec![command.clone()] };
                    let item = Item { first, rest: Vec::new(), background: false };
                    let input = std::mem::replace(&mut input, next);
                    processes.push(self.start(vec![item], |descriptors| {
                        if let Some(input) = input {
                            descriptors.insert(0, Descriptor::Input(input));
                        }
                        if let Some(output) = output {
                            descriptors.insert(1, Descriptor::Output(output));
                        }
                    })?);
                }
                let mut status = 0;
                for process in processes {
                    status = process.ended().await.status();
                }
                status
            }
        };
        Ok(if pipeline.negated { u8::from(status == 0) } else { status })
    }

    async fn command(&mut self, command: &Command) -> Status {
        if let Body::Simple { assignments, words } = &command.body {
            return self.simple(assignments, words, &command.redirects).await;
        }
        if let Body::Subshell(items) = &command.body {
            let saved = self.task.descriptors.clone();
            let opened = self.redirect(&command.redirects).await?;
            let process = if opened { Some(self.start(items.clone(), |_| ())) } else { None };
            self.task.descriptors = saved;
            return match process {
                Some(process) => Ok(process?.ended().await.status()),
                None => Ok(1),
            };
        }
        let saved = self.task.descriptors.clone();
        let done =
            if self.redirect(&command.redirects).await? { self.compound(&command.body).await } else { Ok(1) };
        self.task.descriptors = saved;
        done
    }

    async fn compound(&mut self, body: &Body) -> Status {
        let mut status = 0;
        match body {
            Body::Group(items) => status = self.items(items).await?,
            Body::While { condition, body, until } => {
                while (self.items(condition).await? == 0) != *until {
                    match self.items(body).await {
                        Ok(code) => status = code,
                        Err(Leave::Break) => break,
                        Err(Leave::Continue) => {}
                        exit => return exit,
                    }
                }
            }
            Body::For { name, words, body } => {
                for value in self.expand(words).await? {
                    self.set(name, value);
                    match self.items(body).await {
                        Ok(code) => status = code,
                        Err(Leave::Break) => break,
                        Err(Leave::Continue) => {}
                        exit => return exit,
                    }
                }
            }
            Body::If { arms, otherwise } => {
                for (condition, body) in arms {
                    if self.items(condition).await? == 0 {
                        return self.items(body).await;
                    }
                }
                status = self.items(otherwise).await?;
            }
            Body::Simple { .. } | Body::Subshell(_) => {}
        }
        Ok(status)
    }

    async fn simple(
        &mut self,
        assignments: &[(Word, parse::Word)],
        words: &[parse::Word],
        redirects: &[Redirect],
    ) -> Status {
        let words = self.expand(words).await?;
        let mut values = Vec::new();
        for (name, word) in assignments {
            values.push((name.clone(), self.expand_one(word).await?));
        }
        let substituted = assignments
            .iter()
            .any(|(_, word)| word.iter().any(|piece| matches!(piece, parse::Piece::Substitution { .. })));
        let saved = self.task.descriptors.clone();
        let opened = self.redirect(redirects).await;
        let done = match opened {
            Ok(true) => self.run_simple(words, values, substituted).await,
            Ok(false) => Ok(1),
            Err(leave) => Err(leave),
        };
        self.task.descriptors = saved;
        done
    }

    async fn run_simple(&mut self, words: Vec<Word>, values: Vec<(Word, Word)>, substituted: bool) -> Status {
        let Some(name) = words.first().cloned() else {
            // Assignments alone have the status of the last substitution in them.
            for (name, value) in values {
                self.set(&name, value);
            }
            return Ok(if substituted { self.status } else { 0 });
        };
        let environment = self.task.environment.clone();
        self.task.environment.extend(values);
        let done = match built_in::run(self, &name, &words).await {
            Some(done) => done,
            None if program::BUILT_IN.iter().any(|known| known.as_bytes() == name) => {
                Ok(Box::pin(program::run(&mut self.task, &name, &words)).await)
            }
            None => match self.task.find(&name) {
                Ok(file) => {
                    if let Ok(process) = self.task.spawn(file, words) {
                        Ok(process.ended().await.status())
                    } else {
                        self.task.complain(b"sh", "cannot fork").await;
                        Err(Leave::Exit(2))
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.task.complain(&name, "not found").await;
                    Ok(127)
                }
                Err(error) => {
                    self.task.complain(&name, error).await;
                    Ok(126)
                }
            },
        };
        // What a built-in changed for good, it changed itself.
        if name != b"export" && name != b"unset" && name != b"read" {
            self.task.environment = environment;
        }
        done
    }

    /// Opens redirections; `false` after a complaint.
    async fn redirect(&mut self, redirects: &[Redirect]) -> Result<bool, Leave> {
        for redirect in redirects {
            let target = self.expand_one(&redirect.target).await?;
            let opened = self.open(redirect.kind, &target);
            match opened {
                Ok(descriptor) => self.task.descriptors.insert(redirect.number, descriptor),
                Err(error) => {
                    self.task.complain(&target, error).await;
                    return Ok(false);
                }
            };
        }
        Ok(true)
    }

    fn open(&self, kind: RedirectKind, target: &[u8]) -> io::Result<Descriptor> {
        let (tree, from, path) = (&self.task.machine.tree, &self.task.directory, path_of(target));
        match kind {
            RedirectKind::Duplicate => {
                let number = std::str::from_utf8(target).ok().and_then(|text| text.parse().ok());
                self.task.descriptor(number.ok_or(io::ErrorKind::InvalidInput)?)
            }
            RedirectKind::Read => Ok(Descriptor::file(tree.open(from, path, true)?, false)),
            RedirectKind::Write | RedirectKind::Append => {
                let inode = tree.open_or_make(from, path, 0o666 & !self.task.mask)?;
                if kind == RedirectKind::Write {
                    tree.truncate(&inode);
                }
                Ok(Descriptor::file(inode, kind == RedirectKind::Append))
            }
        }
    }

    /// Runs the traps of signals that came.
    async fn run_traps(&mut self) -> Result<(), Leave> {
        while let Some(signal) = self.task.process.take_pending() {
            if let Some(script) = self.traps.get(&signal).cloned() {
                let kept = self.status;
                if let Ok(items) = parse::parse(&script) {
                    self.items(&items).await?;
                }
                self.status = kept;
            }
        }
        Ok(())
    }

    fn get(&self, name: &[u8]) -> Option<Word> {
        self.variables.get(name).or_else(|| self.task.environment.get(name)).cloned()
    }

    fn set(&mut self, name: &[u8], value: Word) {
        let variables = if self.task.environment.contains_key(name) {
            &mut self.task.environment
        } else {
            &mut self.variables
        };
        variables.insert(name.to_vec(), value);
    }
}
