//! What the ways of a message cost on this machine, and which of them is chosen (`docs/spec/message.md` §6).
//!
//! The table is the source's table 1: what it takes to register memory, to copy, and to move by the engine, by size. Who measures it has a
//! clock; here are the sums.

use std::fmt;

/// The sizes of the table: 4 KiB to 1 MiB.
pub const SIZES: [u64; 9] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20];

/// Nanoseconds for one size.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Row {
    /// Registering memory of that size with the RDMA engine, and taking it back. 0: not measured.
    pub register: f64,
    /// Copying it by the processor.
    pub copy: f64,
    /// Moving it by the engine, from one end's memory to the other's.
    pub transfer: f64,
}

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Table {
    /// For each of [`SIZES`].
    pub rows: [Row; SIZES.len()],
    /// A doorbell one way.
    pub doorbell: f64,
    /// What both ends have to do for a record of the ring, beside the way that it takes: an eager message of eight bytes, a request, a grant.
    pub record: f64,
    /// A word of eight bytes of an eager message, both ends together.
    pub eager_word: f64,
    /// Most bytes of an eager message.
    pub most_eager: u64,
    /// Bytes of a buffer of the pools.
    pub mtu: u64,
    /// How many buffers may be on their way at once.
    pub depth: u64,
    /// The sender reaches receive buffers itself: its copy is the transfer. And the receiver reads the sender's memory without its having been
    /// registered.
    pub is_mapped: bool,
}

/// How a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// In the ring, with its envelope.
    Eager,
    /// Through send and receive buffers.
    OneCopy,
    /// From memory to memory.
    ZeroCopy,
}

impl Scheme {
    /// All there are.
    pub const ALL: [Self; 3] = [Self::Eager, Self::OneCopy, Self::ZeroCopy];

    /// As the command prints it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Eager => "eager",
            Self::OneCopy => "one-copy",
            Self::ZeroCopy => "zero-copy",
        }
    }
}

/// A table that is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the table of costs has a cost that is negative or no number, or no buffers: measure it again")]
pub struct Unusable;

impl Table {
    /// Whether it can be worked with: each cost a number, not negative, and buffers of 1 KiB to 1 MiB.
    ///
    /// # Errors
    /// [`Unusable`].
    pub fn check(&self) -> Result<(), Unusable> {
        let costs = self.rows.iter().flat_map(|row| [row.register, row.copy, row.transfer]);
        let is_cost = |cost: f64| cost.is_finite() && cost >= 0.0;
        let fits = costs.chain([self.doorbell, self.record, self.eager_word]).all(is_cost)
            && (1 << 10..=1 << 20).contains(&self.mtu)
            && self.depth > 0;
        if fits { Ok(()) } else { Err(Unusable) }
    }

    /// Between the sizes that were measured on a line; below them in proportion; above them as the last two go on.
    fn cost(&self, len: u64, of: impl Fn(&Row) -> f64) -> f64 {
        let len_f = len as f64;
        if len <= SIZES[0] {
            return of(&self.rows[0]) * len_f / SIZES[0] as f64;
        }
        let above = SIZES.iter().position(|&size| len <= size).unwrap_or(SIZES.len() - 1);
        let ((x0, y0), (x1, y1)) =
            ((SIZES[above - 1] as f64, of(&self.rows[above - 1])), (SIZES[above] as f64, of(&self.rows[above])));
        let slope = if len > SIZES[SIZES.len() - 1] { ((y1 - y0) / (x1 - x0)).max(0.0) } else { (y1 - y0) / (x1 - x0) };
        y1 + (len_f - x1) * slope
    }

    /// Registering, and moving from memory to memory, cost system calls or doorbells, whatever the size: below the table it is what the
    /// first row says.
    fn at_least(&self, len: u64, of: impl Fn(&Row) -> f64) -> f64 {
        self.cost(len.max(SIZES[0]), of)
    }

    /// What a message takes from one program to the other. `None`: it does not go that way.
    pub fn estimate(&self, scheme: Scheme, len: u64) -> Option<f64> {
        let said = self.doorbell + self.record;
        match scheme {
            Scheme::Eager => (len <= self.most_eager).then(|| said + len.div_ceil(8) as f64 * self.eager_word),
            Scheme::ZeroCopy => {
                let both = if self.is_mapped { 0.0 } else { 2.0 * self.at_least(len, |row| row.register) };
                Some(said + both + self.at_least(len, |row| row.transfer))
            }
            Scheme::OneCopy => {
                let first = len.min(self.mtu);
                let (copy, transfer) = (self.cost(first, |row| row.copy), self.cost(first, |row| row.transfer));
                let stages = if self.is_mapped { [copy, copy, 0.0] } else { [copy, transfer, copy] };
                let once: f64 = stages.iter().sum();
                let slowest = stages.iter().copied().fold(0.0, f64::max);
                // Request and grant, and what tells of each part, which overlaps with the next one.
                let parts = len.div_ceil(self.mtu).max(1) as f64;
                let each = slowest.max(2.0 * said / self.depth as f64);
                let is_whole = len <= self.mtu;
                let rest = if is_whole { 0.0 } else { (len as f64 / self.mtu as f64 - 1.0).min(parts - 1.0) * each };
                Some(3.0 * said + once + rest)
            }
        }
    }

    /// The fastest way that is allowed.
    pub fn choose(&self, len: u64, allowed: &[Scheme]) -> Scheme {
        let cost = |scheme: &Scheme| self.estimate(*scheme, len);
        let best = allowed.iter().filter_map(|scheme| Some((*scheme, cost(scheme)?)));
        best.min_by(|one, other| one.1.total_cmp(&other.1)).map_or(Scheme::OneCopy, |best| best.0)
    }

    /// Sizes at which the choice changes, in order, from 1 byte to 4 GiB: from which size on, and which way. What a sender looks at.
    pub fn thresholds(&self, allowed: &[Scheme]) -> Vec<(u64, Scheme)> {
        let mut found = vec![(0, self.choose(0, allowed))];
        let (mut from, end) = (0_u64, 1_u64 << 32);
        while from < end {
            // Costs are not smooth at the sizes of buffers, so steps are small: a sixteenth.
            let next = (from + (from / 16).max(1)).min(end);
            let (before, after) = (self.choose(from, allowed), self.choose(next, allowed));
            if before != after {
                let (mut low, mut high) = (from, next);
                while high - low > 1 {
                    let middle = low + (high - low) / 2;
                    if self.choose(middle, allowed) == before { low = middle } else { high = middle }
                }
                found.push((high, after));
            }
            from = next;
        }
        found
    }

    /// Why a message of that size goes the way it goes.
    pub fn explain(&self, len: u64, allowed: &[Scheme]) -> Explanation {
        let costs =
            Scheme::ALL.map(|scheme| (scheme, self.estimate(scheme, len).filter(|_| allowed.contains(&scheme))));
        Explanation { len, chosen: self.choose(len, allowed), costs }
    }
}

/// What was chosen, and what the others would cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Explanation {
    /// Bytes of the message.
    pub len: u64,
    /// How it goes.
    pub chosen: Scheme,
    /// Nanoseconds; `None` where it cannot go.
    pub costs: [(Scheme, Option<f64>); 3],
}

impl fmt::Display for Explanation {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{} bytes go {}:", self.len, self.chosen.name())?;
        let chosen = self.costs.iter().find(|cost| cost.0 == self.chosen).and_then(|cost| cost.1);
        for (at, (scheme, cost)) in self.costs.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            match (cost, chosen) {
                (None, _) => write!(to, "{comma} {} is not possible", scheme.name())?,
                (Some(cost), Some(chosen)) if *scheme != self.chosen && chosen > 0.0 => {
                    write!(to, "{comma} {} {cost:.0} ns ({:.2} times as long)", scheme.name(), cost / chosen)?;
                }
                (Some(cost), _) => write!(to, "{comma} {} {cost:.0} ns", scheme.name())?,
            }
        }
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALL: [Scheme; 3] = Scheme::ALL;

    /// The source's machine: registering beats copying above 256 KiB only (297 against 310 us), 548 MB/s at 4 KiB, 887 at 1 MiB.
    fn source() -> Table {
        let row = |len: u64| Row {
            register: 100_000.0 + len as f64 * 197_000.0 / (256 << 10) as f64,
            copy: len as f64 * 310_000.0 / (256 << 10) as f64,
            transfer: len as f64 * 1.12 + 2900.0,
        };
        Table {
            rows: SIZES.map(row),
            doorbell: 5_000.0,
            record: 100.0,
            eager_word: 20.0,
            most_eager: 1328,
            mtu: 32 << 10,
            depth: 8,
            is_mapped: false,
        }
    }

    #[test]
    fn the_machine_of_the_source_chooses_what_the_source_chose() {
        let table = source();
        table.check().unwrap();
        assert_eq!(table.choose(8, &ALL), Scheme::Eager);
        // Where records take long, and copies are quick, as in what is built to be debugged: what fits into one record does not go by three.
        let debugged = Table {
            rows: SIZES.map(|len| Row { register: 0.0, copy: len as f64 / 8.0, transfer: 1e6 }),
            doorbell: 100.0,
            record: 600.0,
            is_mapped: true,
            ..table
        };
        assert!([0, 8, 100, 400].into_iter().all(|len| debugged.choose(len, &ALL) == Scheme::Eager));
        assert_eq!(table.choose(64 << 10, &ALL), Scheme::OneCopy);
        // One copy at each end overlaps with the transfer; the source chose it for all sizes.
        assert_eq!(table.choose(256 << 10, &ALL), Scheme::OneCopy);
        let fast = Table {
            rows: SIZES.map(|len| Row { register: 1000.0, copy: len as f64, transfer: len as f64 / 2.0 }),
            ..table
        };
        assert_eq!(fast.choose(1 << 20, &ALL), Scheme::ZeroCopy);
        assert_eq!(fast.choose(1 << 20, &[Scheme::OneCopy]), Scheme::OneCopy);
        assert_eq!(table.choose(5000, &[Scheme::Eager]), Scheme::OneCopy, "what cannot go eager goes by buffers");
    }

    #[test]
    fn an_explanation_says_what_the_others_would_cost() {
        let text = source().explain(100_000, &ALL).to_string();
        assert!(text.starts_with("100000 bytes go one-copy: eager is not possible, one-copy "), "{text}");
        assert!(text.contains("times as long)"), "{text}");
        assert_eq!(Table { mtu: 0, ..source() }.check(), Err(Unusable));
        assert_eq!(Table { doorbell: f64::NAN, ..source() }.check(), Err(Unusable));
    }

    fn table() -> impl Strategy<Value = Table> {
        let row = (1.0..1e6, 0.01..4.0, 0.01..4.0, 0.0..1e5);
        (row, (10.0..10_000.0, 0.0..2000.0), 0.1..50.0, 10u32..=20, 1u64..32, any::<bool>()).prop_map(
            |((register, copy, transfer, fixed), (doorbell, record), eager_word, mtu, depth, is_mapped)| Table {
                rows: SIZES.map(|len| Row {
                    register: register + len as f64 / 40.0,
                    copy: len as f64 * copy,
                    transfer: fixed + len as f64 * transfer,
                }),
                doorbell,
                record,
                eager_word,
                most_eager: 1328,
                mtu: 1 << mtu,
                depth,
                is_mapped,
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whatever a machine is like: what the sender looks up is at no size slower than the best by more than a hundredth, and one
        /// estimate does not fall when the message grows.
        #[test]
        fn thresholds_are_the_choice(table in table(), lens in prop::collection::vec(0u64..1 << 32, 1..50), small in prop::collection::vec(0u64..1 << 21, 1..50)) {
            table.check().unwrap();
            let thresholds = table.thresholds(&ALL);
            prop_assert!(thresholds.is_sorted_by_key(|at| at.0));
            for len in lens.into_iter().chain(small) {
                let looked_up = thresholds.iter().rev().find(|at| at.0 <= len).unwrap().1;
                let best = table.estimate(table.choose(len, &ALL), len).unwrap();
                let cost = table.estimate(looked_up, len);
                prop_assert!(cost.is_some_and(|cost| cost <= best * 1.01), "{len}: {looked_up:?} {cost:?}, {best}");
                for scheme in ALL {
                    if let (Some(less), Some(more)) = (table.estimate(scheme, len), table.estimate(scheme, len + 1)) {
                        prop_assert!(less <= more * 1.000_001, "{scheme:?} {len}: {less} {more}");
                    }
                }
            }
        }
    }
}
