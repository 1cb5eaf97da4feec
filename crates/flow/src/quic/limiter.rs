//! How often something may be done, shared by threads.

use crate::meter::{Meter, MeterSpec, Unit};

/// So many a second, and a tenth of that at once.
#[derive(Debug)]
pub struct Limiter(Option<Meter>);

impl Limiter {
    /// 0: never.
    pub fn new(rate: u32) -> Self {
        let spec =
            MeterSpec { unit: Unit::Packets, rate: rate.into(), burst: u64::from(rate / 10).max(1), remark: None };
        Self(Meter::new(spec, 0).ok())
    }

    /// Whether it may be done once more, now.
    #[inline]
    pub fn admit(&self, now_ns: u64) -> bool {
        self.0.as_ref().is_some_and(|meter| meter.admit(now_ns, 1, 0))
    }
}
