//! Programs that make and move bytes.

use std::collections::VecDeque;
use std::io;

use bytes::Bytes;

use crate::memory::machine::descriptor::{Descriptor, PIECE};
use crate::memory::machine::task::{Task, Word, path_of};

type Done = io::Result<u8>;

fn invalid() -> io::Error {
    io::ErrorKind::InvalidInput.into()
}

fn number<T: std::str::FromStr>(word: &[u8]) -> io::Result<T> {
    std::str::from_utf8(word).ok().and_then(|text| text.parse().ok()).ok_or_else(invalid)
}

pub(super) async fn say(task: &Task, text: impl Into<Bytes>) -> Done {
    task.write(1, text).await?;
    Ok(0)
}

/// The inputs named by arguments; standard input when there are none.
fn inputs(task: &Task, names: &[Word]) -> io::Result<Vec<Descriptor>> {
    if names.is_empty() {
        return Ok(vec![task.descriptor(0)?]);
    }
    names
        .iter()
        .map(|name| match name.as_slice() {
            b"-" => task.descriptor(0),
            name => {
                let inode = task.machine.tree.open(&task.directory, path_of(name), true)?;
                Ok(Descriptor::file(inode, false))
            }
        })
        .collect()
}

pub(super) async fn cat(task: &Task, names: &[Word]) -> Done {
    let mut status = 0;
    let operands: Vec<_> = if names.is_empty() { vec![Word::from(b"-")] } else { names.to_vec() };
    for name in operands.iter().filter(|name| *name != b"--") {
        match inputs(task, std::slice::from_ref(name)) {
            Ok(opened) => {
                for input in opened {
                    copy(task, &input, u64::MAX).await?;
                }
            }
            Err(error) => {
                task.complain(b"cat", error).await;
                status = 1;
            }
        }
    }
    Ok(status)
}

async fn copy(task: &Task, input: &Descriptor, mut most: u64) -> io::Result<()> {
    while most > 0 {
        let piece = input.read(usize::try_from(most).unwrap_or(PIECE)).await?;
        if piece.is_empty() {
            break;
        }
        most -= piece.len() as u64;
        task.write(1, piece).await?;
    }
    Ok(())
}

pub(super) async fn echo(task: &Task, words: &[Word]) -> Done {
    let (words, end): (_, &[u8]) = match words.split_first() {
        Some((first, rest)) if first == b"-n" => (rest, b""),
        _ => (words, b"\n"),
    };
    say(task, [words.join(&b' ').as_slice(), end].concat()).await
}

/// Reads one escape after a backslash; answers the byte and how much of `rest` it took.
fn escape(rest: &[u8]) -> (Option<u8>, usize) {
    let digits = |from: usize, most: usize, base: u32| {
        let mut value = 0_u32;
        let mut taken = 0;
        while let Some(digit) =
            rest.get(from + taken).filter(|_| taken < most).and_then(|byte| char::from(*byte).to_digit(base))
        {
            value = value * base + digit;
            taken += 1;
        }
        (u8::try_from(value & 0xff).ok(), from + taken)
    };
    match rest.first() {
        Some(b'n') => (Some(b'\n'), 1),
        Some(b't') => (Some(b'\t'), 1),
        Some(b'r') => (Some(b'\r'), 1),
        Some(b'\\') => (Some(b'\\'), 1),
        Some(b'x') => digits(1, 2, 16),
        Some(b'0'..=b'7') => digits(0, 3, 8),
        _ => (None, 0),
    }
}

fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < text.len() {
        if text[at] == b'\\' {
            let (byte, taken) = escape(&text[at + 1..]);
            out.push(byte.unwrap_or(b'\\'));
            at += 1 + taken;
        } else {
            out.push(text[at]);
            at += 1;
        }
    }
    out
}

pub(super) async fn printf(task: &Task, words: &[Word]) -> Done {
    let (format, mut rest) = words.split_first().ok_or_else(invalid)?;
    let mut out = Vec::new();
    loop {
        let before = rest.len();
        let mut at = 0;
        while at < format.len() {
            match (format[at], format.get(at + 1)) {
                (b'%', Some(b'%')) => {
                    out.push(b'%');
                    at += 2;
                }
                (b'%', Some(b's' | b'd')) => {
                    if let Some((word, later)) = rest.split_first() {
                        out.extend_from_slice(word);
                        rest = later;
                    }
                    at += 2;
                }
                (b'\\', _) => {
                    let (byte, taken) = escape(&format[at + 1..]);
                    out.push(byte.unwrap_or(b'\\'));
                    at += 1 + taken;
                }
                (byte, _) => {
                    out.push(byte);
                    at += 1;
                }
            }
        }
        if rest.is_empty() || rest.len() == before {
            return say(task, out).await;
        }
    }
}

pub(super) async fn seq(task: &Task, words: &[Word]) -> Done {
    let (first, last): (i64, i64) = match words {
        [last] => (1, number(last)?),
        [first, last] => (number(first)?, number(last)?),
        _ => return Err(invalid()),
    };
    let mut out = Vec::new();
    for value in first..=last {
        out.extend_from_slice(value.to_string().as_bytes());
        out.push(b'\n');
        if out.len() >= PIECE {
            task.write(1, std::mem::take(&mut out)).await?;
        }
    }
    say(task, out).await
}

/// The count of `-c N` or `-n N`, whether it is bytes, and the names.
fn count(words: &[Word]) -> io::Result<(u64, bool, &[Word])> {
    match words {
        [flag, value, names @ ..] if flag == b"-c" => Ok((number(value)?, true, names)),
        [flag, value, names @ ..] if flag == b"-n" => Ok((number(value)?, false, names)),
        names => Ok((10, false, names)),
    }
}

pub(super) async fn head(task: &Task, words: &[Word]) -> Done {
    let (mut most, bytes, names) = count(words)?;
    for input in inputs(task, names)? {
        if bytes {
            copy(task, &input, most).await?;
            continue;
        }
        while most > 0 {
            let piece = input.read(PIECE).await?;
            if piece.is_empty() {
                break;
            }
            let mut end = piece.len();
            for (at, _) in piece.iter().enumerate().filter(|(_, byte)| **byte == b'\n') {
                most -= 1;
                if most == 0 {
                    end = at + 1;
                    break;
                }
            }
            task.write(1, piece.slice(..end)).await?;
        }
    }
    Ok(0)
}

/// Simulated memory, given back at the end.
struct Held<'a>(&'a Task, u64);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.machine.give_memory(self.1);
    }
}

pub(super) async fn tail(task: &Task, words: &[Word]) -> Done {
    let (most, bytes, names) = count(words)?;
    for input in inputs(task, names)? {
        let mut held = Held(task, 0);
        let mut kept: VecDeque<Bytes> = VecDeque::new();
        loop {
            let piece = input.read(PIECE).await?;
            if piece.is_empty() {
                break;
            }
            held.1 += piece.len() as u64;
            if !task.machine.take_memory(piece.len() as u64) {
                task.machine.processes.starve(&task.process);
                std::future::pending::<()>().await;
            }
            kept.push_back(piece);
        }
        let all: Vec<u8> = kept.into_iter().flatten().collect();
        let start = if bytes {
            all.len().saturating_sub(usize::try_from(most).unwrap_or(usize::MAX))
        } else {
            let body = all.strip_suffix(b"\n").unwrap_or(&all);
            let breaks = body.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
            let breaks: Vec<usize> = breaks.collect();
            let wanted = usize::try_from(most).unwrap_or(usize::MAX);
            breaks.len().checked_sub(wanted).map_or(0, |at| breaks[at.min(breaks.len() - 1)])
        };
        task.write(1, all[start..].to_vec()).await?;
    }
    Ok(0)
}

pub(super) async fn tee(task: &Task, words: &[Word]) -> Done {
    let mut files = Vec::new();
    for name in words {
        let inode = task.machine.tree.open_or_make(&task.directory, path_of(name), 0o666 & !task.mask)?;
        files.push(Descriptor::file(inode, false));
    }
    let input = task.descriptor(0)?;
    loop {
        let piece = input.read(PIECE).await?;
        if piece.is_empty() {
            return Ok(0);
        }
        for file in &files {
            file.write(&task.machine.tree, piece.clone()).await?;
        }
        task.write(1, piece).await?;
    }
}

/// The bytes of a set of `tr`: escapes and ranges.
fn set(word: &[u8]) -> Vec<u8> {
    let plain = unescape(word);
    match plain.as_slice() {
        [first, b'-', last] if first <= last => (*first..=*last).collect(),
        _ => plain,
    }
}

pub(super) async fn tr(task: &Task, words: &[Word]) -> Done {
    let (from, to) = match words {
        [flag, from] if flag == b"-d" => (set(from), None),
        [from, to] => (set(from), Some(set(to))),
        _ => return Err(invalid()),
    };
    let mut table: Vec<Option<u8>> = (0..=255).map(Some).collect();
    for (at, byte) in from.iter().enumerate() {
        table[usize::from(*byte)] = to.as_ref().and_then(|to| to.get(at).or(to.last()).copied());
    }
    let input = task.descriptor(0)?;
    loop {
        let piece = input.read(PIECE).await?;
        if piece.is_empty() {
            return Ok(0);
        }
        let mapped: Vec<u8> = piece.iter().filter_map(|byte| table[usize::from(*byte)]).collect();
        task.write(1, mapped).await?;
    }
}

pub(super) async fn wc(task: &Task, words: &[Word]) -> Done {
    let lines = match words.split_first() {
        Some((flag, _)) if flag == b"-l" => true,
        Some((flag, _)) if flag == b"-c" => false,
        _ => return Err(invalid()),
    };
    let mut total = 0;
    for input in inputs(task, &words[1..])? {
        loop {
            let piece = input.read(PIECE).await?;
            if piece.is_empty() {
                break;
            }
            total += if lines { piece.split(|byte| *byte == b'\n').count() - 1 } else { piece.len() };
        }
    }
    say(task, format!("{total}\n")).await
}

pub(super) async fn yes(task: &Task, words: &[Word]) -> Done {
    let line = [if words.is_empty() { b"y".to_vec() } else { words.join(&b' ') }, b"\n".to_vec()].concat();
    let block = Bytes::from(line.repeat(PIECE / line.len() + 1));
    loop {
        task.write(1, block.clone()).await?;
        tokio::task::yield_now().await;
    }
}
