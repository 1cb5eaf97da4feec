//! Who has a name: a question to all ends of a wire, and answers to who has asked (`docs/spec/message.md` §11). Anybody may ask, and anybody may
//! answer: it only says whom to call.
//!
//! | Byte | Question | Answer |
//! |---|---|---|
//! | 0 to 3 | `MRQ1` | `MRA1` |
//! | 4 | bytes of the name | which of its rails that is |
//! | 5 | bytes of the host's name; 0: any | bytes of the host's name |
//! | 6, 7 | 0 | how many rails it has; 0 |
//! | 8 to 15 | of the call, a random number | the same |
//! | 16 to 19 | user; all ones: any | user |
//! | 20 to 27 | the name from here on, then that of the host | which opening of the endpoint, a random number |
//! | 28 on | | the host's name |
//!
//! Numbers are little endian.

use super::record::{LONGEST, MOST_PATHS, is_name};

/// Who is looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub host: Option<String>,
    pub user: Option<u32>,
    pub name: String,
}

/// A question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    pub call: u64,
    pub target: Target,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub call: u64,
    pub id: u64,
    pub user: u32,
    pub rail: u8,
    pub rails: u8,
    pub host: String,
}

const ANY: u32 = u32::MAX;

fn text(bytes: &[u8]) -> Option<String> {
    str::from_utf8(bytes).ok().filter(|text| is_name(text)).map(str::to_owned)
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

impl Question {
    pub fn write(&self) -> Vec<u8> {
        let Target { host, user, name } = &self.target;
        let host = host.as_deref().unwrap_or_default();
        let mut bytes = b"MRQ1".to_vec();
        bytes.extend([name.len() as u8, host.len() as u8, 0, 0]);
        bytes.extend(self.call.to_le_bytes());
        bytes.extend(user.unwrap_or(ANY).to_le_bytes());
        bytes.extend([name.as_bytes(), host.as_bytes()].concat());
        bytes
    }

    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (&[name, host, 0, 0], _) = bytes.strip_prefix(b"MRQ1")?.split_first_chunk()? else { return None };
        let (call, user) = (long(bytes, 8)?, word(bytes, 16)?);
        let (name, rest) = bytes.get(20..)?.split_at_checked(name.into())?;
        if rest.len() != usize::from(host) {
            return None;
        }
        let host = if rest.is_empty() { None } else { Some(text(rest)?) };
        let user = Some(user).filter(|user| *user != ANY);
        Some(Self { call, target: Target { host, user, name: text(name)? } })
    }
}

impl Answer {
    pub fn write(&self) -> Vec<u8> {
        let mut bytes = b"MRA1".to_vec();
        bytes.extend([self.rail, self.host.len() as u8, self.rails, 0]);
        bytes.extend(self.call.to_le_bytes());
        bytes.extend(self.user.to_le_bytes());
        bytes.extend(self.id.to_le_bytes());
        bytes.extend(self.host.as_bytes());
        bytes
    }

    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (&[rail, len, rails, 0], _) = bytes.strip_prefix(b"MRA1")?.split_first_chunk()? else { return None };
        let (call, user, id) = (long(bytes, 8)?, word(bytes, 16)?, long(bytes, 20)?);
        let host = bytes.get(28..)?;
        let is_possible = host.len() == usize::from(len) && rail < rails && usize::from(rails) <= MOST_PATHS;
        is_possible.then_some(())?;
        Some(Self { call, id, user, rail, rails, host: text(host)? })
    }
}

/// What this host is called, where nothing else is said: as in its prompt, with what no name has left out.
pub fn host_name() -> String {
    let found = rustix::system::uname();
    let is_letter = |letter: &char| letter.is_ascii_alphanumeric() || "._-".contains(*letter);
    let name: String = found.nodename().to_string_lossy().chars().filter(is_letter).take(LONGEST).collect();
    if name.is_empty() { "host".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bytes_are_those_of_the_specification() {
        let target = Target { host: Some("b.c".into()), user: Some(1000), name: "solver".into() };
        let question = Question { call: 0x0807_0605_0403_0201, target };
        let bytes = b"MRQ1\x06\x03\0\0\x01\x02\x03\x04\x05\x06\x07\x08\xe8\x03\0\0solverb.c";
        assert_eq!((question.write().as_slice(), Question::read(bytes)), (&bytes[..], Some(question)));
        let answer =
            Answer { call: 0x0807_0605_0403_0201, id: 0x18, user: 1000, rail: 1, rails: 2, host: "b.c".into() };
        let bytes = b"MRA1\x01\x03\x02\0\x01\x02\x03\x04\x05\x06\x07\x08\xe8\x03\0\0\x18\0\0\0\0\0\0\0b.c";
        assert_eq!((answer.write().as_slice(), Answer::read(bytes)), (&bytes[..], Some(answer)));
        assert!(is_name(&host_name()));
        // The longest is not too long to be told.
        let long = "x".repeat(LONGEST);
        let target = Target { host: Some(long.clone()), user: None, name: long };
        let question = Question { call: 1, target };
        assert!(question.write().len() <= 200 && Question::read(&question.write()) == Some(question));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn bytes_say_one_thing_or_nothing(which: bool, mut bytes in prop::collection::vec(prop_oneof![any::<u8>(), 0u8..5, Just(b'a')], 4..80)) {
            bytes[..4].copy_from_slice(if which { b"MRQ1" } else { b"MRA1" });
            if let Some(question) = Question::read(&bytes) {
                prop_assert_eq!(question.write(), bytes.clone());
            }
            if let Some(answer) = Answer::read(&bytes) {
                prop_assert_eq!(answer.write(), bytes);
            }
        }
    }
}
