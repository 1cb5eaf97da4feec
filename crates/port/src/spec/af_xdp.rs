//! `af_xdp:IFACE[,queues=N,mode=auto|zero-copy|copy,busy-poll=on|off]`.

use super::text::{fields, options};
use super::{InterfaceName, SpecError, interface};
use std::{fmt, num::NonZeroU16};

/// Which interface is driven by AF_XDP, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AfXdpSpec {
    /// The name of the interface.
    pub name: InterfaceName,
    /// How many of its queues, from its first, are ports of their own; up to
    /// [`MAX_INTERFACE_QUEUES`](super::MAX_INTERFACE_QUEUES).
    pub queues: NonZeroU16,
    /// Who copies.
    pub mode: XdpMode,
    /// Whether the driver is asked for frames instead of being interrupted by them.
    pub busy_poll: bool,
}

/// Whether frames are copied between the driver's memory and that of the port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XdpMode {
    /// By the kernel, unless the driver works on the port's memory.
    #[default]
    Auto,
    /// Not at all: only drivers that can.
    ZeroCopy,
    /// By the kernel.
    Copy,
}

impl AfXdpSpec {
    pub(super) fn parse(argument: Option<&str>) -> Result<Self, SpecError> {
        let fields = fields(argument.unwrap_or_default())?;
        let (name, fields) = fields.split_first().expect("splitting gives at least one field");
        if name.is_empty() {
            return Err(SpecError::Missing { kind: "af_xdp", what: "an interface name", example: "af_xdp:eth1" });
        }
        let mut spec = Self { name: name.parse()?, queues: NonZeroU16::MIN, mode: XdpMode::Auto, busy_poll: false };
        let known = "queues=N, mode=auto|zero-copy|copy and busy-poll=on|off";
        for (key, value) in options("af_xdp", known, &["queues", "mode", "busy-poll"], fields)? {
            match (key, value) {
                ("queues", _) => spec.queues = interface::queues(key, value)?,
                ("mode", "auto") => spec.mode = XdpMode::Auto,
                ("mode", "zero-copy") => spec.mode = XdpMode::ZeroCopy,
                ("mode", "copy") => spec.mode = XdpMode::Copy,
                ("busy-poll", "on") => spec.busy_poll = true,
                ("busy-poll", "off") => spec.busy_poll = false,
                _ => {
                    let expected = if key == "mode" { "auto, zero-copy or copy" } else { "on or off" };
                    return Err(SpecError::Value { key: key.to_owned(), value: value.to_owned(), expected });
                }
            }
        }
        Ok(spec)
    }
}

impl fmt::Display for AfXdpSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)?;
        if self.queues > NonZeroU16::MIN {
            write!(f, ",queues={}", self.queues)?;
        }
        f.write_str(match self.mode {
            XdpMode::Auto => "",
            XdpMode::ZeroCopy => ",mode=zero-copy",
            XdpMode::Copy => ",mode=copy",
        })?;
        f.write_str(if self.busy_poll { ",busy-poll=on" } else { "" })
    }
}
