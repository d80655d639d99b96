//! Identifiers. Each is its own type, so that one can't be passed for another.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The rule shared by all names: they become file names, host names and labels unchanged.
fn check_name(what: &'static str, text: &str, longest: usize) -> Result<()> {
    let starts_well = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    let rest_is_fine =
        text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
    if starts_well && rest_is_fine && text.len() <= longest {
        return Ok(());
    }
    Err(Error::invalid("name.parse", format!("`{text}` is not a valid {what}")).with_hint(format!(
        "use 1 to {longest} letters, digits, `-`, `_` or `.`, starting with a letter or digit"
    )))
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident, $what:literal, $longest:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            #[doc = concat!("Checks and wraps the text of a ", $what, ".")]
            pub fn new(text: impl Into<String>) -> Result<Self> {
                let text = text.into();
                check_name($what, &text, $longest)?;
                Ok(Self(text))
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = Error;
            fn from_str(text: &str) -> Result<Self> {
                Self::new(text)
            }
        }

        impl TryFrom<String> for $name {
            type Error = Error;
            fn try_from(text: String) -> Result<Self> {
                Self::new(text)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0
            }
        }
    };
}

name_type!(
    /// What the provider calls one sandbox. Once observed, a not-found for it is proof of absence.
    SandboxId, "sandbox id", 128
);
name_type!(
    /// The name of one try to create a sandbox, chosen by us before the provider is called.
    AttemptName, "sandbox name", 63
);
name_type!(
    /// One command in one sandbox.
    ExecutionId, "execution id", 128
);
name_type!(
    /// A frozen layer that sandboxes can be made from.
    TemplateId, "template id", 128
);

/// One label: a key and a value that the provider keeps with the sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label {
    /// The key: a name of at most 63 bytes.
    pub key: String,
    /// The value: any text without control characters, at most 255 bytes.
    pub value: String,
}

impl FromStr for Label {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let Some((key, value)) = text.split_once('=') else {
            return Err(Error::invalid("label.parse", format!("`{text}` is not a label"))
                .with_hint("write it as key=value"));
        };
        check_name("label key", key, 63)?;
        if value.len() > 255 || value.chars().any(char::is_control) {
            return Err(Error::invalid(
                "label.parse",
                format!("the value of label `{key}` is over 255 bytes or holds control characters"),
            ));
        }
        Ok(Self { key: key.to_owned(), value: value.to_owned() })
    }
}

/// The labels of a sandbox, sorted by key.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Labels(pub BTreeMap<String, String>);

impl Labels {
    /// Whether every label of `wanted` is present here with the same value.
    pub fn contains_all(&self, wanted: &Labels) -> bool {
        wanted.0.iter().all(|(key, value)| self.0.get(key) == Some(value))
    }
}

impl FromIterator<Label> for Labels {
    fn from_iter<I: IntoIterator<Item = Label>>(labels: I) -> Self {
        Self(labels.into_iter().map(|label| (label.key, label.value)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_leave_a_directory_are_refused() {
        for bad in ["", "..", ".hidden", "a/b", "-rf", "a\0b", "a b", &"x".repeat(129)] {
            assert!(SandboxId::new(bad).is_err(), "{bad:?}");
        }
        assert_eq!(SandboxId::new("a-1_b.c").unwrap().as_str(), "a-1_b.c");
    }

    #[test]
    fn a_bad_name_is_refused_in_a_record_too() {
        assert!(serde_json::from_str::<SandboxId>("\"../x\"").is_err());
    }

    #[test]
    fn labels_match_by_subset() {
        let all: Labels = ["a=1", "b=2"].iter().map(|text| text.parse::<Label>().unwrap()).collect();
        let some: Labels = ["a=1"].iter().map(|text| text.parse::<Label>().unwrap()).collect();
        assert!(all.contains_all(&some) && !some.contains_all(&all));
        assert!("novalue".parse::<Label>().is_err());
    }
}
