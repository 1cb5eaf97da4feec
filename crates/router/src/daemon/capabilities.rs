//! What this process may do: what is missing is named before the kernel says `EPERM` somewhere.

use rustix::thread::{CapabilitySet, capabilities};

/// What the router needs, and for what.
const NEEDED: [(CapabilitySet, &str, &str); 3] = [
    (
        CapabilitySet::NET_ADMIN,
        "CAP_NET_ADMIN",
        "attaching programs to interfaces, reading the ruleset, asking conntrack",
    ),
    (CapabilitySet::BPF, "CAP_BPF", "loading programs into the kernel"),
    (CapabilitySet::PERFMON, "CAP_PERFMON", "programs that read memory of the kernel"),
];

/// Those that are missing, in words; empty if nothing is.
pub fn missing() -> Vec<String> {
    let has = capabilities(None).map(|sets| sets.effective).unwrap_or(CapabilitySet::empty());
    missing_of(has)
}

fn missing_of(has: CapabilitySet) -> Vec<String> {
    // Whoever may administrate everything may do what was cut out of that in Linux 5.8.
    let old = CapabilitySet::BPF | CapabilitySet::PERFMON;
    let has = if has.contains(CapabilitySet::SYS_ADMIN) { has | old } else { has };
    let missing = NEEDED.iter().filter(|(one, _, _)| !has.contains(*one));
    missing.map(|(_, name, what)| format!("{name} ({what})")).collect()
}

/// What another process may do; `None`: it is not said.
pub fn of(pid: i32) -> Option<CapabilitySet> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let bits = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(bits.trim(), 16).ok().map(CapabilitySet::from_bits_retain)
}

/// Whether who may do that may load the router's program.
pub fn may_load(has: CapabilitySet) -> bool {
    has.intersects(CapabilitySet::BPF | CapabilitySet::SYS_ADMIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_known_of_others() {
        assert_eq!(of(std::process::id() as i32), capabilities(None).ok().map(|sets| sets.effective));
        assert_eq!(of(0), None);
        assert!(may_load(CapabilitySet::BPF) && !may_load(CapabilitySet::NET_ADMIN));
    }

    #[test]
    fn what_is_missing_is_named() {
        assert!(missing_of(CapabilitySet::all()).is_empty());
        assert!(missing_of(CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN).is_empty());
        let missing = missing_of(CapabilitySet::BPF);
        assert_eq!(missing.len(), 2);
        assert!(missing[0].starts_with("CAP_NET_ADMIN (") && missing[1].starts_with("CAP_PERFMON ("), "{missing:?}");
    }
}
