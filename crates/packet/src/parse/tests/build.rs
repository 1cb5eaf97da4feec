//! Builds frames from the inside out: each function puts a header in front of what is there.

/// What `extra` bytes in front of `payload` are.
fn before(head: &[u8], payload: &[u8]) -> Vec<u8> {
    [head, payload].concat()
}

fn len16(len: usize) -> [u8; 2] {
    u16::try_from(len).expect("tests build short packets").to_be_bytes()
}

pub fn ethernet(ether_type: u16, payload: &[u8]) -> Vec<u8> {
    let [high, low] = ether_type.to_be_bytes();
    before(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, high, low], payload)
}

pub fn vlan(tci: u16, ether_type: u16, payload: &[u8]) -> Vec<u8> {
    before(&[tci.to_be_bytes(), ether_type.to_be_bytes()].concat(), payload)
}

/// `options` in whole words of four bytes, at most ten.
pub fn ipv4(protocol: u8, options: &[u8], fragment: u16, payload: &[u8]) -> Vec<u8> {
    let words = 5 + options.len() / 4;
    let [total, low] = len16(words * 4 + payload.len());
    let [flags, offset] = fragment.to_be_bytes();
    let mut head = vec![0x40 | words as u8, 0, total, low, 0, 1, flags, offset, 64, protocol, 0, 0];
    head.extend([10, 0, 0, 1, 10, 0, 0, 2]);
    head.extend(options);
    before(&head, payload)
}

pub fn ipv6(next: u8, payload: &[u8]) -> Vec<u8> {
    let [len, low] = len16(payload.len());
    let mut head = vec![0x60, 0, 0, 0, len, low, next, 64];
    head.extend([[0xfd; 16], [0xfe; 16]].concat());
    before(&head, payload)
}

/// An extension header with options or routing: as many padding bytes as make `8 * (1 + units)` in all.
pub fn extension(next: u8, units: u8, payload: &[u8]) -> Vec<u8> {
    let mut head = vec![0; 8 * (1 + usize::from(units))];
    head[..2].copy_from_slice(&[next, units]);
    before(&head, payload)
}

pub fn fragment(next: u8, offset_and_flags: u16, payload: &[u8]) -> Vec<u8> {
    let [high, low] = offset_and_flags.to_be_bytes();
    before(&[next, 0, high, low, 0, 0, 0, 7], payload)
}

pub fn ah(next: u8, payload: &[u8]) -> Vec<u8> {
    before(&[next, 2, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 9, 9, 9, 9], payload)
}

pub fn tcp(options: &[u8], payload: &[u8]) -> Vec<u8> {
    let words = 5 + options.len() / 4;
    let mut head = vec![0x30, 0x39, 0, 80, 0, 0, 0, 1, 0, 0, 0, 2, (words as u8) << 4, 0x10, 1, 0, 0, 0, 0, 0];
    head.extend(options);
    before(&head, payload)
}

pub fn udp(port: u16, payload: &[u8]) -> Vec<u8> {
    before(&[[0x30, 0x39], port.to_be_bytes(), len16(8 + payload.len()), [0, 0]].concat(), payload)
}

pub fn pppoe(ppp: u16, payload: &[u8]) -> Vec<u8> {
    before(&[[0x11, 0], [0, 5], len16(2 + payload.len()), ppp.to_be_bytes()].concat(), payload)
}

pub fn vxlan(vni: u32, payload: &[u8]) -> Vec<u8> {
    before(&[[8, 0, 0, 0], (vni << 8).to_be_bytes()].concat(), payload)
}

pub fn geneve(protocol: u16, vni: u32, options: &[u8], payload: &[u8]) -> Vec<u8> {
    let [high, low] = protocol.to_be_bytes();
    let head = [[(options.len() / 4) as u8, 0, high, low], (vni << 8).to_be_bytes()].concat();
    before(&[&head, options].concat(), payload)
}

/// With a key.
pub fn gre(protocol: u16, key: u32, payload: &[u8]) -> Vec<u8> {
    let [high, low] = protocol.to_be_bytes();
    before(&[[0x20, 0, high, low], key.to_be_bytes()].concat(), payload)
}
