//! The built-ins that change the shell itself.

use std::path::Path;

use super::{AT_EXIT, Leave, Shell, Status};
use crate::memory::machine::process::Disposition;
use crate::memory::machine::program::{BUILT_IN, change_directory, signal_number};
use crate::memory::machine::task::{Word, path_of};

fn status_of(word: Option<&Word>, otherwise: u8) -> u8 {
    let number: Option<u64> =
        word.and_then(|word| std::str::from_utf8(word).ok()).and_then(|text| text.parse().ok());
    match word {
        None => otherwise,
        Some(_) => number.map_or(2, |number| u8::try_from(number & 0xff).unwrap_or(2)),
    }
}

/// Runs a built-in; `None` when the name is none.
pub(super) async fn run(shell: &mut Shell, name: &[u8], words: &[Word]) -> Option<Status> {
    let arguments = &words[1..];
    let done = match name {
        b":" => Ok(0),
        b"break" => Err(Leave::Break),
        b"cd" => cd(shell, arguments).await,
        b"command" => command(shell, arguments).await,
        b"continue" => Err(Leave::Continue),
        b"exec" => exec(shell, arguments).await,
        b"exit" => Err(Leave::Exit(status_of(arguments.first(), shell.status))),
        b"export" => Ok(export(shell, arguments)),
        b"read" => read(shell, arguments).await,
        b"trap" => Ok(trap(shell, arguments)),
        b"umask" => umask(shell, arguments).await,
        b"unset" => {
            for name in arguments {
                shell.variables.remove(name);
                shell.task.environment.remove(name);
            }
            Ok(0)
        }
        b"wait" => wait(shell).await,
        _ => return None,
    };
    Some(done)
}

async fn cd(shell: &mut Shell, arguments: &[Word]) -> Status {
    let home = shell.get(b"HOME").unwrap_or_else(|| b"/".to_vec());
    let target = arguments.first().unwrap_or(&home);
    match change_directory(&mut shell.task, Path::new(path_of(target))) {
        Ok(()) => Ok(0),
        Err(error) => {
            shell.task.complain(b"cd", error).await;
            Ok(2)
        }
    }
}

/// `command -v name`.
async fn command(shell: &mut Shell, arguments: &[Word]) -> Status {
    match arguments {
        [flag, name] if flag == b"-v" => match shell.task.find(name) {
            Ok(file) => {
                let line = format!("{}\n", file.display());
                Ok(u8::from(shell.task.write(1, line).await.is_err()))
            }
            Err(_) => Ok(if BUILT_IN.iter().any(|known| known.as_bytes() == name) { 0 } else { 127 }),
        },
        _ => Ok(2),
    }
}

async fn exec(shell: &mut Shell, arguments: &[Word]) -> Status {
    let Some(name) = arguments.first() else { return Ok(0) };
    match shell.task.find(name) {
        Ok(file) => {
            // The new program has no shell variables and no traps; what is ignored stays ignored.
            shell.traps.clear();
            Err(Leave::Exit(Box::pin(shell.task.clone().run(file, arguments.to_vec())).await))
        }
        Err(error) => {
            shell.task.complain(name, error).await;
            Err(Leave::Exit(127))
        }
    }
}

fn export(shell: &mut Shell, arguments: &[Word]) -> u8 {
    for word in arguments {
        let at = word.iter().position(|byte| *byte == b'=').unwrap_or(word.len());
        let (name, value) = word.split_at(at);
        let kept = shell.variables.remove(name);
        let value = value.split_first().map(|(_, value)| value.to_vec()).or(kept);
        shell.task.environment.insert(name.to_vec(), value.unwrap_or_default());
    }
    0
}

/// Reads one line byte by byte, as a shell must: what follows belongs to others.
async fn read(shell: &mut Shell, arguments: &[Word]) -> Status {
    let mut line = Word::new();
    let mut ended = true;
    while let Ok(byte) = shell.task.read(0, 1).await {
        match byte.first() {
            None => break,
            Some(b'\n') => {
                ended = false;
                break;
            }
            Some(byte) => line.push(*byte),
        }
    }
    if let Some(name) = arguments.iter().find(|word| !word.starts_with(b"-")) {
        shell.set(name, line);
    }
    Ok(u8::from(ended))
}

fn trap(shell: &mut Shell, arguments: &[Word]) -> u8 {
    let Some((action, names)) = arguments.split_first() else { return 0 };
    for name in names {
        let signal = match name.as_slice() {
            b"EXIT" | b"0" => AT_EXIT,
            name => match signal_number(name) {
                Ok(signal) => signal.0,
                Err(_) => return 1,
            },
        };
        shell.traps.remove(&signal);
        let disposition = match action.as_slice() {
            b"-" => None,
            b"" => Some(Disposition::Ignore),
            action => {
                shell.traps.insert(signal, action.to_vec());
                Some(Disposition::Trap)
            }
        };
        shell.task.process.dispose(signal, disposition);
    }
    0
}

async fn umask(shell: &mut Shell, arguments: &[Word]) -> Status {
    let Some(mask) = arguments.first() else {
        let line = format!("{:04o}\n", shell.task.mask);
        return Ok(u8::from(shell.task.write(1, line).await.is_err()));
    };
    match std::str::from_utf8(mask).ok().and_then(|text| u32::from_str_radix(text, 8).ok()) {
        Some(mask) => {
            shell.task.mask = mask & 0o777;
            Ok(0)
        }
        None => Ok(2),
    }
}

/// Waits for every background job, unless a trapped signal comes.
async fn wait(shell: &mut Shell) -> Status {
    while let Some(process) = shell.background.first().cloned() {
        tokio::select! {
            _ = process.ended() => {
                shell.background.remove(0);
            }
            () = shell.task.process.trapped() => return Ok(129),
        }
    }
    Ok(0)
}
