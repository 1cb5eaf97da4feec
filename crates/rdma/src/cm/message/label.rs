//! Whose a message is, without the rest of it: for whoever passes messages on.
//!
//! | Message | Number of the connection at the sender | At the receiver |
//! |---|---|---|
//! | REQ | 0 to 3 | none: the service, 8 to 15 |
//! | MRA, REJ, REP, RTU, DREQ, DREP | 0 to 3 | 4 to 7 |
//! | SIDR_REQ | 0 to 3 | none: the service, 8 to 15 |
//! | SIDR_REP | none | 0 to 3 |
//!
//! Bytes are those behind the header.

use super::{Malformed, header};
use crate::cm::address::ServiceId;

/// For whom a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// Who offers a service: somebody calls.
    Service(ServiceId),
    /// Who has given a connection that number.
    Connection(u32),
}

/// What says whose a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    /// Number of the connection at the sender: 0 where it has none, or does not say.
    pub sender: u32,
    /// For whom it is.
    pub to: To,
    /// Whether it is a REJ: that of a call that was not answered does not know the number of the receiver.
    pub rejects: bool,
}

impl Label {
    /// Of a message.
    ///
    /// # Errors
    /// It is none, for the reason that [`parse`](super::parse) has, too.
    pub fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let (_, attribute, data) = header(bytes)?;
        let [a, b, c, d, e, f, g, h, service @ ..] = data.first_chunk::<16>().ok_or(Malformed::Length)?;
        let (first, second) = (u32::from_be_bytes([*a, *b, *c, *d]), u32::from_be_bytes([*e, *f, *g, *h]));
        let (sender, to) = match attribute {
            0x10 | 0x17 => (first, To::Service(ServiceId(u64::from_be_bytes(*service)))),
            0x11..=0x16 => (first, To::Connection(second)),
            0x18 => (0, To::Connection(first)),
            _ => return Err(Malformed::Attribute),
        };
        Ok(Self { sender, to, rejects: attribute == 0x12 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cm::message::{HEADER, LEN, Message, parse};
    use proptest::prelude::*;

    /// What [`Label::read`] has to say, by the tables of all messages.
    fn of(message: &Message) -> Label {
        let label = |sender, to, rejects| Label { sender, to, rejects };
        let to = To::Connection;
        match *message {
            Message::Request(m) => label(m.local_id, To::Service(ServiceId(m.service)), false),
            Message::Postponement(m) => label(m.local_id, to(m.remote_id), false),
            Message::Rejection(m) => label(m.local_id, to(m.remote_id), true),
            Message::Reply(m) => label(m.local_id, to(m.remote_id), false),
            Message::Ready(m) => label(m.local_id, to(m.remote_id), false),
            Message::DisconnectRequest(m) => label(m.local_id, to(m.remote_id), false),
            Message::DisconnectReply(m) => label(m.local_id, to(m.remote_id), false),
            Message::ServiceRequest(m) => label(m.request_id, To::Service(ServiceId(m.service)), false),
            Message::ServiceReply(m) => label(0, to(m.request_id), false),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn labels_say_what_messages_say(
            data in prop::collection::vec(any::<u8>(), LEN - HEADER), attribute in 0x0e_u8..0x1b, wrong in prop::option::of((0usize..5, any::<u8>())),
            cut in prop::option::of(0usize..LEN),
        ) {
            let mut bytes = vec![0; HEADER];
            bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
            bytes[17] = attribute;
            bytes.extend(data);
            if let Some((at, value)) = wrong {
                bytes[at] = value;
            }
            bytes.truncate(cut.unwrap_or(LEN));
            prop_assert_eq!(Label::read(&bytes), parse(&bytes).map(|(_, message)| of(&message)));
        }
    }
}
