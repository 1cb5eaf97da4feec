//! The rate of one who listens, shared by the ports where frames come in: a flood at one of them leaves the others their part.

use millrace_flow::meter::{Meter, MeterError, MeterSpec, Unit};

/// A rate for all ports together. What is within a port's own part may use all of the bucket; what is beyond leaves this much of it.
pub(crate) struct Fair {
    all: Meter,
    reserve: u64,
    /// Of each port, and at the end of programs.
    own: Box<[Meter]>,
}

impl Fair {
    /// So many frames a second, at `ports` ports.
    pub fn new(rate: u32, ports: usize, now_ns: u64) -> Result<Self, MeterError> {
        let meter = |rate: u64, burst| {
            let spec = MeterSpec { unit: Unit::Packets, rate: rate.max(1), burst, remark: None };
            Meter::new(spec, now_ns)
        };
        let (rate, parts) = (u64::from(rate), ports as u64 + 1);
        let reserve = (rate / 10).max(64);
        let own = (0..parts).map(|_| meter(rate / parts, (reserve / parts).max(1))).collect::<Result<_, _>>()?;
        Ok(Self { all: meter(rate, 2 * reserve)?, reserve, own })
    }

    /// Whether a frame that has come in at this port may be told.
    pub fn admit(&self, now_ns: u64, port: u32) -> bool {
        let own = usize::try_from(port).ok().and_then(|port| self.own.get(port)).or(self.own.last());
        let is_within = own.is_some_and(|own| own.admit(now_ns, 1, 0));
        self.all.admit_above(now_ns, 1, 0, if is_within { 0 } else { self.reserve })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_700_000_000_000_000_000;
    const MS: u64 = 1_000_000;

    /// How many of the frames at each of two ports are told within ten seconds, with so many a millisecond at each.
    fn told(rates: [u64; 2]) -> [u64; 2] {
        let fair = Fair::new(1000, 2, START).unwrap();
        let mut told = [0; 2];
        for ms in 0..10_000 {
            for (port, rate) in rates.iter().enumerate() {
                told[port] += (0..*rate).filter(|_| fair.admit(START + ms * MS, port as u32)).count() as u64;
            }
        }
        told
    }

    #[test]
    fn a_flood_at_one_port_leaves_the_others_their_part() {
        // Alone it has all of it, and no more.
        let [flood, none] = told([50, 0]);
        assert!((10_000..10_300).contains(&flood) && none == 0, "{flood}");
        // Two that flood have their part at least.
        let both = told([50, 50]);
        assert!(both.iter().all(|one| *one > 3_000), "{both:?}");
        assert!(both.iter().sum::<u64>() < 10_300, "{both:?}");
        // One that sends little loses nothing, however much comes at the other.
        let fair = Fair::new(1000, 2, START).unwrap();
        let mut lost = 0;
        for ms in 0..10_000 {
            for _ in 0..50 {
                fair.admit(START + ms * MS, 0);
            }
            lost += u32::from(ms % 5 == 0 && !fair.admit(START + ms * MS, 1));
        }
        assert_eq!(lost, 0);
    }

    #[test]
    fn the_lowest_rate_is_one_too() {
        let fair = Fair::new(1, 64, START).unwrap();
        assert!((0..64).all(|port| fair.admit(START, port)));
        assert!(fair.admit(START, u32::MAX));
    }
}
