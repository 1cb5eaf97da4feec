//! Meters: which there are, and what they are at the datapath.

use crate::wire::error::{Refusal, meter_mod as refused};
use crate::wire::meter::{Band, MeterConfig, band, flag, number};
use millrace_flow::meter::{Meter, MeterSpec, Unit};
use std::collections::BTreeMap;
use std::time::Duration;

/// Most meters.
pub const MOST_METERS: usize = 4096;

/// A meter as it was asked for, and since when.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Metering {
    pub config: MeterConfig,
    pub since: Duration,
    pub spec: MeterSpec,
}

/// All meters.
#[derive(Debug, Default)]
pub(super) struct Meters {
    all: BTreeMap<u32, Metering>,
}

impl Meters {
    pub fn has(&self, number: u32) -> bool {
        self.all.contains_key(&number)
    }

    pub fn get(&self, number: u32) -> Option<&Metering> {
        self.all.get(&number)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Metering> {
        self.all.values()
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn put(&mut self, number: u32, meter: Option<Metering>) -> Option<Metering> {
        match meter {
            Some(meter) => self.all.insert(number, meter),
            None => self.all.remove(&number),
        }
    }
}

impl Metering {
    /// A meter with one band, which drops or makes the drop precedence worse.
    pub fn new(config: MeterConfig, since: Duration) -> Result<Self, Refusal> {
        if config.meter == 0 || config.meter > number::MAX {
            return Err(refused::INVALID_METER);
        }
        if config.flags & !flag::ALL != 0 || config.flags & (flag::KBPS | flag::PKTPS) == flag::KBPS | flag::PKTPS {
            return Err(refused::BAD_FLAGS);
        }
        let [only] = &config.bands[..] else {
            return Err(if config.bands.is_empty() { refused::BAD_BAND } else { refused::OUT_OF_BANDS });
        };
        let remark = match (only.kind, only.rest.first()) {
            (band::DROP, _) => None,
            // There are three precedences.
            (band::DSCP_REMARK, Some(steps)) if (1..=2).contains(steps) => Some(*steps),
            (band::DSCP_REMARK, _) => return Err(refused::BAD_BAND_VALUE),
            _ => return Err(refused::BAD_BAND),
        };
        let spec = MeterSpec { remark, ..bucket(only, config.flags)? };
        Ok(Self { config, since, spec })
    }
}

/// The bucket of a band. Without a burst, it holds a tenth of a second, and at least ten long frames.
fn bucket(band: &Band, flags: u16) -> Result<MeterSpec, Refusal> {
    if band.rate == 0 {
        return Err(refused::BAD_RATE);
    }
    let wants_burst = flags & flag::BURST != 0;
    if wants_burst && band.burst == 0 {
        return Err(refused::BAD_BURST);
    }
    let per_unit = if flags & flag::PKTPS != 0 { 1 } else { 125 };
    let unit = if per_unit == 1 { Unit::Packets } else { Unit::Bytes };
    let least = if per_unit == 1 { 10 } else { 15_180 };
    let rate = u64::from(band.rate) * per_unit;
    let burst = if wants_burst { u64::from(band.burst) * per_unit } else { (rate / 10).max(least) };
    let spec = MeterSpec { unit, rate, burst, remark: None };
    Meter::new(spec, 0).map_err(|_| refused::BAD_BURST)?;
    Ok(spec)
}
