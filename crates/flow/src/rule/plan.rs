//! What a lookup needs of the actions of a rule: where it goes on, and how the key changes until then.

use crate::action::Action;
use crate::field::needs::Needs;
use crate::field::{Field, TAG_PRESENT, Wide};
use crate::key::{Key, Mask};

/// What comes after a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing.
    End,
    /// That table, with the key as it is then.
    Table(u8),
    /// That table, after the card has taken a new key from the frame.
    Again(u8),
}

const TAGS: [Field; 2] = [Field::VlanTci, Field::InnerVlanTci];

/// Whether two fields share bits.
fn overlap(one: Field, other: Field) -> bool {
    let mut bits = Mask::ZERO;
    bits.set(one, one.full());
    bits.get(other) != Wide::ZERO
}

/// Whether a field is in what IP carries, of which later fragments have nothing.
fn is_behind_ip(field: Field) -> bool {
    matches!(field.row().needs, Needs::Tcp | Needs::Udp | Needs::Ports | Needs::Icmp | Needs::Nd)
}

fn is_later_fragment(key: &Key) -> bool {
    key.get(Field::IpFrag).0[0] & 2 != 0
}

#[derive(Clone, Debug)]
enum Rewrite {
    Set { field: Field, value: Wide, mask: Wide },
    PushVlan,
    PopVlan,
    DecTtl,
}

/// What a lookup needs of the actions of a rule.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub next: Next,
    rewrites: Box<[Rewrite]>,
}

impl Plan {
    pub fn new(actions: &[Action]) -> Self {
        let Some(Action::GotoTable(table)) = actions.last() else {
            return Self { next: Next::End, rewrites: Box::default() };
        };
        let again = actions.iter().any(Action::changes_layers);
        let rewrites = actions.iter().filter_map(|action| match action {
            Action::SetField { field, value, mask } => Some(Rewrite::Set { field: *field, value: *value, mask: *mask }),
            Action::PushVlan(_) => Some(Rewrite::PushVlan),
            Action::PopVlan => Some(Rewrite::PopVlan),
            Action::DecTtl => Some(Rewrite::DecTtl),
            _ => None,
        });
        Self { next: if again { Next::Again(*table) } else { Next::Table(*table) }, rewrites: rewrites.collect() }
    }

    /// Bytes of memory besides its own.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.rewrites)
    }

    /// Whether a later table sees another key.
    pub fn rewrites(&self) -> bool {
        !self.rewrites.is_empty()
    }

    /// Bits that decide what the key becomes, whether or not a rule asks for them: a tag that moves to the place of another, and
    /// whether a packet is a later fragment, which has no ports to be set.
    pub fn reads(&self) -> Mask {
        let mut reads = Mask::ZERO;
        for rewrite in &self.rewrites {
            let fields: &[Field] = match rewrite {
                Rewrite::PushVlan | Rewrite::PopVlan => &TAGS,
                Rewrite::Set { field, .. } if TAGS.iter().any(|tag| overlap(*tag, *field)) => &TAGS,
                Rewrite::Set { field, .. } if is_behind_ip(*field) => &[Field::IpFrag],
                Rewrite::Set { .. } | Rewrite::DecTtl => &[],
            };
            fields.iter().for_each(|field| reads.set(*field, field.full()));
        }
        reads
    }

    /// Makes the key what a later table sees.
    pub fn rewrite(&self, key: &mut Key) {
        for rewrite in &self.rewrites {
            match rewrite {
                Rewrite::Set { field, .. } if is_behind_ip(*field) && is_later_fragment(key) => {}
                Rewrite::Set { field, value, mask } => key.assign(*field, *value, *mask),
                Rewrite::PushVlan => {
                    key.set(Field::InnerVlanTci, key.get(Field::VlanTci));
                    key.set(Field::VlanTci, TAG_PRESENT);
                }
                Rewrite::PopVlan => key.pop_tag(),
                Rewrite::DecTtl => key.set(Field::NwTtl, key.get(Field::NwTtl).0[0].saturating_sub(1)),
            }
        }
    }
}
