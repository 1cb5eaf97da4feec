//! A card in this process that others reach through a Unix socket: everything that touches `millrace-driver`,
//! `millrace-card` and `millrace-served` directly is here.

use std::path::Path;

use millrace_abi::name::CardOptions;
use millrace_card::Card;
use millrace_driver::{Driver, Policy, SocketIdentity};
use millrace_flow::language::RuleFile;
use millrace_rdma::number::Gid;
use millrace_rdma::served::Quota;
use millrace_served::{Address, Server, socket_of};
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

/// Who all programs of a card are whose engine is in the card: an address for benchmarks (RFC 2544), and a MAC address that
/// anybody may give, which belong together as those of verbs programs do.
const RDMA_ADDRESS: Address = Address {
    mac: [0x02, 0x4d, 198, 19, 255, 254],
    gids: [
        Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 198, 19, 255, 254]),
        Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0x4d, 198, 0xff, 0xfe, 19, 255, 254]),
    ],
};

/// The RDMA engine of a card, which programs reach by a socket of its own.
pub struct RdmaEngine {
    server: Server,
}

impl RdmaEngine {
    /// Listens beside the card's socket.
    pub fn listen(card: &Path) -> Result<Self, Failure> {
        let path = socket_of(card);
        let failed = |error| Failure::Usage(format!("--rdma-cpu: no socket at {}: {error}", path.display()));
        Ok(Self { server: Server::listen(path.clone()).map_err(failed)? })
    }

    /// Serves programs, on that core if one is given.
    pub fn start(&mut self, core: Option<u32>) -> Result<(), Failure> {
        let started = self.server.start(RDMA_ADDRESS, Quota::default(), core.map(|core| core as usize));
        started.map_err(|error| Failure::Usage(format!("--rdma-cpu: no thread for the engine: {error}")))
    }
}
