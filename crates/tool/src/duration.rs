//! Times as people write them.

use millrace_packet::number::number;

/// A time such as 500ns, 20us, 1ms or 2s, in ns.
///
/// # Errors
/// A sentence, for a text that is none.
pub fn nanoseconds(text: &str) -> Result<u64, String> {
    let units = [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];
    let found = units.iter().find_map(|&(unit, ns)| Some((text.strip_suffix(unit)?, ns)));
    let value = found.and_then(|(count, ns)| number(count)?.checked_mul(ns));
    value.ok_or_else(|| format!("{text:?} is no time such as 500ns, 20us, 1ms or 2s"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_a_unit() {
        assert_eq!(
            ["7ns", "20us", "1ms", "2s"].map(|text| nanoseconds(text).unwrap()),
            [7, 20_000, 1_000_000, 2_000_000_000]
        );
        for text in ["", "7", "us", "1.5x", "1h", "20000000000000s"] {
            assert!(nanoseconds(text).is_err(), "{text}");
        }
    }
}
