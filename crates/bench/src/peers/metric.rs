//! What is compared, and how its figures are written.

use millrace_tool::output::Row;

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Metric {
    /// Median round trip of 64 bytes, in ns.
    RttP50,
    /// Millions of frames of 64 bytes per second, one way.
    #[value(name = "tx_mpps_64")]
    TxMpps64,
    /// Gigabits per second in frames of 1518 bytes, one way.
    #[value(name = "tx_gbps_1518")]
    TxGbps1518,
    /// Millions of frames of 64 bytes per second between two vhost-user sockets.
    #[value(name = "forward_mpps_64")]
    ForwardMpps64,
    /// Millions of frames of 1518 bytes per second between two vhost-user sockets.
    #[value(name = "forward_mpps_1518")]
    ForwardMpps1518,
    /// Median round trip through a vhost-user socket, in ns.
    ReflectRttP50,
    /// Millions of frames of 64 bytes per second received by AF_XDP from a veth interface.
    AfXdpRxMpps,
    /// Millions of frames of 64 bytes per second sent by AF_XDP to a veth interface.
    AfXdpTxMpps,
    /// Millions of frames of 64 bytes per second from one veth interface to another by AF_XDP.
    AfXdpForwardMpps,
}

/// Who takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    Rings,
    Switches,
    Interfaces,
}

impl Metric {
    pub const ALL: [Metric; 9] = [
        Metric::RttP50,
        Metric::TxMpps64,
        Metric::TxGbps1518,
        Metric::ForwardMpps64,
        Metric::ForwardMpps1518,
        Metric::ReflectRttP50,
        Metric::AfXdpRxMpps,
        Metric::AfXdpTxMpps,
        Metric::AfXdpForwardMpps,
    ];

    pub fn word(self) -> &'static str {
        match self {
            Metric::RttP50 => "rtt_p50",
            Metric::TxMpps64 => "tx_mpps_64",
            Metric::TxGbps1518 => "tx_gbps_1518",
            Metric::ForwardMpps64 => "forward_mpps_64",
            Metric::ForwardMpps1518 => "forward_mpps_1518",
            Metric::ReflectRttP50 => "reflect_rtt_p50",
            Metric::AfXdpRxMpps => "af_xdp_rx_mpps",
            Metric::AfXdpTxMpps => "af_xdp_tx_mpps",
            Metric::AfXdpForwardMpps => "af_xdp_forward_mpps",
        }
    }

    pub fn size(self) -> u16 {
        match self {
            Metric::TxGbps1518 | Metric::ForwardMpps1518 => 1518,
            _ => 64,
        }
    }

    pub fn unit(self) -> &'static str {
        match self {
            Metric::RttP50 | Metric::ReflectRttP50 => "ns",
            Metric::TxGbps1518 => "Gbit/s",
            _ => "Mpps",
        }
    }

    pub fn is_time(self) -> bool {
        self.unit() == "ns"
    }

    /// Decimals of a value.
    pub fn decimals(self) -> usize {
        if self.is_time() { 1 } else { 3 }
    }

    pub fn field(self) -> Field {
        match self {
            Metric::RttP50 | Metric::TxMpps64 | Metric::TxGbps1518 => Field::Rings,
            Metric::ForwardMpps64 | Metric::ForwardMpps1518 | Metric::ReflectRttP50 => Field::Switches,
            Metric::AfXdpRxMpps | Metric::AfXdpTxMpps | Metric::AfXdpForwardMpps => Field::Interfaces,
        }
    }

    /// The fields that every row of results begins with.
    pub fn row(self, rounds: usize) -> Row {
        Row::new()
            .tag("bench", "peers")
            .text("metric", self.word())
            .text("unit", self.unit())
            .count("size", u64::from(self.size()))
            .count("count", rounds as u64)
    }
}
