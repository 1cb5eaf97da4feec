//! What is asked about neighbours of tunnels.

use super::super::replies::Refusal;
use super::Applicant;
use super::clerk::{Served, invalid};
use millrace_abi::flow::{FlowNeighbour, FlowNeighbourState, FlowReply, MAX_EXPLAINED};
use millrace_abi::message::{ErrorCode, Reply};
use millrace_card::{Card, Neighbour, NeighbourState};
use std::net::IpAddr;

/// Most neighbours of one reply.
const AT_ONCE: usize = 512;

/// Neighbours behind one of them.
pub(super) fn neighbours(card: &Card, after: Option<IpAddr>) -> FlowReply {
    let mut behind =
        card.neighbours().into_iter().filter(|neighbour| after.is_none_or(|after| neighbour.address > after));
    let neighbours = behind.by_ref().take(AT_ONCE).map(|neighbour| told(&neighbour)).collect();
    FlowReply::Neighbours { neighbours, more: behind.next().is_some() }
}

fn told(neighbour: &Neighbour) -> FlowNeighbour {
    FlowNeighbour {
        address: neighbour.address,
        mac: neighbour.mac.map(|mac| mac.0),
        port: neighbour.port,
        state: match neighbour.state {
            NeighbourState::Static => FlowNeighbourState::Static,
            NeighbourState::Reachable => FlowNeighbourState::Reachable,
            NeighbourState::Probing => FlowNeighbourState::Probing,
            NeighbourState::Asking => FlowNeighbourState::Asking,
            NeighbourState::Unreachable => FlowNeighbourState::Unreachable,
        },
        age_ns: neighbour.age_ns,
        waiting: neighbour.waiting as u32,
    }
}

/// Sends a frame within a tunnel.
pub(super) fn send_in_tunnel(card: &Card, port: u32, frame: Vec<u8>) -> Served {
    if frame.len() > MAX_EXPLAINED {
        return Err(invalid(format!("a frame has at most {MAX_EXPLAINED} bytes")));
    }
    card.send_in_tunnel(port, frame).map_err(invalid)?;
    Ok((Reply::Done, None))
}

/// Says where a neighbour is, or forgets it.
pub(super) fn set_neighbour(card: &Card, applicant: Applicant, address: IpAddr, at: Option<([u8; 6], u32)>) -> Served {
    let by = (!applicant.admin).then_some(applicant.account.uid);
    let foreign = || Refusal::new(ErrorCode::Denied, format!("another user has said where neighbour {address} is"));
    match at {
        Some((mac, port)) => {
            card.add_neighbour(address, mac, port, by).map_err(|why| why.map_or_else(foreign, invalid))?;
        }
        None if card.delete_neighbour(address, by).ok_or_else(foreign)? => {}
        None => return Err(Refusal::new(ErrorCode::NotFound, format!("there is no neighbour {address}"))),
    }
    Ok((Reply::Done, None))
}
