//! The programs of the simulated system.

mod system;
mod text;

pub(super) use system::{change_directory, signal_number};

use super::task::{Task, Word};

/// What the file of a simulated program begins with; its name follows.
pub(super) const MAGIC: &[u8] = b"\x7fmemory-program ";

/// Every program, each a file in `/usr/bin`.
pub(super) const NAMES: [&str; 33] = [
    "[", "cat", "chmod", "date", "echo", "env", "false", "head", "id", "kill", "ln", "ls", "mkdir", "mv",
    "nohup", "printf", "pwd", "rm", "seq", "setsid", "sh", "sleep", "socat", "stty", "tail", "tee", "test",
    "touch", "tr", "true", "wc", "yes", "uname",
];

/// The programs that a shell runs in its own process.
pub(super) const BUILT_IN: [&str; 8] = ["[", "echo", "false", "kill", "printf", "pwd", "test", "true"];

/// Runs one program to its end; `words` starts with the name that it was called by.
pub(super) async fn run(task: &mut Task, name: &[u8], words: &[Word]) -> u8 {
    let arguments = &words[1..];
    let done = match name {
        b"[" | b"test" => system::test(task, arguments, name == b"["),
        b"cat" => text::cat(task, arguments).await,
        b"chmod" => system::chmod(task, arguments),
        b"date" => system::date(task, arguments).await,
        b"echo" => text::echo(task, arguments).await,
        b"env" => system::env(task, arguments).await,
        b"false" => Ok(1),
        b"head" => text::head(task, arguments).await,
        b"id" => system::id(task).await,
        b"kill" => system::kill(task, arguments),
        b"ln" => system::ln(task, arguments),
        b"ls" => system::ls(task, arguments).await,
        b"mkdir" => system::mkdir(task, arguments),
        b"mv" => system::mv(task, arguments),
        b"nohup" => system::nohup(task, arguments).await,
        b"printf" => text::printf(task, arguments).await,
        b"pwd" => system::pwd(task).await,
        b"rm" => system::rm(task, arguments),
        b"seq" => text::seq(task, arguments).await,
        b"setsid" => system::setsid(task, arguments).await,
        b"sleep" => system::sleep(arguments).await,
        b"socat" => system::socat(task, arguments).await,
        b"stty" => system::stty(task, arguments).await,
        b"tail" => text::tail(task, arguments).await,
        b"tee" => text::tee(task, arguments).await,
        b"touch" => system::touch(task, arguments),
        b"tr" => text::tr(task, arguments).await,
        b"true" => Ok(0),
        b"uname" => text::say(task, "Memory\n").await,
        b"wc" => text::wc(task, arguments).await,
        b"yes" => text::yes(task, arguments).await,
        _ => Err(std::io::ErrorKind::NotFound.into()),
    };
    match done {
        Ok(status) => status,
        Err(error) => {
            task.complain(name, error).await;
            1
        }
    }
}
