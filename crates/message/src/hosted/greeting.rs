//! How a program and the engine in a card meet: a record each by the card's socket (`docs/spec/message.md` §13).

use crate::endpoint::{Users, is_name, receive_record, send_record};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;

const MAGIC: &[u8; 8] = b"mrhost01";
/// Bytes of a record.
pub const LEN: usize = 160;
const NAME: usize = 24;
const USERS: usize = 88;
/// Users that are let in by number, at most.
const MOST_USERS: usize = (LEN - USERS) / 4;
/// Bytes of the memory of a program, at most.
pub const MOST_MEMORY: u64 = 1 << 30;

/// What is said when two meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Greeting {
    /// A program: its name, who may call it, and how long the file is that comes along.
    Hello {
        /// Its name.
        name: Option<String>,
        /// Who may call.
        users: Users,
        /// Bytes of the file.
        len: u64,
    },
    /// The card: what wakes it comes along.
    Welcome,
    /// The card: no.
    Refused(Errno),
}

impl Greeting {
    /// As bytes. Of users that are let in, those for whom there is room.
    pub fn write(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..8].copy_from_slice(MAGIC);
        match self {
            Self::Hello { name, users, len } => {
                let name = name.as_deref().unwrap_or_default();
                (bytes[8], bytes[10]) = (1, name.len() as u8);
                bytes[16..24].copy_from_slice(&len.to_le_bytes());
                bytes[NAME..NAME + name.len()].copy_from_slice(name.as_bytes());
                match users {
                    Users::Own => {}
                    Users::Anybody => bytes[9] = 1,
                    Users::Also(users) => {
                        let users = &users[..users.len().min(MOST_USERS)];
                        (bytes[9], bytes[11]) = (2, users.len() as u8);
                        for (room, user) in bytes[USERS..].chunks_exact_mut(4).zip(users) {
                            room.copy_from_slice(&user.to_le_bytes());
                        }
                    }
                }
            }
            Self::Welcome => bytes[8] = 2,
            Self::Refused(why) => {
                bytes[8] = 3;
                bytes[12..16].copy_from_slice(&why.raw_os_error().to_le_bytes());
            }
        }
        bytes
    }

    /// What the bytes say. `None`: nothing of this version.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; LEN] = bytes.try_into().ok().filter(|bytes: &&[u8; LEN]| bytes.starts_with(MAGIC))?;
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Some(match bytes[8] {
            1 => {
                let name = bytes[NAME..USERS].get(..bytes[10].into()).and_then(|name| str::from_utf8(name).ok())?;
                if !name.is_empty() && !is_name(name) {
                    return None;
                }
                let users = match (bytes[9], usize::from(bytes[11])) {
                    (0, 0) => Users::Own,
                    (1, 0) => Users::Anybody,
                    (2, count @ 0..=MOST_USERS) => Users::Also((0..count).map(|at| word(USERS + 4 * at)).collect()),
                    _ => return None,
                };
                let len = u64::from(word(16)) | u64::from(word(20)) << 32;
                Self::Hello { name: (!name.is_empty()).then(|| name.to_owned()), users, len }
            }
            2 => Self::Welcome,
            3 => Self::Refused(Errno::from_raw_os_error((word(12) as i32).clamp(1, 4095))),
            _ => return None,
        })
    }
}

/// Sends a greeting, with a descriptor or none, without waiting.
///
/// # Errors
/// Those of `sendmsg`.
pub fn send(socket: impl AsFd, greeting: &Greeting, fd: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
    send_record(socket, &greeting.write(), fd)
}

/// Takes a record, without waiting: how many bytes it has; `None`: there is none. All descriptors that came along are given to `fds`: closing them is
/// the caller's matter.
///
/// # Errors
/// Those of `recvmsg`; `EPIPE`: the other side has hung up.
pub fn receive(socket: impl AsFd, bytes: &mut [u8], fds: &mut Vec<OwnedFd>) -> Result<Option<usize>, Errno> {
    match receive_record(socket, bytes, fds)? {
        Some(0) => Err(Errno::PIPE),
        other => Ok(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greetings_come_as_they_went() {
        let name = |text: &str| Some(text.to_owned());
        let hello = |name, users| Greeting::Hello { name, users, len: 0x1_0203_0405 };
        let all = [
            hello(None, Users::Own),
            hello(name("x"), Users::Anybody),
            hello(name(&"y".repeat(64)), Users::Also((0..MOST_USERS as u32).collect())),
            Greeting::Welcome,
            Greeting::Refused(Errno::ADDRINUSE),
        ];
        for greeting in all {
            assert_eq!(Greeting::read(&greeting.write()), Some(greeting));
        }
        assert_eq!(Greeting::read(&hello(name("no name"), Users::Own).write()), None);
        let mut bytes = hello(None, Users::Also(Vec::new())).write();
        bytes[11] = 19;
        assert_eq!(Greeting::read(&bytes), None);
        assert_eq!(Greeting::read(&bytes[..LEN - 1]), None);
        // docs/spec/message.md §13
        let golden = hello(name("ab"), Users::Also(vec![3])).write();
        assert_eq!(golden[..26], *b"mrhost01\x01\x02\x02\x01\0\0\0\0\x05\x04\x03\x02\x01\0\0\0ab");
        assert_eq!((golden[88], MOST_USERS), (3, 18));
    }
}
