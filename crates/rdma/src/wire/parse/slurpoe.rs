//! SLURPoE.

use super::super::extended::of_three;
use super::super::from::Network;
use super::super::{Format, From, Packet, Path, Reason, code, slurpoe as lean};
use super::{Link, check, headers_of};
use crate::number::{Gid, Psn, Qpn};

#[inline(always)]
pub(super) fn parse<'a>(link: &Link<'a>) -> Result<(Packet<'a>, From<'a>), Reason> {
    let (fixed, mut rest) = link.payload.split_first_chunk::<{ lean::LEN }>().ok_or(Reason::LeanHeader)?;
    let [version, opcode, high, low, flags, marks, pkey_high, pkey_low, qpns @ ..] = *fixed;
    let [d0, d1, d2, s0, s1, s2, p0, p1, p2, _] = qpns;
    if version != lean::VERSION {
        return Err(Reason::LeanVersion);
    }
    if flags & !(lean::SOLICITED | lean::ACK_REQUEST | lean::EXTENDED | lean::CHECKSUM) != 0 {
        return Err(Reason::LeanFlags);
    }
    let known = code::decode(opcode)?;
    let source = Qpn::new(of_three([s0, s1, s2]));
    let mut headers = headers_of(known);
    lean::read_extended(known.parts, source, &mut headers, &mut rest)?;
    let payload = rest.get(..usize::from(u16::from_be_bytes([high, low]))).ok_or(Reason::LeanLength)?;
    let len = lean::LEN + usize::from(known.lean_len) + payload.len();
    if flags & lean::CHECKSUM != 0 {
        checksum(link, len)?;
    }
    let back = Path {
        format: Format::Slurpoe,
        source_mac: link.destination,
        destination_mac: link.source,
        source: Gid::link_local(link.destination),
        destination: Gid::link_local(link.source),
        hop_limit: 0,
        traffic_class: 0,
        flow_label: 0,
        source_port: 0,
    };
    check(link, known, back.destination, payload, Format::Slurpoe)?;
    headers.solicited = flags & lean::SOLICITED != 0;
    headers.ack_request = flags & lean::ACK_REQUEST != 0;
    headers.extended = flags & lean::EXTENDED != 0;
    headers.fecn_becn = (marks & lean::FECN != 0, marks & lean::BECN != 0);
    headers.pkey = u16::from_be_bytes([pkey_high, pkey_low]);
    headers.destination = Qpn::new(of_three([d0, d1, d2]));
    headers.psn = Psn::new(of_three([p0, p1, p2]));
    let network = Network::None(u16::try_from(len).map_err(|_| Reason::LeanLength)?);
    Ok((
        Packet { headers, payload },
        From { back, tag: link.tag, source: Some(source), is_checked: flags & lean::CHECKSUM != 0, network },
    ))
}

/// Whether the CRC-32C behind the payload is that of the frame. `len` bytes stand between the EtherType and it.
fn checksum(link: &Link<'_>, len: usize) -> Result<(), Reason> {
    let (covered, behind) = link.payload.split_at_checked(len).ok_or(Reason::LeanLength)?;
    let stands = behind.first_chunk::<4>().ok_or(Reason::LeanLength)?;
    let addresses = link.frame.first_chunk::<12>().ok_or(Reason::Ethernet)?;
    if lean::checksum(addresses, covered).as_ref() != Some(stands) {
        return Err(Reason::LeanChecksum);
    }
    Ok(())
}
