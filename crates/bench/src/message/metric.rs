//! What is compared, and the goals.

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
    /// The way that is chosen, by the fastest one, at the size where that is worst.
    Regret,
}

impl Metric {
    pub const ALL: [Metric; 5] =
        [Metric::SmallToUcx, Metric::DoorbellToCacheline, Metric::LargeToRaw, Metric::LargeToBestPeer, Metric::Regret];

    pub fn word(self) -> &'static str {
        match self {
            Metric::SmallToUcx => "small_to_ucx",
            Metric::DoorbellToCacheline => "doorbell_to_cacheline",
            Metric::LargeToRaw => "large_to_raw",
            Metric::LargeToBestPeer => "large_to_best_peer",
            Metric::Regret => "regret",
        }
    }

    pub fn unit(self) -> &'static str {
        match self {
            Metric::SmallToUcx | Metric::DoorbellToCacheline | Metric::Regret => "ns",
            Metric::LargeToRaw | Metric::LargeToBestPeer => "GB/s",
        }
    }

    pub fn decimals(self) -> usize {
        if self.unit() == "ns" { 1 } else { 3 }
    }

    /// What a column is called.
    pub fn column(self, column: usize) -> &'static str {
        match (column, self) {
            (super::OURS, _) => "millrace",
            (_, Metric::DoorbellToCacheline) => "cache line",
            (_, Metric::LargeToRaw) => "WRITE",
            (_, Metric::Regret) => "fastest way",
            (super::PEER, _) => "ucx sm",
            (_, _) => "open mpi",
        }
    }

    pub fn goal(self) -> &'static str {
        match self {
            Metric::SmallToUcx => "ratio <= 1.1",
            Metric::DoorbellToCacheline => "ratio <= 1.3",
            Metric::LargeToRaw => "ratio >= 0.95",
            Metric::LargeToBestPeer => "ratio >= 1.0",
            Metric::Regret => "ratio <= 1.05",
        }
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
