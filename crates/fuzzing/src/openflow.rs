//! Any bytes as a stream of OpenFlow messages, and as messages of every type: what is read is written and read again.

use millrace_agent::wire::message::kind;
use millrace_agent::wire::{HEADER, Header, Message, VERSION, first};
use std::hint::black_box;

/// The first byte is a type; the rest is the body of a message of that type, and a stream. How many messages were read.
pub fn openflow(input: &[u8]) -> u64 {
    let Some((kind, body)) = input.split_first() else { return 0 };
    let mut message = vec![VERSION, kind % (kind::METER_MOD + 2), 0, 0, 0, 0, 0, 1];
    message.extend_from_slice(body);
    let len = u16::try_from(message.len()).unwrap_or(u16::MAX);
    message.truncate(len.into());
    message[2..4].copy_from_slice(&len.to_be_bytes());
    let mut read = one(&message);
    let mut rest = body;
    while let Ok(Some((_, message))) = first(rest) {
        read += one(message);
        rest = &rest[message.len()..];
    }
    read
}

fn one(bytes: &[u8]) -> u64 {
    let Ok(Some((header, whole))) = first(bytes) else { return 0 };
    let message = match Message::decode(&header, whole) {
        Ok(message) => message,
        Err(refusal) => {
            black_box(refusal.to_string());
            return 0;
        }
    };
    let mut again = Vec::new();
    // What was shorter than its padding may be longer than a message can be; nothing else is.
    if !message.encode(header.xid, &mut again) {
        return 1;
    }
    let header = Header { version: VERSION, len: again.len() as u16, ..header };
    assert!(again.len() >= HEADER);
    assert_eq!(Message::decode(&header, &again), Ok(message));
    1
}

#[cfg(test)]
mod tests {
    use crate::short_run;

    #[test]
    fn short_openflow() {
        assert!(short_run(super::openflow, 20_000) > 0);
    }
}
