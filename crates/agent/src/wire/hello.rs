//! Hello, with the bitmap of versions (section 7.5.1).

use super::error::{Refusal, request};
use super::header::VERSION;
use super::reader::{Put, Reader};

const VERSION_BITMAP: u16 = 1;

/// Which versions somebody speaks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hello {
    /// Bit N: version N. Empty: the version of the header, and perhaps those below.
    pub versions: Vec<u32>,
}

impl Hello {
    /// Version 1.3 only.
    pub fn own() -> Self {
        Self { versions: vec![1 << VERSION] }
    }

    /// Whether 1.3 is the highest version that both ends have; `version` is that of its header.
    pub fn agrees(&self, version: u8) -> bool {
        match self.versions.first() {
            Some(first) => first >> VERSION & 1 == 1,
            None => version >= VERSION,
        }
    }

    /// Elements of an unknown type are passed over, as section 7.5.1 wants.
    pub(super) fn decode(mut body: Reader<'_>) -> Result<Self, Refusal> {
        let mut versions = Vec::new();
        while !body.is_empty() {
            let (kind, len) = (body.u16()?, usize::from(body.u16()?));
            let mut element = body.part(len.checked_sub(4).ok_or(request::BAD_LEN)?, request::BAD_LEN)?;
            // Padding at the end may be left out by older programs.
            body.skip((len.next_multiple_of(8) - len).min(body.len()))?;
            if kind == VERSION_BITMAP && versions.is_empty() {
                while !element.is_empty() {
                    versions.push(element.u32()?);
                }
            }
        }
        Ok(Self { versions })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        if self.versions.is_empty() {
            return;
        }
        out.padded(2, false, |out| {
            out.u16(VERSION_BITMAP);
            out.u16(0);
            self.versions.iter().for_each(|word| out.u32(*word));
        });
    }
}
