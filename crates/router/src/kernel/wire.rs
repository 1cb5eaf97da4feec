//! Netlink on the wire: messages, attributes, and requests, over bytes and without copies (`man 7 netlink`, `man 3 netlink`).
//!
//! Numbers are in the order of this machine but where a reader says otherwise. What is too short or says that it is longer than it is ends the
//! message; nothing here panics, whatever the bytes are.

/// Length of a message's own header, and of an attribute's.
const HEADER: usize = 16;
const ATTRIBUTE: usize = 4;

/// Bits of an attribute's kind that say how it is made, and not what it is.
const KIND: u16 = 0x3fff;

/// A message of every protocol: what was asked for has failed, or is done.
pub const ERROR: u16 = 2;
/// A message of every protocol: the list ends.
pub const DONE: u16 = 3;

/// A flag: it is asked for.
pub const REQUEST: u16 = 1;
/// A flag: say when it is done.
pub const ACK: u16 = 4;
/// A flag: all that there is.
pub const DUMP: u16 = 0x300;
/// A flag: the list has changed while it was read, and may have gaps.
pub const DUMP_INTERRUPTED: u16 = 0x10;

/// One message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// What it is, by the protocol's numbers.
    pub kind: u16,
    /// Flags.
    pub flags: u16,
    /// Of the question that it answers; 0 for events.
    pub sequence: u32,
    /// What it says.
    pub body: &'a [u8],
}

/// The messages of a datagram, up to the first that is not whole.
pub fn messages(bytes: &[u8]) -> Messages<'_> {
    Messages { rest: bytes }
}

/// See [`messages`].
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;
    fn next(&mut self) -> Option<Message<'a>> {
        let bytes = std::mem::take(&mut self.rest);
        let length = u32_at(bytes, 0)? as usize;
        let body = bytes.get(HEADER..length)?;
        let (kind, flags, sequence) = (u16_at(bytes, 4)?, u16_at(bytes, 6)?, u32_at(bytes, 8)?);
        self.rest = bytes.get(aligned(length)..).unwrap_or_default();
        Some(Message { kind, flags, sequence, body })
    }
}

/// One attribute: its kind and its value.
pub type Attribute<'a> = (u16, &'a [u8]);

/// The attributes behind a header of that many bytes, up to the first that is not whole.
pub fn attributes(body: &[u8], header: usize) -> Attributes<'_> {
    Attributes { rest: body.get(aligned(header)..).unwrap_or_default() }
}

/// The attributes within one.
pub fn nested(value: &[u8]) -> Attributes<'_> {
    Attributes { rest: value }
}

/// See [`attributes`].
#[derive(Clone, Debug)]
pub struct Attributes<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Attribute<'a>;
    fn next(&mut self) -> Option<Attribute<'a>> {
        let bytes = std::mem::take(&mut self.rest);
        let length = usize::from(u16_at(bytes, 0)?);
        let value = bytes.get(ATTRIBUTE..length)?;
        self.rest = bytes.get(aligned(length)..).unwrap_or_default();
        Some((u16_at(bytes, 2)? & KIND, value))
    }
}

impl<'a> Attributes<'a> {
    /// The first of that kind.
    pub fn find(mut self, wanted: u16) -> Option<&'a [u8]> {
        Iterator::find(&mut self, |(kind, _)| *kind == wanted).map(|(_, value)| value)
    }
}

fn aligned(length: usize) -> usize {
    length.next_multiple_of(4)
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// A number of 16 bits.
pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_ne_bytes)
}

/// A number of 32 bits.
pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_ne_bytes)
}

/// A value of one byte.
pub fn u8_of(value: &[u8]) -> Option<u8> {
    value.first().copied()
}

/// A value of 16 bits.
pub fn u16_of(value: &[u8]) -> Option<u16> {
    u16_at(value, 0)
}

/// A value of 32 bits.
pub fn u32_of(value: &[u8]) -> Option<u32> {
    u32_at(value, 0)
}

/// A value of 16 bits in the order of networks.
pub fn be16_of(value: &[u8]) -> Option<u16> {
    array(value, 0).map(u16::from_be_bytes)
}

/// A value of 32 bits in the order of networks.
pub fn be32_of(value: &[u8]) -> Option<u32> {
    array(value, 0).map(u32::from_be_bytes)
}

/// An Ethernet address.
pub fn mac_of(value: &[u8]) -> Option<[u8; 6]> {
    value.try_into().ok()
}

/// An IP address, of the family that its length tells.
pub fn address_of(value: &[u8]) -> Option<std::net::IpAddr> {
    match value.len() {
        4 => array::<4>(value, 0).map(Into::into),
        16 => array::<16>(value, 0).map(Into::into),
        _ => None,
    }
}

/// A text that ends with a zero.
pub fn text_of(value: &[u8]) -> Option<String> {
    let end = value.iter().position(|&byte| byte == 0).unwrap_or(value.len());
    std::str::from_utf8(&value[..end]).ok().map(str::to_owned)
}

/// A request that is being written.
#[derive(Clone, Debug)]
pub struct Request {
    bytes: Vec<u8>,
}

impl Request {
    /// One of that kind, with these flags beside [`REQUEST`], and the protocol's own header.
    pub fn new(kind: u16, flags: u16, header: &[u8]) -> Self {
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(flags | REQUEST).to_ne_bytes());
        bytes.extend_from_slice(header);
        Self { bytes }.padded()
    }

    /// Adds an attribute.
    #[must_use]
    pub fn with(mut self, kind: u16, value: &[u8]) -> Self {
        let length = (ATTRIBUTE + value.len()) as u16;
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value);
        self.padded()
    }

    /// Adds an attribute that has attributes.
    #[must_use]
    pub fn within(mut self, kind: u16, fill: impl FnOnce(Self) -> Self) -> Self {
        const NESTED: u16 = 0x8000;
        let at = self.bytes.len();
        self = fill(self.with(kind | NESTED, &[]));
        let length = (self.bytes.len() - at) as u16;
        self.bytes[at..at + 2].copy_from_slice(&length.to_ne_bytes());
        self
    }

    /// Its bytes, with the number that its answers will have.
    pub fn numbered(&mut self, sequence: u32) -> &[u8] {
        let length = self.bytes.len() as u32;
        self.bytes[0..4].copy_from_slice(&length.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        &self.bytes
    }

    fn padded(mut self) -> Self {
        self.bytes.resize(aligned(self.bytes.len()), 0);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_written_is_read() {
        let mut request = Request::new(18, DUMP, &[1, 2, 3])
            .with(3, b"eth0\0")
            .within(18, |inner| inner.with(1, &7_u32.to_ne_bytes()).with(2, &[]))
            .with(4, &1500_u16.to_be_bytes());
        let bytes = request.numbered(9).to_owned();
        let all: Vec<_> = messages(&bytes).collect();
        assert_eq!((all.len(), all[0].kind, all[0].flags, all[0].sequence), (1, 18, DUMP | REQUEST, 9));
        let found: Vec<_> = attributes(all[0].body, 3).collect();
        assert_eq!(found.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), [3, 18, 4]);
        assert_eq!((text_of(found[0].1), be16_of(found[2].1)), (Some("eth0".to_owned()), Some(1500)));
        assert_eq!(nested(found[1].1).find(1).and_then(u32_of), Some(7));
        assert_eq!(nested(found[1].1).find(2), Some(&[][..]));
    }

    #[test]
    fn what_is_longer_than_it_is_ends_the_message() {
        let mut bytes = Request::new(1, 0, &[]).with(1, &[1; 4]).numbered(0).to_owned();
        let whole = messages(&bytes).next().unwrap().body.to_owned();
        assert_eq!(attributes(&whole, 0).count(), 1);
        bytes[16] = 9;
        assert_eq!(messages(&bytes).flat_map(|message| attributes(message.body, 0)).count(), 0);
        bytes[0] = 25;
        assert_eq!(messages(&bytes).count(), 0);
        for length in 0..HEADER as u8 {
            bytes[0] = length;
            assert_eq!(messages(&bytes).count(), 0, "a message of {length} bytes has no header");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics_and_everything_ends(bytes in prop::collection::vec(any::<u8>(), 0..600), header in 0_usize..64) {
            let mut seen = 0;
            for message in messages(&bytes) {
                seen += message.body.len();
                for (_, value) in attributes(message.body, header) {
                    seen += nested(value).count();
                    let _ = (text_of(value), address_of(value), mac_of(value), be32_of(value), u8_of(value));
                }
            }
            prop_assert!(seen <= 2 * bytes.len());
        }
    }
}
