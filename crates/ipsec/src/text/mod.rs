//! Associations and policies in the words of `ip xfrm`: what `ip xfrm state` and `ip xfrm policy` print, and what is typed to add
//! them, also in files for `ip -batch`.
//!
//! An entry is a line that begins at its left edge, and the lines behind it that do not, or that a backslash continues. Lines that
//! begin with `#` are comments.
//!
//! ```
//! use millrace_ipsec::{database::Database, text};
//!
//! let entries = text::parse(
//!     "src 192.0.2.1 dst 192.0.2.2
//!          proto esp spi 0x1000 reqid 1 mode tunnel
//!          replay-window 64 flag af-unspec
//!          aead rfc4106(gcm(aes)) 0x000102030405060708090a0b0c0d0e0f10111213 128
//!      ip xfrm policy add dir out src 10.1.0.0/16 dst 10.2.0.0/16 \
//!          tmpl src 192.0.2.1 dst 192.0.2.2 proto esp reqid 1 mode tunnel
//!     ".replace("\n     ", "\n").as_str(),
//!     |_| None,
//! )?;
//! let mut database = Database::new();
//! for change in entries {
//!     database.apply(change, 1_700_000_000)?;
//! }
//! assert_eq!((database.associations().count(), database.policies().len()), (1, 1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod policy;
mod print;
mod printed;
mod state;
#[cfg(test)]
mod tests;
mod words;

pub use print::{policy as print_policy, state as print_state};

use crate::algorithm::Unsupported;
use crate::database::Change;
use words::Words;

/// What is wrong in a text, and in which line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct Error {
    /// Counted from 1.
    pub line: usize,
    /// What.
    pub what: Wrong,
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    /// No such word here.
    #[error("{0:?} is not understood here")]
    Word(String),
    /// Nothing follows.
    #[error("something has to follow {0:?}")]
    Missing(String),
    /// It is none of what may be there.
    #[error("{word:?} is no {what}")]
    Value {
        /// What is there.
        word: String,
        /// What should be.
        what: &'static str,
    },
    /// Something that every entry has.
    #[error("there is no {0}")]
    Needed(&'static str),
    /// Keys that `ip` does not show.
    #[error("the keys are hidden; ask `ip xfrm state` without `nokeys`, as root")]
    Hidden,
    /// It cannot be used here.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
}

/// Reads a text: changes that make a database of it, in the order of the entries. `interface` finds the number of an interface
/// by its name.
///
/// # Errors
/// The first [`Error`].
pub fn parse(text: &str, interface: impl Fn(&str) -> Option<u32>) -> Result<Vec<Change>, Error> {
    entries(text).map(|entry| entry_of(&entry, &interface)).collect()
}

/// Numbered lines of one entry.
type Entry<'a> = Vec<(usize, &'a str)>;

fn entries(text: &str) -> impl Iterator<Item = Entry<'_>> {
    let mut all: Vec<Entry<'_>> = Vec::new();
    let mut is_continued = false;
    for (at, line) in text.lines().enumerate() {
        let is_inside = is_continued || line.starts_with([' ', '\t']);
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        is_continued = line.ends_with('\\');
        let line = (at + 1, line.trim_end_matches('\\'));
        match all.last_mut().filter(|_| is_inside) {
            Some(entry) => entry.push(line),
            None => all.push(vec![line]),
        }
    }
    all.into_iter()
}

fn entry_of(entry: &Entry<'_>, interface: &impl Fn(&str) -> Option<u32>) -> Result<Change, Error> {
    let mut words = Words::new(entry);
    words.skip("ip");
    words.skip("xfrm");
    let is_state = words.skip("state");
    let is_policy = !is_state && words.skip("policy");
    let _ = words.skip("add") || words.skip("update");
    // What is printed does not say which it is; only policies have a direction before their templates.
    let is_policy = is_policy || !is_state && words.rest().take_while(|word| *word != "tmpl").any(|word| word == "dir");
    if is_policy {
        return policy::parse(entry, &mut words, interface).map(|policy| Change::Policy(Box::new(policy)));
    }
    state::parse(entry, &mut words, interface).map(|parameters| Change::Associate(Box::new(parameters)))
}
