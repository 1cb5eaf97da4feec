//! Lists of queues: `3`, `0-7`, `(0-3,6)`.

use super::ParseError;
use super::scan::Part;

/// The highest queue.
pub(super) const MAX_QUEUE: u16 = u16::MAX;

/// At most `most` queues, at least one. Several ranges stand in parentheses, because commas separate.
pub(super) fn parse(value: Part<'_>, most: usize) -> Result<Vec<u16>, ParseError> {
    let inside = match value.text.strip_prefix('(').and_then(|text| text.strip_suffix(')')) {
        Some(inside) => value.cut(1, 1 + inside.len()),
        None => value,
    };
    let mut queues = Vec::new();
    for range in inside.pieces()? {
        let (first, last) = range.split("-").unwrap_or((range, range));
        let (first, last): (u16, u16) =
            (first.number("a queue", MAX_QUEUE.into())?, last.number("a queue", MAX_QUEUE.into())?);
        if last < first || queues.len() + usize::from(last - first) >= most {
            return Err(range.error(format!("write up to {most} queues, such as 0-7 or (0-3,6)")));
        }
        queues.extend(first..=last);
    }
    if queues.is_empty() { Err(value.error("write queues such as 0-7 or (0-3,6)")) } else { Ok(queues) }
}

/// A list as [`parse`] reads it.
pub(super) fn print(queues: &[u16]) -> String {
    let mut runs: Vec<(u16, u16)> = Vec::new();
    for &queue in queues {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(queue) => *last = queue,
            _ => runs.push((queue, queue)),
        }
    }
    let shown = |(first, last): &(u16, u16)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    let shown: Vec<_> = runs.iter().map(shown).collect();
    match &shown[..] {
        [one] => one.clone(),
        several => format!("({})", several.join(",")),
    }
}
