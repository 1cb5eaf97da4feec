//! The machine of the source (RCIBR: MPC8641D, serial RapidIO of 10 Gb/s, Linux 2.6.23) as a model: what it would take for a long message, from
//! what the source has published of the parts. No number is ours.
//!
//! With c, t and w for a copy of one buffer, its transfer, and what a thread takes to be woken, a buffer takes the slower one of c and t, because copies
//! overlap with transfers, and two wake-ups: of the sender by the grant and the end of the transfer, of the receiver by the request and the doorbell of step 7. So
//!
//! ```text
//! MB/s = bytes / (n (max(c, t) + w1 + w2) + c + min(c, t))     n = bytes / MTU
//! ```
//!
//! How long a doorbell takes is not published; it counts as nothing. Where it can be checked, at an MTU of 32 KiB, the source has measured 440 MB/s before
//! its optimisations and 490 after them.

/// Copying 256 KiB, in us (table 1).
const COPY_256K: f64 = 310.0;
/// Transfers of 4 KiB and of 1 MiB, in MB/s (table 1).
const TRANSFER_4K: f64 = 548.0;
const TRANSFER_1M: f64 = 887.0;
/// Being woken by a heavy semaphore, at one end and at the other, and by a light one at either, in us (optimisation 1).
const HEAVY: [f64; 2] = [31.0, 15.0];
const LIGHT: [f64; 2] = [10.0, 10.0];

/// Copying so many bytes, in us.
fn copy(bytes: f64) -> f64 {
    COPY_256K * bytes / f64::from(256 << 10)
}

/// Moving so many bytes, in us: on the line through both sizes.
fn transfer(bytes: f64) -> f64 {
    let (short, long) = (f64::from(4 << 10), f64::from(1 << 20));
    let (fast, slow) = (short / TRANSFER_4K, long / TRANSFER_1M);
    fast + (bytes - short) * (slow - fast) / (long - short)
}

/// A message of so many bytes in buffers of `mtu` bytes, in Gbit/s, before the three optimisations or after them.
pub fn gbps(bytes: u64, mtu: u64, is_after: bool) -> f64 {
    let (bytes, mtu) = (bytes as f64, bytes.min(mtu) as f64);
    let (copy, transfer) = (copy(mtu), transfer(mtu));
    let wake: f64 = if is_after { LIGHT } else { HEAVY }.iter().sum();
    let us = bytes / mtu * (copy.max(transfer) + wake) + copy + copy.min(transfer);
    bytes * 8.0 / us / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: u64 = 16 << 20;

    #[test]
    fn the_parts_are_what_was_published() {
        assert!((copy(f64::from(256 << 10)) - 310.0).abs() < 1e-9);
        assert!((4096.0 / transfer(4096.0) - 548.0).abs() < 1e-6);
        assert!((f64::from(1 << 20) / transfer(f64::from(1 << 20)) - 887.0).abs() < 1e-6);
    }

    /// By hand for 32 KiB: a copy takes 38.75 us, a transfer 39.72 us.
    #[test]
    fn the_sum_is_that_of_the_formula_and_near_what_was_measured() {
        let by_hand = |wake: f64| {
            let us = 512.0 * (39.721 + wake) + 38.75 + 38.75;
            f64::from(16 << 20) * 8.0 / us / 1e3
        };
        for (is_after, wake, measured) in [(false, 46.0, 440.0), (true, 20.0, 490.0)] {
            let found = gbps(LARGE, 32 << 10, is_after);
            assert!((found / by_hand(wake) - 1.0).abs() < 1e-3, "{found}");
            let off = found / 8.0 * 1e3 / measured;
            assert!((0.85..1.15).contains(&off), "{off}");
        }
    }

    #[test]
    fn optimisations_help_small_buffers_most() {
        let gain = |mtu: u64| gbps(LARGE, mtu, true) / gbps(LARGE, mtu, false);
        assert!(gain(1 << 10) > gain(32 << 10) && gain(32 << 10) > gain(1 << 20) && gain(1 << 20) > 1.0);
        assert_eq!(
            gbps(1 << 20, 1 << 20, true),
            gbps(1 << 20, 4 << 20, true),
            "a buffer is not longer than the message"
        );
    }
}
