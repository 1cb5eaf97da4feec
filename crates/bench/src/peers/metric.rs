//! What is compared, and how its figures are written.

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Metric {
    /// Median round trip of 64 bytes, in ns.
    RttP50,
    /// Millions of frames of 64 bytes per second, from program to card.
    #[value(name = "tx_mpps_64")]
    TxMpps64,
    /// Gigabits per second in frames of 1518 bytes, from program to card.
    #[value(name = "tx_gbps_1518")]
    TxGbps1518,
    /// Millions of frames of 64 bytes per second, from card to program.
    #[value(name = "rx_mpps_64")]
    RxMpps64,
    /// Gigabits per second in frames of 1518 bytes, from card to program.
    #[value(name = "rx_gbps_1518")]
    RxGbps1518,
    /// Millions of frames of 64 bytes per second, out and back.
    #[value(name = "both_mpps_64")]
    BothMpps64,
    /// Gigabits per second in frames of 1518 bytes, out and back.
    #[value(name = "both_gbps_1518")]
    BothGbps1518,
    /// Median round trip of a frame, beside that of a cache line, in ns.
    RttFloor,
    /// Millions of frames of 64 bytes per second out and back on a thousand queue pairs, and on eight.
    #[value(name = "queues_1000")]
    Queues1000,
    /// Millions of frames of 64 bytes per second between two vhost-user sockets.
    #[value(name = "forward_mpps_64")]
    ForwardMpps64,
    /// Millions of frames of 1518 bytes per second between two vhost-user sockets.
    #[value(name = "forward_mpps_1518")]
    ForwardMpps1518,
    /// Millions of frames of 64 bytes per second between two vhost-user sockets, of 100,000 flows, through 1,000 rules.
    #[value(name = "classified_mpps_64")]
    ClassifiedMpps64,
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
    /// DPDK's ways from one program to another, a bare ring, a cache line.
    Rings,
    /// A cache line.
    Floor,
    /// Many bare rings.
    Queues,
    /// Open vSwitch and testpmd.
    Switches,
    /// testpmd.
    Interfaces,
}

/// Where frames go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Out and back, one at a time.
    Trip,
    /// From program to card.
    Tx,
    /// From card to program.
    Rx,
    /// Out and back, many at a time.
    Both,
}

impl Metric {
    /// All, in the order in which they are measured and shown.
    pub const ALL: [Metric; 16] = [
        Metric::RttP50,
        Metric::TxMpps64,
        Metric::TxGbps1518,
        Metric::RxMpps64,
        Metric::RxGbps1518,
        Metric::BothMpps64,
        Metric::BothGbps1518,
        Metric::RttFloor,
        Metric::Queues1000,
        Metric::ForwardMpps64,
        Metric::ForwardMpps1518,
        Metric::ClassifiedMpps64,
        Metric::ReflectRttP50,
        Metric::AfXdpRxMpps,
        Metric::AfXdpTxMpps,
        Metric::AfXdpForwardMpps,
    ];

    /// Its name.
    pub fn word(self) -> &'static str {
        match self {
            Metric::RttP50 => "rtt_p50",
            Metric::TxMpps64 => "tx_mpps_64",
            Metric::TxGbps1518 => "tx_gbps_1518",
            Metric::RxMpps64 => "rx_mpps_64",
            Metric::RxGbps1518 => "rx_gbps_1518",
            Metric::BothMpps64 => "both_mpps_64",
            Metric::BothGbps1518 => "both_gbps_1518",
            Metric::RttFloor => "rtt_floor",
            Metric::Queues1000 => "queues_1000",
            Metric::ForwardMpps64 => "forward_mpps_64",
            Metric::ForwardMpps1518 => "forward_mpps_1518",
            Metric::ClassifiedMpps64 => "classified_mpps_64",
            Metric::ReflectRttP50 => "reflect_rtt_p50",
            Metric::AfXdpRxMpps => "af_xdp_rx_mpps",
            Metric::AfXdpTxMpps => "af_xdp_tx_mpps",
            Metric::AfXdpForwardMpps => "af_xdp_forward_mpps",
        }
    }

    /// Bytes of a frame.
    pub fn size(self) -> u16 {
        match self {
            Metric::TxGbps1518 | Metric::RxGbps1518 | Metric::BothGbps1518 | Metric::ForwardMpps1518 => 1518,
            _ => 64,
        }
    }

    /// What its figures are counted in.
    pub fn unit(self) -> &'static str {
        match self {
            Metric::RttP50 | Metric::RttFloor | Metric::ReflectRttP50 => "ns",
            Metric::TxGbps1518 | Metric::RxGbps1518 | Metric::BothGbps1518 => "Gbit/s",
            _ => "Mpps",
        }
    }

    /// Whether less is better.
    pub fn is_time(self) -> bool {
        self.unit() == "ns"
    }

    /// Decimals of a value.
    pub fn decimals(self) -> usize {
        if self.is_time() { 1 } else { 3 }
    }

    /// Who takes part.
    pub fn field(self) -> Field {
        match self {
            Metric::RttFloor => Field::Floor,
            Metric::Queues1000 => Field::Queues,
            Metric::ForwardMpps64 | Metric::ForwardMpps1518 | Metric::ClassifiedMpps64 | Metric::ReflectRttP50 => {
                Field::Switches
            }
            Metric::AfXdpRxMpps | Metric::AfXdpTxMpps | Metric::AfXdpForwardMpps => Field::Interfaces,
            _ => Field::Rings,
        }
    }

    /// Where frames go.
    pub fn flow(self) -> Flow {
        match self {
            Metric::TxMpps64 | Metric::TxGbps1518 => Flow::Tx,
            Metric::RxMpps64 | Metric::RxGbps1518 => Flow::Rx,
            metric if metric.is_time() => Flow::Trip,
            _ => Flow::Both,
        }
    }
}
