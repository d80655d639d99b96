//! Programs that ask or change the machine.

use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use leasehold_model::{EndedBy, SignalNumber};

use super::text::say;
use crate::memory::machine::descriptor::Descriptor;
use crate::memory::machine::task::{Task, Word, path_of};
use crate::memory::machine::tree::{Inode, Kind};

type Done = io::Result<u8>;

fn invalid() -> io::Error {
    io::ErrorKind::InvalidInput.into()
}

fn text(word: &[u8]) -> io::Result<&str> {
    std::str::from_utf8(word).map_err(|_| invalid())
}

/// A signal by name or number.
pub(in crate::memory::machine) fn signal_number(word: &[u8]) -> io::Result<SignalNumber> {
    let word = text(word)?;
    if let Ok(number) = word.parse() {
        return Ok(SignalNumber(number));
    }
    let full = if word.starts_with("SIG") { word.to_owned() } else { format!("SIG{word}") };
    (1..=31).map(SignalNumber).find(|signal| signal.name() == Some(&full)).ok_or_else(invalid)
}

/// Splits leading flags from the operands.
fn flags(words: &[Word]) -> (Vec<u8>, &[Word]) {
    let count = words.iter().take_while(|word| word.len() > 1 && word[0] == b'-' && *word != b"--").count();
    let flags = words[..count].iter().flat_map(|word| word[1..].iter().copied()).collect();
    let rest = &words[count..];
    (flags, rest.strip_prefix(&[b"--".to_vec()]).unwrap_or(rest))
}

fn open(task: &Task, name: &[u8]) -> io::Result<std::sync::Arc<Inode>> {
    task.machine.tree.open(&task.directory, path_of(name), true)
}

pub(super) fn test(task: &Task, words: &[Word], bracket: bool) -> Done {
    let words = match words.split_last() {
        Some((last, rest)) if bracket && last == b"]" => rest,
        _ if bracket => return Ok(2),
        _ => words,
    };
    let (words, negated) = match words.split_first() {
        Some((first, rest)) if first == b"!" => (rest, true),
        _ => (words, false),
    };
    let kind = |name: &[u8], wanted: fn(&Kind) -> bool| {
        open(task, name).is_ok_and(|inode| wanted(&inode.lock().kind))
    };
    let holds = match words {
        [] => false,
        [word] => !word.is_empty(),
        [flag, name] => match flag.as_slice() {
            b"-e" => open(task, name).is_ok(),
            b"-f" => kind(name, |kind| matches!(kind, Kind::File(_))),
            b"-d" => kind(name, |kind| matches!(kind, Kind::Directory(_))),
            b"-s" => kind(name, |kind| matches!(kind, Kind::File(bytes) if !bytes.is_empty())),
            b"-x" => open(task, name).is_ok_and(|inode| inode.lock().mode & 0o111 != 0),
            b"-t" => {
                task.descriptor(text(name)?.parse().map_err(|_| invalid())?).is_ok_and(|it| it.is_terminal())
            }
            b"-n" => !name.is_empty(),
            b"-z" => name.is_empty(),
            _ => return Ok(2),
        },
        [left, operator, right] => match operator.as_slice() {
            b"=" => left == right,
            b"!=" => left != right,
            compare => {
                let value = |word| text(word)?.trim().parse::<i64>().map_err(|_| invalid());
                let order = value(left)?.cmp(&value(right)?);
                match compare {
                    b"-eq" => order.is_eq(),
                    b"-ne" => order.is_ne(),
                    b"-lt" => order.is_lt(),
                    b"-le" => order.is_le(),
                    b"-gt" => order.is_gt(),
                    b"-ge" => order.is_ge(),
                    _ => return Ok(2),
                }
            }
        },
        _ => return Ok(2),
    };
    Ok(u8::from(holds == negated))
}

pub(super) fn chmod(task: &Task, words: &[Word]) -> Done {
    let (mode, names) = words.split_first().ok_or_else(invalid)?;
    let mode = u32::from_str_radix(text(mode)?, 8).map_err(|_| invalid())?;
    for name in names {
        open(task, name)?.lock().mode = mode;
    }
    Ok(0)
}

pub(super) async fn date(task: &Task, words: &[Word]) -> Done {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    match words {
        [format] if format == b"+%s" => say(task, format!("{}\n", now.as_secs())).await,
        _ => Err(invalid()),
    }
}

/// Runs the rest of the line in this process, as wrappers such as `env` and `nohup` do.
async fn become_program(task: &mut Task, words: &[Word]) -> Done {
    let name = words.first().ok_or_else(invalid)?;
    match task.find(name) {
        Ok(file) => Ok(task.clone().run(file, words.to_vec()).await),
        Err(error) => {
            let status = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
            task.complain(name, error).await;
            Ok(status)
        }
    }
}

pub(super) async fn env(task: &mut Task, words: &[Word]) -> Done {
    let count = words.iter().take_while(|word| word.contains(&b'=')).count();
    for word in &words[..count] {
        let at = word.iter().position(|byte| *byte == b'=').ok_or_else(invalid)?;
        task.environment.insert(word[..at].to_vec(), word[at + 1..].to_vec());
    }
    if count < words.len() {
        return become_program(task, &words[count..]).await;
    }
    let lines = task.environment.iter().map(|(name, value)| [name, &b"="[..], value, b"\n"].concat());
    let lines = lines.collect::<Vec<_>>().concat();
    say(task, lines).await
}

pub(super) async fn id(task: &Task) -> Done {
    say(task, "0\n").await
}

pub(super) fn kill(task: &Task, words: &[Word]) -> Done {
    let (signal, targets) = match words {
        [flag, name, targets @ ..] if flag == b"-s" => (signal_number(name)?, targets),
        [flag, targets @ ..] if flag.starts_with(b"-") => (signal_number(&flag[1..])?, targets),
        targets => (SignalNumber::TERMINATE, targets),
    };
    let own = task.process.id;
    let mut status = 0;
    for target in targets {
        let target: i64 = text(target)?.parse().map_err(|_| invalid())?;
        let found = task.machine.processes.pick(|process| match target {
            -1 => process.id != own,
            1.. => i64::from(process.id) == target,
            _ => i64::from(process.group.load(Ordering::Relaxed)) == -target,
        });
        if found.is_empty() && target != -1 {
            status = 1;
        }
        for process in found {
            process.signal(signal, EndedBy::Other);
        }
    }
    Ok(status)
}

pub(super) fn ln(task: &Task, words: &[Word]) -> Done {
    match flags(words) {
        (flags, [target, path]) if flags == b"s" => {
            task.machine.tree.make_symlink(&task.directory, path_of(path), path_of(target))?;
            Ok(0)
        }
        _ => Err(invalid()),
    }
}

pub(super) async fn ls(task: &Task, words: &[Word]) -> Done {
    let (flags, names) = flags(words);
    let name = names.first().map_or(&b"."[..], Vec::as_slice);
    let list = task.machine.tree.list(&task.directory, path_of(name))?;
    let shown = list
        .iter()
        .map(|(name, _)| name.as_bytes())
        .filter(|name| !name.starts_with(b".") || flags.iter().any(|flag| matches!(flag, b'a' | b'A')));
    let lines = shown.map(|name| [name, b"\n"].concat()).collect::<Vec<_>>().concat();
    say(task, lines).await
}

pub(super) fn mkdir(task: &Task, words: &[Word]) -> Done {
    let (flags, names) = flags(words);
    for name in names {
        let parents = flags.contains(&b'p');
        task.machine.tree.make_directory(&task.directory, path_of(name), 0o777 & !task.mask, parents)?;
    }
    Ok(0)
}

pub(super) fn mv(task: &Task, words: &[Word]) -> Done {
    let (_, names) = flags(words);
    let [from, to] = names else { return Err(invalid()) };
    task.machine.tree.rename(&task.directory, path_of(from), path_of(to))?;
    Ok(0)
}

pub(super) fn rm(task: &Task, words: &[Word]) -> Done {
    let (flags, names) = flags(words);
    for name in names {
        let removed = task.machine.tree.remove(&task.directory, path_of(name), flags.contains(&b'r'));
        match removed {
            Err(error) if error.kind() == io::ErrorKind::NotFound && flags.contains(&b'f') => {}
            other => other?,
        }
    }
    Ok(0)
}

pub(super) fn touch(task: &Task, words: &[Word]) -> Done {
    for name in words {
        let inode = task.machine.tree.open_or_make(&task.directory, path_of(name), 0o666 & !task.mask)?;
        inode.lock().modified = SystemTime::now();
    }
    Ok(0)
}

pub(super) async fn nohup(task: &mut Task, words: &[Word]) -> Done {
    task.process.dispose(SignalNumber::HANGUP.0, Some(crate::memory::machine::process::Disposition::Ignore));
    become_program(task, words).await
}

pub(super) async fn setsid(task: &mut Task, words: &[Word]) -> Done {
    task.process.group.store(task.process.id, Ordering::Relaxed);
    become_program(task, words).await
}

pub(super) async fn pwd(task: &Task) -> Done {
    let line = [task.directory.as_os_str().as_bytes(), b"\n"].concat();
    say(task, line).await
}

pub(super) async fn sleep(words: &[Word]) -> Done {
    let mut total = 0.0;
    for word in words {
        total += text(word)?.parse::<f64>().map_err(|_| invalid())?;
    }
    tokio::time::sleep(Duration::try_from_secs_f64(total).map_err(|_| invalid())?).await;
    Ok(0)
}

/// Only `TCP-LISTEN:port,… EXEC:cat`: a server that sends back what it gets.
pub(super) async fn socat(task: &Task, words: &[Word]) -> Done {
    let [listen, exec] = words else { return Err(invalid()) };
    let port = text(listen)?
        .strip_prefix("TCP-LISTEN:")
        .and_then(|rest| rest.split(',').next())
        .ok_or_else(invalid)?;
    if exec != b"EXEC:cat" {
        return Err(invalid());
    }
    let port = port.parse().map_err(|_| invalid())?;
    let mut listener = task.machine.listen(port).ok_or(io::ErrorKind::AddrInUse)?;
    let mut connections = tokio::task::JoinSet::new();
    while let Some(connection) = listener.recv().await {
        connections.spawn(async move {
            let (mut from, mut to) = tokio::io::split(connection);
            // A connection that breaks ends; the server goes on.
            let _ = tokio::io::copy(&mut from, &mut to).await;
            let _ = tokio::io::AsyncWriteExt::shutdown(&mut to).await;
        });
    }
    Ok(0)
}

pub(super) async fn stty(task: &Task, words: &[Word]) -> Done {
    let Descriptor::Terminal(terminal, _) = task.descriptor(0)? else {
        return Err(io::Error::other("standard input is not a terminal"));
    };
    if words.len() == 1 && words[0] == b"size" {
        let size = terminal.size();
        return say(task, format!("{} {}\n", size.rows, size.columns)).await;
    }
    if words.iter().all(|word| terminal.set_mode(word)) { Ok(0) } else { Err(invalid()) }
}

/// The directory that a path names, for `cd`.
pub(in crate::memory::machine) fn change_directory(task: &mut Task, path: &Path) -> io::Result<()> {
    task.directory = task.machine.tree.directory(&task.directory, path)?;
    Ok(())
}
