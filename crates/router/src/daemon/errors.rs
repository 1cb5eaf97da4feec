//! How often Linux says errors of ICMP, so that the fast path says them no more often (`man 7 icmp`; RFC 1812, 4.3.2.8; RFC 4443, 2.4).

use std::time::Duration;

use crate::engine::{Engine, ErrorLimits, error_limit};
use crate::kernel::settings;

/// What the namespace is set to. The kernel tells nobody when it changes, so it is read again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errors {
    limits: ErrorLimits,
    /// Whether errors come from the interface that the packet came by.
    from_inbound: bool,
}

impl Errors {
    /// As the namespace is set; the kernel's own numbers where it does not say: those of all together were for all namespaces once.
    pub fn read() -> Self {
        let number =
            |name, otherwise: i64| settings::number(name).unwrap_or(otherwise).clamp(0, u32::MAX.into()) as u32;
        let mask4 = number("ipv4/icmp_ratemask", 0x1818);
        let mask6 = settings::text("ipv6/icmp/ratemask").unwrap_or_else(|| "0-1,3-127".into());
        let mut limited = 0;
        let mut set = |is: bool, bit| limited |= if is { bit } else { 0 };
        set(mask4 >> 11 & 1 != 0, error_limit::TTL4);
        set(holds(&mask6, 3), error_limit::TTL6);
        // Of IPv4 that fragmentation is needed is never limited.
        set(holds(&mask6, 2), error_limit::SIZE6);
        let milliseconds = |name| Duration::from_millis(number(name, 1000).into());
        Self {
            limits: ErrorLimits {
                limited,
                interval4: milliseconds("ipv4/icmp_ratelimit"),
                interval6: milliseconds("ipv6/icmp/ratelimit"),
                rate: number("ipv4/icmp_msgs_per_sec", 1000),
                burst: number("ipv4/icmp_msgs_burst", 50),
            },
            from_inbound: number("ipv4/icmp_errors_use_inbound_ifaddr", 0) != 0,
        }
    }

    /// Tells the engine, if it is different from what was told before; whether it is.
    pub fn tell(self, before: Option<Self>, engine: &Engine) -> bool {
        if before.is_none_or(|before| before.limits != self.limits) {
            engine.set_error_limits(&self.limits);
        }
        before.is_some_and(|before| before.from_inbound != self.from_inbound)
    }
}

/// Whether a number is in a list of the kernel's such as `0-1,3-127`.
fn holds(list: &str, number: u32) -> bool {
    list.split(',').any(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number_of = |text: &str| text.trim().parse().unwrap_or(u32::MAX);
        (number_of(first)..=number_of(last)).contains(&number)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_the_kernel_are_read() {
        let inside: Vec<u32> = (0..10).filter(|number| holds("0-1,3,5-7\n", *number)).collect();
        assert_eq!(inside, [0, 1, 3, 5, 6, 7]);
        assert!(!holds("", 0) && !holds("x-y", 3));
    }

    #[test]
    fn this_namespace_says_something() {
        let errors = Errors::read();
        assert_eq!(errors, Errors::read());
        assert!(errors.limits.burst > 0);
    }
}
