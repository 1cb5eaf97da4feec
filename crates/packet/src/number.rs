//! Numbers as people write counts, sizes and rates.

/// A whole number: decimal digits, perhaps with a fraction, an exponent, and k, M or G behind them, such as 64, 10k, 1.5M or
/// 1e6. Exactly what is written, or `None`: 1.5 is no whole number.
pub fn number(text: &str) -> Option<u64> {
    let (digits, power) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 3),
        b'M' => (&text[..text.len() - 1], 6),
        b'G' => (&text[..text.len() - 1], 9),
        _ => (text, 0),
    };
    // `parse` alone would let a plus sign pass.
    let only_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (mantissa, exponent) = digits.split_once(['e', 'E']).unwrap_or((digits, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, "0"));
    if ![whole, fraction, exponent].into_iter().all(only_digits) {
        return None;
    }
    let fraction = fraction.trim_end_matches('0');
    let power = exponent.parse::<u32>().ok()?.checked_add(power)?.checked_sub(u32::try_from(fraction.len()).ok()?)?;
    format!("{whole}{fraction}").parse::<u64>().ok()?.checked_mul(10_u64.checked_pow(power)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_exactly_what_is_written() {
        for (text, is) in [
            ("0", 0),
            ("64", 64),
            ("1k", 1_000),
            ("1K", 1_000),
            ("1e6", 1_000_000),
            ("1E3k", 1_000_000),
            ("1.5M", 1_500_000),
            ("0.000001M", 1),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(number(text), Some(is), "{text}");
        }
        for text in [
            "",
            "k",
            "-1",
            "+1",
            "1.5",
            "1.",
            ".5M",
            "1e",
            "e3",
            "1e-3",
            "1T",
            "1 k",
            "18446744073709551616",
            "20e18",
            "1e99999999999",
        ] {
            assert_eq!(number(text), None, "{text}");
        }
    }
}
