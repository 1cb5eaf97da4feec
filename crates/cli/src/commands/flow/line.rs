//! A frame on one line, much as `tcpdump` has it.

use std::fmt::Write as _;

use millrace_packet::parse::{Ethernet, IpVersion, Layers, tcp_flag};

/// A frame of `len` bytes, of which `frame` is the beginning.
pub fn of(frame: &[u8], len: usize) -> String {
    let layers = Layers::parse(frame);
    let mut line = String::new();
    for tag in layers.tags() {
        let _ = write!(line, "vlan {} ", tag.tci.id());
    }
    match network(frame, &layers) {
        Some(network) => line += &network,
        None => line += &ethernet(frame, &layers),
    }
    if let Some((layer, why)) = layers.malformed() {
        let _ = write!(line, " [{} malformed: {why}]", format!("{layer:?}").to_lowercase());
    }
    let _ = write!(line, ", {len} bytes");
    if let Some((tunnel, _)) = layers.tunnel()
        && let Some(inner) = layers.parse_inner(frame)
        && let Some(network) = network(frame, &inner)
    {
        let _ = write!(line, " | {} {network}", format!("{tunnel:?}").to_lowercase());
    }
    line
}

fn ethernet(frame: &[u8], layers: &Layers) -> String {
    match Ethernet::parse(frame) {
        Ok(ethernet) => {
            format!("{} > {} type {:#06x}", ethernet.source(), ethernet.destination(), layers.ether_type())
        }
        Err(_) => "no Ethernet header".to_owned(),
    }
}

fn network(frame: &[u8], layers: &Layers) -> Option<String> {
    if let Some(arp) = layers.arp(frame) {
        let [sender, target] = arp.ethernet_ipv4()?;
        return Some(match arp.operation() {
            1 => format!("ARP who-has {} tell {}", target.1, sender.1),
            2 => format!("ARP {} is-at {}", sender.1, sender.0),
            other => format!("ARP operation {other} {} > {}", sender.1, target.1),
        });
    }
    let (word, source, destination) = match layers.ip_version()? {
        IpVersion::V4 => {
            let ip = layers.ipv4(frame)?;
            ("IP", ip.source().to_string(), ip.destination().to_string())
        }
        IpVersion::V6 => {
            let ip = layers.ipv6(frame)?;
            ("IP6", ip.source().to_string(), ip.destination().to_string())
        }
    };
    let (source_port, destination_port, what) = transport(frame, layers);
    let at = |address: String, port: Option<u16>| match port {
        Some(port) => format!("{address}.{port}"),
        None => address,
    };
    Some(format!("{word} {} > {}: {what}", at(source, source_port), at(destination, destination_port)))
}

/// Ports, and what it is.
fn transport(frame: &[u8], layers: &Layers) -> (Option<u16>, Option<u16>, String) {
    if let Some(tcp) = layers.tcp(frame) {
        let what = format!("tcp {} seq {} ack {}", flags(tcp.flags()), tcp.sequence(), tcp.acknowledgement());
        return (Some(tcp.source_port()), Some(tcp.destination_port()), what);
    }
    if let Some(udp) = layers.udp(frame) {
        let vni = layers.vxlan(frame).map(|vxlan| format!(" vxlan vni {}", vxlan.vni())).unwrap_or_default();
        return (Some(udp.source_port()), Some(udp.destination_port()), format!("udp{vni}"));
    }
    let icmp = layers.icmp(frame).map(|icmp| (4, icmp.kind(), icmp.code(), icmp.echo()));
    let icmp = icmp.or_else(|| layers.icmpv6(frame).map(|icmp| (6, icmp.kind(), icmp.code(), icmp.echo())));
    if let Some((version, kind, code, echo)) = icmp {
        let echo = echo.map(|(id, sequence)| format!(" id {id} seq {sequence}")).unwrap_or_default();
        return (None, None, format!("icmp{} type {kind} code {code}{echo}", if version == 6 { "6" } else { "" }));
    }
    (None, None, layers.protocol().map_or("no protocol".to_owned(), |protocol| format!("protocol {protocol}")))
}

/// The flags of TCP as `tcpdump` writes them.
fn flags(flags: u16) -> String {
    let names = [
        (tcp_flag::SYN, 'S'),
        (tcp_flag::FIN, 'F'),
        (tcp_flag::RST, 'R'),
        (tcp_flag::PSH, 'P'),
        (tcp_flag::URG, 'U'),
        (tcp_flag::ECE, 'E'),
        (tcp_flag::CWR, 'W'),
        (tcp_flag::ACK, '.'),
    ];
    let set: String = names.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| name).collect();
    format!("[{}]", if set.is_empty() { "none" } else { &set })
}

#[cfg(test)]
mod tests {
    use super::of;

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect()
    }

    #[test]
    fn frames_are_lines() {
        let ethernet = "020000000001020000000002";
        let ip = "450000280000400040060000".to_owned() + "0a0000010a000002";
        let tcp = "0009005000000001000000025012200000000000";
        assert_eq!(
            of(&bytes(&format!("{ethernet}0800{ip}{tcp}")), 60),
            "IP 10.0.0.1.9 > 10.0.0.2.80: tcp [S.] seq 1 ack 2, 60 bytes"
        );
        assert_eq!(
            of(&bytes(&format!("{ethernet}81000005{}", "0800".to_owned() + &ip + tcp)), 64),
            "vlan 5 IP 10.0.0.1.9 > 10.0.0.2.80: tcp [S.] seq 1 ack 2, 64 bytes"
        );
        let arp = "0806".to_owned() + "0001080006040001" + "020000000002" + "0a000001" + "000000000000" + "0a000002";
        assert_eq!(of(&bytes(&format!("{ethernet}{arp}")), 42), "ARP who-has 10.0.0.2 tell 10.0.0.1, 42 bytes");
        assert_eq!(
            of(&bytes(&format!("{ethernet}88b50000")), 60),
            "02:00:00:00:00:02 > 02:00:00:00:00:01 type 0x88b5, 60 bytes"
        );
        assert!(of(&[1, 2, 3], 3).starts_with("no Ethernet header"));
    }
}
