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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        assert!(missing_of(CapabilitySet::all()).is_empty());
        assert!(missing_of(CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN).is_empty());
        let missing = missing_of(CapabilitySet::BPF);
        assert_eq!(missing.len(), 2);
        assert!(missing[0].starts_with("CAP_NET_ADMIN (") && missing[1].starts_with("CAP_PERFMON ("), "{missing:?}");
    }
}
