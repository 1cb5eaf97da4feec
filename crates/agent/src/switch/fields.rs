//! Fields of messages, and fields of the flow table.

use crate::wire::error::{Refusal, action as action_refused, matching as refused};
use crate::wire::oxm::{BASIC, EXPERIMENTER, NICIRA, ONF, Oxm};
use crate::wire::port::number;
use millrace_flow::field::needs::{ether_type, protocol};
use millrace_flow::field::{Field, LOCAL, TAG_PRESENT, Wide};
use millrace_flow::matching::MatchError;
use millrace_flow::{Action, Match, Tunnel};
use std::net::Ipv4Addr;

/// What has to be known besides what the field itself needs, where two fields of the protocol are one of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Also {
    Nothing,
    EtherType(u16),
    Protocol(u8),
    Tag,
}

/// A field of the protocol.
struct Row {
    class: u16,
    number: u8,
    /// Bytes of a value.
    len: usize,
    /// Bits that a value may have.
    bits: u32,
    field: Field,
    masks: bool,
    also: Also,
}

const fn row(class: u16, number: u8, len: usize, bits: u32, field: Field, masks: bool, also: Also) -> Row {
    Row { class, number, len, bits, field, masks, also }
}

const fn plain(number: u8, bits: u32, field: Field) -> Row {
    row(BASIC, number, bits.div_ceil(8) as usize, bits, field, false, Also::Nothing)
}

const fn masked(number: u8, bits: u32, field: Field) -> Row {
    row(BASIC, number, bits.div_ceil(8) as usize, bits, field, true, Also::Nothing)
}

/// Number of the field for VLAN ids, whose 13th bit says that there is a tag.
const VLAN_VID: u8 = 6;
/// The field for where a packet came in.
pub const IN_PORT: u8 = 0;
/// The field for the tunnel.
pub const TUNNEL_ID: u8 = 38;
/// What goes with a packet from table to table.
pub const METADATA: u8 = 2;

/// Nicira's field for the other end of the tunnel out of which a packet came.
pub const TUNNEL_SOURCE: u8 = 31;
/// The same for this end.
pub const TUNNEL_TARGET: u8 = 32;

/// Section 7.2.3.7, with the registers and flags that Open vSwitch has under other classes.
static ROWS: &[Row] = &[
    plain(IN_PORT, 32, Field::InPort),
    masked(2, 64, Field::Metadata),
    masked(3, 48, Field::DlDst),
    masked(4, 48, Field::DlSrc),
    plain(5, 16, Field::DlType),
    masked(VLAN_VID, 13, Field::VlanTci),
    row(BASIC, 7, 1, 3, Field::DlVlanPcp, false, Also::Tag),
    plain(8, 6, Field::IpDscp),
    plain(9, 2, Field::NwEcn),
    plain(10, 8, Field::NwProto),
    masked(11, 32, Field::NwSrc),
    masked(12, 32, Field::NwDst),
    masked(13, 16, Field::TcpSrc),
    masked(14, 16, Field::TcpDst),
    masked(15, 16, Field::UdpSrc),
    masked(16, 16, Field::UdpDst),
    row(BASIC, 17, 2, 16, Field::TpSrc, true, Also::Protocol(protocol::SCTP)),
    row(BASIC, 18, 2, 16, Field::TpDst, true, Also::Protocol(protocol::SCTP)),
    row(BASIC, 19, 1, 8, Field::IcmpType, false, Also::EtherType(ether_type::IPV4)),
    row(BASIC, 20, 1, 8, Field::IcmpCode, false, Also::EtherType(ether_type::IPV4)),
    plain(21, 16, Field::ArpOp),
    masked(22, 32, Field::ArpSpa),
    masked(23, 32, Field::ArpTpa),
    masked(24, 48, Field::ArpSha),
    masked(25, 48, Field::ArpTha),
    masked(26, 128, Field::Ipv6Src),
    masked(27, 128, Field::Ipv6Dst),
    row(BASIC, 28, 4, 20, Field::Ipv6Label, true, Also::Nothing),
    row(BASIC, 29, 1, 8, Field::IcmpType, false, Also::EtherType(ether_type::IPV6)),
    row(BASIC, 30, 1, 8, Field::IcmpCode, false, Also::EtherType(ether_type::IPV6)),
    masked(31, 128, Field::NdTarget),
    row(BASIC, 34, 4, 20, Field::MplsLabel, false, Also::Nothing),
    plain(35, 3, Field::MplsTc),
    plain(36, 1, Field::MplsBos),
    masked(TUNNEL_ID, 64, Field::TunId),
    row(NICIRA, 0, 4, 32, Field::Reg0, true, Also::Nothing),
    row(NICIRA, 1, 4, 32, Field::Reg1, true, Also::Nothing),
    row(NICIRA, 2, 4, 32, Field::Reg2, true, Also::Nothing),
    row(NICIRA, 3, 4, 32, Field::Reg3, true, Also::Nothing),
    row(NICIRA, 26, 1, 2, Field::IpFrag, true, Also::Nothing),
    row(NICIRA, 29, 1, 8, Field::NwTtl, false, Also::Nothing),
    row(NICIRA, TUNNEL_SOURCE, 4, 32, Field::TunSrc, true, Also::Nothing),
    row(NICIRA, 34, 2, 12, Field::TcpFlags, true, Also::Nothing),
    row(EXPERIMENTER, 42, 2, 12, Field::TcpFlags, true, Also::Nothing),
];

fn find(oxm: &Oxm) -> Option<&'static Row> {
    let known = oxm.class != EXPERIMENTER || oxm.experimenter == ONF;
    ROWS.iter().find(|row| known && row.class == oxm.class && row.number == oxm.field)
}

fn wide(bytes: &[u8]) -> Wide {
    let number = bytes.iter().fold(0u128, |number, byte| number << 8 | u128::from(*byte));
    if bytes.len() > 8 { Wide::from_u128(number) } else { Wide::new(number as u64) }
}

fn number_of(bytes: &[u8]) -> u128 {
    bytes.iter().fold(0, |number, byte| number << 8 | u128::from(*byte))
}

fn fits(bytes: &[u8], bits: u32) -> bool {
    bits >= 128 || number_of(bytes) >> bits == 0
}

/// Which fields are listed, for descriptions of tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listed {
    /// Those that can be matched, with masks where they may have any.
    Matched,
    /// Those that can be left out: the same, without masks.
    Wild,
    /// Those that can be set.
    Settable,
}

/// The header of each field of a list.
pub fn headers(listed: Listed) -> impl Iterator<Item = u32> {
    let is_in = move |row: &&Row| listed != Listed::Settable || row.field.row().settable;
    ROWS.iter().filter(is_in).filter(|row| row.class != EXPERIMENTER).map(move |row| {
        let masks = row.masks && listed == Listed::Matched;
        let len = if masks { row.len * 2 } else { row.len };
        u32::from(row.class) << 16 | u32::from(row.number) << 9 | u32::from(masks) << 8 | len as u32
    })
}

/// The port of the datapath for a number of the protocol.
pub fn port_of(number: u32) -> Option<u32> {
    match number {
        number::LOCAL => Some(LOCAL),
        1..=0x7fff_ffff => Some(number - 1),
        _ => None,
    }
}

/// The number of the protocol for a port of the datapath.
pub fn number_of_port(port: u32) -> u32 {
    if port == LOCAL { number::LOCAL } else { port.saturating_add(1) }
}

/// What the flow table is to match for these fields. What a field needs has to be among them.
///
/// # Errors
/// As section 7.2.3 has it.
pub fn matching(fields: &[Oxm]) -> Result<Match, Refusal> {
    let mut matching = Match::ANY;
    let mut rows = Vec::new();
    for (at, oxm) in fields.iter().enumerate() {
        let row = find(oxm).ok_or(refused::BAD_FIELD)?;
        if fields[..at].iter().any(|other| (other.class, other.field) == (oxm.class, oxm.field)) {
            return Err(refused::DUP_FIELD);
        }
        let (value, mask) = bits(row, oxm)?;
        matching.add(row.field, value, mask).map_err(|wrong| refused_by(&wrong))?;
        rows.push(row);
    }
    let says = |field: Field, number: u64| {
        matching.mask().get(field) == field.full() && matching.key().get(field) == Wide::new(number)
    };
    for row in rows {
        let also = match row.also {
            Also::Nothing => true,
            Also::EtherType(number) => says(Field::DlType, number.into()),
            Also::Protocol(number) => says(Field::NwProto, number.into()),
            Also::Tag => has_tag(&matching),
        };
        if !also || !row.field.row().needs.met(&matching) {
            return Err(refused::BAD_PREREQ);
        }
    }
    Ok(matching)
}

/// Whether whatever matches has a VLAN tag.
pub fn has_tag(matching: &Match) -> bool {
    let tag = |wide: Wide| wide.0[0] & TAG_PRESENT != 0;
    tag(matching.mask().get(Field::VlanTci)) && tag(matching.key().get(Field::VlanTci))
}

fn refused_by(wrong: &MatchError) -> Refusal {
    match wrong {
        MatchError::Mask(_) => refused::BAD_MASK,
        MatchError::Value(_) | MatchError::Contradiction(_) => refused::BAD_VALUE,
        MatchError::Needs { .. } => refused::BAD_PREREQ,
    }
}

/// Value and mask of one field.
fn bits(row: &Row, oxm: &Oxm) -> Result<(Wide, Wide), Refusal> {
    if oxm.value.len() != row.len {
        return Err(refused::BAD_LEN);
    }
    if !fits(&oxm.value, row.bits) {
        return Err(refused::BAD_VALUE);
    }
    if row.field == Field::InPort {
        let port = port_of(number_of(&oxm.value) as u32).ok_or(refused::BAD_VALUE)?;
        return Ok((Wide::from(u64::from(port)), row.field.full()));
    }
    let full = Wide::from_u128(u128::MAX >> (128 - row.bits));
    let full = if row.bits > 64 { full } else { Wide::new(full.as_u128() as u64) };
    let mask = match &oxm.mask {
        None => full,
        Some(mask) => {
            // A mask that leaves nothing out may always be.
            let mask = wide(mask).and(full);
            if !row.masks && mask != full {
                return Err(refused::BAD_MASK);
            }
            mask
        }
    };
    let value = wide(&oxm.value);
    if value.and(mask) != value {
        return Err(refused::BAD_WILDCARDS);
    }
    if row.field == Field::TunId {
        // No tunnel has a longer id than the datapath keeps.
        let fits = value.and(row.field.full()) == value;
        return if fits { Ok((value, mask.and(row.field.full()))) } else { Err(refused::BAD_VALUE) };
    }
    if row.field == Field::VlanTci {
        return vlan(value.0[0], mask.0[0], oxm.mask.is_some());
    }
    Ok((value, mask))
}

/// A VLAN id is a part of the tag, with the bit that says that there is one. Without that bit it is only 0: no tag.
fn vlan(value: u64, mask: u64, masked: bool) -> Result<(Wide, Wide), Refusal> {
    match (value & TAG_PRESENT != 0, masked) {
        (true, _) => Ok((Wide::new(value), Wide::new(mask))),
        (false, false) if value == 0 => Ok((Wide::ZERO, Field::VlanTci.full())),
        (false, true) if value == 0 && mask & TAG_PRESENT != 0 => Ok((Wide::ZERO, Field::VlanTci.full())),
        (false, true) if mask & TAG_PRESENT == 0 => Ok((Wide::new(value), Wide::new(mask))),
        _ => Err(refused::BAD_VALUE),
    }
}

/// The action that writes a field.
///
/// # Errors
/// As section 7.2.5 has it. What packets have to be for it is up to the rule.
pub fn set(oxm: &Oxm) -> Result<Action, Refusal> {
    let row = find(oxm).ok_or(action_refused::BAD_SET_TYPE)?;
    if !row.field.row().settable {
        return Err(action_refused::BAD_SET_TYPE);
    }
    if oxm.value.len() != row.len {
        return Err(action_refused::BAD_SET_LEN);
    }
    if !fits(&oxm.value, row.bits) {
        return Err(action_refused::BAD_SET_ARGUMENT);
    }
    let value = wide(&oxm.value);
    if row.class == BASIC && row.number == VLAN_VID {
        if oxm.mask.is_some() || value.0[0] & TAG_PRESENT == 0 {
            return Err(action_refused::BAD_SET_ARGUMENT);
        }
        let (field, value) = (Field::DlVlan, Wide::new(value.0[0] & 0xfff));
        return Ok(Action::SetField { field, value, mask: field.full() });
    }
    let full = row.field.full();
    let mask = oxm.mask.as_deref().map_or(full, |mask| wide(mask).and(full));
    if value.and(mask) != value || mask == Wide::ZERO || (!row.masks && mask != full) {
        return Err(action_refused::BAD_SET_ARGUMENT);
    }
    Ok(Action::SetField { field: row.field, value, mask })
}

/// Whether the field is one of a VLAN tag.
pub fn is_of_tag(field: Field) -> bool {
    matches!(field, Field::DlVlan | Field::DlVlanPcp)
}

/// Value and mask that an action sets of the metadata, if that is the field.
pub fn metadata(oxm: &Oxm) -> Option<(u64, u64)> {
    match set(oxm) {
        Ok(Action::SetField { field: Field::Metadata, value, mask }) => Some((value.0[0], mask.0[0])),
        _ => None,
    }
}

/// Where a packet came in, its metadata if there is any (section 7.4.1), and what is known of its tunnel; `local` is the address of this end.
pub fn came_in(port: u32, metadata: u64, tunnel: Option<Tunnel>, local: Option<Ipv4Addr>) -> Vec<Oxm> {
    let tunnelled = tunnel.and_then(|tunnel| Some((tunnel.id, tunnel.src, tunnel.port?)));
    let port = tunnelled.map_or(port, |(_, _, port)| port);
    let mut known = vec![Oxm::basic(IN_PORT, &number_of_port(port).to_be_bytes())];
    if metadata != 0 {
        known.push(Oxm::basic(METADATA, &metadata.to_be_bytes()));
    }
    let Some((id, src, _)) = tunnelled else { return known };
    let nicira = |field: u8, value: u32| Oxm { class: NICIRA, ..Oxm::basic(field, &value.to_be_bytes()) };
    known.push(Oxm::basic(TUNNEL_ID, &u64::from(id).to_be_bytes()));
    if let Some(local) = local {
        known.extend([nicira(TUNNEL_SOURCE, src), nicira(TUNNEL_TARGET, local.to_bits())]);
    }
    known
}
