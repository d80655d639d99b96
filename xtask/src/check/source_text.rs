//! Telling code from comments in Rust text, without parsing it.

/// One line, taken apart.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Line {
    /// What the compiler sees, without the insides of strings and character literals.
    pub(super) code: String,
    /// What people see: the insides of comments.
    pub(super) comment: String,
}

#[derive(Clone, Copy)]
enum Inside {
    Code,
    LineComment,
    /// How many block comments deep.
    BlockComment(usize),
    Text,
    /// How many `#` close it.
    RawText(usize),
}

/// Takes the text apart, line by line.
pub(super) fn lines(text: &str) -> Vec<Line> {
    let characters: Vec<char> = text.chars().collect();
    let mut lines = Vec::new();
    let mut line = Line::default();
    let mut inside = Inside::Code;
    let mut position = 0;
    while let Some(&character) = characters.get(position) {
        let next = characters.get(position + 1).copied();
        position += 1;
        if character == '\n' {
            lines.push(std::mem::take(&mut line));
            if matches!(inside, Inside::LineComment) {
                inside = Inside::Code;
            }
            continue;
        }
        match inside {
            Inside::Code => match (character, next) {
                ('/', Some('/')) => {
                    inside = Inside::LineComment;
                    position += 1;
                }
                ('/', Some('*')) => {
                    inside = Inside::BlockComment(1);
                    position += 1;
                }
                ('"', _) => {
                    inside = raw_hashes(&line.code).map_or(Inside::Text, Inside::RawText);
                    line.code.push('"');
                }
                ('\'', _) => {
                    line.code.push('\'');
                    position += character_literal_length(&characters[position..]);
                }
                _ => line.code.push(character),
            },
            Inside::LineComment => line.comment.push(character),
            Inside::BlockComment(depth) => match (character, next) {
                ('/', Some('*')) => {
                    inside = Inside::BlockComment(depth + 1);
                    position += 1;
                }
                ('*', Some('/')) => {
                    inside = if depth == 1 { Inside::Code } else { Inside::BlockComment(depth - 1) };
                    position += 1;
                }
                _ => line.comment.push(character),
            },
            Inside::Text => match character {
                // A line end after a backslash is still the end of a line.
                '\\' if next != Some('\n') => position += 1,
                '"' => {
                    inside = Inside::Code;
                    line.code.push('"');
                }
                _ => {}
            },
            Inside::RawText(hashes) => {
                let closes = character == '"'
                    && characters[position..].iter().take_while(|&&c| c == '#').count() >= hashes;
                if closes {
                    inside = Inside::Code;
                    line.code.push('"');
                    position += hashes;
                }
            }
        }
    }
    if line != Line::default() {
        lines.push(line);
    }
    lines
}

/// How many `#` a raw string opened after this code has; `None` when the string is not raw.
fn raw_hashes(code: &str) -> Option<usize> {
    let before = code.trim_end_matches('#');
    let prefix = before.strip_suffix('r')?;
    let prefix = prefix.strip_suffix(['b', 'c']).unwrap_or(prefix);
    let part_of_a_name = prefix.ends_with(|c: char| c.is_alphanumeric() || c == '_');
    (!part_of_a_name).then_some(code.len() - before.len())
}

/// How many characters after an apostrophe belong to a character literal; none for a lifetime.
fn character_literal_length(rest: &[char]) -> usize {
    match rest {
        ['\\', _, after @ ..] => 3 + after.iter().take_while(|&&c| c != '\'' && c != '\n').count(),
        [_, '\'', ..] => 2,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> Vec<String> {
        lines(text).into_iter().map(|line| line.code.trim().to_owned()).collect()
    }

    #[test]
    fn comments_are_not_code() {
        assert_eq!(code("a // unsafe\nb /* c\n /* d */ e\n*/ f"), ["a", "b", "", "f"]);
        assert_eq!(lines("x; // SAFETY: y")[0].comment, " SAFETY: y");
    }

    #[test]
    fn strings_are_empty() {
        assert_eq!(code(r#"f("unsafe \" // {", b"x") // y"#), [r#"f("", b"")"#]);
        assert_eq!(code("r#\"unsafe \" {\"# + cr\"x\\\" + s"), ["r#\"\" + cr\"\" + s"]);
        assert_eq!(code("\"a \\\n  unsafe\";\nb"), ["\"", "\";", "b"]);
    }

    #[test]
    fn character_literals_are_not_lifetimes() {
        assert_eq!(code(r#"f('"', 'a, '\'', '\u{7f}', b'\\', "x")"#), [r#"f(', 'a, ', ', b', "")"#]);
    }
}
