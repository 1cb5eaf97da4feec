//! Meters as text: `meter=1,rate=10Mbit,burst=64k`.

use super::ParseError;
use super::scan::Part;
use crate::meter::{Meter, MeterSpec, Unit};
use millrace_packet::number::number;

const FORM: &str =
    "meter=N,rate=10Mbit,burst=64k (bytes), or meter=N,rate=10kpps,burst=100 (packets), and perhaps remark=1";

/// A meter from the pieces of its line; the first is `meter=N`.
pub(super) fn parse(pieces: &[Part<'_>]) -> Result<(u32, MeterSpec), ParseError> {
    let (id, options) = super::file::head(pieces, "meter")?;
    let (mut rated, mut burst, mut remark) = (None, None, None);
    for option in options {
        match option.split("=") {
            Some((name, value)) if name.text == "rate" => rated = Some(rate(value)?),
            Some((name, value)) if name.text == "burst" => {
                let wrong = || value.error("burst takes a whole number such as 100 or 64k");
                burst = Some(number(value.text).ok_or_else(wrong)?);
            }
            Some((name, value)) if name.text == "remark" => remark = Some(value.number("remark", 2)?),
            _ => return Err(option.error(format!("write {FORM}"))),
        }
    }
    let whole = pieces[0];
    let (Some((unit, rate)), Some(burst)) = (rated, burst) else { return Err(whole.error(format!("write {FORM}"))) };
    let spec = MeterSpec { unit, rate, burst, remark };
    Meter::new(spec, 0).map_err(|wrong| whole.error(wrong.to_string()))?;
    Ok((id, spec))
}

/// Bits a second, counted in bytes, or packets a second.
fn rate(value: Part<'_>) -> Result<(Unit, u64), ParseError> {
    let bits = ["bit/s", "bps", "bit"].iter().find_map(|unit| value.text.strip_suffix(unit));
    let rate = match (bits, value.text.strip_suffix("pps")) {
        (_, Some(packets)) => number(packets).map(|rate| (Unit::Packets, rate)),
        (Some(bits), None) => number(bits).filter(|bits| bits % 8 == 0).map(|bits| (Unit::Bytes, bits / 8)),
        (None, None) => None,
    };
    rate.ok_or_else(|| {
        value.error("rate takes bits or packets a second, such as 10Mbit or 10kpps; bits are divisible by 8")
    })
}

/// A meter as [`parse`] reads it.
pub(super) fn print(id: u32, spec: &MeterSpec) -> String {
    let (rate, unit) = match spec.unit {
        Unit::Bytes => (u128::from(spec.rate) * 8, "bit"),
        Unit::Packets => (spec.rate.into(), "pps"),
    };
    let remark = spec.remark.map_or_else(String::new, |steps| format!(",remark={steps}"));
    format!("meter={id},rate={}{unit},burst={}{remark}", scaled(rate), scaled(spec.burst.into()))
}

/// A number with the largest of k, M and G that leaves it whole.
fn scaled(number: u128) -> String {
    let scales = [(1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")];
    match scales.iter().find(|(scale, _)| number > 0 && number.is_multiple_of(*scale)) {
        Some((scale, letter)) => format!("{}{letter}", number / scale),
        None => number.to_string(),
    }
}

/// The highest rate in bytes that can be written in bits.
pub(super) const MAX_BYTES: u64 = u64::MAX / 8;
