//! Rules from text.

use super::error::closest;
use super::scan::Part;
use super::{MAX_LINE, ParseError, actions};
use crate::field::{Field, Wide, needs::KEYWORDS, text};
use crate::matching::{Match, MatchError};
use crate::rule::RuleSpec;

/// Words that are not fields.
const WORDS: [&str; 6] = ["table", "priority", "cookie", "idle_timeout", "hard_timeout", "actions"];

/// A match that is being read, with the places of its fields.
#[derive(Default)]
pub(super) struct Reading<'a> {
    matching: Match,
    fields: Vec<(Field, Part<'a>)>,
}

impl<'a> Reading<'a> {
    /// Reads a keyword, or a field with its value.
    pub fn read(&mut self, piece: Part<'a>, others: &[&str]) -> Result<(), ParseError> {
        if let Some((_, ether_type, protocol)) = KEYWORDS.iter().find(|(word, ..)| *word == piece.text) {
            self.add(piece, Field::DlType, Wide::new((*ether_type).into()), Field::DlType.full())?;
            return match protocol {
                Some(number) => self.add(piece, Field::NwProto, Wide::new((*number).into()), Field::NwProto.full()),
                None => Ok(()),
            };
        }
        let Some((name, value)) = piece.split("=") else { return Err(piece.error(unknown(piece.text, others))) };
        let field = Field::named(name.text).ok_or_else(|| name.error(unknown(name.text, others)))?;
        let (bits, mask) = text::parse(field, value.text).map_err(|wrong| value.error(wrong))?;
        self.add(name, field, bits, mask)
    }

    fn add(&mut self, place: Part<'a>, field: Field, value: Wide, mask: Wide) -> Result<(), ParseError> {
        self.matching.add(field, value, mask).map_err(|wrong| place.error(wrong.to_string()))?;
        self.fields.push((field, place));
        Ok(())
    }

    /// The match, with what its fields need.
    pub fn finish(mut self) -> Result<Match, ParseError> {
        let fields = self.fields.iter().map(|(field, _)| *field);
        self.matching.complete(fields).map_err(|wrong| {
            let at = |wanted: Field| self.fields.iter().find(|(field, _)| *field == wanted).map(|(_, place)| *place);
            let place = if let MatchError::Needs { field, .. } = wrong { at(field) } else { None };
            place.unwrap_or(Part::whole("")).error(wrong.to_string())
        })?;
        Ok(self.matching)
    }
}

fn unknown(name: &str, others: &[&str]) -> String {
    let fields = Field::ALL.iter().flat_map(|field| field.row().names.iter().copied());
    let words = KEYWORDS.iter().map(|(word, ..)| *word).chain(others.iter().copied());
    match closest(name, fields.chain(words)) {
        Some(near) if near == name => format!("'{name}' takes a value: write {name}=VALUE"),
        Some(near) => format!("there is no field '{name}'; did you mean '{near}'?"),
        None => format!("there is no field '{name}'; names are those of ovs-fields(7)"),
    }
}

/// Where `actions=` begins and ends.
pub(super) fn actions_at(line: &str) -> Option<(usize, usize)> {
    let begins = |at: usize| at == 0 || matches!(line.as_bytes()[at - 1], b',' | b' ' | b'\t');
    let find =
        |word: &str| line.match_indices(word).map(|(at, _)| at).find(|&at| begins(at)).map(|at| (at, at + word.len()));
    // `action=` is not a part of `actions=`.
    find("actions=").or_else(|| find("action="))
}

/// Reads a rule without checking what depends on all of it.
pub(crate) fn parse_unchecked(line: &str) -> Result<RuleSpec, ParseError> {
    let whole = Part::whole(line);
    if line.len() > MAX_LINE {
        return Err(Part::whole("").error(format!("a line of {} bytes is too long: at most {MAX_LINE}", line.len())));
    }
    let Some((begin, end)) = actions_at(line) else {
        return Err(whole.cut(line.len(), line.len()).error("a rule ends with actions=..., such as actions=queue:3"));
    };
    let mut rule = RuleSpec::default();
    let mut reading = Reading::default();
    for piece in whole.cut(0, begin).pieces()? {
        let (name, value) = piece.split("=").unwrap_or((piece, piece.cut(0, 0)));
        match name.text {
            "table" if !value.text.is_empty() => rule.table = value.number("table", 0xff)?,
            "priority" if !value.text.is_empty() => rule.priority = value.number("priority", 0xffff)?,
            "cookie" if !value.text.is_empty() => rule.cookie = value.number("cookie", u64::MAX)?,
            "idle_timeout" if !value.text.is_empty() => rule.idle_timeout = value.number("idle_timeout", 0xffff)?,
            "hard_timeout" if !value.text.is_empty() => rule.hard_timeout = value.number("hard_timeout", 0xffff)?,
            _ => reading.read(piece, &WORDS)?,
        }
    }
    rule.matching = reading.finish()?;
    rule.actions = actions::parse(whole.cut(end, line.len()))?;
    Ok(rule)
}

/// A rule from a line.
///
/// # Errors
/// What is wrong, where, and what would be right.
pub fn parse_rule(line: &str) -> Result<RuleSpec, ParseError> {
    let rule = parse_unchecked(line)?;
    rule.check().map_err(|wrong| {
        let at = actions_at(line).map_or(0, |(_, end)| end);
        Part::whole(line).cut(at, line.len()).error(wrong.to_string())
    })?;
    Ok(rule)
}

impl std::str::FromStr for RuleSpec {
    type Err = ParseError;

    fn from_str(line: &str) -> Result<Self, ParseError> {
        parse_rule(line)
    }
}

impl std::str::FromStr for Match {
    type Err = ParseError;

    /// `tcp,nw_src=10.0.0.0/8`; empty matches everything.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let mut reading = Reading::default();
        for piece in Part::whole(text).pieces()? {
            reading.read(piece, &[])?;
        }
        reading.finish()
    }
}
