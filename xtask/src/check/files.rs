//! Files stay short and have names that say what is in them.

use std::collections::BTreeSet;
use std::path::Path;

use super::Finding;
use super::source_text::lines;
use crate::workspace::SourceFile;

/// The house wants about 500 lines; this is where asking becomes refusing.
const MOST_LINES: usize = 600;

/// Names under which anything can be put, and so everything is.
const EMPTY_NAMES: &[&str] =
    &["common", "helper", "helpers", "manager", "misc", "shared", "stuff", "util", "utilities", "utils"];

/// Files that are too long, and modules whose name says nothing.
pub(super) fn findings(sources: &[SourceFile]) -> Vec<Finding> {
    let modules: BTreeSet<_> = sources.iter().map(|source| source.path.with_extension("")).collect();
    let mut findings = Vec::new();
    let mut report = |place: String, problem: String, fix| findings.push(Finding { place, problem, fix });
    for source in sources {
        let place = source.path.display().to_string();
        let length = source.text.lines().count();
        if length > MOST_LINES {
            report(
                place.clone(),
                format!("{length} lines, {MOST_LINES} allowed"),
                "split it by purpose: one file, one thing to know",
            );
        }
        for name in names(&source.path).filter(|name| EMPTY_NAMES.contains(name)) {
            report(place.clone(), format!("`{name}` says nothing about what is inside"), NAME_THE_PURPOSE);
        }
        for (index, line) in lines(&source.text).iter().enumerate() {
            if let Some(name) = inline_module(&line.code).filter(|name| EMPTY_NAMES.contains(name)) {
                report(
                    format!("{place}:{}", index + 1),
                    format!("module `{name}` says nothing about what is inside"),
                    NAME_THE_PURPOSE,
                );
            }
        }
        if let Some(first) = numbered_copy_of(&source.path, &modules) {
            report(
                place,
                format!("a numbered copy of `{first}`"),
                "name what is different about it, or merge the two",
            );
        }
    }
    findings
}

const NAME_THE_PURPOSE: &str = "name it after the one thing it does";

/// The names along a path: directories, and the file without its extension.
fn names(path: &Path) -> impl Iterator<Item = &str> {
    let directories = path.parent().into_iter().flat_map(Path::iter);
    directories.chain(path.file_stem()).filter_map(|name| name.to_str())
}

/// The name of a module that opens on this line with its body.
fn inline_module(code: &str) -> Option<&str> {
    let (before, after) = code.split_once("mod ")?;
    let visibility = before.trim();
    let (name, _) = after.split_once('{')?;
    (visibility.is_empty() || visibility.starts_with("pub")).then(|| name.trim())
}

/// For `manager2.rs` beside `manager.rs`, the latter's name.
fn numbered_copy_of<'a>(path: &'a Path, modules: &BTreeSet<std::path::PathBuf>) -> Option<&'a str> {
    let name = path.file_stem()?.to_str()?;
    let first = name.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches('_');
    (first != name && modules.contains(&path.with_file_name(first))).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> SourceFile {
        SourceFile { path: path.into(), text: text.to_owned() }
    }

    fn problems(sources: &[SourceFile]) -> Vec<String> {
        findings(sources).iter().map(|finding| format!("{}: {}", finding.place, finding.problem)).collect()
    }

    #[test]
    fn long_files_are_named_with_their_length() {
        assert!(problems(&[source("a.rs", &"\n".repeat(600))]).is_empty());
        assert_eq!(problems(&[source("a.rs", &"\n".repeat(601))]), ["a.rs: 601 lines, 600 allowed"]);
    }

    #[test]
    fn names_that_say_nothing_are_refused_wherever_they_stand() {
        assert_eq!(problems(&[source("crates/x/src/utils.rs", "")]).len(), 1);
        assert_eq!(problems(&[source("crates/x/tests/common/mod.rs", "")]).len(), 1);
        assert_eq!(
            problems(&[source("a.rs", "fn f() {}\npub(crate) mod helpers {\n}\n")]),
            ["a.rs:2: module `helpers` says nothing about what is inside"]
        );
        assert!(problems(&[source("a.rs", "// mod helpers {\nmod helpers_wanted {}\n")]).is_empty());
        assert!(problems(&[source("crates/utilization.rs", "")]).is_empty());
    }

    #[test]
    fn numbered_copies_are_refused_and_versions_are_not() {
        let copies = [source("a/manage.rs", ""), source("a/manage2.rs", "")];
        assert_eq!(problems(&copies), ["a/manage2.rs: a numbered copy of `manage`"]);
        assert!(problems(&[source("a/v1.rs", ""), source("a/v2.rs", ""), source("b/v.rs", "")]).is_empty());
    }
}
