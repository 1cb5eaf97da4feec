use super::*;
use crate::execute::{Alone, Emissions, Frame, execute};
use millrace_packet::parse::Layers;
use std::net::{Ipv4Addr, Ipv6Addr};
use wire::{Concern, Heard};

const S: u64 = 1_000_000_000;
const CARD: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const PEER: MacAddress = MacAddress([2, 0, 0, 0, 0, 9]);

fn pair(v6: bool) -> (IpAddr, IpAddr) {
    match v6 {
        false => (Ipv4Addr::new(192, 0, 2, 1).into(), Ipv4Addr::new(192, 0, 2, 2).into()),
        true => ("2001:db8::1".parse::<Ipv6Addr>().unwrap().into(), "2001:db8::2".parse::<Ipv6Addr>().unwrap().into()),
    }
}

/// A frame in a tunnel whose MAC addresses are not known.
fn tunnelled(v6: bool) -> Vec<u8> {
    let (src, dst) = pair(v6);
    let actions = [Action::EncapVxlan(Box::new(Vxlan::new(7, src, dst)))];
    let mut buffer = vec![5; 128 + 60];
    let mut frame = Frame::in_place(&mut buffer, 128, 60, crate::Ingress::default());
    execute(&actions, &mut frame, &mut Alone::default(), &mut Emissions::new(4, 0)).unwrap();
    frame.bytes().to_vec()
}

fn resolver(v6: bool) -> Resolver {
    let mut resolver = Resolver::new(CARD);
    resolver.set_own(vec![Own { address: pair(v6).0, mac: None, port: Some(1) }]);
    resolver
}

/// A resolver as its neighbour has it, with another address.
fn peer(v6: bool) -> Resolver {
    let mut peer = Resolver::new(PEER);
    peer.set_own(vec![Own { address: pair(v6).1, mac: None, port: Some(0) }]);
    peer.take_out();
    peer
}

#[test]
fn frames_wait_until_the_neighbour_answers() {
    for v6 in [false, true] {
        let (mut card, mut peer) = (resolver(v6), peer(v6));
        let announced = card.take_out();
        assert_eq!((announced.len(), announced[0].port), (1, (1, 0)));
        (0..10).for_each(|_| card.send(S, (1, 0), tunnelled(v6)));
        assert_eq!(card.take_dropped(), 10 - MOST_WAITING as u64);
        let table = card.take_table().unwrap();
        assert!(table.is_closed(&tunnelled(v6)), "enough waits");
        let asked = card.take_out();
        assert_eq!(asked.len(), 1, "one request");
        assert_eq!(concerns(&asked[0].frame, &peer.take_table().unwrap(), 0), Concern::Card);
        peer.hear(S, (0, 0), &asked[0].frame);
        let answered = peer.take_out();
        assert_eq!(concerns(&answered[0].frame, &table, 1), Concern::Card);
        assert_eq!(card.list(S)[0].state, State::Asking);
        // At another port somebody else may have that address.
        card.hear(S, (0, 0), &answered[0].frame);
        assert!(card.take_out().is_empty());
        card.hear(2 * S, (1, 0), &answered[0].frame);
        let sent = card.take_out();
        assert_eq!(sent.len(), MOST_WAITING);
        // The address at port 1.
        let macs = [&[2, 0, 0, 0, 0, 9][..], &[2, 0, 0, 0, 0, 2]].concat();
        assert!(sent.iter().all(|sent| sent.frame[..12] == macs && sent.frame[12..] == tunnelled(v6)[12..]));
        let table = card.take_table().unwrap();
        assert!(!table.is_closed(&tunnelled(v6)));
        // For rules that say to whom, and not from whom.
        assert_eq!(table.mac_of_own(pair(v6).0), Some(MacAddress([2, 0, 0, 0, 0, 2])));
        assert_eq!(table.mac_of_own(pair(v6).1), None);
        let known = &table.known[&pair(v6).1];
        assert_eq!((known.mac, known.own), (PEER, MacAddress([2, 0, 0, 0, 0, 2])));
        card.send(3 * S, (1, 0), tunnelled(v6));
        assert_eq!(card.take_out().len(), 1, "nothing waits any more");
    }
}

#[test]
fn who_does_not_answer_is_asked_less_and_less_and_then_left_alone() {
    let mut card = resolver(false);
    card.take_out();
    card.send(0, (1, 0), tunnelled(false));
    let mut asked = Vec::new();
    let mut now = 0;
    while card.list(now).first().is_some_and(|neighbour| neighbour.state == State::Asking) {
        asked.extend(card.take_out().iter().map(|_| now));
        now = card.next_due().unwrap();
        card.tick(now);
    }
    let pauses: Vec<u64> = asked.windows(2).map(|two| two[1] - two[0]).collect();
    assert_eq!(asked.len(), 5);
    assert!(pauses.is_sorted() && now > 5 * S && now < 6 * S, "{pauses:?} {now}");
    assert_eq!((card.take_dropped(), card.list(now)[0].state), (1, State::Unreachable));
    assert!(card.take_table().unwrap().is_closed(&tunnelled(false)), "workers drop");
    card.send(now, (1, 0), tunnelled(false));
    assert_eq!((card.take_dropped(), card.take_out().len()), (1, 0), "dropped at once");
    card.tick(now + 3 * S);
    assert!(!card.take_table().unwrap().is_closed(&tunnelled(false)), "and ask again");
    assert!(card.list(now).is_empty() && card.next_due().is_none());
}

#[test]
fn what_is_used_is_asked_again_and_what_is_not_is_forgotten() {
    let (mut card, mut peer) = (resolver(false), peer(false));
    let ask_and_answer = |card: &mut Resolver, peer: &mut Resolver, now: u64| {
        let asked = card.take_out();
        let last = asked.last().unwrap();
        peer.hear(now, (0, 0), &last.frame);
        card.hear(now, (1, 0), &peer.take_out()[0].frame);
        let sent = card.take_out();
        assert!(sent.iter().all(|sent| sent.frame[..6] == PEER.0));
        last.frame[..6].to_vec()
    };
    card.send(0, (1, 0), tunnelled(false));
    assert_eq!(ask_and_answer(&mut card, &mut peer, 0), [0xff; 6]);
    // It was used by what waited, so it is asked; only itself.
    card.tick(90 * S);
    assert_eq!(card.list(90 * S)[0].state, State::Probing);
    assert_eq!(ask_and_answer(&mut card, &mut peer, 91 * S), PEER.0);
    assert_eq!(card.list(91 * S)[0].state, State::Reachable);
    card.take_table();
    card.tick(181 * S);
    assert!(card.list(181 * S).is_empty() && card.take_table().unwrap().known.is_empty());
    // One that is used and gone.
    card.send(200 * S, (1, 0), tunnelled(false));
    ask_and_answer(&mut card, &mut peer, 200 * S);
    (290..294).for_each(|at| card.tick(at * S));
    assert_eq!((card.take_out().len(), card.list(0).len()), (3, 0));
}

#[test]
fn only_those_who_are_known_are_believed() {
    let (mut card, mut peer) = (resolver(false), peer(false));
    card.take_out();
    let (own, address) = pair(false);
    let gratuitous = wire::announcement((PEER, address));
    assert_eq!(concerns(&gratuitous, &card.take_table().unwrap(), 1), Concern::All);
    card.hear(0, (1, 0), &gratuitous);
    assert!(card.list(0).is_empty());
    // Whoever asks is answered, and not remembered.
    let request = wire::request((PEER, address), own, None);
    card.hear(0, (1, 0), &request);
    assert_eq!((card.take_out().len(), card.list(0).len()), (1, 0));
    card.hear(0, (0, 0), &request);
    assert!(card.take_out().is_empty(), "the address is at port 1");
    // A known one may move.
    card.send(0, (1, 0), tunnelled(false));
    peer.hear(0, (0, 0), &card.take_out()[0].frame);
    card.hear(0, (1, 0), &peer.take_out()[0].frame);
    let moved = MacAddress([2, 0, 0, 0, 0, 7]);
    card.hear(0, (1, 0), &wire::announcement((moved, address)));
    assert_eq!(card.list(0)[0].mac, Some(moved));
    // A static one stays.
    assert_eq!(card.add(0, address, PEER, 1, None), Ok(()));
    card.hear(0, (1, 0), &wire::announcement((moved, address)));
    assert_eq!((card.list(0)[0].mac, card.list(0)[0].state), (Some(PEER), State::Static));
    assert_eq!([card.delete(address, None), card.delete(address, None)], [Ok(true), Ok(false)]);
    // No single host has such an address.
    card.send(0, (1, 0), tunnelled(false));
    card.hear(0, (1, 0), &wire::announcement((MacAddress([3, 0, 0, 0, 0, 7]), address)));
    assert_eq!(card.list(0)[0].state, State::Asking);
}

#[test]
fn the_same_address_at_another_port_is_somebody_elses() {
    for v6 in [false, true] {
        let (own, other) = pair(v6);
        let request = wire::request((PEER, other), own, None);
        let mut card = resolver(v6);
        card.take_out();
        let table = card.take_table().unwrap();
        assert_eq!([0, 1].map(|port| concerns(&request, &table, port)), [Concern::None, Concern::Card]);
        let gratuitous = wire::announcement((PEER, other));
        assert_eq!([0, 1].map(|port| concerns(&gratuitous, &table, port)), [Concern::None, Concern::All]);
        // No rule says the port: nobody is answered, but where frames leave.
        card.set_own(vec![Own { address: own, mac: None, port: None }]);
        let table = card.take_table().unwrap();
        assert_eq!([0, 1].map(|port| concerns(&request, &table, port)), [Concern::None; 2]);
        card.hear(0, (1, 0), &request);
        assert!(card.take_out().is_empty());
        card.send(0, (1, 0), tunnelled(v6));
        let table = card.take_table().unwrap();
        assert_eq!([0, 1].map(|port| concerns(&request, &table, port)), [Concern::None, Concern::Card]);
        assert_eq!(table.mac_of_own(own), Some(MacAddress([2, 0, 0, 0, 0, 2])));
        card.take_out();
        (0..2).for_each(|port| card.hear(0, (port, 0), &request));
        assert!(card.take_out().iter().all(|sent| sent.port == (1, 0)));
        // It stays while the rules say the same, and goes with them.
        card.set_own(vec![
            Own { address: own, mac: None, port: None },
            Own { address: other, mac: None, port: Some(3) },
        ]);
        assert_eq!(card.take_table().unwrap().own.len(), 3);
        card.set_own(Vec::new());
        assert!(card.take_table().unwrap().own.is_empty());
        // A static one is answered at its port.
        card.set_own(vec![Own { address: own, mac: None, port: None }]);
        card.add(0, other, PEER, 2, None).unwrap();
        let table = card.take_table().unwrap();
        assert_eq!([1, 2].map(|port| concerns(&request, &table, port)), [Concern::None, Concern::Card]);
    }
}

#[test]
fn there_are_bounds() {
    let mut card = resolver(false);
    let (src, _) = pair(false);
    for number in 0..MOST_NEIGHBOURS as u32 + 10 {
        let mut frame = tunnelled(false);
        frame[26..34].copy_from_slice(&[[192, 0, 2, 1], (0x0a00_0000 + number).to_be_bytes()].concat());
        assert!(Layers::parse(&frame).ipv4(&frame).is_some_and(|header| IpAddr::from(header.source()) == src));
        card.send(0, (1, 0), frame);
    }
    assert_eq!((card.list(0).len(), card.take_dropped()), (MOST_NEIGHBOURS, 10));
    assert_eq!(card.add(0, "10.9.9.9".parse().unwrap(), PEER, 0, None), Err(Refused::Full));
    // From an address that is not the card's.
    let (mut card, mut frame) = (resolver(false), tunnelled(false));
    frame[29] ^= 1;
    card.send(0, (1, 0), frame);
    assert_eq!((card.list(0).len(), card.take_dropped()), (0, 1));
}

#[test]
fn damaged_messages_are_not_heard() {
    for v6 in [false, true] {
        let (own, other) = pair(v6);
        let request = wire::request((PEER, other), own, None);
        assert!(matches!(wire::hear(&request), Some(Heard::Asked { by, of }) if by == (PEER, other) && of == own));
        let table = resolver(v6).take_table().unwrap();
        for at in 0..request.len() {
            for len in [at, request.len()] {
                let mut damaged = request.clone();
                damaged[at.min(request.len() - 1)] ^= 0x55;
                damaged.truncate(len);
                concerns(&damaged, &table, 1);
                wire::hear(&damaged);
            }
            // Every byte of the message counts for its sum.
            if v6 && at >= 54 {
                let mut damaged = request.clone();
                damaged[at] ^= 0x55;
                assert_eq!(wire::hear(&damaged), None, "{at}");
            }
        }
    }
}

#[test]
fn only_what_comes_behind_the_tunnel_waits() {
    let (src, dst) = pair(false);
    let encap = Action::EncapVxlan(Box::new(Vxlan::new(7, src, dst)));
    let mut buffer = vec![0; 128 + 60];
    let mut frame = Frame::in_place(&mut buffer, 128, 60, crate::Ingress { port: 9, ..crate::Ingress::default() });
    let mut emissions = Emissions::new(4, 4096);
    let actions = [Action::Mirror(1), Action::Output(2), encap, Action::Output(3)];
    execute(&actions, &mut frame, &mut Alone::default(), &mut emissions).unwrap();
    let waits: Vec<_> = emissions.list().iter().map(|emission| emission.waits).collect();
    assert_eq!(waits, [false, false, true]);
}

#[test]
fn static_neighbours_belong_to_who_has_said_them() {
    let mut card = resolver(false);
    let at = |number: u32| IpAddr::from(Ipv4Addr::from(0x0a00_0000 + number));
    for number in 0..MOST_OF_USERS as u32 {
        assert_eq!(card.add(0, at(number), PEER, 0, Some(7)), Ok(()));
    }
    assert_eq!(card.add(0, at(9999), PEER, 0, Some(8)), Err(Refused::Full));
    assert_eq!(card.add(0, at(1), CARD, 0, Some(8)), Err(Refused::Foreign));
    assert_eq!(card.delete(at(1), Some(8)), Err(Refused::Foreign));
    // Their own they change, and all are those of who may do everything; what he says stays.
    assert_eq!(card.add(0, at(1), CARD, 0, Some(7)), Ok(()));
    assert_eq!(card.add(0, at(2), CARD, 0, None), Ok(()));
    assert_eq!(card.delete(at(2), Some(7)), Err(Refused::Foreign));
    assert_eq!(
        [card.delete(at(1), Some(7)), card.delete(at(3), None), card.delete(at(3), Some(7))],
        [Ok(true), Ok(true), Ok(false)]
    );
}
