//! Tags of discovery (RFC 2516 appendix A, RFC 4638): a kind of two bytes, a length of two, a value.

use crate::frame::Malformed;

/// The end, even if more follows.
pub const END: u16 = 0x0000;
/// Which service; empty is any.
pub const SERVICE_NAME: u16 = 0x0101;
/// What the access concentrator is called.
pub const AC_NAME: u16 = 0x0102;
/// What the host wants to have in the answers to it.
pub const HOST_UNIQ: u16 = 0x0103;
/// What the access concentrator wants to have in the answer to it.
pub const AC_COOKIE: u16 = 0x0104;
/// The same for somebody in between.
pub const RELAY_SESSION_ID: u16 = 0x0110;
/// The largest packet, if that is more than 1492 bytes.
pub const PPP_MAX_PAYLOAD: u16 = 0x0120;
/// There is no such service.
pub const SERVICE_NAME_ERROR: u16 = 0x0201;
/// The access concentrator cannot.
pub const AC_SYSTEM_ERROR: u16 = 0x0202;
/// Something else.
pub const GENERIC_ERROR: u16 = 0x0203;

/// As many as anybody has use for.
pub const MOST: usize = 64;

/// The tags of a frame, up to [`END`], the end, or the first that is malformed.
#[derive(Clone, Copy, Debug)]
pub struct Tags<'a> {
    rest: &'a [u8],
    left: usize,
}

impl<'a> Tags<'a> {
    /// The tags in `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, left: MOST }
    }

    fn end(&mut self, error: Malformed) -> Option<Result<(u16, &'a [u8]), Malformed>> {
        self.rest = &[];
        Some(Err(error))
    }
}

impl<'a> Iterator for Tags<'a> {
    type Item = Result<(u16, &'a [u8]), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        if self.left == 0 {
            return self.end(Malformed::TooMany);
        }
        self.left -= 1;
        let Some(([a, b, c, d], rest)) = self.rest.split_first_chunk() else { return self.end(Malformed::Tag) };
        let kind = u16::from_be_bytes([*a, *b]);
        if kind == END {
            self.rest = &[];
            return None;
        }
        let Some((value, rest)) = rest.split_at_checked(u16::from_be_bytes([*c, *d]).into()) else {
            return self.end(Malformed::Tag);
        };
        self.rest = rest;
        Some(Ok((kind, value)))
    }
}

/// Appends a tag.
///
/// # Panics
/// If the value has more than 65,535 bytes.
pub fn put(tags: &mut Vec<u8>, kind: u16, value: &[u8]) {
    tags.extend_from_slice(&kind.to_be_bytes());
    tags.extend_from_slice(&u16::try_from(value.len()).expect("no value of ours is so long").to_be_bytes());
    tags.extend_from_slice(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn back_and_forth_and_what_ends_them() {
        let mut bytes = Vec::new();
        put(&mut bytes, AC_NAME, b"here");
        put(&mut bytes, SERVICE_NAME, b"");
        let tags: Vec<_> = Tags::new(&bytes).map(Result::unwrap).collect();
        assert_eq!(tags, [(AC_NAME, &b"here"[..]), (SERVICE_NAME, b"")]);
        for len in [1, 3, 5, 7, 9] {
            assert_eq!(Tags::new(&bytes[..len]).last(), Some(Err(Malformed::Tag)), "{len}");
        }
        put(&mut bytes, END, b"");
        bytes.push(7);
        assert_eq!(Tags::new(&bytes).count(), 2);
        let many = [1, 1, 0, 0].repeat(MOST + 1);
        assert_eq!(Tags::new(&many).last(), Some(Err(Malformed::TooMany)));
        assert_eq!(Tags::new(&many[4..]).filter(Result::is_ok).count(), MOST);
    }
}
