//! Steps 7 to 17 in user space, for packets that only become visible here because they were encrypted: the rule of a packet from the mapped table, and what
//! that does. The same as `bpf/flow.h` and `bpf/execute.h` do; a test compares the two byte by byte (`crates/router/tests/carry.rs`). Whatever is not plain is asked of the
//! program in the kernel ([`Engine::try_frame`](super::Engine::try_frame)), which makes the rules, too.

use super::layout::{HOP, HOP_EPOCH, HOPS, Hop, RULE4, RULE6, State, global, hop_flag, rule_flag};
use super::{Engine, EngineError};
use millrace_dma::{Slots32, Slots64, Window, Word32, Word64};
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// Slots that are looked at (`bpf/table.h`).
const PROBES: u32 = 8;

const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMP_V6: u8 = 58;

/// Flags of a next hop that is none of Ethernet's alone.
const NOT_HERE: u16 = hop_flag::BRIDGED | hop_flag::USER;

/// What comes in front of a packet, and where it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Front {
    /// The interface that the frame leaves by.
    pub out: u32,
    /// Bytes of the packet behind it.
    pub size: usize,
    bytes: [u8; Self::MOST],
    len: usize,
}

impl Front {
    /// Ethernet, two tags, a session.
    pub const MOST: usize = 30;

    /// The bytes, for a packet of that many bytes of that version of IP.
    pub fn of(hop: &Hop, is_v6: bool, size: usize) -> Self {
        let (mut bytes, mut len) = ([0; Self::MOST], 12);
        bytes[..6].copy_from_slice(&hop.destination);
        bytes[6..12].copy_from_slice(&hop.source);
        let mut put = |word: u16| {
            bytes[len..len + 2].copy_from_slice(&word.to_be_bytes());
            len += 2;
        };
        for (ethertype, tci) in hop.tags.into_iter().take_while(|(ethertype, _)| *ethertype != 0) {
            put(ethertype);
            put(tci);
        }
        if hop.session == 0 {
            put(if is_v6 { 0x86dd } else { 0x0800 });
        } else {
            for word in [0x8864, 0x1100, hop.session, size as u16 + 2, if is_v6 { 0x57 } else { 0x21 }] {
                put(word);
            }
        }
        Self { out: hop.out, size, bytes, len }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// A packet as far as a rule is about it.
struct Packet {
    is_v6: bool,
    /// Where TCP, UDP or ICMP begins.
    l4: usize,
    size: usize,
    protocol: u8,
    tos: u8,
    ports: [u8; 4],
}

/// One table of rules.
struct Table {
    words: Slots32,
    counters: Slots64,
    /// Words of a rule.
    size: u32,
    mask: u32,
}

impl Table {
    /// The slot that is tried as the one of that number: `place` of `bpf/slots.h`.
    fn place(&self, hash: u32, probe: u32) -> u32 {
        let half = self.mask >> 1;
        if probe < PROBES / 2 {
            return hash.wrapping_add(probe) & half;
        }
        half + 1 + (hash.wrapping_add(probe - PROBES / 2) & half)
    }
}

/// Where things are in a rule, in words; what has 16 bits is named for its word.
struct Places {
    addresses: usize,
    address_words: usize,
    ports: usize,
    protocol: usize,
    epoch: usize,
    hop: usize,
    counter: usize,
    seen: usize,
    asked: usize,
    new_addresses: usize,
    new_ports: usize,
    deltas: usize,
}

const PLACES4: Places = Places {
    addresses: 2,
    address_words: 1,
    ports: 4,
    protocol: 5,
    epoch: 6,
    hop: 7,
    counter: 12,
    seen: 14,
    asked: 15,
    new_addresses: 8,
    new_ports: 10,
    deltas: 11,
};
const PLACES6: Places = Places {
    addresses: 2,
    address_words: 4,
    ports: 10,
    protocol: 11,
    epoch: 12,
    hop: 13,
    counter: 14,
    seen: 16,
    asked: 17,
    new_addresses: 18,
    new_ports: 26,
    deltas: 27,
};

/// Looks rules up, and does what they say.
pub struct Carrier {
    rules4: Table,
    rules6: Table,
    hops: Slots32,
    hop_bytes: Window,
    epochs: Word64,
    modes: [Word32; 2],
    route_mtus: Word32,
    keep: u32,
    seed: u64,
}

impl Engine {
    /// What carries packets in user space by the rules of this engine.
    ///
    /// # Errors
    /// [`EngineError::Missing`].
    pub fn carrier(&self) -> Result<Carrier, EngineError> {
        let missing = |_| EngineError::Missing("tables of the expected size");
        let table = |window: &Window, size: usize| {
            let rules = (window.len() / size) as u32;
            Ok::<_, EngineError>(Table {
                words: window.slots32(0, rules * (size / 4) as u32).map_err(missing)?,
                counters: window.slots64(0, rules * (size / 8) as u32).map_err(missing)?,
                size: (size / 4) as u32,
                mask: rules - 1,
            })
        };
        Ok(Carrier {
            rules4: table(self.rules4.window(), RULE4)?,
            rules6: table(self.rules6.window(), RULE6)?,
            hops: self.hops.window().slots32(0, HOPS * (HOP / 4) as u32).map_err(missing)?,
            hop_bytes: self.hops.window().clone(),
            epochs: self.globals.epochs.clone(),
            modes: [self.globals.word(global::MODE), self.globals.word(global::MODE6)],
            route_mtus: self.globals.word(global::ROUTE_MTUS),
            keep: self.globals.word(global::KEEP).load(Relaxed),
            seed: self.seed,
        })
    }
}

/// Words of the longest rule.
const MOST: usize = RULE6 / 4;

impl Carrier {
    /// Does to a packet of IP, which has come by the interface `input`, what its rule says. `None`: nothing has changed, and the program in the kernel is to
    /// be asked. `jiffies`: the kernel's, or those of a moment ago.
    pub fn carry(&self, input: u32, packet: &mut [u8], jiffies: u32) -> Option<Front> {
        let parsed = parse(packet)?;
        if self.modes[usize::from(parsed.is_v6)].load(Relaxed) == 0 {
            return None;
        }
        let (table, places) = if parsed.is_v6 { (&self.rules6, &PLACES6) } else { (&self.rules4, &PLACES4) };
        let (first, rule) = self.find(table, places, input, packet, &parsed)?;
        if rule[places.epoch] != self.epochs.load(Acquire) as u32 {
            return None;
        }
        let number = rule[places.hop] & 0xffff;
        let epoch = self.hops.load(number * (HOP / 4) as u32 + (HOP_EPOCH / 4) as u32);
        if epoch & 0xffff != rule[places.hop] >> 16 || number >= HOPS {
            return None;
        }
        let mut bytes = [0; HOP];
        self.hop_bytes.span(number as usize * HOP, HOP)?.read_into(&mut bytes);
        let hop = Hop::from_bytes(&bytes);
        let (proved, flags) = ((rule[places.asked] >> 16) as usize, (rule[0] >> 8) as u8);
        let is_long =
            parsed.size > proved && (parsed.size > usize::from(hop.mtu) || self.route_mtus.load(Relaxed) != 0);
        if is_long || hop.flags & NOT_HERE != 0 || flags & rule_flag::BRIDGED != 0 {
            return None;
        }
        if flags & (rule_flag::CONNTRACK | rule_flag::SHOWN) != 0 {
            let asked = (jiffies as u16).wrapping_sub(rule[places.asked] as u16);
            // The last packet may have come since the clock was read.
            let idle = jiffies.wrapping_sub(rule[places.seen]);
            if u32::from(asked) >= self.keep && asked < 0x8000 || idle >= self.keep && idle < 1 << 31 {
                return None;
            }
        }
        let front = Front::of(&hop, parsed.is_v6, parsed.size);
        change(packet, &parsed, &rule, places, flags & rule_flag::NAT != 0);
        // Nobody else adds to the rule of what comes by an interface that only this engine has.
        let counter = (first + places.counter as u32) / 2;
        let before = table.counters.load(counter);
        table.counters.store(counter, before.wrapping_add(((parsed.size as u64) << 28) + 1));
        if rule[places.seen] != jiffies {
            table.words.store(first + places.seen as u32, jiffies);
        }
        Some(front)
    }

    /// The first word, and all words, of the rule in force of a packet.
    fn find(
        &self,
        table: &Table,
        places: &Places,
        input: u32,
        packet: &[u8],
        parsed: &Packet,
    ) -> Option<(u32, [u32; MOST])> {
        let at = if parsed.is_v6 { 8 } else { 12 };
        let word = |at: usize| u32::from_le_bytes([packet[at], packet[at + 1], packet[at + 2], packet[at + 3]]);
        let ports = u32::from_le_bytes(parsed.ports);
        let kind = u32::from(parsed.protocol) | u32::from(parsed.tos >> 2) << 8;
        let rest = u64::from(ports) | u64::from(kind) << 32;
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let hash = if parsed.is_v6 {
            let first = self.mix(long(8), long(16), long(24));
            self.mix(long(32), rest, u64::from(input) << 32 | u64::from(first))
        } else {
            self.mix(long(12), rest, input.into())
        };
        for probe in 0..PROBES {
            let first = table.place(hash, probe) * table.size;
            let before = table.words.load(first);
            match State::of(before) {
                Some(State::Active) => {}
                Some(State::Empty) => return None,
                _ => continue,
            }
            // What publishes a rule is an exchange of its first word, a full barrier: whoever has that word sees the rest of it.
            millrace_dma::fence(Acquire);
            let mut rule = [0; MOST];
            for (ahead, word) in rule[..table.size as usize].iter_mut().enumerate() {
                *word = table.words.load(first + ahead as u32);
            }
            let is_same = rule[1] == input
                && (0..2 * places.address_words).all(|step| rule[places.addresses + step] == word(at + 4 * step))
                && rule[places.ports] == ports
                && rule[places.protocol] & 0xffff == kind;
            // Another may have been written meanwhile.
            millrace_dma::fence(Acquire);
            if is_same && table.words.load(first) == before {
                rule[0] = before;
                return Some((first, rule));
            }
        }
        None
    }

    fn mix(&self, a: u64, b: u64, c: u64) -> u32 {
        let mut h = (a ^ self.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        h ^= h >> 32;
        h = (h ^ b).wrapping_mul(0xd6e8_feb8_6659_fd93);
        h ^= h >> 32;
        h = (h ^ c ^ self.seed).wrapping_mul(0xff51_afd7_ed55_8ccd);
        (h >> 32) as u32
    }
}

/// What can be carried by a rule: a whole packet without options, of TCP in the middle of a connection, of UDP, or an ICMP echo.
fn parse(packet: &[u8]) -> Option<Packet> {
    let half = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
    let (is_v6, l4, size, protocol, tos, ttl) = match packet.first()? >> 4 {
        4 if packet.len() >= 28 && packet[0] == 0x45 && half(6) & 0xbfff == 0 && sum(&packet[..20]) == 0xffff => {
            (false, 20, usize::from(half(2)), packet[9], packet[1], packet[8])
        }
        6 if packet.len() >= 48 => (true, 40, usize::from(half(4)) + 40, packet[6], (half(0) >> 4) as u8, packet[7]),
        _ => return None,
    };
    if size > packet.len() || size < l4 + 8 || ttl <= 1 {
        return None;
    }
    let mut ports = [packet[l4], packet[l4 + 1], packet[l4 + 2], packet[l4 + 3]];
    let is_plain = match protocol {
        // Only ACK of SYN, FIN, RST and ACK.
        TCP => size >= l4 + 20 && packet[l4 + 12] >> 4 >= 5 && packet[l4 + 13] & 0x17 == 0x10,
        UDP => usize::from(half(l4 + 4)) == size - l4,
        ICMP | ICMP_V6 if is_v6 == (protocol == ICMP_V6) => {
            // The identifier, and type and code.
            ports = [packet[l4 + 4], packet[l4 + 5], packet[l4], packet[l4 + 1]];
            packet[l4 + 1] == 0 && if is_v6 { matches!(packet[l4], 128 | 129) } else { matches!(packet[l4], 0 | 8) }
        }
        _ => false,
    };
    is_plain.then_some(Packet { is_v6, l4, size, protocol, tos, ports })
}

fn sum(header: &[u8]) -> u16 {
    let total: u32 = header.chunks_exact(2).map(|pair| u32::from(u16::from_le_bytes([pair[0], pair[1]]))).sum();
    fold(total)
}

fn fold(mut total: u32) -> u16 {
    total = (total & 0xffff) + (total >> 16);
    total = (total & 0xffff) + (total >> 16);
    total as u16
}

/// As in RFC 1624: what a checksum becomes when that is added to what it covers.
fn adjust(packet: &mut [u8], at: usize, delta: u32) -> u16 {
    let before = u16::from_le_bytes([packet[at], packet[at + 1]]);
    let after = !fold(u32::from(!before) + delta);
    packet[at..at + 2].copy_from_slice(&after.to_le_bytes());
    after
}

/// Steps 11 to 13, into the packet.
fn change(packet: &mut [u8], parsed: &Packet, rule: &[u32; MOST], places: &Places, is_nat: bool) {
    let dscp = (rule[places.protocol] >> 16) as u8;
    let (l3_delta, l4_delta) = (rule[places.deltas] & 0xffff, rule[places.deltas] >> 16);
    let l4 = parsed.l4;
    if is_nat {
        match parsed.protocol {
            // The identifier stays, and addresses are not in its checksum.
            ICMP => {}
            ICMP_V6 => drop(adjust(packet, l4 + 2, l4_delta)),
            TCP => {
                packet[l4..l4 + 4].copy_from_slice(&rule[places.new_ports].to_le_bytes());
                adjust(packet, l4 + 16, l4_delta);
            }
            _ => {
                packet[l4..l4 + 4].copy_from_slice(&rule[places.new_ports].to_le_bytes());
                // None stays none.
                if packet[l4 + 6..l4 + 8] != [0, 0] && adjust(packet, l4 + 6, l4_delta) == 0 {
                    packet[l4 + 6..l4 + 8].copy_from_slice(&[0xff, 0xff]);
                }
            }
        }
    }
    let at = if parsed.is_v6 { 8 } else { 12 };
    if is_nat {
        for step in 0..2 * places.address_words {
            let word = rule[places.new_addresses + step].to_le_bytes();
            packet[at + 4 * step..at + 4 * step + 4].copy_from_slice(&word);
        }
    }
    if parsed.is_v6 {
        let tos = parsed.tos & 3 | dscp << 2;
        packet[0] = 0x60 | tos >> 4;
        packet[1] = packet[1] & 0x0f | tos << 4;
        packet[7] -= 1;
    } else {
        let tos = parsed.tos & 3 | dscp << 2;
        // One less of the hop limit, which is the low byte of its half word; the class is the high byte of its own.
        let mut delta = 0xfffe + u32::from(!(u16::from(parsed.tos) << 8)) + (u32::from(tos) << 8);
        if is_nat {
            delta += l3_delta;
        }
        packet[1] = tos;
        packet[8] -= 1;
        adjust(packet, 10, delta);
    }
}
