//! The options that mean the same in every command.

use std::str::FromStr;

use clap::Args;
use millrace_abi::name::{CardOptions, EngineRule, OptionError, VARIABLE};
use millrace_abi::queue::{Engine, Mode, QueueId};

use crate::list::{Queues, Sizes};

/// What stands above them in the help.
const HEADING: &str = "Shared options";

/// Options that mean the same in every command that takes them: [`crate::applies`] says which do.
#[derive(Clone, Debug, Args)]
pub struct Shared {
    /// The card to use, by name.
    // In words of its own: what is optional looks like a link in documentation.
    #[arg(long, short = 'd', global = true, env = VARIABLE, value_name = "NAME", help_heading = HEADING,
        help = "Card to use: embedded[:OPTIONS], unix:PATH or pci:ADDRESS")]
    pub device: Option<String>,
    /// Queues, such as 0-3,5 [default: 0; forward: 0,1; stats: all]
    #[arg(long, short = 'i', global = true, value_name = "LIST", help_heading = HEADING)]
    pub queue: Option<Queues>,
    /// DMA protocol of all or some queues: sze, medusa, calypte or dd, or such as sze@0-3; may be repeated
    /// [default: what the card has; medusa for a card of one's own]
    #[arg(long, short = 'e', global = true, value_name = "ENGINE", help_heading = HEADING)]
    pub engine: Vec<Engines>,
    /// Who moves the pointers: direct (this program) or mediated (the driver) [default: direct]
    #[arg(long, short = 'm', global = true, value_name = "MODE", help_heading = HEADING)]
    pub mode: Option<Mode>,
    /// Frame sizes in bytes without FCS; a range means random sizes, such as 64 or 64,512,1024-1500
    #[arg(long, short = 's', global = true, value_name = "LIST", help_heading = HEADING)]
    pub size: Option<Sizes>,
    /// Frames per queue, such as 1000, 10M or 1e6
    #[arg(long, short = 'n', global = true, value_name = "N", value_parser = count, help_heading = HEADING)]
    pub count: Option<u64>,
    /// Most frames per call to the queue, 1 to 1024
    #[arg(long, short = 'B', global = true, value_name = "N", help_heading = HEADING,
        value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub burst: Option<u16>,
    /// Never sleep while there is nothing to do
    #[arg(long, global = true, help_heading = HEADING)]
    pub poll: bool,
    /// One JSON object per line on standard output instead of tables
    #[arg(long, global = true, help_heading = HEADING)]
    pub json: bool,
}

impl Shared {
    /// The same, but that an empty name of a card, as in `MILLRACE_DEVICE=`, names nothing.
    #[must_use]
    pub fn settled(mut self) -> Self {
        self.device = self.device.filter(|name| !name.is_empty());
        self
    }

    /// The queues asked for, or queue 0.
    pub fn queues(&self) -> Queues {
        self.queue.clone().unwrap_or_else(|| Queues::one(0))
    }

    /// The engines asked for.
    pub fn engine_rules(&self) -> impl Iterator<Item = EngineRule> + '_ {
        self.engine.iter().flat_map(|engines| engines.0.iter().copied())
    }

    /// The engine asked for on that queue.
    pub fn engine_of(&self, queue: QueueId) -> Option<Engine> {
        self.engine_rules().filter(|rule| rule.queues.contains(queue)).last().map(|rule| rule.engine)
    }

    /// The mode asked for, or direct mode.
    pub fn mode(&self) -> Mode {
        self.mode.unwrap_or_default()
    }

    /// The burst asked for, or `otherwise`.
    pub fn burst_or(&self, otherwise: u16) -> usize {
        usize::from(self.burst.unwrap_or(otherwise))
    }

    /// The sizes asked for, or frames of `otherwise` bytes.
    pub fn sizes_or(&self, otherwise: u32) -> Sizes {
        self.size.clone().unwrap_or_else(|| Sizes::one(otherwise))
    }
}

/// The value of one `--engine`: which engine serves which queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Engines(Vec<EngineRule>);

impl Engines {
    /// One engine for all queues.
    pub fn all(engine: Engine) -> Self {
        engine.to_string().parse().expect("an engine alone is a rule")
    }
}

impl FromStr for Engines {
    type Err = OptionError;
    fn from_str(text: &str) -> Result<Self, OptionError> {
        let mut options = CardOptions::default();
        options.set("engine", Some(text))?;
        Ok(Self(options.engines))
    }
}

/// A whole number above 0, such as 1000, 10k, 1.5M or 1e6.
pub fn count(text: &str) -> Result<u64, String> {
    let number = millrace_port::spec::number(text).filter(|number| *number > 0);
    number.ok_or_else(|| "expected a whole number above 0, such as 1000, 10k, 1.5M or 1e6".to_owned())
}

/// The same, and 0.
pub fn count_or_none(text: &str) -> Result<u64, String> {
    if text == "0" { Ok(0) } else { count(text) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        shared: Shared,
    }

    fn shared(line: &str) -> Shared {
        Only::try_parse_from(["program"].into_iter().chain(line.split_whitespace())).unwrap().shared
    }

    #[test]
    fn engines_may_differ_between_queues() {
        let engine_of = |line: &str, index| shared(line).engine_of(QueueId::rx(index));
        let engines = [0, 1, 2, 3].map(|index| engine_of("-e medusa --engine sze@1-2", index).unwrap());
        assert_eq!(engines, [Engine::Medusa, Engine::Sze, Engine::Sze, Engine::Medusa]);
        assert_eq!(engine_of("", 0), None);
        assert_eq!(Engines::all(Engine::Sze), "sze".parse().unwrap());
    }

    #[test]
    fn an_empty_name_names_no_card() {
        assert_eq!(shared("--device=").settled().device, None);
        assert_eq!(shared("--device=embedded").settled().device.as_deref(), Some("embedded"));
    }
}
