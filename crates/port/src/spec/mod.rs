//! The words with which a port is asked for: `kind:argument[,key=value...]`. A colon joins a key and its value as well,
//! for places where `=` means something else.
//!
//! A comma or a backslash that belongs to a file name is written `\,` or `\\`. Counts and rates are [numbers](number) such
//! as 10k, 1.5M or 1e6. A port around a port has the inner specification last, in parentheses. What is parsed prints itself in the same
//! grammar, without what is the default anyway.

mod af_xdp;
mod error;
mod generator;
mod interface;
mod kinds;
mod pcap;
mod rate;
mod socket;
#[cfg(test)]
mod tests;
mod text;
mod vhost_user;
mod virtio_user;
mod wrapper;

pub use af_xdp::{AfXdpSpec, XdpMode};
pub use error::SpecError;
pub use generator::GeneratorSpec;
pub use interface::{InterfaceName, InterfaceSpec, MAX_INTERFACE_QUEUES};
pub use millrace_packet::number::number;
pub use pcap::{Passes, PcapSpec, Speed};
pub use rate::Rate;
pub use vhost_user::VhostUserSpec;
pub use virtio_user::VirtioUserSpec;
pub use wrapper::{Chance, Directions, FaultSpec, TraceSpec};

use std::{fmt, str::FromStr};

/// Which port, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortSpec {
    /// `loopback`: no port; the card copies what is sent to its receiving side.
    Loopback,
    /// `none`: nothing is plugged in.
    None,
    /// `null`.
    Null,
    /// `generator[:size=N,rate=PPS,count=N]`.
    Generator(GeneratorSpec),
    /// `pcap:FILE[,write=FILE][,speed=full|recorded|RATEpps][,loop=N|forever]`.
    Pcap(PcapSpec),
    /// `tap:NAME[,queues=N]`.
    Tap(InterfaceSpec),
    /// `af_packet:IFACE[,queues=N]`.
    AfPacket(InterfaceSpec),
    /// `af_xdp:IFACE[,queues=N,mode=auto|zero-copy|copy,busy-poll=on|off]`.
    AfXdp(AfXdpSpec),
    /// `trace:FILE[,direction=both|rx|tx][,limit=N],port=(SPEC)`.
    Trace(TraceSpec),
    /// `fault:[loss=P%,duplicate=P%,reorder=P%,corrupt=P%,delay=TIME,seed=N,direction=both|rx|tx,]port=(SPEC)`.
    Fault(FaultSpec),
    /// `vhost-user:PATH[,server|client,queues=N]`.
    VhostUser(VhostUserSpec),
    /// `virtio-user:PATH[,client|server,queues=N]`.
    VirtioUser(VirtioUserSpec),
}

impl PortSpec {
    /// How [`PortSpec::None`] is written.
    pub const NONE: &'static str = "none";

    /// A file that opening this port begins anew, whatever is in it and whoever writes to it.
    pub fn overwrites(&self) -> Option<&str> {
        match self {
            PortSpec::Pcap(spec) => spec.write.as_deref(),
            PortSpec::Trace(spec) => Some(&spec.file),
            PortSpec::Fault(spec) => spec.port.overwrites(),
            _ => None,
        }
    }
}

impl FromStr for PortSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        // It is shown in logs and tables of people who have not written it.
        if text.contains(char::is_control) {
            return Err(SpecError::Control);
        }
        Self::parse(text, 0)
    }
}

impl PortSpec {
    /// `depth` is how many wrappers there are around it.
    fn parse(text: &str, depth: usize) -> Result<Self, SpecError> {
        let (kind, argument) = match text.split_once(':') {
            Some((kind, argument)) => (kind, Some(argument)),
            None => (text, None),
        };
        let bare = |kind, spec| match argument {
            None => Ok(spec),
            Some(argument) => Err(SpecError::Argument { kind, argument: argument.to_owned() }),
        };
        match kind {
            "loopback" => bare("loopback", PortSpec::Loopback),
            Self::NONE => bare(Self::NONE, PortSpec::None),
            "null" => bare("null", PortSpec::Null),
            "generator" => GeneratorSpec::parse(argument).map(PortSpec::Generator),
            "pcap" => PcapSpec::parse(argument).map(PortSpec::Pcap),
            "tap" => InterfaceSpec::parse("tap", "tap:mill0", argument).map(PortSpec::Tap),
            "af_packet" => InterfaceSpec::parse("af_packet", "af_packet:eth0", argument).map(PortSpec::AfPacket),
            "af_xdp" => AfXdpSpec::parse(argument).map(PortSpec::AfXdp),
            "trace" => TraceSpec::parse(argument, depth).map(PortSpec::Trace),
            "fault" => FaultSpec::parse(argument, depth).map(PortSpec::Fault),
            "vhost-user" => VhostUserSpec::parse(argument).map(PortSpec::VhostUser),
            "virtio-user" => VirtioUserSpec::parse(argument).map(PortSpec::VirtioUser),
            _ => Err(SpecError::Kind(kind.to_owned())),
        }
    }
}

impl fmt::Display for PortSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortSpec::Loopback => f.write_str("loopback"),
            PortSpec::None => f.write_str(PortSpec::NONE),
            PortSpec::Null => f.write_str("null"),
            PortSpec::Generator(spec) => write!(f, "generator:{spec}"),
            PortSpec::Pcap(spec) => write!(f, "pcap:{spec}"),
            PortSpec::Tap(spec) => write!(f, "tap:{spec}"),
            PortSpec::AfPacket(spec) => write!(f, "af_packet:{spec}"),
            PortSpec::AfXdp(spec) => write!(f, "af_xdp:{spec}"),
            PortSpec::Trace(spec) => write!(f, "trace:{spec}"),
            PortSpec::Fault(spec) => write!(f, "fault:{spec}"),
            PortSpec::VhostUser(spec) => write!(f, "vhost-user:{spec}"),
            PortSpec::VirtioUser(spec) => write!(f, "virtio-user:{spec}"),
        }
    }
}
