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

impl ParseError {
    /// The column of the place, in characters from 1 on.
    pub fn column(&self) -> usize {
        1 + self.text.get(..self.at).unwrap_or(&self.text).chars().count()
    }
}

/// How much of a line is shown before and after the place, in characters.
const AROUND: usize = 60;

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}, column {}: ", self.column())?;
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

/// How many letters have to be changed, added, left out or exchanged with their neighbour (Levenshtein, Damerau).
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=other.len()).collect()];
    for at in 0..one.len() {
        let mut row = vec![at + 1];
        for to in 0..other.len() {
            let above = &rows[at];
            let changed = above[to] + usize::from(one[at] != other[to]);
            let mut least = changed.min(above[to + 1] + 1).min(row[to] + 1);
            if at > 0 && to > 0 && one[at] == other[to - 1] && one[at - 1] == other[to] {
                least = least.min(rows[at - 1][to - 1] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}
