//! Stacks of MPLS labels (RFC 3032).

use super::Malformed;

/// Most labels of a stack that are looked at.
pub const MOST_LABELS: usize = 16;

/// One entry of a stack (RFC 3032 §2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label(u32);

impl Label {
    /// Bytes of an entry.
    pub const LEN: usize = 4;

    /// The label, 20 bits.
    #[inline]
    pub const fn label(self) -> u32 {
        self.0 >> 12
    }

    /// Traffic class (RFC 5462).
    #[inline]
    pub const fn traffic_class(self) -> u8 {
        (self.0 >> 9 & 7) as u8
    }

    /// Whether it is the last.
    #[inline]
    pub const fn is_bottom(self) -> bool {
        self.0 & 0x100 != 0
    }

    /// Time to live, in hops.
    #[inline]
    pub const fn ttl(self) -> u8 {
        self.0 as u8
    }
}

/// A whole stack of labels, and what it carries.
#[derive(Clone, Copy, Debug)]
pub struct Mpls<'a> {
    labels: &'a [[u8; Label::LEN]],
    payload: &'a [u8],
}

impl<'a> Mpls<'a> {
    /// The stack at the start of `bytes`.
    ///
    /// # Errors
    /// [`Malformed::Truncated`]; [`Malformed::TooMany`]: the first [`MOST_LABELS`] are not all.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let entries = bytes.as_chunks::<{ Label::LEN }>().0;
        let looked_at = &entries[..entries.len().min(MOST_LABELS)];
        let Some(bottom) = looked_at.iter().position(|entry| Label(u32::from_be_bytes(*entry)).is_bottom()) else {
            let all = looked_at.len() == MOST_LABELS;
            return Err(if all { Malformed::TooMany } else { Malformed::Truncated });
        };
        let (labels, _) = looked_at.split_at(bottom + 1);
        Ok(Self { labels, payload: &bytes[labels.as_flattened().len()..] })
    }

    /// Bytes of the stack.
    #[inline]
    pub fn header_len(&self) -> usize {
        self.labels.as_flattened().len()
    }

    /// The outermost label: the one that routers look at.
    #[inline]
    pub fn top(&self) -> Label {
        Label(self.labels.first().map_or(0, |entry| u32::from_be_bytes(*entry)))
    }

    /// All labels, the outermost first; at least one.
    #[inline]
    pub fn labels(&self) -> impl ExactSizeIterator<Item = Label> + use<'a> {
        self.labels.iter().map(|entry| Label(u32::from_be_bytes(*entry)))
    }

    /// What follows the stack. No field says what it is: the labels stand for it.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_labels() {
        let bytes = [0x12, 0x34, 0x5a, 64, 0xff, 0xff, 0xf1, 1, 0x45];
        let mpls = Mpls::parse(&bytes).unwrap();
        assert_eq!((mpls.header_len(), mpls.payload(), mpls.labels().len()), (8, &[0x45][..], 2));
        let top = mpls.top();
        assert_eq!((top.label(), top.traffic_class(), top.is_bottom(), top.ttl()), (0x12345, 5, false, 64));
        let last = mpls.labels().last().unwrap();
        assert_eq!((last.label(), last.traffic_class(), last.is_bottom(), last.ttl()), (0xfffff, 0, true, 1));
        assert_eq!(Mpls::parse(&bytes[..7]).unwrap_err(), Malformed::Truncated);
    }

    #[test]
    fn the_number_of_labels_is_bounded() {
        let mut bytes = [0; 4 * MOST_LABELS + 4];
        assert_eq!(Mpls::parse(&bytes).unwrap_err(), Malformed::TooMany);
        bytes[4 * MOST_LABELS - 2] = 1;
        let mpls = Mpls::parse(&bytes).unwrap();
        assert_eq!((mpls.labels().len(), mpls.payload().len()), (MOST_LABELS, 4));
    }
}
