//! Rules made of what generated frames have, so that each of them meets some: a few fields with random masks, random actions
//! and tables. Always the same ones. None pushes a tag: behind several tables that would mostly be a third one.

use crate::action::Action;
use crate::extract::Ingress;
use crate::field::{Field, Masks, TAG_PRESENT, Wide};
use crate::key::Key;
use crate::matching::Match;
use crate::rule::RuleSpec;
use millrace_packet::parse::Layers;
use std::fmt::Write;

/// Tables; each goes on to later ones only.
const TABLES: u8 = 4;

/// What both can ask for, by the same name.
const ASKED: &[Field] = &[
    Field::DlSrc,
    Field::DlDst,
    Field::DlVlan,
    Field::DlVlanPcp,
    Field::VlanTci,
    Field::MplsLabel,
    Field::MplsTc,
    Field::MplsTtl,
    Field::ArpOp,
    Field::ArpSpa,
    Field::ArpTpa,
    Field::ArpSha,
    Field::ArpTha,
    Field::NwSrc,
    Field::NwDst,
    Field::Ipv6Src,
    Field::Ipv6Dst,
    Field::Ipv6Label,
    Field::IpDscp,
    Field::NwEcn,
    Field::NwTtl,
    Field::TcpFlags,
    Field::TcpSrc,
    Field::TcpDst,
    Field::UdpSrc,
    Field::UdpDst,
    Field::IcmpType,
    Field::IcmpCode,
    Field::Reg0,
    Field::Metadata,
];

/// Numbers that look random (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn wide(&mut self) -> Wide {
        Wide([self.next(), self.next(), self.next()])
    }

    /// All bits, a prefix, or any.
    fn mask(&mut self, field: Field) -> Wide {
        let (full, width) = (field.full(), u32::from(field.row().place.width));
        let bits = self.below(width as usize) as u32;
        match self.below(3) {
            _ if field.row().masks == Masks::Exact => full,
            0 if width == 128 => Wide::from_u128(u128::MAX << bits),
            0 => Wide::new(u64::MAX << bits).and(full),
            // It reads no other masks of IPv6 if they are long.
            1 if width < 128 => self.wide().and(full),
            _ => full,
        }
    }
}

/// So many rules, by the keys of these frames.
pub fn rules(frames: &[Vec<u8>], count: usize) -> String {
    let (mut random, mut text) = (Random(1), String::new());
    for table in 0..TABLES {
        writeln!(text, "table={table},priority=1,actions=output:{}", 2 + table % 3).unwrap();
    }
    for number in 0..count {
        let frame = &frames[random.below(frames.len())];
        let ingress = Ingress { port: 1, ..Ingress::default() };
        let key = Key::extract(frame, &Layers::parse(frame), &ingress);
        let table = random.below(TABLES.into()) as u8;
        let priority = 60_000 - number as u16;
        let mut rule = RuleSpec { table, priority, matching: asked(&mut random, &key), ..RuleSpec::default() };
        rule.actions = actions(&mut random, &rule);
        writeln!(text, "{rule}").unwrap();
    }
    text
}

fn asked(random: &mut Random, key: &Key) -> Match {
    let mut matching = Match::ANY;
    let add = |matching: &mut Match, field: Field, value: Wide, mask: Wide| {
        let mut more = *matching;
        if mask != Wide::ZERO
            && more.add(field, value.and(mask), mask).is_ok()
            && more.complete([field].into_iter()).is_ok()
        {
            *matching = more;
        }
    };
    if random.below(4) > 0 {
        for field in [Field::DlType, Field::NwProto] {
            add(&mut matching, field, key.get(field), field.full());
        }
    }
    for _ in 0..1 + random.below(3) {
        let field = ASKED[random.below(ASKED.len())];
        let tagged = key.get(Field::VlanTci).0[0] & TAG_PRESENT != 0;
        if tagged || !field.presence() {
            let mask = random.mask(field);
            add(&mut matching, field, key.get(field), mask);
        }
    }
    matching
}

fn actions(random: &mut Random, rule: &RuleSpec) -> Vec<Action> {
    let tagged = rule.matching.key().get(Field::VlanTci).0[0] & TAG_PRESENT != 0;
    let mut actions = Vec::new();
    for _ in 0..random.below(7) {
        let action = match random.below(8) {
            0 => Action::InPort,
            1 | 2 => Action::Output(2 + random.below(3) as u32),
            4 if tagged && !actions.contains(&Action::PopVlan) => Action::PopVlan,
            5 => Action::DecTtl,
            _ => {
                let field = ASKED[random.below(ASKED.len())];
                let mask = random.mask(field);
                // A tag that may be gone cannot be set there, and types of ICMPv6 have other names.
                let other = [Field::VlanTci, Field::ArpOp, Field::IcmpType, Field::IcmpCode].contains(&field);
                if other || (field.presence() && (!tagged || actions.contains(&Action::PopVlan))) {
                    continue;
                }
                Action::SetField { field, value: random.wide().and(mask), mask }
            }
        };
        actions.push(action);
        if rule.check_actions(&actions).is_err() {
            actions.pop();
        }
    }
    let rest = TABLES - 1 - rule.table;
    if rest > 0 && random.below(2) == 0 {
        actions.push(Action::GotoTable(rule.table + 1 + random.below(rest.into()) as u8));
    }
    if actions.is_empty() { vec![Action::Drop] } else { actions }
}
