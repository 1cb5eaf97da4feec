//! Device names: one grammar for every tool and API.
//!
//! ```text
//! name    = "embedded" [ ":" options ]        a card inside this process
//!         | "unix:" PATH                      the card daemon that listens on this socket; PATH is taken as it is
//!         | "pci:" ADDRESS                    a PCI function of a card, such as pci:0000:00:04.0, that vfio-pci has
//! options = option *( separator option )
//! option  = word [ is value ]
//! is      = "=" | ":"
//! value   = plain | "(" nested ")"
//! ```
//!
//! - A separator is `,` or `;` or `+`, mixed as you like, and a value may be joined by `:` as well as by `=`: a DPDK vdev
//!   argument can hold neither a comma (`docs/spec/nfb-card.md` §1.3) nor a second `=`.
//! - A plain value ends at the next separator and holds no parentheses. A nested value ends at the matching
//!   parenthesis; `,` and `+` mean nothing in it, and `;` stands for a comma. So a port that has options of its own is
//!   written `port=(pcap:FILE,speed=full)`, or for DPDK `port:(pcap:FILE;speed:full)`.
//! - `\` takes the special meaning off the next character, in plain and in nested values.
//! - The words are those of the flags of `millrace card`; [`OPTIONS`] lists them. The last of two equal words counts,
//!   except that `port`, `cpu` and `engine` add up.
//!
//! ```
//! use millrace_abi::{name::DeviceName, queue::{Engine, QueueId}};
//! let name: DeviceName = "embedded:rx=4,tx=4,engine=sze@0-1,port=(pcap:in.pcap,speed=full),poll".parse()?;
//! let DeviceName::Embedded(card) = &name else { unreachable!() };
//! assert_eq!(card.ports, ["pcap:in.pcap,speed=full"]);
//! assert_eq!((card.engine_of(QueueId::rx(1)), card.engine_of(QueueId::rx(2))), (Engine::Sze, Engine::Medusa));
//! assert_eq!(format!("{name:#}"), "embedded:rx:4;tx:4;engine:sze@0-1;port:(pcap:in.pcap;speed=full);poll");
//! # Ok::<(), millrace_abi::name::NameError>(())
//! ```

mod engines;
mod error;
mod number;
mod options;
mod text;
mod words;

pub use engines::{EngineRule, Selection};
pub use error::{NameError, OptionError, Problem};
pub use options::CardOptions;
pub use words::{MAX_PATH, OPTIONS, OptionHelp, VARIABLE};

use crate::pci::PciAddress;
use core::{fmt, str::FromStr};
use std::{ffi::OsStr, path::PathBuf};

/// Where a card is. `{:#}` prints it for DPDK vdev arguments: without commas, and without `=` if no port has one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DeviceName {
    /// A card on threads of this process.
    Embedded(CardOptions),
    /// A card daemon, by the path of its socket.
    Unix(PathBuf),
    /// A PCI function, by its address in this machine.
    Pci(PciAddress),
}

impl Default for DeviceName {
    /// An embedded loopback card, so that every command works on a fresh machine.
    fn default() -> Self {
        DeviceName::Embedded(CardOptions::default())
    }
}

impl DeviceName {
    /// What [`VARIABLE`] says; the [default](DeviceName::default) when it is not set or empty.
    ///
    /// # Errors
    /// As parsing; the error says that the name came from the environment.
    pub fn from_environment() -> Result<Self, NameError> {
        Self::from_variable(std::env::var_os(VARIABLE).as_deref())
    }

    fn from_variable(value: Option<&OsStr>) -> Result<Self, NameError> {
        let Some(value) = value.filter(|value| !value.is_empty()) else {
            return Ok(Self::default());
        };
        let parsed = match value.to_str() {
            Some(text) => text.parse(),
            None => Err(NameError::new(&value.to_string_lossy(), 0, Problem::NotUtf8)),
        };
        parsed.map_err(|error| NameError { variable: Some(VARIABLE), ..error })
    }
}

impl FromStr for DeviceName {
    type Err = NameError;

    fn from_str(name: &str) -> Result<Self, NameError> {
        if let Some(path) = name.strip_prefix("unix:") {
            let fail = |at, problem| Err(NameError::new(name, "unix:".len() + at, problem));
            return match path.find('\0') {
                _ if path.is_empty() => fail(0, Problem::EmptyPath),
                Some(at) => fail(at, Problem::NulInPath),
                None if path.len() > MAX_PATH => fail(0, Problem::LongPath { bytes: path.len() }),
                None => Ok(DeviceName::Unix(path.into())),
            };
        }
        if let Some(address) = name.strip_prefix("pci:") {
            let bad = |problem| NameError::new(name, "pci:".len(), Problem::Address(problem));
            return address.parse().map(DeviceName::Pci).map_err(bad);
        }
        match name.strip_prefix("embedded") {
            Some("") => Ok(Self::default()),
            Some(rest) if rest.starts_with(':') => {
                let start = name.len() - rest.len() + 1;
                text::parse_options(&name[start..])
                    .map(DeviceName::Embedded)
                    .map_err(|(at, problem)| NameError::new(name, start + at, problem))
            }
            _ => Err(NameError::new(name, 0, Problem::UnknownKind)),
        }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceName::Unix(path) => write!(f, "unix:{}", path.display()),
            DeviceName::Pci(address) => write!(f, "pci:{address}"),
            DeviceName::Embedded(options) if *options == CardOptions::default() => f.write_str("embedded"),
            DeviceName::Embedded(options) if f.alternate() => write!(f, "embedded:{options:#}"),
            DeviceName::Embedded(options) => write!(f, "embedded:{options}"),
        }
    }
}

#[cfg(test)]
mod tests;
