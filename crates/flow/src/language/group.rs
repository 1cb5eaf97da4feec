//! RSS groups as text: `group=1,rss,queues=0-7,fields=5tuple,symmetric`.

use super::ParseError;
use super::list;
use super::scan::Part;
use crate::rss::{Choices, Group, GroupSpec, MAX_TABLE, MICROSOFT_KEY, Tuple};
use std::fmt::Write as _;

const FORM: &str =
    "group=N,rss,queues=LIST[,fields=none|2tuple|4tuple|5tuple][,PROTOCOL=...][,symmetric][,inner][,key=HEX]";
/// Fewest entries of a table that is made of a list of queues: with 128 of them, no queue of a few has much more than its share.
const USUAL_TABLE: usize = 128;

const TUPLES: [(&str, Tuple); 4] =
    [("none", Tuple::None), ("2tuple", Tuple::Two), ("4tuple", Tuple::Four), ("5tuple", Tuple::Five)];

/// A group from the pieces of its line; the first is `group=N`.
pub(super) fn parse(pieces: &[Part<'_>]) -> Result<(u32, GroupSpec), ParseError> {
    let (number, options) = super::file::head(pieces, "group")?;
    let mut spec = GroupSpec { key: MICROSOFT_KEY.to_vec(), ..GroupSpec::spread(&MICROSOFT_KEY, 1, 1) };
    let (mut is_rss, mut table, mut fields, mut single) = (false, None, None, Vec::new());
    for option in options {
        let (name, value) = option.split("=").unwrap_or((*option, option.cut(option.text.len(), option.text.len())));
        match name.text {
            "rss" if value.text.is_empty() => is_rss = true,
            "symmetric" if value.text.is_empty() => spec.symmetric = true,
            "inner" if value.text.is_empty() => spec.inner = true,
            "queues" => table = Some(spread(&list::parse(value, MAX_TABLE)?)),
            "table" => table = Some(list::parse(value, MAX_TABLE)?),
            "fields" => fields = Some(tuple(value)?),
            "key" => spec.key = key(value)?,
            _ => match slot(&mut spec.choices, name.text) {
                Some(_) => single.push((name.text, tuple(value)?)),
                None => return Err(name.error(format!("an RSS group has no '{}': write {FORM}", name.text))),
            },
        }
    }
    let whole = pieces[0];
    let Some(table) = table.filter(|_| is_rss) else { return Err(whole.error(format!("write {FORM}"))) };
    spec.table = table;
    spec.choices = fields.map_or_else(Choices::default, all);
    for (name, tuple) in single {
        if let Some(slot) = slot(&mut spec.choices, name) {
            *slot = tuple;
        }
    }
    Group::new(&spec).map_err(|wrong| whole.error(wrong.to_string()))?;
    Ok((number, spec))
}

/// A group as [`parse`] reads it.
pub(super) fn print(number: u32, spec: &GroupSpec) -> String {
    let mut text = format!("group={number},rss");
    let _ = match cycle(&spec.table) {
        Some(queues) => write!(text, ",queues={}", list::print(queues)),
        None => write!(text, ",table={}", list::print(&spec.table)),
    };
    let usual = Choices::default();
    let common = TUPLES.iter().find(|(_, tuple)| all(*tuple) == spec.choices);
    let base = common.map_or(usual, |(_, tuple)| all(*tuple));
    if let Some((name, _)) = common.filter(|_| base != usual) {
        let _ = write!(text, ",fields={name}");
    }
    let (mut wanted, mut base) = (spec.choices, base);
    for name in PROTOCOLS {
        let tuple = slot(&mut wanted, name).map(|tuple| *tuple);
        if tuple != slot(&mut base, name).map(|tuple| *tuple)
            && let Some((word, _)) = TUPLES.iter().find(|(_, known)| Some(*known) == tuple)
        {
            let _ = write!(text, ",{name}={word}");
        }
    }
    for (word, is_set) in [("symmetric", spec.symmetric), ("inner", spec.inner)] {
        if is_set {
            let _ = write!(text, ",{word}");
        }
    }
    if spec.key != MICROSOFT_KEY {
        text += ",key=0x";
        spec.key.iter().for_each(|byte| {
            let _ = write!(text, "{byte:02x}");
        });
    }
    text
}

const PROTOCOLS: [&str; 8] = ["tcp4", "udp4", "sctp4", "ip4", "tcp6", "udp6", "sctp6", "ip6"];

fn slot<'c>(choices: &'c mut Choices, name: &str) -> Option<&'c mut Tuple> {
    Some(match name {
        "tcp4" => &mut choices.tcp4,
        "udp4" => &mut choices.udp4,
        "sctp4" => &mut choices.sctp4,
        "ip4" => &mut choices.ip4,
        "tcp6" => &mut choices.tcp6,
        "udp6" => &mut choices.udp6,
        "sctp6" => &mut choices.sctp6,
        "ip6" => &mut choices.ip6,
        _ => return None,
    })
}

/// What `fields=` stands for: the same for all protocols. What has no ports has no 4-tuple.
pub(super) fn all(tuple: Tuple) -> Choices {
    let rest = if tuple == Tuple::Four { Tuple::Two } else { tuple };
    Choices { tcp4: tuple, udp4: tuple, sctp4: tuple, ip4: rest, tcp6: tuple, udp6: tuple, sctp6: tuple, ip6: rest }
}

fn tuple(value: Part<'_>) -> Result<Tuple, ParseError> {
    let known = TUPLES.iter().find(|(name, _)| *name == value.text).map(|(_, tuple)| *tuple);
    known.ok_or_else(|| value.error("write none, 2tuple, 4tuple or 5tuple"))
}

fn key(value: Part<'_>) -> Result<Vec<u8>, ParseError> {
    let digits = value.text.strip_prefix("0x").unwrap_or(value.text).as_bytes();
    let byte =
        |pair: &[u8]| pair.iter().try_fold(0u8, |byte, digit| Some(byte << 4 | char::from(*digit).to_digit(16)? as u8));
    let bytes = digits.len().is_multiple_of(2).then(|| digits.chunks(2).map(byte).collect::<Option<Vec<u8>>>());
    bytes.flatten().ok_or_else(|| value.error("key takes 40 to 64 bytes in hexadecimal"))
}

/// An indirection table that gives every queue of the list its share. It has as many entries as a table may have at most.
pub(super) fn spread(queues: &[u16]) -> Vec<u16> {
    let len = queues.len().next_power_of_two().max(USUAL_TABLE);
    queues.iter().copied().cycle().take(len).collect()
}

/// The shortest list of queues of which [`spread`] makes this table, if there is one.
fn cycle(table: &[u16]) -> Option<&[u16]> {
    (1..=table.len()).map(|len| &table[..len]).find(|queues| spread(queues) == table)
}

/// The highest queue of a group.
pub(super) fn highest(spec: &GroupSpec) -> u16 {
    spec.table.iter().copied().max().unwrap_or(0)
}
