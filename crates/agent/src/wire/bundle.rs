//! Bundles: messages that are done together or not at all. Those of OpenFlow 1.4, as the experimenter ONF has them for 1.3, which Open
//! vSwitch speaks.

use super::error::Refusal;
use super::reader::{Put, Reader};

/// Types of the experimenter's messages.
pub mod subtype {
    /// About a bundle.
    pub const CONTROL: u32 = 2300;
    /// A message for a bundle.
    pub const ADD: u32 = 2301;
}

/// What is said about a bundle. The answer is one more.
pub mod control {
    #![allow(missing_docs, reason = "the words of the specification")]
    pub const OPEN: u16 = 0;
    pub const CLOSE: u16 = 2;
    pub const COMMIT: u16 = 4;
    pub const DISCARD: u16 = 6;
}

/// Flags of a bundle.
pub mod flag {
    #![allow(missing_docs, reason = "the words of the specification")]
    pub const ATOMIC: u16 = 1;
    pub const ORDERED: u16 = 2;
}

/// A message about a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BundleControl {
    /// Which one, chosen by the controller.
    pub bundle: u32,
    /// See [`control`].
    pub kind: u16,
    /// See [`flag`].
    pub flags: u16,
}

impl BundleControl {
    /// Properties behind it are passed over: there are none in this version but those of experimenters.
    pub(super) fn decode(mut body: Reader<'_>) -> Result<Self, Refusal> {
        Ok(Self { bundle: body.u32()?, kind: body.u16()?, flags: body.u16()? })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.u32(self.bundle);
        out.u16(self.kind);
        out.u16(self.flags);
    }
}

/// A message for a bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleAdd {
    /// Which one.
    pub bundle: u32,
    /// See [`flag`].
    pub flags: u16,
    /// The message, with its header; what is behind its length is properties.
    pub message: Vec<u8>,
}

impl BundleAdd {
    pub(super) fn decode(mut body: Reader<'_>) -> Result<Self, Refusal> {
        let bundle = body.u32()?;
        body.skip(2)?;
        Ok(Self { bundle, flags: body.u16()?, message: body.rest().to_vec() })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.u32(self.bundle);
        out.zeros(2);
        out.u16(self.flags);
        out.bytes(&self.message);
    }
}
