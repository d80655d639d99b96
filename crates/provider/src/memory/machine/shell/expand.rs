//! From words as written to words as passed.

use std::sync::Arc;

use super::parse::{self, Piece};
use super::{Leave, Shell};
use crate::memory::machine::descriptor::{Descriptor, PIECE};
use crate::memory::machine::pipe::pipe;
use crate::memory::machine::task::Word;

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n')
}

impl Shell {
    /// Expands words, splitting what came unquoted from parameters and substitutions.
    pub(super) async fn expand(&mut self, words: &[parse::Word]) -> Result<Vec<Word>, Leave> {
        let mut expanded = Vec::new();
        for word in words {
            let mut current: Option<Word> = None;
            for piece in word {
                if *piece == (Piece::Parameter { name: b"@".to_vec(), fallback: None, quoted: true }) {
                    let arguments = self.positional.get(1..).unwrap_or_default().to_vec();
                    for (number, argument) in arguments.into_iter().enumerate() {
                        if number > 0 {
                            expanded.extend(current.take());
                        }
                        current.get_or_insert_default().extend(argument);
                    }
                    continue;
                }
                let (text, splits) = self.piece(piece).await?;
                if !splits {
                    current.get_or_insert_default().extend(text);
                    continue;
                }
                let mut fields = text.split(|byte| is_blank(*byte));
                if let Some(first) = fields.next().filter(|first| !first.is_empty()) {
                    current.get_or_insert_default().extend_from_slice(first);
                }
                for field in fields {
                    expanded.extend(current.take());
                    if !field.is_empty() {
                        current = Some(field.to_vec());
                    }
                }
            }
            expanded.extend(current);
        }
        Ok(expanded)
    }

    /// Expands one word without splitting it.
    pub(super) async fn expand_one(&mut self, word: &parse::Word) -> Result<Word, Leave> {
        let mut text = Word::new();
        for piece in word {
            text.extend(self.piece(piece).await?.0);
        }
        Ok(text)
    }

    /// The text of a piece, and whether it is to be split.
    async fn piece(&mut self, piece: &Piece) -> Result<(Word, bool), Leave> {
        match piece {
            Piece::Literal(text) => Ok((text.clone(), false)),
            Piece::Parameter { name, fallback, quoted } => {
                let value = self.parameter(name).or_else(|| fallback.clone());
                Ok((value.unwrap_or_default(), !quoted))
            }
            Piece::Substitution { script, quoted } => Ok((self.substitute(script.clone()).await?, !quoted)),
        }
    }

    fn parameter(&self, name: &[u8]) -> Option<Word> {
        let number = |number: usize| Some(number.to_string().into_bytes());
        match name {
            b"?" => number(usize::from(self.status)),
            b"$" => number(self.number),
            b"!" => self.background.last().and_then(|process| number(process.id as usize)),
            b"#" => number(self.positional.len().saturating_sub(1)),
            b"@" | b"*" => Some(self.positional.get(1..).unwrap_or_default().join(&b' ')),
            [b'0'..=b'9', ..] => {
                let index: usize = std::str::from_utf8(name).ok()?.parse().ok()?;
                self.positional.get(index).cloned()
            }
            name => self.get(name),
        }
    }

    async fn substitute(&mut self, script: Vec<parse::Item>) -> Result<Word, Leave> {
        let (reader, writer) = pipe();
        let process = self.start(script, |descriptors| {
            descriptors.insert(1, Descriptor::Output(writer));
        })?;
        let mut text = Word::new();
        loop {
            let piece = Arc::clone(&reader).read(PIECE).await;
            if piece.is_empty() {
                break;
            }
            text.extend_from_slice(&piece);
        }
        self.status = process.ended().await.status();
        let end = text.iter().rposition(|byte| *byte != b'\n').map_or(0, |last| last + 1);
        text.truncate(end);
        Ok(text)
    }
}
