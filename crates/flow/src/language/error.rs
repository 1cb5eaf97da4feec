//! What is wrong with a text, and where.

use std::fmt;

/// What is wrong with a rule, and where. Prints the line with a mark under the place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// What is wrong and what would be right.
    pub message: String,
    /// The line that was parsed.
    pub text: String,
    /// Where in the line, in bytes.
    pub at: usize,
    /// Which line of a file, from 1 on.
    pub line: Option<usize>,
}

impl std::error::Error for ParseError {}

/// How much of a line is shown before and after the place, in characters.
const AROUND: usize = 60;

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        let (before, after) = self.text.split_at_checked(self.at).unwrap_or((&self.text, ""));
        let skip = before.chars().count().saturating_sub(AROUND);
        let before: String = before.chars().skip(skip).collect();
        let after: String = after.chars().take(AROUND).collect();
        writeln!(f, "{}", self.message)?;
        writeln!(f, "    {before}{after}")?;
        write!(f, "    {}^", " ".repeat(before.chars().count()))
    }
}

/// The word of `words` that is most like `given`, if any is close.
pub(super) fn closest<'a>(given: &str, words: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // Longer words are no slips, and comparing takes time.
    if given.len() > 24 {
        return None;
    }
    words
        .map(|word| (distance(given, word), word))
        .filter(|(far, word)| *far <= 2 && *far < word.len())
        .min()
        .map(|(_, word)| word)
}

/// How many letters have to be changed, added or left out (Levenshtein).
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (line, letter) in one.chars().enumerate() {
        let mut corner = row[0];
        row[0] = line + 1;
        for (at, also) in other.iter().enumerate() {
            let changed = corner + usize::from(letter != *also);
            corner = row[at + 1];
            row[at + 1] = changed.min(row[at] + 1).min(corner + 1);
        }
    }
    row[other.len()]
}
