//! The variables that a command gets: few by default, so that no secret of the host comes along.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use leasehold_model::{Error, Result};

/// Variables of the host that every command gets when they are set.
const PASSED: &[&str] =
    &["PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TERM", "COLORTERM", "NO_COLOR"];
/// An environment file larger than this is a mistake.
const LARGEST_FILE: u64 = 1 << 20;

type Variables = Vec<(OsString, OsString)>;

/// The base: locale, terminal, search path, and where toolchains are. An image brings its own search
/// path and home.
pub(crate) fn base(is_image: bool, variable: impl Fn(&str) -> Option<OsString>) -> Variables {
    let mut variables: Variables = Vec::new();
    let wanted = PASSED.iter().chain(leasehold_local::TOOLCHAIN_VARIABLES);
    for name in wanted {
        let belongs_to_host = matches!(*name, "PATH" | "HOME" | "USER" | "LOGNAME")
            || leasehold_local::TOOLCHAIN_VARIABLES.contains(name);
        if is_image && belongs_to_host {
            continue;
        }
        if let Some(value) = variable(name) {
            variables.push((name.into(), value));
        }
    }
    variables
}

/// The locale variables of the host.
pub(crate) fn locale(all: impl Iterator<Item = (OsString, OsString)>) -> Variables {
    all.filter(|(name, _)| name.as_bytes().starts_with(b"LC_")).collect()
}

fn check_name(name: &OsStr, place: &str) -> Result<()> {
    let is_fine = !name.is_empty() && !name.as_bytes().contains(&b'=') && !name.as_bytes().contains(&0);
    if is_fine {
        return Ok(());
    }
    Err(Error::invalid("environment.parse", format!("{place} names no variable"))
        .with_hint("write NAME=VALUE"))
}

/// One `--env`: a pair, or the name of a variable that is set here.
pub(crate) fn flag(
    text: &OsStr,
    variable: impl Fn(&OsStr) -> Option<OsString>,
) -> Result<(OsString, OsString)> {
    let bytes = text.as_bytes();
    let (name, value) = match bytes.iter().position(|byte| *byte == b'=') {
        Some(position) => {
            (OsStr::from_bytes(&bytes[..position]), Some(OsStr::from_bytes(&bytes[position + 1..])))
        }
        None => (text, None),
    };
    check_name(name, &format!("--env {}", text.display()))?;
    let value = match value {
        Some(value) => value.to_owned(),
        None => variable(name).ok_or_else(|| {
            Error::invalid(
                "environment.parse",
                format!("--env {}: the variable is not set here", name.display()),
            )
            .with_hint("set it, or write --env NAME=VALUE")
        })?,
    };
    Ok((name.to_owned(), value))
}

/// The pairs of an environment file. Empty lines and lines that start with `#` are skipped; a value is
/// everything after the first `=`, byte for byte.
pub(crate) fn file(path: &Path) -> Result<Variables> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(LARGEST_FILE + 1).read_to_end(&mut bytes))
        .map_err(|error| Error::io("environment.read", format!("cannot read {}", path.display()), error))?;
    if bytes.len() as u64 > LARGEST_FILE {
        return Err(Error::invalid("environment.read", format!("{} is over 1 MiB", path.display()))
            .with_hint("an environment file holds lines NAME=VALUE"));
    }
    parse(&bytes, &path.display().to_string())
}

fn parse(bytes: &[u8], place: &str) -> Result<Variables> {
    let mut variables = Vec::new();
    for (number, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let place = format!("line {} of {place}", number + 1);
        let position = line.iter().position(|byte| *byte == b'=').unwrap_or(0);
        let name = OsStr::from_bytes(&line[..position]);
        check_name(name, &place)?;
        variables.push((name.to_owned(), OsString::from_vec(line[position + 1..].to_vec())));
    }
    Ok(variables)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_the_host_do_not_come_along() {
        let variables = base(false, |name| Some(format!("value of {name}").into()));
        assert!(variables.iter().any(|(name, _)| name == "PATH"));
        for secret in ["AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "SSH_AUTH_SOCK"] {
            assert!(variables.iter().all(|(name, _)| name != secret));
        }
    }

    #[test]
    fn an_image_brings_its_own_search_path_and_home() {
        let variables = base(true, |name| Some(name.into()));
        assert!(variables.iter().all(|(name, _)| name != "PATH" && name != "HOME" && name != "CARGO_HOME"));
        assert!(variables.iter().any(|(name, _)| name == "TERM"));
    }

    #[test]
    fn files_hold_pairs_and_comments_and_bad_lines_are_named() {
        let variables = parse(b"# comment\n\nA=1\r\nB=x=y \n", "f").unwrap();
        assert_eq!(variables, [("A".into(), "1".into()), ("B".into(), "x=y ".into())]);
        let error = parse(b"A=1\nnonsense\n", "f").unwrap_err();
        assert_eq!(error.message(), "line 2 of f names no variable");
    }

    #[test]
    fn a_name_alone_passes_the_value_that_is_set_here() {
        let found = flag(OsStr::new("A"), |_| Some("here".into())).unwrap();
        assert_eq!(found, ("A".into(), "here".into()));
        assert!(flag(OsStr::new("A"), |_| None).is_err());
        assert_eq!(flag(OsStr::new("A="), |_| None).unwrap(), ("A".into(), "".into()));
        assert!(flag(OsStr::new("=x"), |_| None).is_err());
    }
}
