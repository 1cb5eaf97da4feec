//! What Open vSwitch 3.1 does otherwise, and why ours is meant: docs/classifier.md has the list. A difference counts as known
//! only if nothing else differs: where bytes differ, those that may are blanked in the frames of both sides.

use super::Sent;
use millrace_packet::parse::{Arp, Fragment, IpVersion, Layer, Layers};

/// A difference: its name, which frames can have it, and what is blanked of a frame that was sent; without that, anything may
/// differ.
struct Difference {
    name: &'static str,
    applies: fn(&[u8], &Layers, &Sent) -> bool,
    blank: Option<fn(&mut [u8])>,
}

const KNOWN: &[Difference] = &[
    Difference {
        name: "the drop-eligible bit of tags is cleared",
        applies: |_, layers, _| layers.tags().iter().any(|tag| tag.tci.drop_eligible()),
        blank: Some(clear_drop_eligible),
    },
    Difference {
        name: "checksums of UDP-Lite and DCCP do not follow addresses",
        applies: |_, layers, _| matches!(layers.protocol(), Some(33 | 136)),
        blank: Some(clear_checksum),
    },
    Difference {
        name: "checksums of packets in a routing header follow the next address",
        applies: is_routed,
        blank: Some(clear_checksum),
    },
    Difference {
        name: "the checksum of SCTP is written into a first fragment",
        applies: |_, layers, _| layers.fragment() == Fragment::First && layers.protocol() == Some(132),
        blank: Some(clear_checksum),
    },
    Difference {
        name: "types of ICMP and checksums are written into the data of later fragments",
        applies: |_, layers, _| layers.fragment() == Fragment::Later,
        blank: Some(clear_checksum),
    },
    Difference {
        name: "the protocol of later fragments of IPv6 is 44",
        applies: |_, layers, _| layers.fragment() == Fragment::Later && layers.ip_version() == Some(IpVersion::V6),
        blank: None,
    },
    Difference {
        name: "ARP that is not of Ethernet and IPv4 has no operation",
        applies: |frame, layers, _| {
            let packet = matches!(layers.ether_type(), 0x0806 | 0x8035).then(|| Arp::parse(layers.payload(frame)));
            packet.is_some_and(|packet| packet.ok().and_then(|packet| packet.ethernet_ipv4()).is_none())
        },
        blank: None,
    },
    Difference {
        name: "the length of UDP is not looked at",
        applies: |_, layers, _| layers.malformed().is_some_and(|(layer, _)| layer == Layer::Udp),
        blank: None,
    },
    Difference {
        name: "a third tag pushes out the innermost",
        applies: |frame, layers, ours| {
            layers.tags().len() == 2 && ours.iter().flatten().any(|sent| sent.len() > frame.len())
        },
        blank: None,
    },
    Difference {
        name: "of IP with a malformed header other fields are known",
        applies: |_, layers, _| {
            let malformed = layers.malformed().map(|(layer, _)| layer);
            malformed.is_some_and(|layer| matches!(layer, Layer::Ipv4 | Layer::Ipv6 | Layer::Ipv6Extension))
        },
        blank: None,
    },
];

/// Why the two differ on this frame, if it is known.
pub fn named(frame: &[u8], ours: &Sent, theirs: &Sent) -> Option<&'static str> {
    let layers = Layers::parse(frame);
    let mut blanked = [ours.clone(), theirs.clone()];
    for difference in KNOWN.iter().filter(|known| (known.applies)(frame, &layers, ours)) {
        let Some(blank) = difference.blank else { return Some(difference.name) };
        blanked.iter_mut().flatten().flatten().for_each(|sent| blank(sent));
        if blanked[0] == blanked[1] {
            return Some(difference.name);
        }
    }
    None
}

fn clear_drop_eligible(sent: &mut [u8]) {
    let tags = Layers::parse(sent).tags().len();
    (0..tags).for_each(|tag| sent[14 + 4 * tag] &= !0x10);
}

fn is_routed(frame: &[u8], layers: &Layers, _: &Sent) -> bool {
    let mut extensions = layers.ipv6(frame).into_iter().flat_map(|header| header.extensions().flatten());
    extensions.any(|one| one.routing().is_some_and(|(_, left)| left > 0))
}

/// Blanks what would be the checksum of the transport, and type and code of ICMP.
fn clear_checksum(sent: &mut [u8]) {
    let layers = Layers::parse(sent);
    let at = layers.transport().map_or(layers.payload_offset(), |(_, at)| at);
    let range = match layers.protocol() {
        Some(6) => at + 16..at + 18,
        Some(1 | 58) => at..at + 4,
        Some(132) => at + 8..at + 12,
        _ => at + 6..at + 8,
    };
    if let Some(checksum) = sent.get_mut(range).filter(|_| layers.ip_version().is_some()) {
        checksum.fill(0);
    }
}
