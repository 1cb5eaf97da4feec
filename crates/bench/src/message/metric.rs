//! What is compared, and the goals.

use crate::turns::{Compared, OURS, PEER};

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Metric {
    /// 8 bytes one way, by UCX.
    SmallToUcx,
    /// A doorbell one way, by a cache line.
    DoorbellToCacheline,
    /// 16 MiB, by WRITEs of the engine.
    LargeToRaw,
    /// 16 MiB, by the better of UCX and Open MPI.
    LargeToBestPeer,
    /// 16 MiB, by TCP over an Ethernet interface made of two endpoints.
    LargeToEmulation,
    /// 16 MiB, by messages of 4 KiB that are acknowledged one by one.
    LargeToMessageMode,
    /// The way that is chosen, by the fastest one, at the size where that is worst.
    Regret,
    /// How much of a transfer passes while the sender computes, by the card.
    Overlap,
    /// The same without a card, by the receiver.
    OverlapByReceiver,
    /// Requests to redis through the socket library, by loopback TCP.
    RedisToTcp,
    /// Bytes of iperf3 through the socket library, by loopback TCP.
    IperfToTcp,
}

impl Metric {
    pub const ALL: [Metric; 11] = [
        Metric::SmallToUcx,
        Metric::DoorbellToCacheline,
        Metric::LargeToRaw,
        Metric::LargeToBestPeer,
        Metric::LargeToEmulation,
        Metric::LargeToMessageMode,
        Metric::Regret,
        Metric::Overlap,
        Metric::OverlapByReceiver,
        Metric::RedisToTcp,
        Metric::IperfToTcp,
    ];

    /// Bytes of its messages; for [`Metric::Regret`] they are what it finds.
    pub fn size(self) -> u64 {
        match self {
            Metric::SmallToUcx => 8,
            Metric::DoorbellToCacheline | Metric::Regret | Metric::RedisToTcp | Metric::IperfToTcp => 0,
            Metric::Overlap | Metric::OverlapByReceiver => 1 << 20,
            _ => super::LARGE,
        }
    }

    /// How its messages go: by the way that is chosen, or by one.
    pub fn scheme(self) -> Option<&'static str> {
        match self {
            Metric::DoorbellToCacheline | Metric::RedisToTcp | Metric::IperfToTcp => None,
            Metric::Overlap | Metric::OverlapByReceiver => Some(millrace_message::Scheme::ZeroCopy.name()),
            _ => Some("chosen"),
        }
    }

    pub fn goal(self) -> &'static str {
        match self {
            Metric::SmallToUcx => "ratio <= 1.1",
            Metric::DoorbellToCacheline => "ratio <= 1.3",
            Metric::LargeToRaw => "ratio >= 0.95",
            Metric::LargeToBestPeer => "ratio >= 1.0",
            Metric::LargeToEmulation => "ratio >= 4.9",
            Metric::LargeToMessageMode => "ratio >= 1.53",
            Metric::Regret => "ratio <= 1.05",
            Metric::Overlap | Metric::OverlapByReceiver => "ratio >= 0.9",
            Metric::RedisToTcp | Metric::IperfToTcp => "ratio >= 1.5",
        }
    }
}

impl Compared for Metric {
    fn word(self) -> &'static str {
        match self {
            Metric::SmallToUcx => "small_to_ucx",
            Metric::DoorbellToCacheline => "doorbell_to_cacheline",
            Metric::LargeToRaw => "large_to_raw",
            Metric::LargeToBestPeer => "large_to_best_peer",
            Metric::LargeToEmulation => "large_to_emulation",
            Metric::LargeToMessageMode => "large_to_message_mode",
            Metric::Regret => "regret",
            Metric::Overlap => "overlap",
            Metric::OverlapByReceiver => "overlap_by_receiver",
            Metric::RedisToTcp => "redis_to_tcp",
            Metric::IperfToTcp => "iperf_to_tcp",
        }
    }

    fn column(self, column: usize) -> &'static str {
        match (column, self) {
            (OURS, _) => "millrace",
            (_, Metric::DoorbellToCacheline) => "cache line",
            (_, Metric::LargeToRaw) => "WRITE",
            (_, Metric::LargeToEmulation) => "TCP over a tap",
            (_, Metric::LargeToMessageMode) => "message mode",
            (_, Metric::Regret) => "fastest way",
            (_, Metric::Overlap | Metric::OverlapByReceiver) => "all of it",
            (_, Metric::RedisToTcp | Metric::IperfToTcp) => "loopback TCP",
            (PEER, _) => "ucx sm",
            (_, _) => "open mpi",
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Metric::SmallToUcx | Metric::DoorbellToCacheline | Metric::Regret => "ns",
            Metric::LargeToRaw
            | Metric::LargeToBestPeer
            | Metric::LargeToEmulation
            | Metric::LargeToMessageMode
            | Metric::IperfToTcp => "GB/s",
            Metric::Overlap | Metric::OverlapByReceiver => "%",
            Metric::RedisToTcp => "requests/s",
        }
    }

    fn decimals(self) -> usize {
        if self.unit() == "GB/s" { 3 } else { 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn words_are_those_of_the_command_line() {
        for metric in Metric::ALL {
            assert_eq!(metric.to_possible_value().unwrap().get_name(), metric.word());
        }
        assert_eq!(Metric::value_variants().len(), Metric::ALL.len());
    }
}
