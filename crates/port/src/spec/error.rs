//! What is wrong with a specification, and what would be right.

use super::kinds::KINDS;
use rustix::net::{AddressFamily, SocketType};

/// Why a port specification cannot be understood, and what would be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// A word that is no kind of port.
    #[error("there is no port kind `{0}`; write {kinds}{hint}", kinds = KINDS.join(", "), hint = interface(.0))]
    Kind(String),
    /// An argument where none is possible.
    #[error("`{kind}` takes no argument; write `{kind}` instead of `{kind}:{argument}`")]
    Argument {
        /// Kind of port.
        kind: &'static str,
        /// What follows the colon.
        argument: String,
    },
    /// No argument where one is needed.
    #[error("`{kind}` needs {what}; write for example `{example}`")]
    Missing {
        /// Kind of port.
        kind: &'static str,
        /// What is missing.
        what: &'static str,
        /// A specification with it.
        example: &'static str,
    },
    /// A key that this kind does not have, or no key at all.
    #[error("`{kind}` has no option `{option}`; it has {known} (a comma inside a file name is written `\\,`)")]
    Option {
        /// Kind of port.
        kind: &'static str,
        /// What was written.
        option: String,
        /// The options that it has.
        known: &'static str,
    },
    /// A key that stands there twice.
    #[error("option `{0}` is given twice; keep one")]
    Twice(String),
    /// A value that its key cannot have.
    #[error("`{key}={value}` does not work: `{key}` is {expected}")]
    Value {
        /// The key.
        key: String,
        /// What was written behind it.
        value: String,
        /// What can be written instead.
        expected: &'static str,
    },
    /// A backslash that escapes nothing.
    #[error("a backslash in `{0}` stands before neither a comma nor a backslash; write `\\\\` for a backslash")]
    Escape(String),
    /// A control character.
    #[error("a port specification has no control characters, such as line ends; rename the file")]
    Control,
    /// A name that no interface can have.
    #[error("no interface can be called `{name}`: {why}")]
    Name {
        /// The name.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Wrappers around wrappers without end.
    #[error("there are more than {0} ports around a port; take some away")]
    TooDeep(usize),
}

/// What whoever names an interface of this machine has probably meant.
fn interface(word: &str) -> String {
    let exists = rustix::net::socket(AddressFamily::UNIX, SocketType::DGRAM, None)
        .is_ok_and(|socket| rustix::net::netdevice::name_to_index(socket, word).is_ok());
    let wanted = || format!("; for the interface of that name `af_packet:{word}`, or `af_xdp:{word}`");
    exists.then(wanted).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_not_a_kind_but_one_can_say_what_is_meant() {
        let said = SpecError::Kind("lo".to_owned()).to_string();
        assert!(said.contains("`af_packet:lo`"), "{said}");
        let said = SpecError::Kind("nosuchport".to_owned()).to_string();
        assert!(said.contains("there is no port kind") && !said.contains("interface"), "{said}");
    }
}
