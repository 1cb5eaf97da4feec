//! Rules for a forwarder, the same for all that take any: what comes in at one socket goes out at the other.

use std::path::Path;

use super::traffic::{Frames, tcp_or_udp};

/// The network between the two ends of a tunnel, and the identifier of the inner network.
pub const OURS: &str = "192.0.2.1";
pub const THEIRS: &str = "192.0.2.2";
pub const OUR_MAC: &str = "02:00:00:00:00:0a";
pub const THEIR_MAC: &str = "02:00:00:00:00:0b";
pub const VNI: u32 = 77;
/// Rules of [`classified`] beside the last one.
const CLASSIFIED: u32 = 1000;

/// How ports are numbered: from 0 on, as ours, or from 1 on, as in OpenFlow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbers {
    From0,
    From1,
}

impl Numbers {
    /// The number of the port at a socket.
    pub fn port(self, socket: usize) -> usize {
        match self {
            Numbers::From0 => socket,
            Numbers::From1 => socket + 1,
        }
    }
}

/// Into one socket and out of the other, both ways.
pub fn through(numbers: Numbers) -> Vec<String> {
    let [one, other] = [0, 1].map(|socket| numbers.port(socket));
    [(one, other), (other, one)].map(|(from, to)| format!("in_port={from},actions=output:{to}")).to_vec()
}

/// In between, from the first socket to the second, frames are put into VXLAN packets, and taken out of them the other way. In our
/// words: Open vSwitch has ports for that.
pub fn vxlan() -> Vec<String> {
    let outer = format!("vni={VNI},src={OURS},dst={THEIRS},dl_src={OUR_MAC},dl_dst={THEIR_MAC}");
    vec![
        format!("in_port=0,actions=encap_vxlan({outer}),output:1"),
        format!("in_port=1,udp,nw_dst={OURS},udp_dst=4789,actions=decap_vxlan,output:0"),
    ]
}

/// One of the thousand: what goes to a service in a network.
#[derive(Clone, Copy, Debug)]
struct Service {
    is_udp: bool,
    network: [u8; 4],
    prefix: u32,
    port: u16,
}

/// Eight lengths of prefixes for TCP, and /24 for UDP.
fn services() -> impl Iterator<Item = Service> {
    let mut random = fastrand::Rng::with_seed(1);
    (0..CLASSIFIED).map(move |number| {
        let network = [10, random.u8(..), random.u8(..), 0];
        let (is_udp, prefix) = if number % 9 == 8 { (true, 24) } else { (false, 17 + number % 9) };
        Service { is_udp, network, prefix, port: random.u16(1024..) }
    })
}

/// A thousand rules with nine masks, and one for what they do not match. They look at where a frame goes to, so that Open vSwitch, which
/// makes rules of its own of them as frames come, has no more than a few of those.
pub fn classified(numbers: Numbers) -> Vec<String> {
    let [from, to] = [0, 1].map(|socket| numbers.port(socket));
    let rules = services().map(|Service { is_udp, network: [a, b, c, d], prefix, port }| {
        let protocol = if is_udp { "udp" } else { "tcp" };
        let matching = format!("{protocol},nw_dst={a}.{b}.{c}.{d}/{prefix},{protocol}_dst={port}");
        format!("priority={},{matching},actions=output:{to}", 100 + prefix)
    });
    rules.chain([format!("priority=1,in_port={from},actions=output:{to}")]).collect()
}

/// As many frames of a flow each, in any order, of which each rule of [`classified`] has as many.
pub fn classified_frames(flows: usize) -> Frames {
    let services: Vec<Service> = services().collect();
    let mut random = fastrand::Rng::with_seed(2);
    let mut numbers: Vec<usize> = (0..flows).collect();
    random.shuffle(&mut numbers);
    Frames::many(flows, |at| {
        let number = numbers[at];
        let service = services[number % services.len()];
        let client = (number / services.len()) as u32;
        let source = [10, 200, (client >> 8) as u8, client as u8];
        tcp_or_udp(service.is_udp, (source, 1024 + (number % 50_000) as u16), (service.network, service.port))
    })
}

/// Writes them into a file, one on each line. Errors are sentences.
pub fn write(file: &Path, rules: &[String]) -> Result<(), String> {
    std::fs::write(file, rules.join("\n") + "\n").map_err(|why| format!("cannot write {}: {why}", file.display()))
}
