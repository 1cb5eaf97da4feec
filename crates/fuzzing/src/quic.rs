//! Any bytes as QUIC datagrams of several connections, to and fro, and as what is inside of packets.

use millrace_flow::quic::{Config, Hello, KeyLogLine, Limits, NameRule, Path, RoutableSpec, Side, Steering};
use millrace_packet::parse::{ClientHello, QuicFrames};
use std::hint::black_box;
use std::net::IpAddr;

/// Most connections.
const CONNECTIONS: usize = 8;

/// Steers datagrams that `input` is cut into; returns how many got an instance.
///
/// # Panics
/// What is kept does not fit together, or is out of bounds.
pub fn quic(input: &[u8]) -> u64 {
    inside(input);
    let Some((&kind, mut rest)) = input.split_first() else { return 0 };
    let Ok(mut steering) = Steering::new(config(kind)) else { return 0 };
    let (mut now_ns, mut steered) = (0, 0);
    // Each datagram: what is done, path, length; its bytes, filled up to the length of a first one if bit 7 says so.
    while let Some((&[op, place, len], behind)) = rest.split_first_chunk() {
        let (bytes, behind) = behind.split_at(behind.len().min(usize::from(len)));
        rest = behind;
        now_ns += u64::from(op) * 20_000_000;
        let path = Path {
            remote: (IpAddr::from([192, 0, 2, place >> 4 & 3]), u16::from(place & 7)),
            local: (IpAddr::from([10, 0, 0, 1]), 443),
        };
        let mut datagram = bytes.to_vec();
        if op & 0x80 != 0 {
            datagram.resize(1200, 0);
        }
        match op & 7 {
            0..=3 => steered += u64::from(steering.steer(now_ns, &path, &datagram).target.is_some()),
            4 | 5 => steering.sent(now_ns, u16::from(op >> 4 & 3), &path, &datagram),
            6 => {
                let secret = vec![place; 32];
                black_box(steering.hand_over(1, &KeyLogLine { random: [place; 32], side: Side::Client, secret }));
            }
            _ => steering.forget_instance(u16::from(place & 3)),
        }
        steering.check();
        assert!(steering.connections() <= CONNECTIONS);
    }
    steered
}

/// What is inside of packets, without their encryption.
fn inside(bytes: &[u8]) {
    assert!(QuicFrames::new(bytes).count() <= bytes.len());
    if let Ok(hello) = ClientHello::parse(bytes) {
        black_box((hello.random(), hello.server_name(), hello.protocols().count()));
    }
    black_box(Hello::default().add(bytes));
    if let Ok(text) = std::str::from_utf8(bytes) {
        black_box(KeyLogLine::parse(text).is_ok());
    }
}

fn config(kind: u8) -> Config {
    let rule = NameRule { server_name: Some("*.test".into()), protocol: None, instances: vec![2] };
    let spec = RoutableSpec {
        configuration: 1,
        server_id_len: 1,
        nonce_len: 6,
        key: (kind & 8 != 0).then_some([3; 16]),
        servers: (0..=255).map(|server| (vec![server], u16::from(server) % 3)).collect(),
    };
    Config {
        queues: vec![0, 1, 2],
        instances: vec![0, 1],
        names: if kind & 1 != 0 { vec![rule] } else { Vec::new() },
        routable: vec![spec],
        keys: kind & 2 != 0,
        one_way: kind & 4 != 0,
        limits: Limits {
            connections: CONNECTIONS,
            handshakes: 5,
            per_source: 4,
            hellos: 2,
            keys: 2,
            ..Limits::default()
        },
        ..Config::default()
    }
}

#[cfg(test)]
mod tests {
    use crate::short_run;

    /// Datagrams that begin as those of version 1 do, with short ids.
    fn with_headers(bytes: &[u8]) -> u64 {
        let mut input = vec![bytes[0]];
        for part in bytes[1..].chunks_exact(8) {
            let id = [part[3] & 1; 8];
            let header = [&[0xc0 | part[2] & 0x30, 0, 0, 0, 1, 8][..], &id, &[1, part[4] & 1, 0, 0x40, 30]].concat();
            let short = [&[0x40][..], &[part[4] & 1], &part[5..8]].concat();
            let datagram = if part[2] & 1 == 0 { header } else { short };
            input.extend([part[0], part[1], datagram.len() as u8]);
            input.extend(datagram);
        }
        super::quic(&input)
    }

    #[test]
    fn short_run_of_quic() {
        short_run(super::quic, 2_000);
        let steered = short_run(with_headers, 500);
        assert!(steered > 1_500, "{steered} datagrams got an instance");
    }
}
