//! Names in git's notation, so that any bytes fit on one line of text.

use std::fmt::Write as _;

/// The name as it is when it is harmless, else in double quotes with C escapes and octal bytes, as
/// git prints it with its default `core.quotePath`.
pub(super) fn quoted(name: &[u8]) -> String {
    let harmless = |byte: u8| (0x20..0x7f).contains(&byte) && byte != b'"' && byte != b'\\';
    if name.iter().copied().all(harmless) {
        return name.iter().copied().map(char::from).collect();
    }
    let mut text = String::with_capacity(name.len() + 8);
    text.push('"');
    for &byte in name {
        match byte {
            b'\x07' => text.push_str("\\a"),
            b'\x08' => text.push_str("\\b"),
            b'\t' => text.push_str("\\t"),
            b'\n' => text.push_str("\\n"),
            b'\x0b' => text.push_str("\\v"),
            b'\x0c' => text.push_str("\\f"),
            b'\r' => text.push_str("\\r"),
            b'"' => text.push_str("\\\""),
            b'\\' => text.push_str("\\\\"),
            0x20..0x7f => text.push(char::from(byte)),
            _ => {
                let _ = write!(text, "\\{byte:03o}");
            }
        }
    }
    text.push('"');
    text
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn odd_bytes_are_escaped_as_git_does() {
        assert_eq!(quoted(b"a b/-c%2F"), "a b/-c%2F");
        assert_eq!(quoted(b"a\"\\\n\x01\xff"), "\"a\\\"\\\\\\n\\001\\377\"");
    }
}
