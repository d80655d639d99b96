//! From the text of a script to commands: the part of the POSIX grammar that the simulation knows.

use crate::memory::machine::task::Word as Bytes;

/// A piece of a word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    /// Text as it is; quoted or not makes no difference any more.
    Literal(Bytes),
    /// `$name`, or `${name-fallback}`.
    Parameter { name: Bytes, fallback: Option<Bytes>, quoted: bool },
    /// `$(…)`.
    Substitution { script: Vec<Item>, quoted: bool },
}

/// A word before expansion. Empty quotes leave an empty literal.
pub(super) type Word = Vec<Piece>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Redirect {
    pub(super) number: u32,
    pub(super) kind: RedirectKind,
    pub(super) target: Word,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RedirectKind {
    Read,
    Write,
    Append,
    Duplicate,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Body {
    Simple { assignments: Vec<(Bytes, Word)>, words: Vec<Word> },
    Subshell(Vec<Item>),
    Group(Vec<Item>),
    While { condition: Vec<Item>, body: Vec<Item>, until: bool },
    For { name: Bytes, words: Vec<Word>, body: Vec<Item> },
    If { arms: Vec<(Vec<Item>, Vec<Item>)>, otherwise: Vec<Item> },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Command {
    pub(super) body: Body,
    pub(super) redirects: Vec<Redirect>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pipeline {
    pub(super) negated: bool,
    pub(super) commands: Vec<Command>,
}

/// What joins a pipeline to the one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Join {
    And,
    Or,
}

/// Pipelines joined by `&&` and `||`, run before going on or in the background.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) first: Pipeline,
    pub(super) rest: Vec<(Join, Pipeline)>,
    pub(super) background: bool,
}

/// Where and why a script can't be understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SyntaxError {
    pub(super) position: usize,
    pub(super) message: &'static str,
}

type Parsed<T> = Result<T, SyntaxError>;

pub(super) fn parse(script: &[u8]) -> Parsed<Vec<Item>> {
    let mut parser = Parser { text: script, at: 0, depth: 0 };
    let items = parser.items(&[])?;
    match parser.peek() {
        None => Ok(items),
        Some(_) => Err(parser.error("unexpected token")),
    }
}

/// Deeper than any script needs; a bound on recursion.
const DEEPEST: u32 = 100;

const RESERVED: [&[u8]; 11] =
    [b"do", b"done", b"then", b"else", b"elif", b"fi", b"}", b"while", b"until", b"for", b"if"];

struct Parser<'a> {
    text: &'a [u8],
    at: usize,
    depth: u32,
}

fn ends_word(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b';' | b'&' | b'|' | b'(' | b')' | b'<' | b'>')
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

impl Parser<'_> {
    fn error(&self, message: &'static str) -> SyntaxError {
        SyntaxError { position: self.at, message }
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn rest(&self) -> &[u8] {
        &self.text[self.at.min(self.text.len())..]
    }

    fn take(&mut self, text: &[u8]) -> bool {
        let found = self.rest().starts_with(text);
        if found {
            self.at += text.len();
        }
        found
    }

    /// Skips blanks, and comments where a word could start.
    fn blanks(&mut self) {
        loop {
            match self.peek() {
                Some(b' ' | b'\t') => self.at += 1,
                Some(b'\\') if self.rest().starts_with(b"\\\n") => self.at += 2,
                Some(b'#') => self.at += self.rest().iter().take_while(|byte| **byte != b'\n').count(),
                _ => return,
            }
        }
    }

    fn newlines(&mut self) {
        self.blanks();
        while self.peek() == Some(b'\n') {
            self.at += 1;
            self.blanks();
        }
    }

    /// The unquoted word ahead, if one stands there, without taking it.
    fn ahead(&self) -> &[u8] {
        let rest = self.rest();
        let length = rest.iter().take_while(|byte| !ends_word(**byte)).count();
        &rest[..length]
    }

    fn take_word(&mut self, word: &[u8]) -> bool {
        let found = self.ahead() == word;
        if found {
            self.at += word.len();
        }
        found
    }

    fn expect(&mut self, word: &'static [u8], message: &'static str) -> Parsed<()> {
        self.newlines();
        if self.take_word(word) { Ok(()) } else { Err(self.error(message)) }
    }

    fn items(&mut self, ends: &[&[u8]]) -> Parsed<Vec<Item>> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(self.error("nested too deeply"));
        }
        let mut items = Vec::new();
        loop {
            self.newlines();
            let ahead = self.ahead();
            if matches!(self.peek(), None | Some(b')')) || ends.contains(&ahead) {
                self.depth -= 1;
                return Ok(items);
            }
            let first = self.pipeline()?;
            let mut rest = Vec::new();
            loop {
                self.blanks();
                let join = if self.take(b"&&") {
                    Join::And
                } else if self.take(b"||") {
                    Join::Or
                } else {
                    break;
                };
                self.newlines();
                rest.push((join, self.pipeline()?));
            }
            let background = self.take(b"&");
            if !background && !matches!(self.peek(), None | Some(b'\n' | b')')) && !self.take(b";") {
                return Err(self.error("expected the end of a command"));
            }
            items.push(Item { first, rest, background });
        }
    }

    fn pipeline(&mut self) -> Parsed<Pipeline> {
        self.blanks();
        let negated = self.take_word(b"!");
        let mut commands = vec![self.command()?];
        loop {
            self.blanks();
            if self.rest().starts_with(b"||") || !self.take(b"|") {
                return Ok(Pipeline { negated, commands });
            }
            self.newlines();
            commands.push(self.command()?);
        }
    }

    fn command(&mut self) -> Parsed<Command> {
        self.blanks();
        let mut redirects = Vec::new();
        let body = if self.take(b"(") {
            let items = self.items(&[])?;
            if !self.take(b")") {
                return Err(self.error("expected `)`"));
            }
            Body::Subshell(items)
        } else if self.take_word(b"{") {
            let items = self.items(&[b"}"])?;
            self.expect(b"}", "expected `}`")?;
            Body::Group(items)
        } else if self.take_word(b"while") {
            self.looped(false)?
        } else if self.take_word(b"until") {
            self.looped(true)?
        } else if self.take_word(b"for") {
            self.for_each()?
        } else if self.take_word(b"if") {
            self.conditional()?
        } else if RESERVED.contains(&self.ahead()) {
            return Err(self.error("unexpected reserved word"));
        } else {
            return self.simple();
        };
        loop {
            self.blanks();
            match self.redirect()? {
                Some(redirect) => redirects.push(redirect),
                None => return Ok(Command { body, redirects }),
            }
        }
    }

    fn looped(&mut self, until: bool) -> Parsed<Body> {
        let condition = self.items(&[b"do"])?;
        self.expect(b"do", "expected `do`")?;
        let body = self.items(&[b"done"])?;
        self.expect(b"done", "expected `done`")?;
        Ok(Body::While { condition, body, until })
    }

    fn for_each(&mut self) -> Parsed<Body> {
        self.blanks();
        let name = self.ahead().to_vec();
        self.at += name.len();
        self.blanks();
        if !self.take_word(b"in") {
            return Err(self.error("expected `in`"));
        }
        let mut words = Vec::new();
        self.blanks();
        while let Some(word) = self.word()? {
            words.push(word);
            self.blanks();
        }
        if !self.take(b";") && !self.take(b"\n") {
            return Err(self.error("expected `;`"));
        }
        self.expect(b"do", "expected `do`")?;
        let body = self.items(&[b"done"])?;
        self.expect(b"done", "expected `done`")?;
        Ok(Body::For { name, words, body })
    }

    fn conditional(&mut self) -> Parsed<Body> {
        let mut arms = Vec::new();
        loop {
            let condition = self.items(&[b"then"])?;
            self.expect(b"then", "expected `then`")?;
            arms.push((condition, self.items(&[b"elif", b"else", b"fi"])?));
            if !self.take_word(b"elif") {
                break;
            }
        }
        let otherwise = if self.take_word(b"else") { self.items(&[b"fi"])? } else { Vec::new() };
        self.expect(b"fi", "expected `fi`")?;
        Ok(Body::If { arms, otherwise })
    }

    fn simple(&mut self) -> Parsed<Command> {
        let (mut assignments, mut words, mut redirects) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            self.blanks();
            if let Some(redirect) = self.redirect()? {
                redirects.push(redirect);
                continue;
            }
            if words.is_empty()
                && let Some(name) = self.assignment()
            {
                assignments.push((name, self.word()?.unwrap_or_default()));
                continue;
            }
            match self.word()? {
                Some(word) => words.push(word),
                None if words.is_empty() && assignments.is_empty() && redirects.is_empty() => {
                    return Err(self.error("expected a command"));
                }
                None => return Ok(Command { body: Body::Simple { assignments, words }, redirects }),
            }
        }
    }

    /// Takes `name=`, if that stands here.
    fn assignment(&mut self) -> Option<Bytes> {
        let rest = self.rest();
        let length = rest.iter().take_while(|byte| is_name(**byte)).count();
        if length == 0 || rest[0].is_ascii_digit() || rest.get(length) != Some(&b'=') {
            return None;
        }
        let name = rest[..length].to_vec();
        self.at += length + 1;
        Some(name)
    }

    fn redirect(&mut self) -> Parsed<Option<Redirect>> {
        let digits = self.rest().iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (number, operator) = self.rest().split_at(digits);
        let (kind, length) = match operator {
            [b'>', b'>', ..] => (RedirectKind::Append, 2),
            [b'>' | b'<', b'&', ..] => (RedirectKind::Duplicate, 2),
            [b'>', ..] => (RedirectKind::Write, 1),
            [b'<', ..] => (RedirectKind::Read, 1),
            _ => return Ok(None),
        };
        let standard = u32::from(operator[0] == b'>');
        let number = match std::str::from_utf8(number) {
            Ok("") => standard,
            Ok(digits) => digits.parse().map_err(|_| self.error("bad descriptor"))?,
            Err(_) => return Err(self.error("bad descriptor")),
        };
        self.at += digits + length;
        self.blanks();
        match self.word()? {
            Some(target) => Ok(Some(Redirect { number, kind, target })),
            None => Err(self.error("expected a target")),
        }
    }

    /// The word that stands here, or `None` at an operator or the end.
    fn word(&mut self) -> Parsed<Option<Word>> {
        let mut pieces = Word::new();
        let start = self.at;
        while let Some(byte) = self.peek().filter(|byte| !ends_word(*byte)) {
            self.at += 1;
            match byte {
                b'\'' => {
                    let length = self.rest().iter().position(|byte| *byte == b'\'');
                    let length = length.ok_or_else(|| self.error("unclosed quote"))?;
                    literal(&mut pieces, &self.rest()[..length]);
                    self.at += length + 1;
                }
                b'"' => self.double_quoted(&mut pieces)?,
                b'\\' => {
                    if let Some(next) = self.peek() {
                        self.at += 1;
                        if next != b'\n' {
                            literal(&mut pieces, &[next]);
                        }
                    }
                }
                b'$' => self.dollar(&mut pieces, false)?,
                other => literal(&mut pieces, &[other]),
            }
        }
        Ok((self.at > start).then_some(pieces))
    }

    fn double_quoted(&mut self, pieces: &mut Word) -> Parsed<()> {
        literal(pieces, b"");
        loop {
            let byte = self.peek().ok_or_else(|| self.error("unclosed quote"))?;
            self.at += 1;
            match byte {
                b'"' => return Ok(()),
                b'\\' => match self.peek() {
                    Some(next @ (b'"' | b'\\' | b'$' | b'`')) => {
                        self.at += 1;
                        literal(pieces, &[next]);
                    }
                    Some(b'\n') => self.at += 1,
                    _ => literal(pieces, b"\\"),
                },
                b'$' => self.dollar(pieces, true)?,
                other => literal(pieces, &[other]),
            }
        }
    }

    fn dollar(&mut self, pieces: &mut Word, quoted: bool) -> Parsed<()> {
        if self.take(b"(") {
            let script = self.items(&[])?;
            if !self.take(b")") {
                return Err(self.error("expected `)`"));
            }
            pieces.push(Piece::Substitution { script, quoted });
            return Ok(());
        }
        if self.take(b"{") {
            let length = self.rest().iter().take_while(|byte| **byte != b'}').count();
            let inner = self.rest()[..length].to_vec();
            self.at += length + 1;
            let name = inner.iter().take_while(|byte| is_name(**byte)).count();
            let fallback = match inner[name..].split_first() {
                None => None,
                Some((b'-', fallback)) => Some(fallback.to_vec()),
                Some(_) => return Err(self.error("unknown expansion")),
            };
            pieces.push(Piece::Parameter { name: inner[..name].to_vec(), fallback, quoted });
            return Ok(());
        }
        let length = match self.peek() {
            Some(b'?' | b'$' | b'!' | b'#' | b'@' | b'*' | b'0'..=b'9') => 1,
            _ => self.rest().iter().take_while(|byte| is_name(**byte)).count(),
        };
        if length == 0 {
            literal(pieces, b"$");
            return Ok(());
        }
        let name = self.rest()[..length].to_vec();
        self.at += length;
        pieces.push(Piece::Parameter { name, fallback: None, quoted });
        Ok(())
    }
}

fn literal(pieces: &mut Word, bytes: &[u8]) {
    match pieces.last_mut() {
        Some(Piece::Literal(text)) => text.extend_from_slice(bytes),
        _ => pieces.push(Piece::Literal(bytes.to_vec())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_pipelines_and_redirects_are_told_apart() {
        let items = parse(b"a 'b c' | d > f 2>&1 && ! e || g & h; (i) # note").unwrap();
        assert_eq!(items.len(), 3);
        assert!(items[0].background && !items[1].background);
        assert_eq!(items[0].first.commands.len(), 2);
        assert_eq!(items[0].first.commands[1].redirects.len(), 2);
        assert_eq!(items[0].rest.iter().map(|(join, _)| *join).collect::<Vec<_>>(), [Join::And, Join::Or]);
        assert!(items[0].rest[0].1.negated);
        assert!(matches!(items[2].first.commands[0].body, Body::Subshell(_)));
    }

    #[test]
    fn what_it_does_not_know_is_an_error() {
        for bad in
            ["a )", "while true; done", "'open", "\"open", "for x; do :; done", "a && ", "| b", "${x:=1}"]
        {
            assert!(parse(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(parse("(".repeat(5000).as_bytes()).is_err());
    }
}
