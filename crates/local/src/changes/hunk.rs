//! The hunks of a unified diff between two texts of any encoding.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use similar::{Algorithm, ChangeTag, DiffOp};

/// After this time the search for the shortest difference settles for a longer one.
const SEARCH_TIME: Duration = Duration::from_secs(5);
/// More lines than this on one side are shown as "differ": the search needs memory for each.
const MOST_LINES: usize = 500_000;

/// Whether hunks can be made of it: no NUL where git looks for one, and not too many lines.
pub(super) fn is_text(content: &[u8]) -> bool {
    const LOOKED_AT: usize = 8000;
    !content[..content.len().min(LOOKED_AT)].contains(&0) && lines(content).count() <= MOST_LINES
}

/// Lines with their ends. Only a line feed ends one, as for git.
fn lines(content: &[u8]) -> impl Iterator<Item = &[u8]> {
    content.split_inclusive(|byte| *byte == b'\n')
}

/// Writes the hunks that make `new` of `old`.
pub(super) fn write_hunks(
    old: &[u8],
    new: &[u8],
    context_lines: usize,
    writer: &mut dyn Write,
) -> io::Result<()> {
    let old: Vec<_> = lines(old).collect();
    let new: Vec<_> = lines(new).collect();
    let deadline = Instant::now() + SEARCH_TIME;
    let steps = similar::capture_diff_slices_deadline(Algorithm::Myers, &old, &new, Some(deadline));
    for hunk in similar::group_diff_ops(steps, context_lines) {
        let (Some(first), Some(last)) = (hunk.first(), hunk.last()) else { continue };
        let old_range = (first.old_range().start, last.old_range().end);
        let new_range = (first.new_range().start, last.new_range().end);
        writeln!(writer, "@@ -{} +{} @@", range(old_range), range(new_range))?;
        for step in &hunk {
            write_step(step, &old, &new, writer)?;
        }
    }
    Ok(())
}

fn write_step(step: &DiffOp, old: &[&[u8]], new: &[&[u8]], writer: &mut dyn Write) -> io::Result<()> {
    for change in step.iter_changes(old, new) {
        let line: &[u8] = change.value();
        writer.write_all(match change.tag() {
            ChangeTag::Equal => b" ",
            ChangeTag::Delete => b"-",
            ChangeTag::Insert => b"+",
        })?;
        writer.write_all(line)?;
        if !line.ends_with(b"\n") {
            writer.write_all(b"\n\\ No newline at end of file\n")?;
        }
    }
    Ok(())
}

/// `start,count` counted from one; an empty range is named by the line before it.
fn range((start, end): (usize, usize)) -> String {
    match end - start {
        0 => format!("{start},0"),
        1 => format!("{}", start + 1),
        count => format!("{},{count}", start + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_line_feeds_end_lines_and_a_missing_one_is_said() {
        let mut text = Vec::new();
        write_hunks(b"a\rb\nc", b"a\rb\nd", 3, &mut text).unwrap();
        let expected =
            "@@ -1,2 +1,2 @@\n a\rb\n-c\n\\ No newline at end of file\n+d\n\\ No newline at end of file\n";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
    }

    #[test]
    fn a_new_text_starts_from_nothing() {
        let mut text = Vec::new();
        write_hunks(b"", b"one\n", 3, &mut text).unwrap();
        assert_eq!(text, b"@@ -0,0 +1 @@\n+one\n");
    }

    #[test]
    fn a_nul_makes_it_binary() {
        assert!(is_text(b"text\xff\n"));
        assert!(!is_text(b"bin\0ary"));
        assert!(!is_text(&vec![b'\n'; MOST_LINES + 1]));
    }
}
