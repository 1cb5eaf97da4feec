//! Values of fields as text, and back.

use super::{Field, Format, MAX_CID, Masks, Wide};
use crate::matching::{cid_is_whole, cid_mask};
use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Names of the TCP flags, from bit 0 on (RFC 9293 section 3.1; `ns` is bit 8, `[200]` and further are reserved).
const TCP_FLAGS: [&str; 9] = ["fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr", "ns"];

/// Names of fragment states with value and mask: bit 0 is "a fragment", bit 1 "not the first".
const FRAGMENTS: [(&str, u64, u64); 5] =
    [("no", 0, 3), ("yes", 1, 1), ("first", 1, 3), ("later", 3, 3), ("not_later", 0, 2)];

/// The port of frames that come from TX queues of the host (`OFPP_LOCAL` of OpenFlow, `local` in ovs-ofctl).
pub const LOCAL: u32 = 0xffff_fffe;

/// A number: decimal, or hexadecimal after `0x`.
pub fn number(text: &str) -> Option<u64> {
    // The library's parser takes a sign, which a number here does not have.
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) if digits.starts_with(|first: char| first.is_ascii_hexdigit()) => {
            u64::from_str_radix(digits, 16).ok()
        }
        None if text.starts_with(|first: char| first.is_ascii_digit()) => text.parse().ok(),
        _ => None,
    }
}

/// Six bytes with colons in between.
fn mac(text: &str) -> Option<u64> {
    let mut parts = text.split(':');
    let mut value = 0;
    for _ in 0..6 {
        let part = parts.next().filter(|part| (1..=2).contains(&part.len()))?;
        value = value << 8 | number(&format!("0x{part}"))?;
    }
    parts.next().is_none().then_some(value)
}

/// The bytes of `0x8394...`, or of the digits alone.
fn bytes(text: &str) -> Option<Vec<u8>> {
    let digits = text.strip_prefix("0x").unwrap_or(text).as_bytes();
    let byte =
        |pair: &[u8]| pair.iter().try_fold(0u8, |byte, digit| Some(byte << 4 | char::from(*digit).to_digit(16)? as u8));
    let fits = digits.len().is_multiple_of(2) && (1..=MAX_CID).contains(&(digits.len() / 2));
    fits.then(|| digits.chunks(2).map(byte).collect())?
}

/// `+syn-ack`: the named flags set, or not set.
fn flags(text: &str) -> Option<(u64, u64)> {
    let (mut value, mut mask) = (0, 0);
    let mut rest = text;
    while !rest.is_empty() {
        let set = rest.starts_with('+');
        rest = rest.strip_prefix(['+', '-'])?;
        let end = rest.find(['+', '-']).unwrap_or(rest.len());
        let bit = 1 << TCP_FLAGS.iter().position(|name| *name == &rest[..end])?;
        if mask & bit != 0 {
            return None;
        }
        mask |= bit;
        value |= if set { bit } else { 0 };
        rest = &rest[end..];
    }
    (mask != 0).then_some((value, mask))
}

/// What values of a format look like, for errors.
pub fn example(format: Format) -> &'static str {
    match format {
        Format::Decimal => "a number such as 80 or 0x50",
        Format::Hex => "a number such as 0x0800",
        Format::Mac => "an address such as 02:00:00:00:00:01",
        Format::Ipv4 => "an address such as 10.0.0.1 or 10.0.0.0/8",
        Format::Ipv6 => "an address such as 2001:db8::1 or 2001:db8::/32",
        Format::TcpFlags => "flags such as +syn-ack, or a number with a mask",
        Format::Fragment => "'no', 'yes', 'first', 'later' or 'not_later'",
        Format::VlanId => "a number from 0 to 4095, or 0xffff for frames without a tag",
        Format::VlanPriority => "a number from 0 to 7",
        Format::Tos => "a number from 0 to 252 that is divisible by 4",
        Format::Cid => "up to 20 bytes such as 0x8394c8f03e515708",
    }
}

/// One value without its mask.
fn value(field: Field, text: &str) -> Option<Wide> {
    match field.row().format {
        Format::Mac => mac(text).map(Wide::new),
        Format::Ipv4 => text.parse::<Ipv4Addr>().ok().map(|address| Wide::new(address.to_bits().into())),
        Format::Ipv6 => text.parse::<Ipv6Addr>().ok().map(|address| Wide::from_u128(address.to_bits())),
        Format::Cid => bytes(text).map(|bytes| Wide::cid(&bytes)),
        Format::Tos => number(text).filter(|number| number % 4 == 0).map(|number| Wide::new(number >> 2)),
        _ if field == Field::InPort && text.eq_ignore_ascii_case("local") => Some(Wide::new(LOCAL.into())),
        _ => number(text).map(Wide::new),
    }
}

/// A prefix length as a mask.
fn prefix(field: Field, text: &str) -> Option<Wide> {
    let len = number(text)?;
    match field.row().format {
        Format::Ipv4 if len <= 32 => Some(Wide::new(!(u64::from(u32::MAX) >> len) & u64::from(u32::MAX))),
        Format::Ipv6 if len <= 128 => Some(Wide::from_u128(!u128::MAX.checked_shr(len as u32).unwrap_or(0))),
        _ => None,
    }
}

/// Parses a value, with a mask after `/` where the field can have one. Bits outside the mask become 0.
///
/// # Errors
/// What would be right.
pub fn parse(field: Field, text: &str) -> Result<(Wide, Wide), String> {
    let row = field.row();
    let wrong = || format!("{} takes {}, not '{text}'", field.name(), example(row.format));
    if row.format == Format::Fragment
        && let Some(named) = FRAGMENTS.iter().find(|named| named.0 == text)
    {
        return Ok((Wide::new(named.1), Wide::new(named.2)));
    }
    if row.format == Format::TcpFlags && text.starts_with(['+', '-']) {
        return flags(text).map(|(value, mask)| (Wide::new(value), Wide::new(mask))).ok_or_else(wrong);
    }
    let Some((before, after)) = text.split_once('/') else {
        let value = value(field, text).ok_or_else(wrong)?;
        let untagged = row.format == Format::VlanId && value == Wide::new(0xffff);
        if value.and(field.full()) != value && !untagged {
            return Err(wrong());
        }
        let mask = if row.format == Format::Cid { cid_mask((value.0[2] & 0xff) as usize) } else { field.full() };
        return Ok((value, mask));
    };
    let mask = prefix(field, after).or_else(|| value(field, after)).ok_or_else(wrong)?;
    let value = value(field, before).ok_or_else(wrong)?;
    if row.masks == Masks::Exact && mask != field.full() {
        return Err(format!("{} has no mask: all of it counts", field.name()));
    }
    let (mut value, mut mask) = (value, mask);
    if row.format == Format::Cid {
        // Under a mask the length does not count.
        (value.0[2], mask.0[2]) = (value.0[2] & !0xff, mask.0[2] & !0xff);
    }
    if mask == Wide::ZERO || mask.and(field.full()) != mask || value.and(field.full()) != value {
        return Err(wrong());
    }
    Ok((value.and(mask), mask))
}

/// Prints one value without its mask.
fn print_value(field: Field, value: Wide) -> String {
    let number = value.0[0];
    match field.row().format {
        Format::Mac => {
            let bytes = number.to_be_bytes();
            bytes[2..].iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")
        }
        Format::Ipv4 => Ipv4Addr::from_bits(number as u32).to_string(),
        Format::Ipv6 => Ipv6Addr::from_bits(value.as_u128()).to_string(),
        Format::Cid => {
            let all = value.0.iter().flat_map(|word| word.to_be_bytes());
            let len = (value.0[2] & 0xff).min(MAX_CID as u64) as usize;
            all.take(len).fold("0x".to_owned(), |mut text, byte| {
                let _ = write!(text, "{byte:02x}");
                text
            })
        }
        Format::Tos => (number << 2).to_string(),
        Format::Hex => format!("{number:#x}"),
        Format::TcpFlags => format!("{number:#05x}"),
        _ if field == Field::InPort && number == u64::from(LOCAL) => "local".to_owned(),
        _ => number.to_string(),
    }
}

/// The prefix length of a mask, if it is one and not all.
fn prefix_len(field: Field, mask: Wide) -> Option<u32> {
    let (ones, width) = match field.row().format {
        Format::Ipv4 => ((mask.0[0] as u32).leading_ones(), 32),
        Format::Ipv6 => (mask.as_u128().leading_ones(), 128),
        _ => return None,
    };
    (ones < width && prefix(field, &ones.to_string()) == Some(mask)).then_some(ones)
}

/// Prints a value and its mask, in a form that [`parse`] reads as the same.
pub fn print(field: Field, value: Wide, mask: Wide) -> String {
    let row = field.row();
    match row.format {
        Format::Cid if cid_is_whole(value, mask) => return print_value(field, value),
        Format::Cid => {
            // As many bytes as the mask reaches.
            let reach = mask.0.iter().flat_map(|word| word.to_be_bytes()).take(MAX_CID);
            let len = reach.enumerate().filter(|(_, byte)| *byte != 0).last().map_or(1, |(at, _)| at as u64 + 1);
            let with_len = |value: Wide| print_value(field, Wide([value.0[0], value.0[1], value.0[2] & !0xff | len]));
            return format!("{}/{}", with_len(value), with_len(mask));
        }
        Format::Fragment => {
            if let Some(named) = FRAGMENTS.iter().find(|named| (named.1, named.2) == (value.0[0], mask.0[0])) {
                return named.0.to_owned();
            }
        }
        Format::TcpFlags if mask != field.full() && mask.0[0] >> TCP_FLAGS.len() == 0 => {
            let signs = TCP_FLAGS.iter().enumerate().filter(|(bit, _)| mask.0[0] >> bit & 1 == 1);
            return signs
                .map(|(bit, name)| format!("{}{name}", if value.0[0] >> bit & 1 == 1 { '+' } else { '-' }))
                .collect();
        }
        _ => {}
    }
    if mask == field.full() {
        return print_value(field, value);
    }
    match prefix_len(field, mask) {
        Some(len) => format!("{}/{len}", print_value(field, value)),
        None if row.format == Format::Decimal => format!("{:#x}/{:#x}", value.0[0], mask.0[0]),
        None => format!("{}/{}", print_value(field, value), print_value(field, mask)),
    }
}
