//! Any bytes to ESP: as a packet that arrives, as what a peer with the right key has encrypted, as a packet that leaves, as messages of
//! the kernel, and as text. Nothing panics, and what is sealed here is opened there as it was.

use std::hint::black_box;

use millrace_ipsec::algorithm::Keys;
use millrace_ipsec::association::{Association, Encapsulation, Id, Mode, Parameters};
use millrace_ipsec::cipher::{Context, Sequence};
use millrace_ipsec::database::{Change, Database};
use millrace_ipsec::policy::Direction;
use millrace_ipsec::{netlink, text};

const ROOM: usize = 160;
const NOW: u64 = 1_700_000_000;
const SPI: u32 = 0x1000;

/// Seals, opens and reads; returns how many packets or changes there were.
///
/// # Panics
/// What was sealed is not opened again.
pub fn esp(input: &[u8]) -> u64 {
    let Some((choice, rest)) = input.split_first() else { return 0 };
    let parameters = parameters(*choice);
    arrives(&parameters, rest)
        + u64::from(there_and_back(&parameters, rest))
        + from_kernel(*choice, rest)
        + from_text(rest)
}

fn parameters(choice: u8) -> Parameters {
    let key = [choice; 64];
    let keys = match choice % 4 {
        0 => Keys::aead("rfc4106(gcm(aes))", &key[..20], 128),
        1 => Keys::aead("rfc7539esp(chacha20,poly1305)", &key[..36], 128),
        2 => Keys::separate(("cbc(aes)", &key[..16]), ("hmac(sha256)", &key[..32], 128)),
        _ => Keys::separate(("ecb(cipher_null)", &[]), ("hmac(sha512)", &key, 256)),
    };
    let is_v4 = choice & 4 == 0;
    let end = |last: u8| {
        if is_v4 {
            std::net::Ipv4Addr::new(192, 0, 2, last).into()
        } else {
            std::net::Ipv6Addr::from([last; 16]).into()
        }
    };
    let id = Id { destination: end(2), spi: SPI };
    let mut parameters = Parameters::tunnel(end(1), id, keys.expect("they fit"));
    parameters.is_extended = choice & 8 != 0;
    parameters.mode = if choice & 16 != 0 { Mode::Transport } else { Mode::Tunnel };
    parameters.encapsulation =
        (choice & 32 != 0).then_some(Encapsulation { source_port: 4500, destination_port: 4500 });
    parameters.fill_to = u16::from(choice & 64) * 4;
    parameters
}

/// As it is, behind an outer header, and encrypted with the right key.
fn arrives(parameters: &Parameters, bytes: &[u8]) -> u64 {
    let mut database = Database::new();
    if database.apply(Change::Associate(Box::new(parameters.clone())), NOW).is_err() {
        return 0;
    }
    let mut found = open(&mut database, bytes);
    let esp = [&SPI.to_be_bytes(), &[0, 0, 0, 1], bytes].concat();
    found += open(&mut database, &outer(parameters, &esp));
    let context = Context::new(&parameters.keys).expect("there is memory");
    let shape = context.shape();
    let text = bytes.len() / shape.block * shape.block;
    let mut esp =
        [&SPI.to_be_bytes(), &[0, 0, 0, 2], &vec![0; shape.iv][..], &bytes[..text], &vec![0; shape.check]].concat();
    let sequence = Sequence { number: 2, is_extended: parameters.is_extended };
    context.seal(&mut esp, sequence).expect("it is whole blocks");
    found + open(&mut database, &outer(parameters, &esp))
}

/// ESP in a packet of the association's addresses.
fn outer(parameters: &Parameters, esp: &[u8]) -> Vec<u8> {
    let udp = match parameters.encapsulation {
        Some(_) => [&[0x11, 0x94, 0x11, 0x94], &((esp.len() + 8) as u16).to_be_bytes()[..], &[0, 0]].concat(),
        None => Vec::new(),
    };
    let protocol = if udp.is_empty() { 50 } else { 17 };
    let len = udp.len() + esp.len();
    let header = if parameters.source.is_ipv4() {
        let mut header = vec![0x45, 3];
        header.extend(((20 + len) as u16).to_be_bytes());
        header.extend([0, 0, 0, 0, 64, protocol, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
        header
    } else {
        let mut header = vec![0x60, 0x30, 0, 0];
        header.extend((len as u16).to_be_bytes());
        header.extend([protocol, 64]);
        header.extend([1; 16].into_iter().chain([2; 16]));
        header
    };
    [header, udp, esp.to_vec()].concat()
}

fn in_room(packet: &[u8]) -> Vec<u8> {
    [&[0; ROOM], packet, &[0; ROOM + 256]].concat()
}

fn open(database: &mut Database, packet: &[u8]) -> u64 {
    let mut buffer = in_room(packet);
    let result = database.open(&mut buffer, ROOM..ROOM + packet.len(), 0, NOW);
    let Ok(Some((opened, by))) = result else { return 0 };
    assert!(opened.packet.end <= ROOM + packet.len(), "a packet does not grow");
    black_box(database.check(Direction::Forward, &opened.flow, Some(by)).is_ok());
    1
}

fn there_and_back(parameters: &Parameters, packet: &[u8]) -> bool {
    let mut here = Association::new(parameters.clone(), NOW).expect("it can be made");
    let mut buffer = in_room(packet);
    let Ok(place) = here.seal(&mut buffer, ROOM..ROOM + packet.len(), NOW) else { return false };
    // To whom it is, in transport mode, the packet itself says.
    let mut there = parameters.clone();
    let sealed = &buffer[place.clone()];
    let header = millrace_ipsec::ip::Header::parse(sealed).expect("it was written here");
    there.id.destination = header.destination;
    there.source = header.source;
    let mut database = Database::new();
    database.apply(Change::Associate(Box::new(there)), NOW).expect("it can be made");
    let opened = match database.open(&mut buffer, place, 0, NOW) {
        Ok(Some((opened, _))) => opened,
        // What is protected says in its last byte that it is a dummy, or that congestion was marked already.
        Err(refusal) if parameters.mode == Mode::Transport => return black_box(refusal.name().is_empty()),
        other => panic!("{other:?}"),
    };
    let len = opened.packet.len();
    assert!(parameters.mode == Mode::Transport || buffer[opened.packet] == packet[..len]);
    true
}

/// A message of a kind that the first byte chooses, with the rest as it is and in a body of zeros.
fn from_kernel(choice: u8, bytes: &[u8]) -> u64 {
    let kind = 0x10 + u16::from(choice % 0x1a);
    let mut found = netlink::read(kind, bytes).map_or(0, |changes| changes.len() as u64);
    let lens = [(0x10, 224), (0x11, 24), (0x13, 168), (0x14, 64), (0x18, 232), (0x19, 168), (0x1a, 224), (0x1b, 176)];
    for (kind, len) in lens {
        let mut body = vec![0; len];
        let own = bytes.len().min(8);
        // Addresses, and everything else where it does most: the protocol ESP, and the family.
        body[..own].copy_from_slice(&bytes[..own]);
        if matches!(kind, 0x10 | 0x1a) {
            (body[76], body[212], body[214]) = (50, 2, choice & 1);
        }
        body.extend_from_slice(&bytes[own..]);
        let Ok(changes) = netlink::read(kind, &body) else { continue };
        let mut database = Database::new();
        for change in changes {
            found += u64::from(database.apply(change, NOW).is_ok());
        }
        for association in database.associations() {
            black_box((netlink::report(association, 1), text::print_state(association, true)));
        }
        for policy in database.policies().iter() {
            black_box(text::print_policy(policy));
        }
    }
    found
}

fn from_text(bytes: &[u8]) -> u64 {
    let text = String::from_utf8_lossy(bytes);
    let fronts = ["", "src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x1000 ", "policy add dir out "];
    let read =
        |front: &str| text::parse(&format!("{front}{text}"), |_| Some(1)).map_or(0, |changes| changes.len() as u64);
    fronts.into_iter().map(read).sum()
}

#[cfg(test)]
mod tests {
    use crate::short_run;

    #[test]
    fn short_run_of_esp() {
        // Every message of eight kinds that is nothing but zeros and an address is one of a policy.
        let found = short_run(super::esp, 3_000);
        assert!(found > 1_000, "{found} packets and changes");
    }

    /// Texts and attributes that random bytes do not hit.
    #[test]
    fn what_is_real_is_found() {
        let packet = [0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 1, 0, 2, 0, 8, 0, 0];
        for choice in 0..=255 {
            let input = [&[choice], &packet[..]].concat();
            assert!(super::esp(&input) > 0, "{choice}");
        }
    }
}
