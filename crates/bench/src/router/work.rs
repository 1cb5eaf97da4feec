//! What a router has to do for the packets, and the packets.

use std::net::Ipv4Addr;

/// Addresses of the three: source, the router's two interfaces, sink.
pub const SOURCE: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 2);
pub const ROUTER_LEFT: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 1);
pub const ROUTER_RIGHT: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 1);
pub const SINK: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
/// What is routed over the sink, and what is translated to it.
const FAR: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const PUBLIC: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);

/// Their Ethernet addresses.
pub const SOURCE_MAC: [u8; 6] = [2, 0, 0, 0, 1, 2];
pub const LEFT_MAC: [u8; 6] = [2, 0, 0, 0, 1, 1];
pub const RIGHT_MAC: [u8; 6] = [2, 0, 0, 0, 2, 1];
pub const SINK_MAC: [u8; 6] = [2, 0, 0, 0, 2, 2];

/// The service at the other end.
pub const SERVICE: u16 = 9;
/// Flows that differ in their source port alone, as in `bpf/router.bpf.c`.
const PORTS: u32 = 40_000;
/// The most flows: their other half of an address must not run into the next network.
pub const MOST_FLOWS: u32 = 200 * PORTS;

/// What the router does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Routing alone; conntrack is not there.
    Route,
    /// The source's address becomes the router's (masquerade).
    Snat,
    /// The router's address becomes the sink's.
    Dnat,
    /// Routing from one VLAN into another one.
    Vlan,
    /// Routing into a session of PPPoE.
    Pppoe,
}

/// The VLANs, and the session.
pub const VLAN_IN: u16 = 10;
pub const VLAN_OUT: u16 = 20;
pub const SESSION: u16 = 0x4321;

/// What is in the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Udp,
    Tcp,
}

/// A kind of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    pub work: Work,
    pub protocol: Protocol,
    /// Bytes of a frame without FCS.
    pub size: u16,
    pub flows: u32,
}

impl Work {
    #[cfg(test)]
    const ALL: [Work; 5] = [Work::Route, Work::Snat, Work::Dnat, Work::Vlan, Work::Pppoe];

    pub fn word(self) -> &'static str {
        match self {
            Work::Route => "route",
            Work::Snat => "snat",
            Work::Dnat => "dnat",
            Work::Vlan => "vlan",
            Work::Pppoe => "pppoe",
        }
    }

    /// Whether that takes interfaces that a kernel may not have.
    pub fn is_encapsulated(self) -> bool {
        matches!(self, Work::Vlan | Work::Pppoe)
    }

    /// What is between the addresses and the type of the frames that the source sends.
    fn front(self) -> &'static [u8] {
        const TAG: [u8; 4] = [0x81, 0, 0, VLAN_IN as u8];
        if self == Work::Vlan { &TAG } else { &[] }
    }

    /// The Ethernet type of the frames that the source sends.
    pub fn sent_type(self) -> u16 {
        if self == Work::Vlan { 0x8100 } else { 0x0800 }
    }

    /// That of the frames that the sink sees.
    pub fn seen_type(self) -> u16 {
        match self {
            Work::Route | Work::Snat | Work::Dnat => 0x0800,
            Work::Vlan => 0x8100,
            Work::Pppoe => 0x8864,
        }
    }

    /// The ruleset of nft, which does not take chains on one line.
    pub fn ruleset(self) -> Option<String> {
        let (hook, priority, rule) = match self {
            Work::Route | Work::Vlan | Work::Pppoe => return None,
            Work::Snat => ("postrouting", "srcnat", "oifname right masquerade".to_owned()),
            Work::Dnat => ("prerouting", "dstnat", format!("ip daddr {PUBLIC} dnat to {SINK}")),
        };
        Some(format!("table ip bench {{\n chain c {{\n type nat hook {hook} priority {priority}\n {rule}\n }}\n}}\n"))
    }

    /// Whether conntrack has an entry for each flow.
    pub fn is_tracked(self) -> bool {
        matches!(self, Work::Snat | Work::Dnat)
    }

    /// From and to which addresses the source sends; that of its flows is higher in one of them.
    pub fn sent(self) -> (Ipv4Addr, Ipv4Addr) {
        match self {
            // A source port of the router is one flow to each destination.
            Work::Route | Work::Snat | Work::Vlan | Work::Pppoe => (SOURCE, FAR),
            Work::Dnat => (SOURCE, PUBLIC),
        }
    }

    /// From and to which addresses the sink sees packets come; nothing where flows differ.
    pub fn seen(self) -> (Option<Ipv4Addr>, Option<Ipv4Addr>) {
        match self {
            Work::Route | Work::Vlan | Work::Pppoe => (Some(SOURCE), None),
            Work::Snat => (Some(ROUTER_RIGHT), None),
            Work::Dnat => (None, Some(SINK)),
        }
    }

    /// From and to which addresses the sink answers.
    fn answered(self) -> (Ipv4Addr, Ipv4Addr) {
        match self {
            Work::Route | Work::Vlan | Work::Pppoe => (FAR, SOURCE),
            Work::Snat => (FAR, ROUTER_RIGHT),
            Work::Dnat => (SINK, SOURCE),
        }
    }

    /// Whether flows differ in the address of the source.
    fn is_source_many(self) -> bool {
        self == Work::Dnat
    }
}

impl Protocol {
    pub fn word(self) -> &'static str {
        match self {
            Protocol::Udp => "udp",
            Protocol::Tcp => "tcp",
        }
    }

    /// Its number, the length of its header, and where in the frame its checksum is.
    fn numbers(self) -> (u8, usize, usize) {
        match self {
            Protocol::Udp => (17, 8, 40),
            Protocol::Tcp => (6, 20, 50),
        }
    }
}

/// What the generator writes into each frame, but for the flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    pub frame: Vec<u8>,
    pub half_at: u32,
    pub half: u32,
    pub ip_sum: u32,
    pub l4_sum: u32,
    pub l4_sum_at: u32,
    pub port_at: u32,
    /// Bytes of a tag, which the places above are without.
    pub shift: u32,
}

impl Template {
    /// What the source sends to `to`.
    pub fn new(traffic: Traffic, to: [u8; 6]) -> Self {
        let half_at = if traffic.work.is_source_many() { 28 } else { 32 };
        Self::made(traffic, [to, SOURCE_MAC], traffic.work.sent(), half_at, 34)
    }

    /// What the sink answers.
    pub fn answer(traffic: Traffic) -> Self {
        let half_at = if traffic.work.is_source_many() { 32 } else { 28 };
        Self::made(traffic, [RIGHT_MAC, SINK_MAC], traffic.work.answered(), half_at, 36)
    }

    /// A frame with everything but the port, the half of an address and the checksums.
    fn made(
        traffic: Traffic,
        macs: [[u8; 6]; 2],
        (source, destination): (Ipv4Addr, Ipv4Addr),
        half_at: usize,
        port_at: usize,
    ) -> Self {
        let (number, header, sum_at) = traffic.protocol.numbers();
        let front = traffic.work.front();
        let size = traffic.size - front.len() as u16;
        let length = usize::from(size);
        let mut frame = vec![0x5a; length];
        frame[..6].copy_from_slice(&macs[0]);
        frame[6..12].copy_from_slice(&macs[1]);
        frame[12..14].copy_from_slice(&[8, 0]);
        frame[14..24].copy_from_slice(&[0x45, 0, 0, 0, 0, 1, 0, 0, 64, number]);
        frame[16..18].copy_from_slice(&(size - 14).to_be_bytes());
        frame[24..26].fill(0);
        frame[26..30].copy_from_slice(&source.octets());
        frame[30..34].copy_from_slice(&destination.octets());
        frame[34..34 + header].fill(0);
        // The other port.
        frame[70 - port_at..72 - port_at].copy_from_slice(&SERVICE.to_be_bytes());
        match traffic.protocol {
            Protocol::Udp => frame[38..40].copy_from_slice(&(size - 34).to_be_bytes()),
            // Numbers, a header of five words, ACK, a window.
            Protocol::Tcp => frame[38..50].copy_from_slice(&[0, 0, 1, 0, 0, 0, 2, 0, 0x50, 0x10, 0x40, 0]),
        }
        let half = u32::from(u16::from_be_bytes([frame[half_at], frame[half_at + 1]]));
        frame[half_at..half_at + 2].fill(0);
        let ip_sum = sum(&frame[14..34]);
        // The pseudo header: addresses, protocol, length.
        let l4_sum = fold(sum(&frame[26..]) + u32::from(number) + u32::from(size - 34));
        frame.splice(12..12, front.iter().copied());
        let [half_at, l4_sum_at, port_at, shift] = [half_at, sum_at, port_at, front.len()].map(|at| at as u32);
        Self { frame, half_at, half, ip_sum, l4_sum, l4_sum_at, port_at, shift }
    }

    /// The frame of a flow, as the generator makes it.
    #[cfg(test)]
    fn of_flow(&self, flow: u32) -> Vec<u8> {
        const FIRST_PORT: u32 = 10_000;
        let mut frame = self.frame.clone();
        let (half, port) = (self.half + flow / PORTS, FIRST_PORT + flow % PORTS);
        let mut put = |at: u32, value: u32| {
            frame[(at + self.shift) as usize..][..2].copy_from_slice(&(value as u16).to_be_bytes());
        };
        put(self.half_at, half);
        put(self.port_at, port);
        put(24, !fold(self.ip_sum + half));
        put(self.l4_sum_at, !fold(self.l4_sum + half + port));
        frame
    }

    /// `struct job` of the generator.
    pub fn job(&self, device: u32, flows: u32, stride: u32, flow: u32) -> Vec<u8> {
        let mut job = 0u64.to_ne_bytes().to_vec();
        let numbers = [
            device,
            flows,
            stride,
            flow,
            self.half_at,
            self.half,
            self.ip_sum,
            self.l4_sum,
            self.l4_sum_at,
            self.port_at,
            self.shift,
            0,
        ];
        job.extend(numbers.iter().flat_map(|number| number.to_ne_bytes()));
        job.extend_from_slice(&self.frame[..HEADERS]);
        job
    }
}

/// `HEADERS` of `bpf/router.bpf.c`.
const HEADERS: usize = 56;

/// The sum of 16-bit words, not complemented.
fn sum(bytes: &[u8]) -> u32 {
    fold(bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word.get(1).copied().unwrap_or(0))).sum())
}

fn fold(mut sum: u32) -> u32 {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum
}

/// A step through all flows that comes to each once, and in another order for each `turn`: caches and tables are not helped by the
/// order in which they were filled.
pub fn stride(flows: u32, turn: u32) -> u32 {
    const PRIMES: [u32; 5] = [48_271, 69_621, 16_807, 39_373, 62_089];
    let wanted = PRIMES[turn as usize % PRIMES.len()] % flows;
    (wanted.max(1)..=flows).find(|step| common_divisor(*step, flows) == 1).unwrap_or(1) % flows.max(1)
}

fn common_divisor(one: u32, other: u32) -> u32 {
    if other == 0 { one } else { common_divisor(other, one % other) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_of_every_flow_are_right() {
        for work in Work::ALL {
            for protocol in [Protocol::Udp, Protocol::Tcp] {
                let traffic = Traffic { work, protocol, size: 64, flows: MOST_FLOWS };
                let templates = [Template::new(traffic, LEFT_MAC), Template::answer(traffic)];
                let flows = [0, 1, PORTS - 1, PORTS, 100_000, MOST_FLOWS - 1];
                for (template, flow) in templates.iter().flat_map(|one| flows.map(|flow| (one, flow))) {
                    let mut frame = template.of_flow(flow);
                    assert_eq!(frame.len(), 64);
                    let type_at = 12 + template.shift as usize;
                    assert_eq!(frame[type_at..type_at + 2], [8, 0]);
                    frame.drain(12..type_at);
                    assert_eq!(sum(&frame[14..34]), 0xffff, "{work:?} {flow}");
                    let (number, ..) = protocol.numbers();
                    assert_eq!(
                        fold(sum(&frame[26..]) + u32::from(number) + frame.len() as u32 - 34),
                        0xffff,
                        "{work:?} {flow}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_stride_comes_to_every_flow() {
        for flows in [1, 2, 7, 1_000, 100_000, 48_271] {
            for turn in 0..6 {
                let step = stride(flows, turn);
                let mut seen = vec![false; flows as usize];
                let mut flow = 0;
                for _ in 0..flows {
                    seen[flow as usize] = true;
                    flow = (flow + step) % flows;
                }
                assert!(seen.iter().all(|seen| *seen), "{flows} {turn}");
            }
        }
    }

    #[test]
    fn jobs_have_the_size_of_the_map() {
        let traffic = Traffic { work: Work::Snat, protocol: Protocol::Udp, size: 1400, flows: 1 };
        assert_eq!(Template::new(traffic, LEFT_MAC).job(1, 1, 0, 0).len(), 112);
    }
}
