//! Fields of a match as they are written: OXM (section 7.2.3.2).

use super::error::{Refusal, matching};
use super::reader::{Put, Reader};

/// The class of the specification's own fields.
pub const BASIC: u16 = 0x8000;
/// The class of Nicira's fields, as Open vSwitch sends them: registers, say.
pub const NICIRA: u16 = 0x0001;
/// The class of fields of experimenters.
pub const EXPERIMENTER: u16 = 0xffff;
/// The experimenter ONF.
pub const ONF: u32 = 0x4f4e_4600;

/// Most bytes of a value: an IPv6 address.
pub const MAX_VALUE: usize = 16;

/// A field with its value, and perhaps a mask of the same length.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Oxm {
    /// Its class.
    pub class: u16,
    /// Its number in the class.
    pub field: u8,
    /// Of a field of an experimenter: which one; otherwise 0.
    pub experimenter: u32,
    /// The value, in network order.
    pub value: Vec<u8>,
    /// Which bits of it count; `None`: all.
    pub mask: Option<Vec<u8>>,
}

impl Oxm {
    /// A field of the specification, all bits of which count.
    pub fn basic(field: u8, value: &[u8]) -> Self {
        Self { class: BASIC, field, experimenter: 0, value: value.to_vec(), mask: None }
    }

    /// The same with a mask.
    #[must_use]
    pub fn masked(mut self, mask: &[u8]) -> Self {
        self.mask = Some(mask.to_vec());
        self
    }

    /// Whether it is the address to which a tunnel leads, of IPv4: Open vSwitch's `tun_dst`.
    pub fn is_tunnel_target(&self) -> bool {
        (self.class, self.field) == (NICIRA, 32)
    }

    /// One field. A length that no value has, or that is not twice that of the value where there is a mask, is an error.
    pub(super) fn decode(from: &mut Reader<'_>) -> Result<Self, Refusal> {
        let (class, word, len) = (from.u16()?, from.u8()?, usize::from(from.u8()?));
        let (field, has_mask) = (word >> 1, word & 1 == 1);
        let mut body = from.part(len, matching::BAD_LEN)?;
        let experimenter = if class == EXPERIMENTER { body.u32()? } else { 0 };
        let len = body.len();
        let each = if has_mask { len / 2 } else { len };
        if each == 0 || (has_mask && !len.is_multiple_of(2)) {
            return Err(matching::BAD_LEN);
        }
        let value = body.take(each)?.to_vec();
        let mask = has_mask.then(|| body.rest().to_vec());
        Ok(Self { class, field, experimenter, value, mask })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let mask = self.mask.as_deref().unwrap_or_default();
        let extra = if self.class == EXPERIMENTER { 4 } else { 0 };
        out.u16(self.class);
        out.u8(self.field << 1 | u8::from(self.mask.is_some()));
        out.u8(u8::try_from(extra + self.value.len() + mask.len()).unwrap_or(u8::MAX));
        if self.class == EXPERIMENTER {
            out.u32(self.experimenter);
        }
        out.bytes(&self.value);
        out.bytes(mask);
    }
}

/// Type of a match that consists of OXM fields.
const OXM_MATCH: u16 = 1;

/// A match with its padding.
pub(super) fn decode_match(from: &mut Reader<'_>) -> Result<Vec<Oxm>, Refusal> {
    let (kind, len) = (from.u16()?, usize::from(from.u16()?));
    if kind != OXM_MATCH {
        return Err(matching::BAD_TYPE);
    }
    let mut body = from.part(len.checked_sub(4).ok_or(matching::BAD_LEN)?, matching::BAD_LEN)?;
    from.skip(len.next_multiple_of(8) - len)?;
    let mut fields = Vec::new();
    while !body.is_empty() {
        fields.push(Oxm::decode(&mut body)?);
    }
    Ok(fields)
}

pub(super) fn encode_match(fields: &[Oxm], out: &mut Vec<u8>) {
    out.padded(2, false, |out| {
        out.u16(OXM_MATCH);
        out.u16(0);
        fields.iter().for_each(|field| field.encode(out));
    });
}
