//! What keeps packets in the clear out: the policies once more, as a table of nft that this program owns.
//!
//! Linux checks the policies of its own XFRM, and ours are not among them. So the same order of selectors stands in three chains:
//!
//! | Chain | Hook | Policies | What it refuses |
//! |---|---|---|---|
//! | `arriving` | input | `dir in` | packets for this host that did not come out of the tunnel interface |
//! | `forwarded` | forward | `dir fwd` | the same of those that are for others |
//! | `leaving` | postrouting, before addresses are translated | `dir out` | packets that shall be protected, and that a route leads elsewhere |
//!
//! The table stays when the gateway dies: then the routes into its interface are gone, and what would take another way in the clear is refused. It goes
//! when the gateway is ended as it should be. Where a chain drops, Linux's forwarding ends, and so the fast path has nothing to learn: such flows stay slow.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::{Command, Stdio};

use millrace_ipsec::policy::{Action, Direction, Policies, Policy};
use millrace_ipsec::selector::{Port, Prefix, Selector};

/// Why packets in the clear cannot be kept out.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    /// There is no `nft`.
    #[error(
        "nft cannot be run ({0}), and it keeps packets in the clear out: install nftables, or say --guard off and write such rules yourself"
    )]
    Missing(io::Error),
    /// It says no.
    #[error("nft does not take the rules that keep packets in the clear out: {0}")]
    Refused(String),
}

/// Packets that are not the policies' business: those that are protected, IKE's, and what neighbours on a link say to each other.
const EXEMPT: &str = "\
meta l4proto esp accept
icmpv6 type { nd-router-solicit, nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert } ip6 hoplimit 255 accept
";

/// The table with its rules.
#[derive(Debug)]
pub(super) struct Guard {
    table: String,
    interface: String,
    /// Conntrack is to have all connections: by it the router's fast path knows them.
    tracks: bool,
    /// How often the database had changed when the rules were written last, and those rules: associations change nothing of them.
    changes: Option<u64>,
    written: Option<String>,
    /// Why they are not what the policies say.
    failed: Option<String>,
}

impl Guard {
    /// For that interface. There is no rule yet.
    pub(super) fn of(interface: &str) -> Self {
        Self {
            table: format!("millrace_{}", interface.replace(['-', '.'], "_")),
            interface: interface.to_owned(),
            tracks: false,
            changes: None,
            written: None,
            failed: None,
        }
    }

    /// From now on conntrack has an entry of every connection.
    pub(super) fn track(&mut self) {
        (self.tracks, self.changes) = (true, None);
    }

    /// The table's name.
    pub(super) fn table(&self) -> &str {
        &self.table
    }

    /// Writes the rules if anything of them has changed since they were written last: all of them at once, so that there is no time between.
    pub(super) fn set(&mut self, policies: &Policies, changes: u64) -> Result<(), GuardError> {
        if self.changes == Some(changes) {
            return Ok(());
        }
        let script = self.script(policies);
        if self.written.as_ref() != Some(&script) {
            let done = run(&script);
            self.failed = done.as_ref().err().map(GuardError::to_string);
            done?;
            self.written = Some(script);
        }
        self.changes = Some(changes);
        Ok(())
    }

    /// Why the rules are not what the policies say, if they are not.
    pub(super) fn failed(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    /// Whether the table is there: one that a gateway has left that was killed.
    pub(super) fn is_there(&self) -> bool {
        let listed = Command::new("nft").args(["list", "table", "inet", &self.table]).stdin(Stdio::null()).output();
        listed.is_ok_and(|output| output.status.success())
    }

    /// Takes the rules away.
    pub(super) fn remove(&mut self) -> Result<(), GuardError> {
        let table = &self.table;
        (self.changes, self.written) = (None, None);
        run(&format!("table inet {table}\ndelete table inet {table}\n"))
    }

    fn script(&self, policies: &Policies) -> String {
        let Self { table, interface, .. } = self;
        let mut text = format!("table inet {table}\ndelete table inet {table}\ntable inet {table} {{\n");
        let chains = [
            ("arriving", "input", Direction::In, "iif", "udp dport { 500, 4500 } accept\n"),
            ("forwarded", "forward", Direction::Forward, "iif", ""),
            ("leaving", "postrouting", Direction::Out, "oif", "udp sport { 500, 4500 } fib saddr type local accept\n"),
        ];
        for (chain, hook, direction, side, ike) in chains {
            // Writing into a string does not fail.
            let _ = writeln!(text, "chain {chain} {{\ntype filter hook {hook} priority -150; policy accept;");
            let loopback = if direction == Direction::Forward { String::new() } else { format!("{side} lo accept\n") };
            if self.tracks {
                text.push_str("ct state invalid\n");
            }
            let _ = write!(text, "{side}name \"{interface}\" accept\n{loopback}{EXEMPT}{ike}");
            for policy in policies.iter().filter(|policy| policy.direction == direction) {
                rule(&mut text, policy, side);
            }
            if policies.default_of(direction) == Action::Block {
                text.push_str("counter drop\n");
            }
            text.push_str("}\n");
        }
        text.push_str("}\n");
        text
    }
}

/// What a policy says of packets in the clear.
fn rule(text: &mut String, policy: &Policy, side: &str) {
    // Those of XFRM interfaces are about what comes by these.
    if policy.if_id != 0 {
        return;
    }
    let is_free = policy.templates.iter().all(|template| template.is_optional);
    let verdict = if policy.action == Action::Allow && is_free { "accept" } else { "counter drop" };
    let selector = &policy.selector;
    // nft has no policy for both versions with an address of one.
    if let (Some(one), Some(other)) = (selector.source, selector.destination)
        && one.address.is_ipv4() != other.address.is_ipv4()
    {
        return;
    }
    let mut words = Vec::new();
    ends(&mut words, selector);
    ports(&mut words, selector);
    if selector.interface != 0 {
        words.push(format!("{side} {}", selector.interface));
    }
    if policy.mark.mask != 0 {
        words.push(format!("meta mark & {:#x} == {:#x}", policy.mark.mask, policy.mark.value));
    }
    let _ = writeln!(text, "{} {verdict}", words.join(" "));
}

fn ends(words: &mut Vec<String>, selector: &Selector) {
    let mut end = |name: &str, prefix: Option<Prefix>| {
        let Some(Prefix { address, len }) = prefix else { return };
        let family = if address.is_ipv4() { "ip" } else { "ip6" };
        words.push(match len {
            0 => format!("meta nfproto {}", if address.is_ipv4() { "ipv4" } else { "ipv6" }),
            _ => format!("{family} {name} {address}/{len}"),
        });
    };
    end("saddr", selector.source);
    end("daddr", selector.destination);
}

fn ports(words: &mut Vec<String>, selector: &Selector) {
    const ICMP: u8 = 1;
    const ICMP_V6: u8 = 58;
    if selector.protocol == 0 {
        return;
    }
    words.push(format!("meta l4proto {}", selector.protocol));
    let (source, destination) = match selector.protocol {
        ICMP => ("icmp type", "icmp code"),
        ICMP_V6 => ("icmpv6 type", "icmpv6 code"),
        _ => ("th sport", "th dport"),
    };
    for (name, Port { value, mask }) in [(source, selector.source_port), (destination, selector.destination_port)] {
        match mask {
            0 => {}
            u16::MAX => words.push(format!("{name} {value}")),
            mask => words.push(format!("{name} & {mask:#x} == {value:#x}")),
        }
    }
}

fn run(script: &str) -> Result<(), GuardError> {
    let mut nft = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(GuardError::Missing)?;
    let mut input = nft.stdin.take();
    // If it does not read, it says why.
    let _ = input.as_mut().map(|input| input.write_all(script.as_bytes()));
    drop(input);
    let output = nft.wait_with_output().map_err(GuardError::Missing)?;
    match output.status.success() {
        true => Ok(()),
        false => Err(GuardError::Refused(
            String::from_utf8_lossy(&output.stderr).lines().take(3).collect::<Vec<_>>().join("; "),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_ipsec::database::{Change, Database};
    use millrace_ipsec::text;

    fn script(policies: &str) -> String {
        let mut database = Database::new();
        for change in text::parse(policies, |_| Some(3)).unwrap() {
            database.apply(change, 0).unwrap();
        }
        database.apply(Change::Default(Direction::Forward, Action::Block), 0).unwrap();
        Guard::of("ipsec0").script(database.policies())
    }

    const POLICIES: &str = "\
policy add src 10.2.0.0/16 dst 10.1.0.0/16 dir in priority 5 tmpl src 192.0.2.2 dst 192.0.2.1 proto esp reqid 1 mode tunnel
policy add src 10.2.9.0/24 dst 10.1.0.0/16 proto tcp dport 22 dir in priority 1
policy add src 2001:db8:2::/48 dst ::/0 proto udp sport 53 dir fwd mark 1 mask 3 tmpl proto esp mode tunnel
policy add src 10.1.0.0/16 dst 10.2.0.0/16 dir out action block";

    #[test]
    fn policies_as_rules_in_their_order() {
        let script = script(POLICIES);
        let first = "ip saddr 10.2.9.0/24 ip daddr 10.1.0.0/16 meta l4proto 6 th dport 22 accept\n";
        let second = "ip saddr 10.2.0.0/16 ip daddr 10.1.0.0/16 counter drop\n";
        let at = |line: &str| script.find(line).unwrap_or_else(|| panic!("{line} in {script}"));
        assert!(at(first) < at(second) && at(second) < at("chain forwarded"));
        at(
            "ip6 saddr 2001:db8:2::/48 meta nfproto ipv6 meta l4proto 17 th sport 53 meta mark & 0x3 == 0x1 counter drop\ncounter drop\n}",
        );
        at("oifname \"ipsec0\" accept\noif lo accept\n");
        assert!(at("chain leaving") < at("ip saddr 10.1.0.0/16 ip daddr 10.2.0.0/16 counter drop\n"));
    }
}
