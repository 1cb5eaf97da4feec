//! Rules and frames to classify: the same every time.

use millrace_flow::language::parse_rule;
use millrace_flow::version::{Change, Limits, Writer};
use millrace_flow::{Ingress, Key, RuleSpec};
use millrace_packet::parse::Layers;
use millrace_tool::failure::Failure;

/// Masks of the rules.
pub const MASKS: u32 = 20;
/// Bytes of a frame, without FCS.
pub const SIZE: usize = 64;

/// Where a worker looks, and where the one that searches every frame does.
pub const WORKERS: usize = 2;

/// Rule `number`: one of [`MASKS`] masks, with values that some flow may have.
pub fn rule(number: u32, random: &mut fastrand::Rng) -> Result<RuleSpec, Failure> {
    let (a, b, c) = (random.u32(..256), random.u32(..256), random.u32(..65536));
    let matching = match number % MASKS {
        len @ 0..8 => format!("tcp,nw_dst=10.{a}.{b}.0/{},tcp_dst={c}", 17 + len),
        len @ 8..12 => format!("ip,nw_src=10.{a}.{b}.0/{}", 8 + 4 * (len - 8)),
        12 => format!("tcp,tcp_dst={c}"),
        13 => format!("udp,udp_src={c}"),
        14 => format!("in_port={a},dl_vlan={b}"),
        15 => format!("dl_dst=02:00:00:00:{a:02x}:{b:02x}"),
        16 => format!("tcp,nw_src=10.{a}.{b}.1,nw_dst=10.{b}.{a}.1"),
        17 => format!("tcp,tcp_flags=+syn-ack,tcp_dst={c}"),
        18 => format!("ip,ip_dscp={},nw_dst=10.{a}.{b}.0/24", a % 64),
        _ => format!("udp,nw_dst=10.{a}.{b}.0/24,udp_dst={c}"),
    };
    let text = format!("priority={},{matching},actions=queue:{}", 100 + number % MASKS, number % 8);
    parse_rule(&text).map_err(|error| Failure::Found(format!("a rule of this benchmark is wrong: {error}")))
}

/// Tables with so many rules.
pub fn writer(rules: u32) -> Result<Writer, Failure> {
    let mut random = fastrand::Rng::with_seed(1);
    let rules = (0..rules).map(|number| rule(number, &mut random)).collect::<Result<Vec<_>, _>>()?;
    let mut writer = Writer::new(WORKERS, Limits::default());
    commit(&mut writer, vec![Change::Replace(rules)])?;
    Ok(writer)
}

/// A transaction that is right.
pub fn commit(writer: &mut Writer, changes: Vec<Change>) -> Result<(), Failure> {
    match writer.commit(changes, 0) {
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::Found(format!("a transaction of this benchmark is refused: {error}"))),
    }
}

/// A frame of another flow each: TCP, and every fourth UDP, over IPv4.
pub fn frames(flows: u32) -> Vec<[u8; SIZE]> {
    let mut random = fastrand::Rng::with_seed(2);
    (0..flows).map(|_| frame(&mut random)).collect()
}

fn frame(random: &mut fastrand::Rng) -> [u8; SIZE] {
    let is_udp = random.u32(..4) == 0;
    let mut frame = [0; SIZE];
    frame[..4].copy_from_slice(&[2, 0, 0, 0]);
    random.fill(&mut frame[4..6]);
    frame[12] = 8;
    let protocol = if is_udp { 17 } else { 6 };
    frame[14..24].copy_from_slice(&[0x45, 0, 0, 50, 0, 0, 0, 0, 64, protocol]);
    frame[26] = 10;
    frame[30] = 10;
    random.fill(&mut frame[27..30]);
    random.fill(&mut frame[31..38]);
    // A header of TCP has five words; a datagram has 30 bytes.
    if is_udp {
        frame[39] = 30
    } else {
        frame[46] = 0x50
    }
    frame
}

/// The key of a frame that comes in at port 0.
#[inline]
pub fn key(frame: &[u8]) -> Key {
    Key::extract(frame, &Layers::parse(frame), &Ingress::default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_flow::Field;

    #[test]
    fn frames_have_the_keys_that_rules_ask_for() {
        let frames = frames(1000);
        let keys: Vec<Key> = frames.iter().map(|frame| key(frame)).collect();
        let is = |field: Field, value: u64| keys.iter().filter(|key| key.get(field).0[0] == value).count();
        assert_eq!(is(Field::DlType, 0x0800), 1000);
        assert_eq!(is(Field::NwProto, 6) + is(Field::NwProto, 17), 1000);
        assert!((150..350).contains(&is(Field::NwProto, 17)) && is(Field::TpDst, 0) < 10);
        assert!(keys.iter().all(|key| key.get(Field::NwDst).0[0] >> 24 == 10));
    }
}
