//! What is looked at of a frame: sixteen words with every field at a fixed place, and masks of the same shape.

use crate::field::{Field, Format, TAG_PRESENT, Wide};
use std::fmt;

/// Words of a key.
pub const WORDS: usize = 16;

/// Values of all fields, in host order; what a frame does not have is 0. Two cache lines.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(align(64))]
pub struct Key([u64; WORDS]);

/// Which bits of a key count.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(align(64))]
pub struct Mask([u64; WORDS]);

macro_rules! words {
    ($type:ident) => {
        impl Default for $type {
            fn default() -> Self {
                Self([0; WORDS])
            }
        }

        impl $type {
            /// No bit set.
            pub const ZERO: Self = Self([0; WORDS]);

            /// The words.
            #[inline(always)]
            pub fn words(&self) -> &[u64; WORDS] {
                &self.0
            }

            /// The bits of a field, right-aligned.
            #[inline(always)]
            pub fn get(&self, field: Field) -> Wide {
                let place = field.row().place;
                let full = field.full();
                let mut words = [0; 3];
                for (at, word) in words[..place.words()].iter_mut().enumerate() {
                    *word = self.0[usize::from(place.word) + at] >> place.shift & full.0[at];
                }
                Wide(words)
            }

            /// Writes those bits of `value` that `mask` has into a field. Bits beyond its width are left out.
            #[inline]
            pub fn write(&mut self, field: Field, value: Wide, mask: Wide) {
                let place = field.row().place;
                let full = field.full();
                for at in 0..place.words() {
                    let mask = (mask.0[at] & full.0[at]) << place.shift;
                    let word = &mut self.0[usize::from(place.word) + at];
                    *word = *word & !mask | value.0[at] << place.shift & mask;
                }
            }

            /// Writes a field.
            pub fn set(&mut self, field: Field, value: impl Into<Wide>) {
                self.write(field, value.into(), field.full());
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut shown = f.debug_map();
                for field in Field::ALL.iter().filter(|field| self.get(**field) != Wide::ZERO) {
                    shown.entry(&field.name(), &self.get(*field));
                }
                shown.finish()
            }
        }
    };
}
words!(Key);
words!(Mask);

impl From<u64> for Wide {
    fn from(value: u64) -> Self {
        Self::new(value)
    }
}

impl Key {
    /// The words, to be written.
    #[inline(always)]
    pub(crate) fn words_mut(&mut self) -> &mut [u64; WORDS] {
        &mut self.0
    }

    /// A key of the given words.
    pub const fn new(words: [u64; WORDS]) -> Self {
        Self(words)
    }

    /// Writes a field as `set_field` does: a VLAN id or priority makes sure that there is a tag; a whole tag is there
    /// afterwards if bit 12 of it is set, and gone if not; there is no inner tag without an outer one.
    pub fn assign(&mut self, field: Field, value: Wide, mask: Wide) {
        let (tag, is_inner) = match field {
            Field::DlVlan | Field::DlVlanPcp | Field::VlanTci => (Field::VlanTci, false),
            Field::InnerVlan | Field::InnerVlanPcp | Field::InnerVlanTci => (Field::InnerVlanTci, true),
            _ => return self.write(field, value, mask),
        };
        if is_inner && !self.has_tag(Field::VlanTci) {
            return;
        }
        self.write(field, value, mask);
        if field.presence() {
            self.write(tag, Wide::new(TAG_PRESENT), Wide::new(TAG_PRESENT));
        }
        if !self.has_tag(tag) {
            if is_inner { self.set(tag, 0) } else { self.pop_tag() }
        }
    }

    fn has_tag(&self, tag: Field) -> bool {
        self.get(tag).0[0] & TAG_PRESENT != 0
    }

    /// Takes the outer tag away. Of a third tag the key knows nothing.
    pub(crate) fn pop_tag(&mut self) {
        self.set(Field::VlanTci, self.get(Field::InnerVlanTci));
        self.set(Field::InnerVlanTci, 0);
    }

    /// The key with only those bits that count.
    #[must_use]
    pub fn masked(&self, mask: &Mask) -> Self {
        Self(std::array::from_fn(|at| self.0[at] & mask.0[at]))
    }

    /// Whether both have the same bits where `mask` has some.
    #[inline]
    pub fn matches(&self, other: &Key, mask: &Mask) -> bool {
        let differs = (0..WORDS).fold(0, |differs, at| differs | (self.0[at] ^ other.0[at]) & mask.0[at]);
        differs == 0
    }
}

impl Mask {
    /// Bits of either.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|at| self.0[at] | other.0[at]))
    }

    /// Whether every bit of `other` is a bit of this one.
    pub fn covers(&self, other: &Self) -> bool {
        (0..WORDS).all(|at| other.0[at] & !self.0[at] == 0)
    }
}

/// A key as the frames of a family share it: the bits of `field` with the bit that says that there is a tag, where the
/// field is a view of one.
pub(crate) fn with_presence(field: Field, value: Wide, mask: Wide) -> Option<(Field, Wide, Wide)> {
    let (tag, shift) = match field {
        Field::DlVlan => (Field::VlanTci, 0),
        Field::DlVlanPcp => (Field::VlanTci, 13),
        Field::InnerVlan => (Field::InnerVlanTci, 0),
        Field::InnerVlanPcp => (Field::InnerVlanTci, 13),
        _ => return None,
    };
    // "No tag" is a match on the whole tag.
    if field.row().format == Format::VlanId && value == Wide::new(0xffff) {
        return Some((tag, Wide::ZERO, Wide::new(0xffff)));
    }
    Some((tag, Wide::new(value.0[0] << shift | TAG_PRESENT), Wide::new(mask.0[0] << shift | TAG_PRESENT)))
}
