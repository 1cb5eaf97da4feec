//! Cutting a line into its parts, each with its place.

use super::ParseError;

/// A part of a line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part<'a> {
    /// The whole line.
    line: &'a str,
    /// Where the part begins, in bytes.
    pub at: usize,
    /// Its text.
    pub text: &'a str,
}

impl<'a> Part<'a> {
    pub fn whole(line: &'a str) -> Self {
        Self { line, at: 0, text: line }
    }

    /// An error at this place.
    pub fn error(self, message: impl Into<String>) -> ParseError {
        ParseError { message: message.into(), text: self.line.to_owned(), at: self.at, line: None }
    }

    /// The part from byte `from` to byte `to` of this one.
    pub fn cut(self, from: usize, to: usize) -> Self {
        Self { at: self.at + from, text: &self.text[from..to], ..self }
    }

    /// What is before and after the first `separator`.
    pub fn split(self, separator: &str) -> Option<(Self, Self)> {
        let at = self.text.find(separator)?;
        Some((self.cut(0, at), self.cut(at + separator.len(), self.text.len())))
    }

    /// The pieces between commas and blanks outside parentheses, from the first on that is not empty.
    ///
    /// # Errors
    /// Parentheses that do not fit.
    pub fn pieces(self) -> Result<Vec<Self>, ParseError> {
        let mut pieces = Vec::new();
        let (mut begin, mut depth) = (0, 0usize);
        for (at, letter) in self.text.char_indices() {
            match letter {
                '(' => depth += 1,
                ')' => {
                    depth = depth
                        .checked_sub(1)
                        .ok_or_else(|| self.cut(at, at).error("nothing is open before this ')'"))?;
                }
                ',' | ' ' | '\t' if depth == 0 => {
                    pieces.push(self.cut(begin, at));
                    begin = at + 1;
                }
                _ => {}
            }
        }
        if depth > 0 {
            return Err(self.cut(self.text.len(), self.text.len()).error("a ')' is missing"));
        }
        pieces.push(self.cut(begin, self.text.len()));
        pieces.retain(|piece| !piece.text.is_empty());
        Ok(pieces)
    }

    /// `name(arguments)` as name and arguments.
    pub fn call(self) -> Option<(Self, Self)> {
        let open = self.text.find('(')?;
        let close = self.text.strip_suffix(')')?.len();
        Some((self.cut(0, open), self.cut(open + 1, close)))
    }

    /// A number of that type.
    ///
    /// # Errors
    /// It is none, or too large.
    pub fn number<N: TryFrom<u64>>(self, what: &str, largest: u64) -> Result<N, ParseError> {
        let number = crate::field::text::number(self.text).filter(|number| *number <= largest);
        let number = number.and_then(|number| N::try_from(number).ok());
        number.ok_or_else(|| self.error(format!("{what} takes a number from 0 to {largest}, not '{}'", self.text)))
    }
}
