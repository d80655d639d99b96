//! PAX extended headers: records of `LENGTH KEY=VALUE\n`.
//!
//! The length rules, so values may hold any byte, newline included: file names do (field case F66),
//! and binary attributes such as file capabilities do.

/// A value that is not what its key promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed;

/// The records that concern one entry. Later records replace earlier ones; an empty value removes.
#[derive(Debug, Clone, Default)]
pub(super) struct PaxRecords {
    records: Vec<(Vec<u8>, Vec<u8>)>,
    /// Pairs of GNU's sparse format 0.0, the one place where a repeated key is a list.
    pub(super) sparse_pairs: Vec<(u64, u64)>,
    sparse_offset: Option<u64>,
}

impl PaxRecords {
    /// Adds the records of one header; `None` when it is malformed.
    pub(super) fn add(&mut self, mut body: &[u8]) -> Option<()> {
        while !body.is_empty() {
            let space = body.iter().take(20).position(|byte| *byte == b' ')?;
            let length = usize::try_from(decimal(&body[..space])?).ok()?;
            let record = body.get(space + 1..length)?.strip_suffix(b"\n")?;
            let equals = record.iter().position(|byte| *byte == b'=')?;
            self.set(&record[..equals], &record[equals + 1..])?;
            body = &body[length..];
        }
        Some(())
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        match key {
            b"" => return None,
            b"GNU.sparse.offset" => self.sparse_offset = Some(decimal(value)?),
            b"GNU.sparse.numbytes" => {
                self.sparse_pairs.push((self.sparse_offset.take()?, decimal(value)?));
            }
            _ => {
                self.records.retain(|(known, _)| known != key);
                if !value.is_empty() || key.starts_with(ATTRIBUTE) {
                    self.records.push((key.to_vec(), value.to_vec()));
                }
            }
        }
        Some(())
    }

    /// The value of a key.
    pub(super) fn get(&self, key: &str) -> Option<&[u8]> {
        self.records.iter().find(|(known, _)| known == key.as_bytes()).map(|(_, value)| value.as_slice())
    }

    /// A key's value as a number, if the key is there; an error when it is no number.
    pub(super) fn number(&self, key: &str) -> Result<Option<u64>, Malformed> {
        self.get(key).map(|value| decimal(value).ok_or(Malformed)).transpose()
    }

    /// The extended attributes.
    pub(super) fn attributes(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.records.iter().filter_map(|(key, value)| Some((key.strip_prefix(ATTRIBUTE)?, value.as_slice())))
    }
}

const ATTRIBUTE: &[u8] = b"SCHILY.xattr.";

/// An unsigned decimal number, digits only.
pub(super) fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |value, digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        value.checked_mul(10)?.checked_add(digit)
    })
}

/// A time as PAX writes it: seconds, perhaps negative, perhaps with a fraction.
/// Gives whole seconds (rounded down) and nanoseconds.
pub(super) fn time(text: &[u8]) -> Option<(i64, u32)> {
    let (negative, text) = match text.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let dot = text.iter().position(|byte| *byte == b'.');
    let (whole, fraction) = match dot {
        Some(dot) => (&text[..dot], &text[dot + 1..]),
        None => (text, &[][..]),
    };
    let seconds = i64::try_from(decimal(whole)?).ok()?;
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let nanoseconds = (0..9)
        .fold(0_u32, |value, index| value * 10 + u32::from(fraction.get(index).map_or(0, |d| d - b'0')));
    Some(match (negative, nanoseconds) {
        (false, _) => (seconds, nanoseconds),
        (true, 0) => (-seconds, 0),
        (true, _) => (-seconds - 1, 1_000_000_000 - nanoseconds),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_rules_so_values_hold_newlines() {
        let mut records = PaxRecords::default();
        records.add(b"13 path=a\nb\n\n28 SCHILY.xattr.user.a=\n=\0\xFF\n").unwrap();
        assert_eq!(records.get("path"), Some(&b"a\nb\n"[..]));
        let attributes: Vec<_> = records.attributes().collect();
        assert_eq!(attributes, [(&b"user.a"[..], &b"\n=\0\xFF"[..])]);
    }

    #[test]
    fn records_replace_and_remove() {
        let mut records = PaxRecords::default();
        records.add(b"12 path=a\nb\n9 uid=10\n").unwrap();
        assert_eq!(records.get("path"), Some(&b"a\nb"[..]));
        assert_eq!(records.number("uid"), Ok(Some(10)));
        records.add(b"8 path=\n8 uid=x\n").unwrap();
        assert_eq!(records.get("path"), None);
        assert_eq!(records.number("uid"), Err(Malformed));
    }

    #[test]
    fn malformed_records_are_refused() {
        for bad in
            [&b"x path=a\n"[..], b"99 path=a\n", b"8 path=a\n", b"3 a\n", b"6 =aa\n", b"0 a=b\n", b"1 \n"]
        {
            assert!(PaxRecords::default().add(bad).is_none(), "{}", bad.escape_ascii());
        }
    }

    #[test]
    fn times_before_1970_round_down() {
        assert_eq!(time(b"12.5"), Some((12, 500_000_000)));
        assert_eq!(time(b"-1.25"), Some((-2, 750_000_000)));
        assert_eq!(time(b"-3"), Some((-3, 0)));
        assert_eq!(time(b"1.1234567891"), Some((1, 123_456_789)));
        for bad in [&b""[..], b".", b"1.x", b"--1", b"99999999999999999999"] {
            assert_eq!(time(bad), None);
        }
    }
}
