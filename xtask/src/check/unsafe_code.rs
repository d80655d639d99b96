//! Unsafe code stands in files that say so at their top, and every use has its argument beside it.
//!
//! The compiler denies `unsafe` where it isn't allowed, and clippy asks for the argument at each
//! block. What they don't ask for is that the permission stands at the top of the same file, where a
//! reviewer sees it, and that it goes when the last use goes.

use super::Finding;
use super::source_text::{Line, lines};
use crate::workspace::SourceFile;

/// How many lines above a use its argument may end.
const REACH: usize = 10;

/// Uses without permission or argument, and permissions without use.
pub(super) fn findings(sources: &[SourceFile]) -> Vec<Finding> {
    sources.iter().flat_map(file_findings).collect()
}

fn file_findings(source: &SourceFile) -> Vec<Finding> {
    let lines = lines(&source.text);
    let file = source.path.display();
    let mut findings = Vec::new();
    let allowed = allowed_at_the_top(&lines);
    let uses: Vec<usize> =
        (0..lines.len()).filter(|&index| word_follows(&lines[index].code).is_some()).collect();
    match (uses.first(), allowed) {
        (Some(&first), false) => findings.push(Finding {
            place: format!("{file}:{}", first + 1),
            problem: "unsafe code in a file that does not say so".to_owned(),
            fix: "move it to a small module of its own that starts with `#![allow(unsafe_code)]`",
        }),
        (None, true) => findings.push(Finding {
            place: file.to_string(),
            problem: "allows unsafe code and has none".to_owned(),
            fix: "remove `#![allow(unsafe_code)]`",
        }),
        _ => {}
    }
    for (index, line) in lines.iter().enumerate() {
        if squeezed(&line.code).contains("#[allow(unsafe_code") {
            findings.push(Finding {
                place: format!("{file}:{}", index + 1),
                problem: "allows unsafe code for one item".to_owned(),
                fix: "allow it at the top of the file that has it",
            });
        }
    }
    for index in uses {
        let declares = word_follows(&lines[index].code)
            .is_some_and(|rest| rest.starts_with("fn") || rest.starts_with("extern"));
        let argued = lines[index.saturating_sub(REACH)..=index]
            .iter()
            .any(|line| line.comment.contains("SAFETY:") || line.comment.contains("# Safety"));
        if !declares && !argued {
            findings.push(Finding {
                place: format!("{file}:{}", index + 1),
                problem: "unsafe without an argument".to_owned(),
                fix: "say in a `// SAFETY:` comment above it why it is sound",
            });
        }
    }
    findings
}

/// What follows the word `unsafe` in a line of code, if the word is there.
fn word_follows(code: &str) -> Option<&str> {
    let in_a_name = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices("unsafe").find_map(|(start, word)| {
        let (before, after) = (&code[..start], &code[start + word.len()..]);
        let whole = !before.ends_with(in_a_name) && !after.starts_with(in_a_name) && !before.ends_with("r#");
        whole.then(|| after.trim_start())
    })
}

/// Whether one of the file's own attributes, which stand before all items, allows unsafe code.
fn allowed_at_the_top(lines: &[Line]) -> bool {
    let code = squeezed(&lines.iter().map(|line| line.code.as_str()).collect::<String>());
    let mut rest = code.as_str();
    while let Some(attribute) = rest.strip_prefix("#![") {
        let Some(end) = attribute.find(']') else { return false };
        if attribute[..end].starts_with("allow(") && attribute[..end].contains("unsafe_code") {
            return true;
        }
        rest = &attribute[end + 1..];
    }
    false
}

fn squeezed(code: &str) -> String {
    code.chars().filter(|c| !c.is_whitespace()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        let source = SourceFile { path: "a.rs".into(), text: text.to_owned() };
        file_findings(&source).into_iter().map(|finding| finding.place + ": " + &finding.problem).collect()
    }

    const TOP: &str = "//! Doc.\n#![allow(unsafe_code, reason = \"x\")]\n";

    #[test]
    fn permission_and_argument_are_both_needed() {
        assert!(problems(&format!("{TOP}fn f() {{\n // SAFETY: x\n unsafe {{ g() }}\n}}\n")).is_empty());
        assert_eq!(
            problems("fn f() {\n // SAFETY: x\n unsafe { g() }\n}\n"),
            ["a.rs:3: unsafe code in a file that does not say so"]
        );
        assert_eq!(
            problems(&format!("{TOP}fn f() {{\n unsafe {{ g() }}\n}}\n")),
            ["a.rs:4: unsafe without an argument"]
        );
        let far = "\n".repeat(REACH);
        assert_eq!(problems(&format!("{TOP}// SAFETY: x\n{far}unsafe impl Send for T {{}}\n")).len(), 1);
    }

    #[test]
    fn permission_goes_with_the_last_use() {
        assert_eq!(problems(TOP), ["a.rs: allows unsafe code and has none"]);
    }

    #[test]
    fn permission_for_an_item_is_not_at_the_top() {
        let text = "#[allow(unsafe_code)]\nfn f() {\n // SAFETY: x\n unsafe { g() }\n}\n";
        assert_eq!(problems(text).len(), 2);
        let late = "mod a {\n#![allow(unsafe_code)]\n// SAFETY: x\nunsafe impl Send for T {}\n}\n";
        assert_eq!(problems(late).len(), 1);
    }

    #[test]
    fn the_word_alone_is_no_use() {
        assert!(problems("// unsafe {\nlet a = \"unsafe {\"; let unsafe_code = 1;\n").is_empty());
        assert!(
            problems(&format!("{TOP}// SAFETY: x\ntype F = unsafe fn();\nunsafe extern \"C\" {{}}\n"))
                .is_empty()
        );
    }
}
