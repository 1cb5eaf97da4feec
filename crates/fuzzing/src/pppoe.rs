//! Any bytes as frames for a PPPoE client: discovery, LCP, authentication, networks, packets, and time that passes.

use millrace_pppoe::data::{put_on, take_off};
use millrace_pppoe::{Client, Config, Event, MacAddress, Received, clamp};
use std::hint::black_box;
use std::time::Duration;

const OWN: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);
const AC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const SESSION: u16 = 7;
/// Frames and ticks that one input may lead to, with what the client says by itself.
const MOST_TICKS: u32 = 4000;

/// Steps: a byte that says what, a length, and bytes. How many frames the client has sent.
pub fn pppoe(input: &[u8]) -> u64 {
    let Some((first, mut rest)) = input.split_first() else { return 0 };
    let config =
        Config { user: "me".into(), password: "secret".into(), mru: 1492 + u16::from(first & 15), ..Config::default() };
    let mut client = Client::new(config, OWN, u64::from(*first), Duration::ZERO).expect("a configuration that can be");
    let (mut now, mut sent) = (Duration::ZERO, 0);
    let mut last = Vec::new();
    while let Some(([kind, len], more)) = rest.split_first_chunk::<2>() {
        let (bytes, more) = more.split_at(usize::from(*len).min(more.len()));
        rest = more;
        while let Some(frame) = client.take_frame() {
            sent += 1;
            last = frame;
        }
        while let Some(event) = client.take_event() {
            if let Event::Up(session) | Event::Changed(session) = event {
                assert!((576..=1507).contains(&session.mtu) && session.dns.len() <= 2, "{session:?}");
                black_box(take_off(&session, bytes).is_ok() || put_on(&session, bytes).is_ok());
            }
        }
        let Some(mut frame) = step(*kind, bytes, &last) else {
            now += Duration::from_millis(u64::from(*len) << 3);
            client.tick(now);
            continue;
        };
        if let Received::Packet(packet) = client.receive(now, &frame) {
            assert!(packet.len() <= bytes.len());
        }
        let at = frame.len().min(22);
        clamp::clamp(&mut frame[at..], u16::from(*len) << 3);
    }
    // However it went, it goes on by itself, and ends when it is told to.
    end(&mut client, now + Duration::from_secs(300));
    client.close(now + Duration::from_secs(300));
    end(&mut client, now + Duration::from_secs(320));
    assert_eq!(client.next_tick(), None);
    sent
}

fn end(client: &mut Client, until: Duration) {
    let mut ticks = 0;
    while let Some(next) = client.next_tick().filter(|next| *next <= until) {
        client.tick(next);
        while client.take_frame().is_some() {}
        while client.take_event().is_some() {}
        ticks += 1;
        assert!(ticks < MOST_TICKS, "it goes round in circles");
    }
}

/// A frame; `None`: it gets later. Mostly what fits to what the client has said last.
fn step(kind: u8, bytes: &[u8], last: &[u8]) -> Option<Vec<u8>> {
    let id = last.get(23).copied().unwrap_or(1);
    let protocols = [0xc021u16, 0xc023, 0xc223, 0x8021, 0x8057, 0x0021, 0x0057];
    let protocol = protocols[usize::from(kind >> 4) % protocols.len()];
    Some(match kind & 15 {
        0 => return None,
        // An offer, and a session: with the tags of the request, which are what it has to have.
        1 | 2 => {
            let code = if kind & 15 == 1 { 7 } else { 0x65 };
            let session = if code == 7 { 0 } else { SESSION };
            let tags = last.get(20..).filter(|_| last[13] == 0x63).unwrap_or(bytes);
            framed(0x8863, code, session, &[tags, bytes].concat())
        }
        3 => framed(0x8863, bytes.first().copied().unwrap_or(0), SESSION, bytes.get(1..).unwrap_or(&[])),
        4 => framed(0x8864, 0, SESSION, bytes),
        // What was asked for, agreed.
        5 if last.get(12..14) == Some(&[0x88, 0x64]) => {
            let mut payload = last[20..].to_vec();
            payload[2] = if payload[..2] == [0xc2, 0x23] { 3 } else { 2 };
            framed(0x8864, 0, SESSION, &payload)
        }
        // A whole packet, with the number of the last one or its own.
        kind => {
            let id = if kind % 2 == 0 { id } else { kind };
            let code = bytes.first().map_or(1, |code| code % 12);
            let data = bytes.get(1..).unwrap_or(&[]);
            let head = [&protocol.to_be_bytes()[..], &[code, id], &(data.len() as u16 + 4).to_be_bytes()].concat();
            framed(0x8864, 0, SESSION, &[&head, data].concat())
        }
    })
}

fn framed(kind: u16, code: u8, session: u16, payload: &[u8]) -> Vec<u8> {
    let ethernet = [&OWN.0[..], &AC.0, &kind.to_be_bytes(), &[0x11, code]].concat();
    let len = payload.len() as u16;
    [&ethernet, &session.to_be_bytes()[..], &len.to_be_bytes(), payload].concat()
}

#[cfg(test)]
mod tests {
    use crate::short_run;

    #[test]
    fn short_run_of_pppoe() {
        let sent = short_run(super::pppoe, 2_000);
        assert!(sent > 2_000, "{sent} frames");
    }

    /// The steps are those of a session: an input can get there.
    #[test]
    fn an_input_with_a_session() {
        // An offer, the session; LCP agreed by both; IPCP agreed with an address; a packet.
        let input = [
            &[0u8, 1, 0, 2, 0, 5, 0][..],
            &[6, 1, 1],
            &[0x36, 7, 3, 3, 6, 192, 0, 2, 7, 5, 0],
            &[0x36, 7, 1, 3, 6, 192, 0, 2, 1, 5, 0],
        ];
        assert!(super::pppoe(&input.concat()) >= 6);
    }
}
