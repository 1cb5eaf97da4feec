//! What a program is told, as words of a message: completions and events.
//!
//! | Word of a completion | |
//! |---|---|
//! | 0 | what the request is called |
//! | 1 | status (8 bits), what ended (8), what comes with it (8), solicited (8), length (32) |
//! | 2 | the queue pair (32 bits); immediate data or the key that was invalidated (32) |
//! | 3, of a datagram that came | its sender's queue pair (32 bits), service level (8) |
//!
//! An event is one word: its kind (8 bits), and from bit 32 on the number of the object.

use crate::number::{Key, Qpn};
use crate::transport::Event;
use crate::work::{Completion, Ended, Extra, Status};
use millrace_ring::lines::Malformed;

/// Most words of a completion.
pub(super) const MOST_TOLD: usize = 4;

/// The words of a completion, and how many they are.
#[inline]
pub(super) fn write(completion: &Completion) -> ([u64; MOST_TOLD], usize) {
    let (kind, extra) = match completion.extra {
        Extra::None => (0, 0),
        Extra::Immediate(data) => (1, u32::from_le_bytes(data)),
        Extra::Invalidated(key) => (2, key.value()),
    };
    let bits = u64::from(completion.status as u8)
        | u64::from(completion.ended as u8) << 8
        | kind << 16
        | u64::from(completion.solicited) << 24
        | u64::from(completion.len) << 32;
    let pair = u64::from(completion.qpn.value()) | u64::from(extra) << 32;
    let sender = u64::from(completion.source.value()) | u64::from(completion.service_level) << 32;
    ([completion.id, bits, pair, sender], if completion.has_grh { 4 } else { 3 })
}

/// The completion in words that somebody else has written.
///
/// # Errors
/// [`Malformed`].
#[inline]
pub(super) fn read(words: &[u64]) -> Result<Completion, Malformed> {
    let (id, bits, more, sender) = match *words {
        [id, bits, more] => (id, bits, more, None),
        [id, bits, more, sender] => (id, bits, more, Some(sender)),
        _ => return Err(Malformed),
    };
    let extra = (more >> 32) as u32;
    Ok(Completion {
        id,
        status: status(bits as u8)?,
        ended: ended((bits >> 8) as u8)?,
        len: (bits >> 32) as u32,
        extra: match bits >> 16 & 0xff {
            0 => Extra::None,
            1 => Extra::Immediate(extra.to_le_bytes()),
            2 => Extra::Invalidated(Key::new(extra)),
            _ => return Err(Malformed),
        },
        qpn: Qpn::new(more as u32 & 0xff_ffff),
        solicited: bits >> 24 & 1 == 1,
        source: Qpn::new(sender.unwrap_or(0) as u32),
        has_grh: sender.is_some(),
        service_level: (sender.unwrap_or(0) >> 32) as u8,
    })
}

fn status(number: u8) -> Result<Status, Malformed> {
    use Status::*;
    let all = [
        Success,
        LocalLength,
        LocalOperation,
        LocalProtection,
        Flushed,
        WindowBind,
        RemoteInvalid,
        RemoteAccess,
        RemoteOperation,
        RetryExceeded,
        RnrRetryExceeded,
    ];
    all.into_iter().find(|status| *status as u8 == number).ok_or(Malformed)
}

fn ended(number: u8) -> Result<Ended, Malformed> {
    use Ended::*;
    let all = [Send, Write, Read, CompareSwap, FetchAdd, Bind, LocalInvalidate, Receive, ReceiveWrite];
    all.into_iter().find(|ended| *ended as u8 == number).ok_or(Malformed)
}

/// The word of an event.
pub(super) fn write_event(event: Event) -> u64 {
    let (kind, object) = match event {
        Event::Completion(queue) => (1, queue),
        Event::CompletionQueueError(queue) => (2, queue),
        Event::SharedReceiveLimit(queue) => (3, queue),
        Event::SharedReceiveError(queue) => (10, queue),
        Event::QueuePairFatal(qpn) => (4, qpn.value()),
        Event::RequestError(qpn) => (5, qpn.value()),
        Event::AccessError(qpn) => (6, qpn.value()),
        Event::Established(qpn) => (7, qpn.value()),
        Event::SendQueueDrained(qpn) => (8, qpn.value()),
        Event::LastBufferReached(qpn) => (9, qpn.value()),
    };
    kind | u64::from(object) << 32
}

/// The event in a word that somebody else has written.
///
/// # Errors
/// [`Malformed`].
pub(super) fn read_event(word: u64) -> Result<Event, Malformed> {
    let queue = (word >> 32) as u32;
    let qpn = Qpn::new(queue & 0xff_ffff);
    Ok(match word & 0xff {
        1 => Event::Completion(queue),
        2 => Event::CompletionQueueError(queue),
        3 => Event::SharedReceiveLimit(queue),
        4 => Event::QueuePairFatal(qpn),
        5 => Event::RequestError(qpn),
        6 => Event::AccessError(qpn),
        7 => Event::Established(qpn),
        8 => Event::SendQueueDrained(qpn),
        9 => Event::LastBufferReached(qpn),
        10 => Event::SharedReceiveError(queue),
        _ => return Err(Malformed),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        /// What is read from any words is written as words that say the same.
        #[test]
        fn completions_and_events_come_as_they_went(id: u64, kinds in (0u8..14, 0u8..9, 0u64..4, 0u64..2), len: u32, more: u64,
            sender in prop::option::of(any::<u64>()), event: u64) {
            let of = if kinds.1 > 6 { 121 + kinds.1 } else { kinds.1 };
            let bits = u64::from(kinds.0) | u64::from(of) << 8 | kinds.2 << 16 | kinds.3 << 24 | u64::from(len) << 32;
            let words = [Some(id), Some(bits), Some(more), sender];
            if let Ok(found) = read(&words.into_iter().flatten().collect::<Vec<_>>()) {
                prop_assert_eq!((found.id, found.len, found.status as u8, found.ended as u8), (id, len, kinds.0, of));
                let (words, len) = write(&found);
                prop_assert_eq!((len, read(&words[..len])), (3 + usize::from(sender.is_some()), Ok(found)));
            } else {
                prop_assert!(matches!(kinds.0, 3 | 7 | 8) || kinds.2 == 3);
            }
            let word = (event & !0xff) | (event % 12);
            if let Ok(found) = read_event(word) {
                prop_assert_eq!(read_event(write_event(found)), Ok(found));
            } else {
                prop_assert!(matches!(event % 12, 0 | 11));
            }
        }
    }

    #[test]
    fn a_completion_has_three_or_four_words() {
        assert_eq!(read(&[0; 2]), Err(Malformed));
        assert_eq!(read(&[0; 5]), Err(Malformed));
    }
}
