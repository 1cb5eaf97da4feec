//! Taking the options of a device name apart and putting values back into it.

use super::{CardOptions, OptionError, Problem};

const SEPARATORS: [char; 3] = [',', ';', '+'];
/// Between the word of an option and its value.
const ASSIGNMENTS: [char; 2] = ['=', ':'];

/// A problem and the byte where it starts.
type Fault = (usize, Problem);

/// The options in `text`, which may be empty.
pub(super) fn parse_options(text: &str) -> Result<CardOptions, Fault> {
    let mut options = CardOptions::default();
    let mut default_port = true;
    let mut port_before: Option<String> = None;
    let mut at = 0;
    while !text.is_empty() {
        let start = at;
        let (word, value) = next_option(text, &mut at)?;
        if word == "port" && default_port {
            options.ports.clear();
            default_port = false;
        }
        options.set(word, value.as_deref()).map_err(|error| (start, of_port(error, port_before.as_deref())))?;
        port_before = if word == "port" { value } else { None };
        if at == text.len() {
            break;
        }
        at += 1; // the separator, one byte
    }
    options.validate().map_err(|error| (0, error.into()))?;
    Ok(options)
}

/// A word that nobody knows may belong to the port that stands before it.
fn of_port(error: OptionError, port_before: Option<&str>) -> Problem {
    match (error, port_before) {
        (OptionError::Unknown { word }, Some(port)) => Problem::OfPort { word, port: port.to_owned() },
        (error, _) => error.into(),
    }
}

/// The option at byte `at`, which is moved to the separator behind it or to the end.
fn next_option<'t>(text: &'t str, at: &mut usize) -> Result<(&'t str, Option<String>), Fault> {
    let start = *at;
    let rest = &text[start..];
    let end = rest.find(|c| ASSIGNMENTS.contains(&c) || SEPARATORS.contains(&c)).unwrap_or(rest.len());
    let word = &rest[..end];
    if let Some(parenthesis) = word.find(['(', ')']) {
        return Err((start + parenthesis, Problem::StrayParenthesis));
    }
    if word.is_empty() && !rest.starts_with(ASSIGNMENTS) {
        return Err((start, Problem::MissingOption));
    }
    *at += end;
    if !rest[end..].starts_with(ASSIGNMENTS) {
        return Ok((word, None));
    }
    *at += 1;
    let value = if text[*at..].starts_with('(') { nested(text, at)? } else { plain(text, at)? };
    Ok((word, Some(value)))
}

/// The plain value at byte `at`, which is moved behind it.
fn plain(text: &str, at: &mut usize) -> Result<String, Fault> {
    let start = *at;
    let mut value = String::new();
    let mut characters = text[start..].char_indices();
    while let Some((offset, character)) = characters.next() {
        match character {
            '\\' => {
                let (_, escaped) = characters.next().ok_or((start + offset, Problem::DanglingBackslash))?;
                value.push(escaped);
            }
            '(' | ')' => return Err((start + offset, Problem::StrayParenthesis)),
            separator if SEPARATORS.contains(&separator) => {
                *at = start + offset;
                return Ok(value);
            }
            other => value.push(other),
        }
    }
    *at = text.len();
    Ok(value)
}

/// The value in parentheses at byte `at`, which is moved behind them.
fn nested(text: &str, at: &mut usize) -> Result<String, Fault> {
    let start = *at;
    let mut value = String::new();
    let mut depth = 0;
    let mut characters = text[start..].char_indices();
    while let Some((offset, character)) = characters.next() {
        match character {
            '\\' => {
                let (_, escaped) = characters.next().ok_or((start + offset, Problem::DanglingBackslash))?;
                value.push(escaped);
            }
            '(' => {
                if depth > 0 {
                    value.push('(');
                }
                depth += 1;
            }
            ')' if depth == 1 => {
                *at = start + offset + 1;
                return match text[*at..].chars().next() {
                    Some(next) if !SEPARATORS.contains(&next) => Err((*at, Problem::TextBehindParenthesis)),
                    _ => Ok(value),
                };
            }
            ')' => {
                depth -= 1;
                value.push(')');
            }
            ';' => value.push(','),
            other => value.push(other),
        }
    }
    Err((start, Problem::Unclosed))
}

/// The value as it is written behind `word=`; with `no_commas` as a DPDK vdev argument can hold it, except for a `=`.
pub(super) fn quoted(value: &str, no_commas: bool) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:=@%~".contains(c);
    if value.chars().all(is_plain) {
        return value.to_owned();
    }
    let mut written = String::from("(");
    for character in value.chars() {
        match character {
            ',' if no_commas => written.push(';'),
            '\\' | '(' | ')' | ';' => written.extend(['\\', character]),
            other => written.push(other),
        }
    }
    written.push(')');
    written
}
