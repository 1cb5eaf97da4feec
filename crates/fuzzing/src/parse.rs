//! Any bytes as a frame: every header that the parser finds is looked at, and every view is tried at every header.

use millrace_packet::parse::{
    Ah, Arp, Bth, Esp, Ethernet, Geneve, Gre, Grh, Icmp, Icmpv6, Ipv4, Ipv6, Layers, Mpls, Options, Pppoe, Ptp,
    QuicLong, QuicShort, Snap, Tcp, Udp, Vlan, Vxlan,
};
use std::hint::black_box;

/// Parses `frame` and what is within its tunnels; returns how many headers of IP were found.
///
/// # Panics
/// The parser hands out what it should not.
pub fn parse(frame: &[u8]) -> u64 {
    let mut layers = Layers::parse(frame);
    let (mut found, mut end) = (0, frame.len());
    loop {
        assert!(layers.start() <= layers.network() && layers.network() <= layers.payload_offset());
        assert!(layers.payload_offset() <= layers.end() && layers.end() <= end);
        assert_eq!(layers.ipv4(frame).is_some() || layers.ipv6(frame).is_some(), layers.ip().is_some());
        look_at(frame, &layers);
        found += u64::from(layers.ip().is_some());
        for at in [layers.start(), layers.network(), layers.ip().unwrap_or(0), layers.payload_offset()] {
            try_all(&frame[at..layers.end()]);
        }
        if let Some((_, at)) = layers.transport() {
            try_all(&frame[at..layers.end()]);
        }
        let Some(inner) = layers.parse_inner(frame) else { return found };
        assert!(inner.start() > layers.start());
        (end, layers) = (layers.end(), inner);
    }
}

/// Every question about a frame, with its own bytes and with fewer.
fn look_at(frame: &[u8], layers: &Layers) {
    black_box((layers.ether_type(), layers.tags(), layers.protocol(), layers.fragment(), layers.malformed()));
    black_box((layers.tunnel(), layers.inner_type()));
    for bytes in [frame, &frame[..frame.len() / 2]] {
        black_box((layers.payload(bytes), layers.tunnel_id(bytes)));
        black_box((layers.ethernet(bytes), layers.arp(bytes), layers.pppoe(bytes), layers.mpls(bytes)));
        black_box((layers.tcp(bytes), layers.udp(bytes), layers.icmp(bytes), layers.icmpv6(bytes)));
        black_box((layers.gre(bytes), layers.esp(bytes), layers.ah(bytes), layers.vxlan(bytes)));
        black_box((layers.geneve(bytes), layers.ptp(bytes), layers.grh(bytes), layers.bth(bytes)));
        black_box((layers.ipv4(bytes), layers.ipv6(bytes)));
    }
}

/// Every view of these bytes, and every accessor of each.
fn try_all(bytes: &[u8]) {
    link(bytes);
    ip(bytes);
    transport(bytes);
    tunnels(bytes);
    quic(bytes);
    timing_and_rdma(bytes);
}

fn options(options: Options<'_>) {
    assert!(count(options) <= 40, "one byte each");
}

/// Looks at everything that an iterator hands out.
fn count(items: impl Iterator) -> usize {
    items.map(black_box).count()
}

fn link(bytes: &[u8]) {
    if let Ok(view) = Ethernet::parse(bytes) {
        black_box((view.destination(), view.source(), view.ether_type(), view.payload()));
    }
    if let Ok(view) = Vlan::parse(bytes) {
        let tci = view.tci();
        black_box((tci.id(), tci.priority(), tci.drop_eligible(), view.ether_type(), view.payload()));
    }
    if let Ok(view) = Snap::parse(bytes) {
        black_box((view.organisation(), view.protocol(), view.payload()));
    }
    if let Ok(view) = Arp::parse(bytes) {
        black_box((view.hardware(), view.protocol(), view.operation(), view.hardware_len(), view.protocol_len()));
        black_box((view.sender(), view.target(), view.ethernet_ipv4()));
    }
    if let Ok(view) = Pppoe::parse(bytes) {
        assert!(view.header_len() + view.payload().len() == Pppoe::LEN + usize::from(view.len()));
        black_box((view.session(), view.protocol(), view.is_empty()));
    }
    if let Ok(view) = Mpls::parse(bytes) {
        assert_eq!(view.header_len() + view.payload().len(), bytes.len());
        assert_eq!(view.labels().next(), Some(view.top()));
        view.labels().for_each(|label| {
            black_box((label.label(), label.traffic_class(), label.is_bottom(), label.ttl()));
        });
    }
}

fn ip(bytes: &[u8]) {
    if let Ok(view) = Ipv4::parse(bytes) {
        assert_eq!(view.header_len() + view.payload().len(), usize::from(view.total_len()));
        black_box((view.dscp(), view.ecn(), view.identification(), view.dont_fragment(), view.more_fragments()));
        black_box((view.fragment_offset(), view.fragment(), view.is_whole(), view.ttl(), view.protocol()));
        black_box((view.checksum(), view.checksum_holds(), view.source(), view.destination()));
        options(view.options());
    }
    if let Ok(view) = Ipv6::parse(bytes) {
        assert_eq!(view.payload().len(), usize::from(view.payload_len()));
        black_box((view.dscp(), view.ecn(), view.flow_label(), view.next_header(), view.hop_limit()));
        black_box((view.source(), view.destination()));
        let mut extensions = view.extensions();
        for extension in extensions.by_ref().flatten() {
            assert!(extension.bytes().len() >= 8);
            black_box((extension.kind(), extension.routing(), extension.authentication()));
            if let Some(header) = extension.fragment() {
                black_box((header.offset(), header.more(), header.identification(), header.fragment()));
            }
            black_box(extension.options().map(count));
        }
        assert!(extensions.next().is_none(), "it stays at its end");
        black_box((extensions.next_header(), extensions.rest(), extensions.fragment()));
    }
}

fn transport(bytes: &[u8]) {
    if let Ok(view) = Tcp::parse(bytes) {
        assert_eq!(view.header_len() + view.payload().len(), bytes.len());
        black_box((view.source_port(), view.destination_port(), view.sequence(), view.acknowledgement(), view.flags()));
        black_box((view.window(), view.checksum(), view.urgent()));
        options(view.options());
    }
    for view in [Udp::parse(bytes), Udp::parse_first_fragment(bytes)].into_iter().flatten() {
        black_box((view.source_port(), view.destination_port(), view.len(), view.is_empty(), view.checksum()));
        black_box(view.payload());
    }
    if let Ok(view) = Icmp::parse(bytes) {
        black_box((view.kind(), view.code(), view.checksum(), view.rest_of_header()));
        black_box((view.echo(), view.quoted(), view.payload()));
    }
    if let Ok(view) = Icmpv6::parse(bytes) {
        black_box((view.kind(), view.code(), view.checksum(), view.rest_of_header()));
        black_box((view.echo(), view.quoted(), view.payload(), view.target()));
    }
    if let Ok(view) = Esp::parse(bytes) {
        black_box((view.spi(), view.sequence(), view.payload()));
    }
    if let Ok(view) = Ah::parse(bytes) {
        assert_eq!(view.header_len() + view.payload().len(), bytes.len());
        black_box((view.next_header(), view.reserved(), view.spi(), view.sequence(), view.check_value()));
    }
}

fn tunnels(bytes: &[u8]) {
    if let Ok(view) = Gre::parse(bytes) {
        assert_eq!(view.header_len() + view.payload().len(), bytes.len());
        black_box((view.version(), view.protocol(), view.checksum(), view.key()));
        black_box((view.sequence(), view.acknowledgement()));
    }
    if let Ok(view) = Vxlan::parse(bytes) {
        black_box((view.vni(), view.payload()));
    }
    if let Ok(view) = Geneve::parse(bytes) {
        assert_eq!(view.header_len() + view.payload().len(), bytes.len());
        black_box((view.is_control(), view.has_critical_options(), view.protocol(), view.vni()));
        assert!(count(view.options()) <= 63);
    }
}

fn quic(bytes: &[u8]) {
    if let Ok(view) = QuicLong::parse(bytes) {
        black_box((view.version(), view.destination(), view.source(), view.fixed_bit(), view.kind()));
        let _ = black_box(view.body());
    }
    if let Ok(view) = QuicShort::parse(bytes) {
        black_box((view.fixed_bit(), view.spin(), view.rest(), view.destination(20)));
    }
}

fn timing_and_rdma(bytes: &[u8]) {
    if let Ok(view) = Ptp::parse(bytes) {
        black_box((view.kind().is_event(), view.sdo(), view.minor_version(), view.domain(), view.flags()));
        black_box((view.is_two_step(), view.correction(), view.source_port(), view.sequence()));
        black_box((view.log_interval(), view.timestamp(), view.payload()));
    }
    if let Ok(view) = Grh::parse(bytes) {
        black_box((view.traffic_class(), view.flow_label(), view.hop_limit(), view.source(), view.destination()));
        black_box(view.payload());
    }
    if let Ok(view) = Bth::parse(bytes) {
        assert!(view.payload().len() + view.pad_count() + Bth::LEN + 4 == bytes.len());
        black_box((view.opcode(), view.solicited_event(), view.migrated(), view.partition_key(), view.congestion()));
        black_box((view.destination_qp(), view.acknowledge_request(), view.psn(), view.invariant_crc()));
    }
}

#[cfg(test)]
mod tests {
    use crate::short_run;

    /// A frame whose EtherType is that of IP, so that random bytes come further.
    fn behind_ethernet(bytes: &[u8]) -> u64 {
        let mut frame = bytes.to_vec();
        let is_ipv4 = bytes[0] & 1 == 0;
        frame[12..14].copy_from_slice(if is_ipv4 { &[0x08, 0x00] } else { &[0x86, 0xdd] });
        frame[14] = if is_ipv4 { 0x45 | frame[14] & 1 } else { 0x60 };
        // Total length of IPv4, payload length of IPv6.
        let at = if is_ipv4 { 16 } else { 18 };
        frame[at] = 0;
        frame[at + 1] &= 0x3f;
        super::parse(&frame)
    }

    #[test]
    fn short_run_of_parse() {
        short_run(super::parse, 20_000);
        let found = short_run(behind_ethernet, 20_000);
        assert!(found > 10_000, "{found} headers of IP");
    }
}
