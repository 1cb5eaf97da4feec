//! Rules as text.

use crate::action::{Action, VXLAN_PORT, Vxlan};
use crate::field::{Field, needs::KEYWORDS, text};
use crate::matching::Match;
use crate::rule::RuleSpec;
use std::fmt::{self, Write as _};

/// One action.
pub(crate) fn action(action: &Action) -> String {
    match action {
        Action::Drop => "drop".to_owned(),
        Action::Queue(queue) => format!("queue:{queue}"),
        Action::Rss(group) => format!("rss:{group}"),
        Action::Balance(group) => format!("balance:{group}"),
        Action::Quic(group) => format!("quic:{group}"),
        Action::Output(port) => format!("output:{port}"),
        Action::InPort => "in_port".to_owned(),
        Action::SetField { field, value, mask } => {
            format!("set_field:{}->{}", text::print(*field, *value, *mask), field.name())
        }
        Action::PushVlan(tpid) => format!("push_vlan:{tpid:#06x}"),
        Action::PopVlan => "pop_vlan".to_owned(),
        Action::PushPppoe(session) => format!("push_pppoe:{session}"),
        Action::PopPppoe => "pop_pppoe".to_owned(),
        Action::DecTtl => "dec_ttl".to_owned(),
        Action::EncapVxlan(outer) => format!("encap_vxlan({})", headers(outer)),
        Action::VxlanPort(port) => {
            format!("vxlan_port(number={},output={},{})", port.number, port.output, headers(&port.outer))
        }
        Action::DecapVxlan { port: Some(port) } => format!("decap_vxlan(port={port})"),
        Action::DecapVxlan { port: None } => "decap_vxlan".to_owned(),
        Action::VniMap(map) => map.to_string(),
        Action::Mirror(port) => format!("mirror:{port}"),
        Action::Sample { probability, port } => format!("sample(probability={probability},port={port})"),
        Action::Meter(meter) => format!("meter:{meter}"),
        Action::Punt(reason) => format!("punt(reason={reason})"),
        Action::GotoTable(table) => format!("goto_table:{table}"),
        Action::Note(bytes) => {
            let bytes: Vec<_> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("note:{}", bytes.join("."))
        }
    }
}

/// What is said of the outer headers of a tunnel.
fn headers(outer: &Vxlan) -> String {
    let vni = outer.vni.map_or_else(String::new, |vni| format!("vni={vni},"));
    let mut text = format!("{vni}src={},dst={}", outer.src, outer.dst);
    let mac = |field: Field, mac: u64| text::print(field, mac.into(), field.full());
    let optional = [
        ("dl_src", outer.dl_src.map(|address| mac(Field::DlSrc, address))),
        ("dl_dst", outer.dl_dst.map(|address| mac(Field::DlDst, address))),
        ("udp_src", outer.udp_src.map(|port| port.to_string())),
        ("udp_dst", (outer.udp_dst != VXLAN_PORT).then(|| outer.udp_dst.to_string())),
        ("tos", outer.tos.map(|tos| tos.to_string())),
        ("ttl", (outer.ttl != 64).then(|| outer.ttl.to_string())),
    ];
    for (key, value) in optional {
        if let Some(value) = value {
            let _ = write!(text, ",{key}={value}");
        }
    }
    text + if outer.checksum { ",csum" } else { "" }
}

/// The parts of a match: a word for EtherType and protocol, and the other fields with their values.
fn parts(matching: &Match) -> Vec<String> {
    let fields = matching.fields();
    let value = |wanted: Field| fields.iter().find(|(field, ..)| *field == wanted).map(|(_, value, _)| value.0[0]);
    let (ether_type, protocol) = (value(Field::DlType), value(Field::NwProto));
    let keyword = KEYWORDS.iter().find(|(_, known, number)| {
        ether_type == Some(u64::from(*known)) && number.is_none_or(|number| protocol == Some(u64::from(number)))
    });
    let said = |field: Field| match keyword {
        Some((.., number)) => field == Field::DlType || (field == Field::NwProto && number.is_some()),
        None => false,
    };
    let others = fields.iter().filter(|(field, ..)| !said(*field));
    let others = others.map(|(field, value, mask)| format!("{}={}", field.name(), text::print(*field, *value, *mask)));
    keyword.map(|(word, ..)| (*word).to_owned()).into_iter().chain(others).collect()
}

impl fmt::Display for Match {
    /// `tcp,nw_src=10.0.0.0/8`; empty if everything matches.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&parts(self).join(","))
    }
}

impl fmt::Display for RuleSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "table={},priority={}", self.table, self.priority)?;
        if self.cookie != 0 {
            write!(f, ",cookie={:#x}", self.cookie)?;
        }
        for (name, timeout) in [("idle_timeout", self.idle_timeout), ("hard_timeout", self.hard_timeout)] {
            if timeout != 0 {
                write!(f, ",{name}={timeout}")?;
            }
        }
        for part in parts(&self.matching) {
            write!(f, ",{part}")?;
        }
        let actions: Vec<_> = self.actions.iter().map(action).collect();
        write!(f, ",actions={}", actions.join(","))
    }
}
