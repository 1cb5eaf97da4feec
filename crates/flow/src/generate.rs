//! Random rules and keys for property tests: few values for each field, so that rules meet keys and each other.

use crate::action::{Action, Reason, Vxlan, VxlanPort};
use crate::field::needs::KEYWORDS;
use crate::field::{Field, Masks, TAG_PRESENT, Wide};
use crate::key::{Key, with_presence};
use crate::matching::Match;
use crate::rule::RuleSpec;
use crate::vni_map::{Receiver, Run, VniMap};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

/// A value of few, or any.
pub fn value(field: Field, few: bool) -> BoxedStrategy<Wide> {
    let full = field.full();
    if few {
        return (0u64..3)
            .prop_map(move |small| Wide([small << 62, small, small << 62]).and(full))
            .prop_map(move |wide| if field.row().place.words() == 1 { Wide::new(wide.0[1]).and(full) } else { wide })
            .boxed();
    }
    any::<[u64; 3]>().prop_map(move |words| Wide(words).and(full)).boxed()
}

/// A mask that the field can have.
pub fn mask(field: Field) -> BoxedStrategy<Wide> {
    let full = field.full();
    if field.row().masks == Masks::Exact {
        return Just(full).boxed();
    }
    let prefix = (1..=field.row().place.width.min(128)).prop_map(move |len| match field.row().place.words() {
        1 => Wide::new(full.0[0] & !(full.0[0].checked_shr(len.into()).unwrap_or(0))),
        _ => Wide::from_u128(!u128::MAX.checked_shr(len.into()).unwrap_or(0)),
    });
    let odd = any::<[u64; 3]>().prop_map(move |words| Wide(words).and(full));
    prop_oneof![3 => Just(full), 2 => prefix, 1 => odd].boxed()
}

/// A match that can be in a rule.
pub fn matching(few: bool) -> impl Strategy<Value = Match> {
    let fields = vec(select(Field::ALL), 0..5);
    (select(KEYWORDS), any::<bool>(), fields).prop_flat_map(move |(keyword, some, fields)| {
        let asked: Vec<_> = fields.into_iter().map(|field| (Just(field), value(field, few), mask(field))).collect();
        asked.prop_map(move |asked| {
            let mut all = Match::ANY;
            if some {
                all.put(Field::DlType, Wide::new(keyword.1.into()), Field::DlType.full());
                if let Some(protocol) = keyword.2 {
                    all.put(Field::NwProto, Wide::new(protocol.into()), Field::NwProto.full());
                }
            }
            for (field, value, mask) in asked {
                let mut more = all;
                // A length under a mask is a field of its own, and one of more than 20 bytes none at all.
                let mask = if field == Field::QuicCid { Wide([mask.0[0], mask.0[1], mask.0[2] & !0xff]) } else { mask };
                let masked = value.and(mask);
                if mask != Wide::ZERO
                    && more.add(field, masked, mask).is_ok()
                    && more.complete([field].into_iter()).is_ok()
                {
                    all = more;
                }
            }
            all
        })
    })
}

/// Any action but `drop` and `goto_table`, whether or not it fits a rule.
fn action() -> BoxedStrategy<Action> {
    let set = select(Field::ALL).prop_flat_map(|field| (Just(field), value(field, false), mask(field)));
    let set = set.prop_map(|(field, value, mask)| Action::SetField { field, value: value.and(mask), mask }).boxed();
    let address = prop_oneof![any::<[u8; 4]>().prop_map(Into::into), any::<[u8; 16]>().prop_map(Into::into)];
    let mac = || proptest::option::of(0u64..1 << 48);
    let outer = (
        0u32..1 << 24,
        address,
        mac(),
        mac(),
        any::<Option<u16>>(),
        any::<u16>(),
        any::<Option<u8>>(),
        1u8..,
        any::<bool>(),
    );
    let outer = outer.prop_map(|(vni, src, dl_src, dl_dst, udp_src, udp_dst, tos, ttl, checksum)| Vxlan {
        vni: (vni % 8 > 0).then_some(vni),
        dl_src,
        dl_dst,
        udp_src,
        udp_dst,
        tos,
        ttl,
        checksum,
        ..Vxlan::new(0, src, src)
    });
    let encap = (outer, proptest::option::of(any::<[u32; 2]>())).prop_map(|(outer, port)| match port {
        Some([number, output]) => Action::VxlanPort(Box::new(VxlanPort { number, output, outer })),
        None => Action::EncapVxlan(Box::new(outer)),
    });
    let reason =
        prop_oneof![Just(Reason::Action), Just(Reason::Ttl), Just(Reason::Mtu), any::<u16>().prop_map(Reason::Other)];
    prop_oneof![
        any::<u16>().prop_map(Action::Queue),
        any::<u32>().prop_map(Action::Output),
        Just(Action::InPort),
        set.clone(),
        set,
        Just(Action::PushVlan(0x8100)),
        Just(Action::PopVlan),
        any::<u16>().prop_map(Action::PushPppoe),
        Just(Action::PopPppoe),
        Just(Action::DecTtl),
        encap,
        any::<Option<u32>>().prop_map(|port| Action::DecapVxlan { port }),
        vni_map(),
        any::<u32>().prop_map(Action::Mirror),
        (1u16.., any::<u32>()).prop_map(|(probability, port)| Action::Sample { probability, port }),
        reason.prop_map(Action::Punt),
        vec(any::<u8>(), 1..9).prop_map(Action::Note),
    ]
    .boxed()
}

fn vni_map() -> impl Strategy<Value = Action> {
    let receiver = prop_oneof![any::<u16>().prop_map(Receiver::Queue), any::<u16>().prop_map(Receiver::Port)];
    vec((0u32..1000, 0u32..1000, receiver, any::<u16>()), 1..9).prop_map(|runs| {
        let mut next = 0;
        let run = |(gap, more, first, last): (u32, u32, Receiver, u16)| {
            let from = next + gap;
            next = from + more + 1;
            let (Receiver::Queue(number) | Receiver::Port(number)) = first;
            Run { vnis: (from, from + more), first, last: last.max(number) }
        };
        let map = VniMap::new(runs.into_iter().map(run).collect());
        Action::VniMap(std::sync::Arc::new(map.expect("runs that are apart")))
    })
}

/// A rule that passes its check.
pub fn rule(few: bool, tables: u8) -> impl Strategy<Value = RuleSpec> {
    let place = (0..tables, prop_oneof![0u16..4, any::<u16>()], any::<u64>(), any::<u16>(), any::<u16>());
    let goto = proptest::option::of(1..tables.max(2));
    (place, matching(few), vec(action(), 0..6), goto).prop_map(move |(place, matching, wanted, goto)| {
        let (table, priority, cookie, idle_timeout, hard_timeout) = place;
        let mut rule =
            RuleSpec { table, priority, matching, cookie, idle_timeout, hard_timeout, ..RuleSpec::default() };
        let mut actions = Vec::new();
        let last = goto.map(Action::GotoTable);
        for action in wanted.into_iter().chain(last) {
            actions.push(action);
            if rule.check_actions(&actions).is_err() {
                actions.pop();
            }
        }
        rule.actions = if actions.is_empty() { vec![Action::Drop] } else { actions };
        rule
    })
}

/// A key as frames have it: with an EtherType and protocol, and few values for what belongs to them.
pub fn key() -> impl Strategy<Value = Key> {
    (select(KEYWORDS), vec((select(Field::ALL), any::<bool>()), 0..12)).prop_flat_map(|(keyword, fields)| {
        let values: Vec<_> = fields.into_iter().map(|(field, few)| (Just(field), value(field, few))).collect();
        values.prop_map(move |values| {
            let mut key = Key::ZERO;
            let base = Match::ANY.with(Field::DlType, u64::from(keyword.1)).unwrap_or_default();
            let base =
                keyword.2.map_or(base, |protocol| base.with(Field::NwProto, u64::from(protocol)).unwrap_or(base));
            for (field, value) in values.into_iter().filter(|(field, _)| field.row().needs.met(&base)) {
                let (field, value, mask) =
                    with_presence(field, value, field.full()).unwrap_or((field, value, field.full()));
                let value = if field == Field::VlanTci { Wide::new(value.0[0] | TAG_PRESENT) } else { value };
                key.write(field, value, mask);
            }
            // No frame has an inner tag without an outer one.
            if key.get(Field::VlanTci).0[0] & TAG_PRESENT == 0 {
                key.set(Field::InnerVlanTci, 0);
            }
            key.set(Field::DlType, u64::from(keyword.1));
            if let Some(protocol) = keyword.2 {
                key.set(Field::NwProto, u64::from(protocol));
            }
            key
        })
    })
}
