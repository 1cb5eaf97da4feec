//! Entries of policies.

use super::printed::Printed;
use super::words::{Words, number};
use super::{Entry, Error, Wrong, state};
use crate::association::Progress;
use crate::ip::protocol;
use crate::lifetime::Limits;
use crate::policy::{Action, Direction, Policy, Template};
use crate::selector::{Mark, Prefix, Selector};

pub(super) fn parse(
    entry: &Entry<'_>,
    words: &mut Words<'_>,
    interface: &impl Fn(&str) -> Option<u32>,
) -> Result<Policy, Error> {
    // Lifetimes of policies are the kernel's business: it says when one is gone.
    for line in Printed::of(entry, &mut Limits::default(), &mut Progress::default()).lines {
        words.leave_out(line);
    }
    let mut policy = Policy {
        selector: Selector::ALL,
        direction: Direction::Out,
        priority: 0,
        index: 0,
        action: Action::Allow,
        mark: Mark::default(),
        if_id: 0,
        templates: Vec::new(),
    };
    let mut direction = None;
    while let Some(word) = words.next() {
        if policy.templates.is_empty() && words.selector(word, &mut policy.selector, interface)? {
            continue;
        }
        match word {
            "dir" => direction = Some(words.read(word, "direction (in, out, fwd)", direction_of)?),
            "priority" => policy.priority = words.number(word)?,
            "index" => policy.index = words.number(word)?,
            "action" => policy.action = words.read(word, "action (allow, block)", action_of)?,
            "mark" => policy.mark = words.mark(word)?,
            "if_id" => policy.if_id = words.number(word)?,
            "ptype" if words.value(word)? == "main" => {}
            "share" | "flag" | "ctx" => {
                words.value(word)?;
            }
            "limit" => {
                words.value(word)?;
                words.value(word)?;
            }
            "tmpl" => policy.templates.push(template(words)?),
            // Numbers of flags, which `ip -d` prints behind their names.
            word if word.starts_with('(') => {}
            word => return Err(words.wrong(Wrong::Word(word.into()))),
        }
    }
    policy.direction = direction.ok_or_else(|| words.wrong(Wrong::Needed("dir")))?;
    // One side of a family says the other.
    let Selector { source, destination, .. } = &mut policy.selector;
    match (&source, &destination) {
        (Some(one), None) => *destination = Some(Prefix::all_like(one.address)),
        (None, Some(one)) => *source = Some(Prefix::all_like(one.address)),
        _ => {}
    }
    Ok(policy)
}

fn direction_of(word: &str) -> Option<Direction> {
    Some(match word {
        "in" => Direction::In,
        "out" => Direction::Out,
        "fwd" => Direction::Forward,
        _ => return None,
    })
}

fn action_of(word: &str) -> Option<Action> {
    Some(match word {
        "allow" => Action::Allow,
        "block" => Action::Block,
        _ => return None,
    })
}

fn template(words: &mut Words<'_>) -> Result<Template, Error> {
    const PARTS: [&str; 11] =
        ["src", "dst", "proto", "spi", "reqid", "mode", "level", "share", "enc-mask", "auth-mask", "comp-mask"];
    let mut template = Template {
        source: None,
        destination: None,
        protocol: protocol::ESP,
        spi: 0,
        reqid: 0,
        mode: Some(crate::association::Mode::Transport),
        is_optional: false,
    };
    while let Some(word) = words.take(&PARTS) {
        let short = |word: &str| number(word.split('(').next()?)?.try_into().ok();
        match word {
            "src" => template.source = Some(words.address(word)?).filter(|address| !address.is_unspecified()),
            "dst" => template.destination = Some(words.address(word)?).filter(|address| !address.is_unspecified()),
            "proto" => template.protocol = words.protocol()?,
            "spi" => template.spi = words.read(word, "SPI", short)?,
            "reqid" => template.reqid = words.read(word, "number", short)?,
            "mode" => template.mode = Some(state::mode(words)?),
            "level" => template.is_optional = words.value(word)? == "use",
            _ => {
                words.value(word)?;
            }
        }
    }
    Ok(template)
}
