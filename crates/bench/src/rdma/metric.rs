//! What is compared.

use super::cards::Wire;
use super::others::Other;
use super::ours::Work;
use super::slurpoe::Frames;
use crate::turns::{Compared, OURS, PEER};

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Metric {
    /// WRITE of 1 MiB, by process_vm_writev.
    #[value(name = "write_1m_to_cma")]
    Write1mToCma,
    /// The same out of cache.
    WriteColdToCma,
    /// READ of 1 MiB, by process_vm_readv.
    #[value(name = "read_1m_to_cma")]
    Read1mToCma,
    /// WRITE of 1 MiB, by UCX through shared memory.
    #[value(name = "write_1m_to_ucx")]
    Write1mToUcx,
    /// WRITE of 8 bytes one way, by UCX through shared memory.
    #[value(name = "write_8_to_ucx")]
    Write8ToUcx,
    /// WRITE of 8 bytes, moved by the engine in the card on a core of its own, by the round trip of a cache line.
    #[value(name = "write_8_by_card_to_cacheline")]
    Write8ByCardToCacheline,
    /// SEND of 64 bytes one way, by libfabric through shared memory.
    #[value(name = "send_64_to_libfabric")]
    Send64ToLibfabric,
    /// 8 bytes one way over two cards, by UCX over TCP.
    #[value(name = "wire_8_to_tcp")]
    Wire8ToTcp,
    /// 1 MiB over two cards, by UCX over TCP.
    #[value(name = "wire_1m_to_tcp")]
    Wire1mToTcp,
    /// 8 bytes one way over two cards with AF_XDP, by UCX over TCP.
    #[value(name = "veth_8_to_tcp")]
    Veth8ToTcp,
    /// WRITEs of 8 bytes.
    WritesPerS,
    /// 1 MiB where 1 % of all frames are lost, by the same without loss.
    LossGoodput,
    /// Registering 1 MiB again, beside the first time.
    #[value(name = "register_1m_again_us")]
    Register1mAgainUs,
    /// What a program takes of a core while the engine in the card writes 1 GiB for it.
    AppCpuPercent,
    /// WRITE of 8 bytes in frames of SLURPoE, by RoCE v2.
    SlurpoeToRoce,
    /// WRITE of 1 MiB in frames of SLURPoE, by RoCE v2.
    #[value(name = "slurpoe_1m_to_roce")]
    Slurpoe1mToRoce,
}

/// What stands beside our value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// The same by somebody else.
    Other(Other),
    /// The same over other cards.
    Cards(Wire),
    /// The first time.
    First,
    /// The round trip of a cache line between both cores.
    Line,
    /// Other frames ([`Metric::frames`]).
    Frames,
}

const MIB: u64 = 1 << 20;

impl Metric {
    pub const ALL: [Metric; 16] = [
        Metric::Write1mToCma,
        Metric::WriteColdToCma,
        Metric::Read1mToCma,
        Metric::Write1mToUcx,
        Metric::Write8ToUcx,
        Metric::Write8ByCardToCacheline,
        Metric::Send64ToLibfabric,
        Metric::Wire8ToTcp,
        Metric::Wire1mToTcp,
        Metric::Veth8ToTcp,
        Metric::WritesPerS,
        Metric::LossGoodput,
        Metric::Register1mAgainUs,
        Metric::AppCpuPercent,
        Metric::SlurpoeToRoce,
        Metric::Slurpoe1mToRoce,
    ];

    /// What the two programs do.
    pub fn work(self) -> Work {
        let (op, measure, size) = match self {
            Metric::Write1mToCma | Metric::Write1mToUcx => ("write", "bandwidth", MIB),
            Metric::WriteColdToCma => ("write", "bandwidth", 256 * MIB),
            Metric::Read1mToCma => ("read", "bandwidth", MIB),
            Metric::Write8ToUcx | Metric::Wire8ToTcp | Metric::Veth8ToTcp | Metric::SlurpoeToRoce => {
                ("write", "latency", 8)
            }
            Metric::Write8ByCardToCacheline => ("write", "alone", 8),
            Metric::AppCpuPercent => ("write", "asleep", MIB),
            Metric::Send64ToLibfabric => ("send", "latency", 64),
            Metric::Wire1mToTcp | Metric::LossGoodput | Metric::Slurpoe1mToRoce => ("write", "bandwidth", MIB),
            Metric::WritesPerS => ("write", "rate", 8),
            Metric::Register1mAgainUs => ("write", "register", MIB),
        };
        Work { op, measure, size }
    }

    /// What lies between them.
    pub fn cards(self) -> Wire {
        match self {
            Metric::Wire8ToTcp | Metric::Wire1mToTcp | Metric::SlurpoeToRoce | Metric::Slurpoe1mToRoce => Wire::Memory,
            Metric::LossGoodput => Wire::Lossy,
            Metric::Veth8ToTcp => Wire::Veth,
            Metric::Write8ByCardToCacheline | Metric::AppCpuPercent => Wire::EngineOnCore,
            _ => Wire::None,
        }
    }

    pub fn peer(self) -> Peer {
        match self {
            Metric::Write1mToCma | Metric::WriteColdToCma | Metric::Read1mToCma => Peer::Other(Other::Cma),
            Metric::Write1mToUcx | Metric::Write8ToUcx | Metric::WritesPerS => Peer::Other(Other::UcxMemory),
            Metric::Send64ToLibfabric => Peer::Other(Other::Libfabric),
            Metric::Wire8ToTcp | Metric::Wire1mToTcp => Peer::Other(Other::UcxTcp),
            Metric::Veth8ToTcp => Peer::Other(Other::UcxTcpVeth),
            Metric::LossGoodput => Peer::Cards(Wire::Memory),
            Metric::Register1mAgainUs => Peer::First,
            Metric::Write8ByCardToCacheline => Peer::Line,
            Metric::AppCpuPercent => Peer::Cards(Wire::None),
            Metric::SlurpoeToRoce | Metric::Slurpoe1mToRoce => Peer::Frames,
        }
    }

    /// Frames of a column, of metrics that compare these.
    pub fn frames(self, column: usize) -> Option<Frames> {
        use millrace_slurpoe::Wire::{RoceV2, Slurpoe};
        let (wire, mtu) = match (self, column) {
            (Metric::SlurpoeToRoce | Metric::Slurpoe1mToRoce, OURS) => (Slurpoe, 4096),
            (Metric::SlurpoeToRoce | Metric::Slurpoe1mToRoce, PEER) => (RoceV2, 4096),
            // RoCE v2 has no packets of that size.
            (Metric::Slurpoe1mToRoce, _) => (Slurpoe, 8192),
            _ => return None,
        };
        Some(Frames { wire, mtu })
    }

    /// Cards of a third column.
    pub fn beside(self) -> Option<Wire> {
        (self == Metric::LossGoodput).then_some(Wire::LossyPlain)
    }

    pub fn goal(self) -> &'static str {
        match self {
            Metric::Write1mToCma | Metric::WriteColdToCma | Metric::Read1mToCma => "ratio >= 2",
            Metric::Write1mToUcx => "ratio >= 0.95",
            Metric::Write8ToUcx => "ratio <= 1.5",
            Metric::Send64ToLibfabric => "ratio <= 0.5",
            Metric::Wire8ToTcp => "ratio <= 0.4",
            Metric::Wire1mToTcp => "ratio >= 1.5",
            Metric::Veth8ToTcp => "ratio <= 0.7",
            Metric::WritesPerS => ">= 20",
            Metric::LossGoodput => "ratio >= 0.7",
            Metric::Register1mAgainUs | Metric::AppCpuPercent => "<= 5",
            Metric::Write8ByCardToCacheline => "ratio <= 1.4",
            Metric::SlurpoeToRoce => "ratio < 1",
            Metric::Slurpoe1mToRoce => "ratio > 1",
        }
    }
}

impl Compared for Metric {
    fn word(self) -> &'static str {
        match self {
            Metric::Write1mToCma => "write_1m_to_cma",
            Metric::WriteColdToCma => "write_cold_to_cma",
            Metric::Read1mToCma => "read_1m_to_cma",
            Metric::Write1mToUcx => "write_1m_to_ucx",
            Metric::Write8ToUcx => "write_8_to_ucx",
            Metric::Write8ByCardToCacheline => "write_8_by_card_to_cacheline",
            Metric::Send64ToLibfabric => "send_64_to_libfabric",
            Metric::Wire8ToTcp => "wire_8_to_tcp",
            Metric::Wire1mToTcp => "wire_1m_to_tcp",
            Metric::Veth8ToTcp => "veth_8_to_tcp",
            Metric::WritesPerS => "writes_per_s",
            Metric::LossGoodput => "loss_goodput",
            Metric::Register1mAgainUs => "register_1m_again_us",
            Metric::AppCpuPercent => "app_cpu_percent",
            Metric::SlurpoeToRoce => "slurpoe_to_roce",
            Metric::Slurpoe1mToRoce => "slurpoe_1m_to_roce",
        }
    }

    fn column(self, column: usize) -> &'static str {
        match (column, self.peer()) {
            (OURS, _) => "millrace",
            (PEER, Peer::Other(other)) => other.word(),
            (PEER, Peer::Cards(Wire::None)) => "library",
            (PEER, Peer::Cards(_)) => "no loss",
            (PEER, Peer::Line) => "cache line",
            (PEER, Peer::First) => "first time",
            (PEER, Peer::Frames) => "RoCE v2",
            (_, Peer::Frames) => "8192 bytes in a packet",
            _ => "go-back-N",
        }
    }

    fn unit(self) -> &'static str {
        match self.work().measure {
            "latency" | "alone" => "ns",
            "asleep" => "%",
            "rate" => "M/s",
            "register" => "us",
            _ => "GB/s",
        }
    }

    fn decimals(self) -> usize {
        if self.unit() == "ns" { 0 } else { 3 }
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
