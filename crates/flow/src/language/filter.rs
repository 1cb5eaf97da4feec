//! Which rules a change or a list is about, from text.

use super::rule::{Reading, actions_at};
use super::scan::Part;
use super::{MAX_LINE, ParseError, actions};
use crate::action::Action;
use crate::version::Filter;

const WORDS: [&str; 5] = ["table", "cookie", "out_port", "priority", "strict"];

/// A filter such as `table=0,tcp,nw_src=10.0.0.0/8` or `cookie=0x10/0xf0`. With `strict` only the rule with exactly this
/// match and priority is meant, otherwise all that match nothing else than what the filter matches. Empty is every rule.
///
/// # Errors
/// What is wrong, where, and what would be right.
pub fn parse_filter(text: &str) -> Result<Filter, ParseError> {
    not_too_long(text)?;
    read(Part::whole(text))
}

/// A filter and new actions for the rules that it means: `tcp,nw_src=10.0.0.0/8,actions=drop`.
///
/// # Errors
/// What is wrong, where, and what would be right.
pub fn parse_modification(line: &str) -> Result<(Filter, Vec<Action>), ParseError> {
    not_too_long(line)?;
    let whole = Part::whole(line);
    let Some((begin, end)) = actions_at(line) else {
        return Err(whole
            .cut(line.len(), line.len())
            .error("write the new actions: actions=..., such as actions=queue:3"));
    };
    Ok((read(whole.cut(0, begin))?, actions::parse(whole.cut(end, line.len()))?))
}

fn not_too_long(text: &str) -> Result<(), ParseError> {
    if text.len() > MAX_LINE {
        return Err(Part::whole("").error(format!("a line of {} bytes is too long: at most {MAX_LINE}", text.len())));
    }
    Ok(())
}

fn read(text: Part<'_>) -> Result<Filter, ParseError> {
    let mut filter = Filter::default();
    let mut reading = Reading::default();
    for piece in text.pieces()? {
        if piece.text == "strict" {
            filter.strict = true;
            continue;
        }
        match piece.split("=") {
            Some((name, value)) if name.text == "table" => filter.table = Some(value.number("table", 0xff)?),
            Some((name, value)) if name.text == "out_port" => {
                filter.out_port = Some(value.number("out_port", 0xffff_ffff)?);
            }
            Some((name, value)) if name.text == "priority" => filter.priority = Some(value.number("priority", 0xffff)?),
            Some((name, value)) if name.text == "cookie" => {
                let (cookie, mask) = value.split("/").map_or((value, None), |(cookie, mask)| (cookie, Some(mask)));
                let mask = mask.map_or(Ok(u64::MAX), |mask| mask.number("the mask of cookie", u64::MAX))?;
                filter.cookie = Some((cookie.number("cookie", u64::MAX)?, mask));
            }
            _ => reading.read(piece, &WORDS)?,
        }
    }
    filter.matching = reading.finish()?;
    Ok(filter)
}
