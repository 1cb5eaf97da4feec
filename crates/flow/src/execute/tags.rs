//! VLAN tags (IEEE 802.1Q): pushed, taken away, written.

use super::{Frame, Stop};
use crate::field::{Field, TAG_PRESENT};
use millrace_packet::parse::ether_type;

/// Where the first tag, or else the EtherType, is.
const FIRST: usize = 12;
const TAG_LEN: usize = 4;
const PRESENT: u16 = TAG_PRESENT as u16;

impl Frame<'_> {
    /// Puts a tag with id and priority 0 in front of all others.
    pub(super) fn push_vlan(&mut self, tpid: u16) -> Result<(), Stop> {
        self.insert_tag(FIRST, tpid)
    }

    /// Takes the first tag away, if there is one.
    pub(super) fn pop_vlan(&mut self) -> Result<(), Stop> {
        if self.has_tag(FIRST) { self.remove(FIRST, TAG_LEN) } else { Ok(()) }
    }

    /// Writes bits of a tag as [`Key::assign`](crate::Key::assign) does. An id or a priority makes sure that there is a tag.
    /// A whole tag is there afterwards if bit 12 of it is set, and gone if not. There is no inner tag without an outer one.
    /// Whether a frame is the first to be dropped stays as it is.
    pub(super) fn set_tag(&mut self, field: Field, value: u16, mask: u16) -> Result<(), Stop> {
        let inner = matches!(field, Field::InnerVlan | Field::InnerVlanPcp | Field::InnerVlanTci);
        if inner && !self.has_tag(FIRST) {
            return Ok(());
        }
        let at = if inner { FIRST + TAG_LEN } else { FIRST };
        let there = self.has_tag(at);
        let old = if there { self.be16(at + 2).unwrap_or(0) } else { 0 };
        let shift = if matches!(field, Field::DlVlanPcp | Field::InnerVlanPcp) { 13 } else { 0 };
        let mask = (mask & field.full().0[0] as u16) << shift;
        let known = if there { old | PRESENT } else { 0 };
        let mut new = known & !mask | value << shift & mask;
        if field.presence() {
            new |= PRESENT;
        }
        match (there, new & PRESENT != 0) {
            (false, false) => return Ok(()),
            (true, false) => return self.remove(at, TAG_LEN),
            (false, true) => self.insert_tag(at, ether_type::VLAN)?,
            (true, true) => {}
        }
        self.own()?;
        self.write(at + 2, &(new & !PRESENT | old & PRESENT).to_be_bytes());
        self.forget_layers();
        Ok(())
    }

    fn has_tag(&self, at: usize) -> bool {
        self.be16(at).is_some_and(ether_type::is_tag) && self.len() >= at + 2 + TAG_LEN
    }

    fn insert_tag(&mut self, at: usize, tpid: u16) -> Result<(), Stop> {
        // Without an EtherType there is nothing to put it before.
        if self.len() < at + 2 {
            return Ok(());
        }
        let [high, low] = tpid.to_be_bytes();
        self.insert(at, &[high, low, 0, 0])
    }
}
