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
