//! Settings of the network namespace in `/proc/sys/net`, as the thread that asks sees them.

use std::collections::BTreeSet;
use std::fs;

/// The text of a setting, such as `ipv4/ip_forward`; `None` where this kernel has it not.
pub fn text(name: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/sys/net/{name}")).ok()?;
    Some(text.trim().to_owned())
}

/// The number of a setting.
pub fn number(name: &str) -> Option<i64> {
    text(name)?.parse().ok()
}

/// A number that an interface has of its own, in a family (`ipv4` or `ipv6`): such as `rp_filter`.
pub fn of_interface(family: &str, interface: &str, name: &str) -> Option<i64> {
    // The kernel allows `/` in no name, and a name of `..` is none.
    number(&format!("{family}/conf/{interface}/{name}"))
}

/// By what Linux chooses between next hops, of IPv4 and of IPv6, and whether it looks at neighbours for that.
pub fn choices() -> [Option<i64>; 5] {
    [
        "ipv4/fib_multipath_hash_policy",
        "ipv4/fib_multipath_hash_fields",
        "ipv4/fib_multipath_use_neigh",
        "ipv6/fib_multipath_hash_policy",
        "ipv6/fib_multipath_hash_fields",
    ]
    .map(number)
}

/// Those of these interfaces that take packets from addresses of this host (`accept_local`); `all` is one of them if it says so for every one.
pub fn accept_local<'a>(interfaces: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
    let is_on = |name: &&str| of_interface("ipv4", name, "accept_local").is_some_and(|on| on != 0);
    std::iter::once("all").chain(interfaces).filter(is_on).map(str::to_owned).collect()
}

/// Seconds after which conntrack forgets, by kind of flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// TCP that is established.
    pub tcp: u32,
    /// UDP that has been answered several times.
    pub udp_stream: u32,
    /// Other UDP.
    pub udp: u32,
    /// ICMP echo.
    pub icmp: u32,
    /// ICMPv6 echo.
    pub icmpv6: u32,
}

impl Timeouts {
    /// Those of this namespace; the kernel's own where there is no conntrack.
    pub fn read() -> Self {
        let of = |name: &str, otherwise| {
            let seconds = number(&format!("netfilter/nf_conntrack_{name}"));
            seconds.and_then(|seconds| u32::try_from(seconds).ok()).unwrap_or(otherwise)
        };
        Self {
            tcp: of("tcp_timeout_established", 432_000),
            udp_stream: of("udp_timeout_stream", 120),
            udp: of("udp_timeout", 30),
            icmp: of("icmp_timeout", 30),
            icmpv6: of("icmpv6_timeout", 30),
        }
    }
}
