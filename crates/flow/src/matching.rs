//! What a rule asks of a key: bits, and which of them count.

use crate::field::{Field, Format, MAX_CID, Masks, Wide, needs::Needs};
use crate::key::{Key, Mask, with_presence};

/// What a rule asks of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Match {
    key: Key,
    mask: Mask,
}

/// Why a field cannot be asked for in this way.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MatchError {
    /// The field has no masks.
    #[error("{} has no mask: all of it counts", .0.name())]
    Mask(Field),
    /// The value has bits that the mask leaves out, or is too large.
    #[error("the value of {} has bits that its mask or its width leaves out", .0.name())]
    Value(Field),
    /// Some bits were asked to be something else before.
    #[error("{} contradicts what was asked before", .0.name())]
    Contradiction(Field),
    /// It means nothing without another field.
    #[error("{} means nothing here: write {} as well", .field.name(), .needs.hint())]
    Needs {
        /// The field.
        field: Field,
        /// What is missing.
        needs: Needs,
    },
}

impl Match {
    /// Matches everything.
    pub const ANY: Self = Self { key: Key::ZERO, mask: Mask::ZERO };

    /// Matches one key only: every bit counts.
    pub(crate) fn of(key: &Key) -> Self {
        let mut mask = Mask::ZERO;
        for &field in Field::ALL {
            mask.set(field, field.full());
        }
        Self { key: *key, mask }
    }

    /// The bits asked for; those that do not count are 0.
    #[inline]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Which bits count.
    #[inline]
    pub fn mask(&self) -> &Mask {
        &self.mask
    }

    /// Whether a key has what is asked for.
    #[inline]
    pub fn covers(&self, key: &Key) -> bool {
        key.matches(&self.key, &self.mask)
    }

    /// Whether every key that matches this one matches `other` as well: what a loose change of `other` reaches.
    pub fn within(&self, other: &Match) -> bool {
        self.mask.covers(&other.mask) && self.key.matches(&other.key, &other.mask)
    }

    /// Asks for a whole field, and for what the field needs as far as that can only be one thing.
    ///
    /// # Errors
    /// See [`add`](Self::add).
    pub fn with(mut self, field: Field, value: impl Into<Wide>) -> Result<Self, MatchError> {
        self.add(field, value.into(), field.full())?;
        field.row().needs.fill(&mut self);
        Ok(self)
    }

    /// Asks for bits of a field. What the field needs is up to [`complete`](Self::complete).
    ///
    /// # Errors
    /// A mask that the field cannot have, bits outside the mask, or a contradiction to what was asked before.
    pub fn add(&mut self, field: Field, value: Wide, mask: Wide) -> Result<(), MatchError> {
        let (row, full) = (field.row(), field.full());
        if row.masks == Masks::Exact && mask != full {
            return Err(MatchError::Mask(field));
        }
        let untagged = with_presence(field, value, mask).filter(|(_, value, _)| *value == Wide::ZERO);
        if mask.and(full) != mask || (value.and(mask) != value && untagged.is_none()) {
            return Err(MatchError::Value(field));
        }
        let (place, value, mask) = with_presence(field, value, mask).unwrap_or((field, value, mask));
        let common = mask.and(self.mask.get(place));
        if self.key.get(place).and(common) != value.and(common) {
            return Err(MatchError::Contradiction(field));
        }
        self.put(place, value, mask);
        Ok(())
    }

    pub(crate) fn put(&mut self, field: Field, value: Wide, mask: Wide) {
        self.key.write(field, value, mask);
        self.mask.write(field, mask, mask);
    }

    /// Adds what `fields` need and can only be one thing, and checks that nothing is open.
    ///
    /// # Errors
    /// The first field that needs something that is missing or something else.
    pub fn complete(&mut self, fields: impl Iterator<Item = Field> + Clone) -> Result<(), MatchError> {
        // Twice: a field may fill in what an earlier one needs.
        for field in fields.clone().chain(fields.clone()) {
            field.row().needs.fill(self);
        }
        for field in fields {
            let needs = field.row().needs;
            if !needs.met(self) {
                return Err(MatchError::Needs { field, needs });
            }
        }
        Ok(())
    }

    /// The fields that are asked for, as they are printed: value and mask. Views come before what they are views of, and
    /// every bit comes at least once.
    pub fn fields(&self) -> Vec<(Field, Wide, Wide)> {
        let mut left = self.mask;
        let mut fields = Vec::new();
        for &field in Field::ALL {
            let Some(mask) = self.shown(field, &left) else { continue };
            let value = self.key.get(field).and(mask);
            match with_presence(field, value, mask) {
                Some((tag, _, bits)) => left.write(tag, Wide::ZERO, bits),
                None => left.write(field, Wide::ZERO, mask),
            }
            fields.push((field, value, mask));
        }
        fields
    }

    /// The mask with which a field is printed, if it is to be printed: some bits of it are `left`, what it needs is there,
    /// and the field can have this mask.
    fn shown(&self, field: Field, left: &Mask) -> Option<Wide> {
        let row = field.row();
        let mask = self.mask.get(field);
        if left.get(field) == Wide::ZERO || !row.needs.met(self) {
            return None;
        }
        if row.masks == Masks::Exact && mask != field.full() {
            return None;
        }
        if let Some((tag, value, bits)) = with_presence(field, self.key.get(field), mask) {
            let there = self.mask.get(tag).and(bits) == bits && self.key.get(tag).and(bits) == value;
            return there.then_some(mask);
        }
        match row.format {
            // Printed without a mask, an id says its length as well; with a mask it does not, and that is the next row.
            Format::Cid if !cid_is_whole(self.key.get(field), mask) => {
                Some(Wide([mask.0[0], mask.0[1], mask.0[2] & !0xff])).filter(|mask| *mask != Wide::ZERO)
            }
            // `nw_tos` is another way to write `ip_dscp`.
            Format::Tos => None,
            _ => Some(mask),
        }
    }
}

/// The mask of a whole connection id: `len` bytes, and the length.
pub(crate) fn cid_mask(len: usize) -> Wide {
    let ones = Wide::cid(&[0xff; MAX_CID][..len.min(MAX_CID)]);
    Wide([ones.0[0], ones.0[1], ones.0[2] | 0xff])
}

/// Whether a match on a connection id is one on all its bytes and on its length.
pub(crate) fn cid_is_whole(value: Wide, mask: Wide) -> bool {
    let len = (value.0[2] & 0xff) as usize;
    (1..=MAX_CID).contains(&len) && mask == cid_mask(len)
}
