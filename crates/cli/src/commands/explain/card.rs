//! The rules of a card that runs, with which packets are explained here: a long capture is no work for the card.

use std::fmt::Write as _;

use millrace::{Device, Flows};
use millrace_flow::language::{ParseError, RuleFile};
use millrace_flow::version::{Limits, Writer};
use millrace_tool::failure::{Failure, While};
use millrace_tool::options::Shared;
use millrace_tool::session::Session;

/// The tables of the card as of a version, under its number; and how many RX queues and ports it has.
pub fn tables(
    shared: &Shared,
    version: Option<u64>,
    queues: Option<u32>,
) -> Result<(Writer, Option<(u32, u32)>), Failure> {
    let session = Session::open_running(shared, "there are no rules to explain by")?;
    Ok((tables_of(&session.device.flows(), version, queues)?, Some(size(&session.device)?)))
}

/// How many RX queues and ports a card has.
pub fn size(device: &Device) -> Result<(u32, u32), Failure> {
    let ports = device.stats().doing(|| "cannot ask for ports".to_owned())?.ports.len();
    Ok((device.rx_queues(), u32::try_from(ports).unwrap_or(u32::MAX)))
}

/// The same of a card that is open.
pub fn tables_of(flows: &Flows, version: Option<u64>, queues: Option<u32>) -> Result<Writer, Failure> {
    let (version, entries) = flows.list_at("", version).doing(|| "cannot list the rules".to_owned())?;
    let mut text = String::new();
    // Where a meter is, or a rule among equals, is where it is in the list.
    for entry in entries {
        let _ = writeln!(text, "{}", entry.line);
    }
    let nonsense = |error: ParseError| Failure::Found(format!("the card answers nonsense: {error}"));
    let file = RuleFile::parse(&text).map_err(nonsense)?;
    if let Some(queues) = queues {
        file.check_queues(queues).map_err(|error| Failure::Found(error.to_string()))?;
    }
    let mut writer = Writer::before(1, Limits::default(), version);
    if version > 0 {
        file.load(&mut writer, 0).map_err(nonsense)?;
    }
    Ok(writer)
}
