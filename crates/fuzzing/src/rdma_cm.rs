//! Any bytes as messages of connection management, of several ends, to one that calls and is called.

use millrace_rdma::cm::Manager;
use millrace_rdma::cm::address::{IpHeader, ServiceId};
use millrace_rdma::cm::connection::{Call, Event, Id, Offer, Peer};
use millrace_rdma::cm::manager::Options;
use millrace_rdma::cm::message::{LEN, Label, build, parse};
use millrace_rdma::number::{Gid, Moment, Qpn};
use std::hint::black_box;

const SERVICE: ServiceId = ServiceId::new(0x0106, 7471);
const MOST: usize = 12;

/// Steps of 40 bytes each: who, what, and the beginning of a message. How many were messages.
pub fn rdma_cm(input: &[u8]) -> u64 {
    let options = Options { most_connections: MOST, most_half_open: 8, most_half_open_of_one: 4, ..Options::default() };
    let mut end = Manager::new(options);
    end.listen(SERVICE, 1, 6).expect("nobody else listens");
    let mut ids: Vec<Id> = Vec::new();
    let (mut now, mut found) = (Moment::new(0), 0);
    for step in input.chunks(40) {
        let byte = |at: usize| step.get(at).copied().unwrap_or(0);
        now = Moment::new(now.nanoseconds() + (u64::from(byte(0)) << 22));
        end.tick(now);
        let from = Peer { gid: Gid([byte(1) & 3; 16]), index: 0 };
        let id = ids.get(usize::from(byte(2)) % ids.len().max(1)).copied().unwrap_or(7);
        match byte(3) % 16 {
            0 => ids.extend(end.connect(now, &call(from, byte(4)))),
            1 => ids.extend(end.inquire(now, from, SERVICE, [byte(4); 216])),
            2 => drop(end.accept(now, id, 5, &offer(byte(4)), [0; 196])),
            3 => drop(end.ready(now, id)),
            4 => drop(end.disconnect(now, id)),
            5 => drop(end.reject(now, id, [0; 148])),
            6 => drop(end.answer(now, id, 0, Qpn::new(9), 1, [0; 136])),
            7 => end.destroy(now, id),
            kind => {
                let bytes = message(step, kind, id);
                assert_eq!(Label::read(&bytes).err(), parse(&bytes).err());
                if let Ok((transaction, message)) = parse(&bytes) {
                    found += 1;
                    let again = build(transaction, &message);
                    assert_eq!(parse(&again), Ok((transaction, message)));
                }
                black_box(bytes.get(164..).and_then(IpHeader::parse));
                end.receive(now, from, &bytes);
            }
        }
        while let Some(event) = end.take_event() {
            if matches!(event, Event::Requested { .. } | Event::ServiceRequested { .. }) && end.see(event.id()) {
                ids.push(event.id());
            }
        }
        while end.take_message().is_some() {}
        assert!(end.len() <= MOST);
    }
    // However it went, time ends all of it.
    end.abandon(now);
    for _ in 0..64 {
        now = Moment::new(now.nanoseconds() + (1 << 34));
        end.tick(now);
        while end.take_message().is_some() {}
    }
    assert!(end.is_empty());
    found
}

fn offer(qpn: u8) -> Offer {
    Offer { qpn: Qpn::new(qpn.into()), ..Offer::default() }
}

fn call(peer: Peer, qpn: u8) -> Call {
    let (own, service) = (Gid([9; 16]), SERVICE);
    let private = [0; 92];
    Call {
        peer,
        own,
        guid: 5,
        service,
        offer: offer(qpn),
        unreliable: false,
        mtu: 1,
        ack_timeout: 14,
        traffic_class: 0,
        private,
    }
}

/// What comes: with a header that holds unless the input says otherwise, and mostly with numbers that fit.
fn message(step: &[u8], kind: u8, id: Id) -> Vec<u8> {
    let rest = step.get(4..).unwrap_or(&[]);
    if kind == 8 {
        return rest.iter().cycle().take(if rest.is_empty() { 0 } else { LEN }).copied().collect();
    }
    let mut bytes = vec![0; LEN];
    let attribute = 0x10 + rest.first().copied().unwrap_or(0) % 10;
    bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
    bytes[17] = attribute;
    let data = rest.get(1..).unwrap_or(&[]);
    bytes[24..24 + data.len()].copy_from_slice(data);
    match attribute {
        // A request for the service, of its sender.
        0x10 if kind > 9 => {
            bytes[32..40].copy_from_slice(&SERVICE.0.to_be_bytes());
            bytes[67] = 0;
            bytes[74] = 0x10;
            bytes[80..96].fill(step.get(1).copied().unwrap_or(0) & 3);
        }
        0x17 if kind > 9 => bytes[32..40].copy_from_slice(&SERVICE.0.to_be_bytes()),
        0x18 if kind > 9 => bytes[24..28].copy_from_slice(&id.to_be_bytes()),
        _ if kind > 9 => bytes[28..32].copy_from_slice(&id.to_be_bytes()),
        _ => {}
    }
    bytes
}

#[cfg(test)]
mod tests {
    use crate::short_run;

    #[test]
    fn short_run_of_rdma_cm() {
        let found = short_run(super::rdma_cm, 5_000);
        assert!(found > 5_000, "{found} messages");
    }
}
