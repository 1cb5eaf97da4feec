//! The 17 steps of a packet's way, by which counters, `millrace router why` and the documents name things.

/// One step. The order is that of a packet's way through the router.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Step {
    /// Whether the engine is on for this interface.
    Ingress = 1,
    /// Addresses, length, multicast or broadcast.
    Ethernet,
    /// Tags off; which logical interface the frame has come by.
    Vlan,
    /// Bridged, or for this router.
    Fdb,
    /// The session header of PPPoE off.
    Pppoe,
    /// Version, header length, total length, checksum, options, addresses that cannot be.
    Ip,
    /// Whole packets only.
    Fragment,
    /// The rule of this flow.
    Flow,
    /// ESP in: sequence window, cipher, policy.
    Decrypt,
    /// SYN, FIN and RST of TCP; the entry of conntrack is kept alive.
    State,
    /// Addresses and ports, with their checksums.
    Nat,
    /// DSCP.
    Tos,
    /// TTL or hop limit, MTU, the clamp of the maximum segment size.
    Hop,
    /// ESP out.
    Encrypt,
    /// The session header of PPPoE on.
    Session,
    /// Tags on; Ethernet addresses.
    Tag,
    /// Out of which interface; counters.
    Egress,
}

impl Step {
    /// All of them, in order.
    pub const ALL: [Self; 17] = [
        Self::Ingress,
        Self::Ethernet,
        Self::Vlan,
        Self::Fdb,
        Self::Pppoe,
        Self::Ip,
        Self::Fragment,
        Self::Flow,
        Self::Decrypt,
        Self::State,
        Self::Nat,
        Self::Tos,
        Self::Hop,
        Self::Encrypt,
        Self::Session,
        Self::Tag,
        Self::Egress,
    ];

    /// Its name, as in counters and documents.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Ethernet => "ethernet",
            Self::Vlan => "vlan",
            Self::Fdb => "fdb",
            Self::Pppoe => "pppoe",
            Self::Ip => "ip",
            Self::Fragment => "fragment",
            Self::Flow => "flow",
            Self::Decrypt => "decrypt",
            Self::State => "state",
            Self::Nat => "nat",
            Self::Tos => "tos",
            Self::Hop => "hop",
            Self::Encrypt => "encrypt",
            Self::Session => "session",
            Self::Tag => "tag",
            Self::Egress => "egress",
        }
    }
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_numbered_in_order_and_have_names_of_their_own() {
        let mut names = std::collections::HashSet::new();
        for (number, step) in (1..).zip(Step::ALL) {
            assert_eq!(step as u8, number);
            assert!(names.insert(step.name()), "{step} is there twice");
        }
    }
}
