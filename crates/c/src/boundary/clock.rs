//! The card's clock.

use super::arguments::{give, give_new, opened};
use super::{millrace_clock, millrace_device};
use crate::failure::Failure;
use crate::guard;
use crate::types::millrace_clock_status;
use core::mem::MaybeUninit;
use host::{Clock, Time};
use std::ffi::c_int;

fn of(clock: Option<&millrace_clock>) -> Result<&Clock, Failure> {
    clock.map(|clock| &clock.0).ok_or_else(|| Failure::null("clock"))
}

/// Maps the page that the card's clock is read from.
///
/// clock: where to put the clock, NULL after an error. To be closed with millrace_clock_close(), before or after the device.
///
/// Returns 0; -EINVAL: an argument is NULL; -EOPNOTSUPP: the clock cannot be read here, which the text says more of; -ENODEV:
/// the card is gone.
#[no_mangle]
pub extern "C" fn millrace_clock_open(
    device: Option<&millrace_device>,
    clock: Option<&mut MaybeUninit<*mut millrace_clock>>,
) -> c_int {
    give_new(clock, "clock", || Ok(millrace_clock(opened(device)?.device.clock()?)))
}

/// The time that the card's clock shows, in ns, mostly since 1970. No system call where the kernel has CLOCK_MONOTONIC in its
/// vDSO. A card that is gone does not stop it.
///
/// Returns 0; -EINVAL: an argument is NULL; -EOPNOTSUPP: the card has ended in the very moment in which it set the clock.
#[no_mangle]
pub extern "C" fn millrace_clock_now(clock: Option<&millrace_clock>, ns: Option<&mut MaybeUninit<u64>>) -> c_int {
    give(ns, "ns", || Ok(of(clock)?.now().map_err(host::Error::from)?.total_nanoseconds()))
}

/// What the clock shows and how it does, of one moment.
///
/// Returns as millrace_clock_now().
#[no_mangle]
pub extern "C" fn millrace_clock_read(
    clock: Option<&millrace_clock>,
    status: Option<&mut MaybeUninit<millrace_clock_status>>,
) -> c_int {
    give(status, "status", || {
        let snapshot = of(clock)?.snapshot().map_err(host::Error::from)?;
        let report = snapshot.report;
        Ok(millrace_clock_status {
            ns: snapshot.timebase.at(host::Ticks::now()).total_nanoseconds(),
            offset_ns: report.offset_ns.unwrap_or(0),
            path_delay_ns: report.path_delay_ns.unwrap_or(0),
            scaled_ppm: snapshot.scaled_ppm,
            state_ns: u64::try_from(snapshot.since_change().as_nanos()).unwrap_or(u64::MAX),
            steps: snapshot.steps,
            state: report.state as u32,
            source: report.source as u32,
        })
    })
}

/// Sets the clock.
///
/// Returns 0; -EINVAL: an argument is NULL, or more than a clock of 32 bits of seconds can show; -EACCES: this program has not
/// the right `configure:clock`; -EBUSY: another program leads the clock; -ENODEV: the card is gone.
#[no_mangle]
pub extern "C" fn millrace_clock_set(clock: Option<&millrace_clock>, ns: u64) -> c_int {
    guard::run(|| {
        let seconds = u32::try_from(ns / 1_000_000_000).map_err(|_| Failure::invalid("a time after 2106"))?;
        of(clock)?.set(Time::new(seconds, (ns % 1_000_000_000) as u32))?;
        Ok(0)
    })
}

/// Moves the clock by so many ns at once, forward or, if they are less than 0, back.
///
/// Returns as millrace_clock_set().
#[no_mangle]
pub extern "C" fn millrace_clock_step(clock: Option<&millrace_clock>, ns: i64) -> c_int {
    guard::run(|| {
        of(clock)?.step(ns)?;
        Ok(0)
    })
}

/// Has the clock go faster than its nominal speed from now on, by so much, in 2^-16 of a millionth each as in the `freq` of
/// clock_adjtime(2): at most a tenth. 0 is nominal.
///
/// Returns as millrace_clock_set().
#[no_mangle]
pub extern "C" fn millrace_clock_frequency(clock: Option<&millrace_clock>, scaled_ppm: i64) -> c_int {
    guard::run(|| {
        of(clock)?.set_frequency(scaled_ppm)?;
        Ok(0)
    })
}

/// Closes a clock; NULL is closed already.
///
/// Returns 0.
#[no_mangle]
pub extern "C" fn millrace_clock_close(clock: Option<Box<millrace_clock>>) -> c_int {
    guard::run(|| {
        drop(clock);
        Ok(0)
    })
}
