//! What can be wrong with a device name.

use super::words::{MAX_PATH, OPTIONS, VARIABLE};
use crate::pci::BadAddress;

/// A device name that was not understood: where, why, and what would have been.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}device name {name:?}, character {position}: {problem}", prefix(.variable))]
pub struct NameError {
    /// The whole name.
    pub name: String,
    /// Where the problem starts, in characters from 1.
    pub position: usize,
    /// What the problem is.
    #[source]
    pub problem: Problem,
    /// [`VARIABLE`] if the name came from there.
    pub variable: Option<&'static str>,
}

fn prefix(variable: &Option<&'static str>) -> String {
    variable.map(|variable| format!("{variable}: ")).unwrap_or_default()
}

impl NameError {
    /// The problem at the given byte of the name.
    pub(super) fn new(name: &str, byte: usize, problem: Problem) -> Self {
        let position = name.char_indices().take_while(|(at, _)| *at < byte).count() + 1;
        Self { name: name.to_owned(), position, problem, variable: None }
    }
}

/// What is wrong at one place of a device name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// Neither kind of name.
    #[error(
        "not a device; accepted: embedded[:options] for a card in this process, unix:PATH for a card daemon, pci:ADDRESS for a \
         PCI function"
    )]
    UnknownKind,
    /// `unix:` and nothing.
    #[error("the path of the daemon's socket is missing; write unix:PATH")]
    EmptyPath,
    /// No such path can exist.
    #[error("a path cannot hold a zero byte")]
    NulInPath,
    /// No socket can be bound there.
    #[error("the path has {bytes} bytes, a Unix socket takes at most {MAX_PATH}; choose a shorter one")]
    LongPath {
        /// Length of the path in bytes.
        bytes: usize,
    },
    /// `pci:` and no address.
    #[error(transparent)]
    Address(#[from] BadAddress),
    /// The environment variable holds something else than text.
    #[error("not valid UTF-8; set {VARIABLE} to text")]
    NotUtf8,
    /// Two separators in a row, or one at the end.
    #[error("an option is missing between separators; write word or word=value, separated by ',' or ';' or '+'")]
    MissingOption,
    /// A parenthesis that is not closed.
    #[error("this '(' is not closed; accepted: word=(value), with '\\' before a parenthesis that is meant as it is")]
    Unclosed,
    /// A parenthesis in a plain value or in a word.
    #[error("a parenthesis inside a plain value; put the whole value into parentheses: word=(value)")]
    StrayParenthesis,
    /// Something behind a closed parenthesis.
    #[error("text behind ')'; accepted: the end, or one of ',' ';' '+' and the next option")]
    TextBehindParenthesis,
    /// Nothing behind a backslash.
    #[error("a '\\' at the end; it needs a character that it takes the meaning from, such as '\\\\'")]
    DanglingBackslash,
    /// An option that is none of a card's, behind a port without parentheses.
    #[error(
        "{word:?} is not an option of a card; if it belongs to the port before it, write that in parentheses: \
         port=({port},{word}...)"
    )]
    OfPort {
        /// The option.
        word: String,
        /// The port before it.
        port: String,
    },
    /// An option that is unknown or has a value that does not fit.
    #[error(transparent)]
    Option(#[from] OptionError),
}

/// An option of a card that is unknown, has a value that does not fit, or contradicts another.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// No such word.
    #[error("{word:?} is not an option; accepted: {}", words())]
    Unknown {
        /// What was given.
        word: String,
    },
    /// A word that cannot stand alone.
    #[error("{word} needs a value: {expected}")]
    NoValue {
        /// The option.
        word: &'static str,
        /// What would be accepted.
        expected: String,
    },
    /// A value that does not fit.
    #[error("{word}={value}: accepted is {expected}")]
    BadValue {
        /// The option.
        word: &'static str,
        /// What was given.
        value: String,
        /// What would be accepted.
        expected: String,
    },
    /// Options that do not go together.
    #[error("{0}")]
    Conflict(String),
}

fn words() -> String {
    OPTIONS.iter().map(|option| option.word).collect::<Vec<_>>().join(", ")
}
