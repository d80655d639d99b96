//! Sizes, spans and shares as users write them: `512M`, `90s`, `1.5`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// A position in a byte stream, counted from its first byte.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ByteOffset(pub u64);

impl ByteOffset {
    /// The position `count` bytes further on.
    #[must_use]
    pub fn advance(self, count: usize) -> Self {
        Self(self.0 + count as u64)
    }
}

impl fmt::Display for ByteOffset {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// An amount of bytes. Parsed from a number with an optional unit: `K`, `M`, `G`, `T` (also `KiB`,
/// `k`, `kb` and so on), always powers of 1024, as container tools read them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ByteSize(pub u64);

impl FromStr for ByteSize {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = || {
            Error::invalid("size.parse", format!("`{text}` is not a size"))
                .with_hint("write a whole number with an optional unit, for example 512M or 2G")
        };
        let trimmed = text.trim();
        let digits = trimmed.bytes().take_while(u8::is_ascii_digit).count();
        let number: u64 = trimmed[..digits].parse().map_err(|_| bad())?;
        let shift = match trimmed[digits..].trim().to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "kb" | "kib" => 10,
            "m" | "mb" | "mib" => 20,
            "g" | "gb" | "gib" => 30,
            "t" | "tb" | "tib" => 40,
            _ => return Err(bad()),
        };
        number.checked_mul(1 << shift).map(Self).ok_or_else(bad)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
            let one = 1_u64 << shift;
            if self.0 >= one {
                let tenths = (u128::from(self.0) * 10 + u128::from(one) / 2) / u128::from(one);
                return match tenths % 10 {
                    0 => write!(formatter, "{} {unit}", tenths / 10),
                    tenth => write!(formatter, "{}.{tenth} {unit}", tenths / 10),
                };
            }
        }
        write!(formatter, "{} B", self.0)
    }
}

/// A length of time. Parsed from numbers with units that add up: `90s`, `1h30m`, `250ms`; a bare
/// number is seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Span(pub Duration);

impl FromStr for Span {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = || {
            Error::invalid("duration.parse", format!("`{text}` is not a duration"))
                .with_hint("write whole numbers with units: ms, s, m, h, d; for example 90s or 1h30m")
        };
        let mut rest = text.trim();
        if rest.is_empty() {
            return Err(bad());
        }
        let mut total = Duration::ZERO;
        while !rest.is_empty() {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            let number: u64 = rest[..digits].parse().map_err(|_| bad())?;
            rest = &rest[digits..];
            let letters = rest.bytes().take_while(u8::is_ascii_alphabetic).count();
            let seconds_per_unit = match &rest[..letters] {
                "ms" => 0,
                "" | "s" => 1,
                "m" => 60,
                "h" => 3_600,
                "d" => 86_400,
                _ => return Err(bad()),
            };
            let part = if seconds_per_unit == 0 {
                Duration::from_millis(number)
            } else {
                Duration::from_secs(number.checked_mul(seconds_per_unit).ok_or_else(bad)?)
            };
            total = total.checked_add(part).ok_or_else(bad)?;
            rest = &rest[letters..];
        }
        Ok(Self(total))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut seconds = self.0.as_secs();
        let millis = self.0.subsec_millis();
        if seconds == 0 && millis != 0 {
            return write!(formatter, "{millis}ms");
        }
        let mut wrote = false;
        for (size, unit) in [(86_400, "d"), (3_600, "h"), (60, "m")] {
            if seconds >= size {
                write!(formatter, "{}{unit}", seconds / size)?;
                seconds %= size;
                wrote = true;
            }
        }
        match (seconds, millis) {
            (0, 0) if wrote => Ok(()),
            (whole, 0) => write!(formatter, "{whole}s"),
            (0, part) => write!(formatter, "{part}ms"),
            (whole, part) => write!(formatter, "{whole}s{part}ms"),
        }
    }
}

/// A share of processor time, in thousandths of one processor. Parsed from `2`, `0.5`, `1.25`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CpuQuota(pub u32);

impl FromStr for CpuQuota {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = || {
            Error::invalid("cpus.parse", format!("`{text}` is not a number of processors"))
                .with_hint("write a number from 0.01 to 1024, for example 2 or 0.5")
        };
        let (whole, fraction) = text.trim().split_once('.').unwrap_or((text.trim(), ""));
        if fraction.len() > 3 || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(bad());
        }
        let whole: u32 = whole.parse().map_err(|_| bad())?;
        let fraction: u32 = format!("{fraction:0<3}").parse().map_err(|_| bad())?;
        let thousandths =
            whole.checked_mul(1000).and_then(|value| value.checked_add(fraction)).ok_or_else(bad)?;
        if (10..=1_024_000).contains(&thousandths) { Ok(Self(thousandths)) } else { Err(bad()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_are_powers_of_1024() {
        for (text, bytes) in [("0", 0), ("17", 17), ("4k", 4096), ("1 MiB", 1 << 20), ("2G", 2 << 30)] {
            assert_eq!(text.parse::<ByteSize>().unwrap().0, bytes);
        }
        for bad in ["", "-1", "1.5G", "G", "9999999999T", "12X", "１"] {
            assert!(bad.parse::<ByteSize>().is_err(), "{bad}");
        }
        assert_eq!(ByteSize(1536).to_string(), "1.5 KiB");
        assert_eq!(ByteSize(u64::MAX).to_string(), "16777216 TiB");
    }

    #[test]
    fn durations_add_up() {
        for (text, millis) in [("90", 90_000), ("1h30m", 5_400_000), ("250ms", 250), ("1m500ms", 60_500)] {
            assert_eq!(text.parse::<Span>().unwrap().0, Duration::from_millis(millis));
        }
        for bad in ["", "s", "1w", "-5s", "1 h", "99999999999999999999s"] {
            assert!(bad.parse::<Span>().is_err(), "{bad}");
        }
    }

    #[test]
    fn processors_have_three_decimals() {
        assert_eq!("0.5".parse::<CpuQuota>().unwrap().0, 500);
        assert_eq!("2".parse::<CpuQuota>().unwrap().0, 2000);
        for bad in ["0", "0.001", "1.2345", "-1", "2000", "one"] {
            assert!(bad.parse::<CpuQuota>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn a_printed_span_parses_to_itself(millis in 0_u64..10_000_000_000) {
            let span = Span(Duration::from_millis(millis));
            prop_assert_eq!(span.to_string().parse::<Span>().unwrap(), span);
        }

        #[test]
        fn no_text_makes_the_parsers_panic(text in ".{0,24}") {
            let _ = text.parse::<ByteSize>();
            let _ = text.parse::<Span>();
            let _ = text.parse::<CpuQuota>();
        }
    }
}
