//! Taking the argument of a specification apart.

use super::SpecError;
use std::fmt;

/// Splits at commas that are not escaped, and removes the escapes.
pub(super) fn fields(argument: &str) -> Result<Vec<String>, SpecError> {
    let mut fields = vec![String::new()];
    let mut rest = argument.chars();
    while let Some(mut char) = rest.next() {
        if char == ',' {
            fields.push(String::new());
            continue;
        }
        if char == '\\' {
            char = rest
                .next()
                .filter(|char| matches!(char, ',' | '\\'))
                .ok_or_else(|| SpecError::Escape(argument.to_owned()))?;
        }
        fields.last_mut().expect("never empty").push(char);
    }
    Ok(fields)
}

/// The fields as key and value, each key known and there once.
pub(super) fn options<'a>(
    kind: &'static str,
    known: &'static str,
    keys: &[&str],
    fields: &'a [String],
) -> Result<Vec<(&'a str, &'a str)>, SpecError> {
    let mut options: Vec<(&str, &str)> = Vec::new();
    for field in fields {
        let (key, value) = field
            .split_once(['=', ':'])
            .filter(|(key, _)| keys.contains(key))
            .ok_or_else(|| SpecError::Option { kind, option: field.clone(), known })?;
        if options.iter().any(|(seen, _)| *seen == key) {
            return Err(SpecError::Twice(key.to_owned()));
        }
        options.push((key, value));
    }
    Ok(options)
}

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

/// A file name with its commas and backslashes escaped.
pub(super) struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for char in self.0.chars() {
            if matches!(char, ',' | '\\') {
                f.write_str("\\")?;
            }
            write!(f, "{char}")?;
        }
        Ok(())
    }
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
