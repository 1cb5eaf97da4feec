//! A card in this process that others reach through a Unix socket: everything that touches `millrace-driver` and
//! `millrace-card` directly is here.

use std::path::Path;

use millrace_abi::name::CardOptions;
use millrace_card::Card;
use millrace_driver::{Driver, Policy, SocketIdentity};
use millrace_flow::language::RuleFile;
use millrace_tool::failure::Failure;
use millrace_tool::stop;

/// A card that listens until this is dropped.
pub struct Daemon {
    driver: Driver,
}

impl Daemon {
    /// Builds the card with its rules and listens on `path`.
    pub fn start(path: &Path, options: &CardOptions, policy: Policy, rules: &RuleFile) -> Result<Self, Failure> {
        // The files of its ports may be pipes whose other end nobody opens.
        let card =
            stop::at_once(|| Card::with_rules(options, rules)).map_err(|error| Failure::Usage(error.to_string()))?;
        let driver = Driver::listen_for(card, path, policy).map_err(|error| Failure::Usage(error.to_string()))?;
        Ok(Self { driver })
    }

    /// Which socket it listens on.
    pub fn socket(&self) -> Option<SocketIdentity> {
        self.driver.socket()
    }
}
