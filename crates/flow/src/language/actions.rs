//! Actions from text.

use super::error::closest;
use super::scan::Part;
use super::{ParseError, print};
use crate::action::{Action, MAX_VNI, Reason, Vxlan, VxlanPort};
use crate::field::{Field, LOCAL, Masks, text};
use crate::vni_map::{Receiver, Run, VniMap};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

/// Words of OpenFlow 1.0 that set a field.
const SETTERS: &[(&str, Field)] = &[
    ("mod_dl_src", Field::DlSrc),
    ("mod_dl_dst", Field::DlDst),
    ("mod_vlan_vid", Field::DlVlan),
    ("mod_vlan_pcp", Field::DlVlanPcp),
    ("mod_nw_src", Field::NwSrc),
    ("mod_nw_dst", Field::NwDst),
    ("mod_nw_tos", Field::NwTos),
    ("mod_nw_ecn", Field::NwEcn),
    ("mod_nw_ttl", Field::NwTtl),
    ("mod_tp_src", Field::TpSrc),
    ("mod_tp_dst", Field::TpDst),
];

/// How actions are written, for help.
pub(super) const FORMS: &[&str] = &[
    "drop",
    "queue:N",
    "rss:GROUP",
    "quic:GROUP",
    "balance:GROUP",
    "output:PORT",
    "in_port",
    "set_field:VALUE[/MASK]->FIELD",
    "push_vlan:TPID",
    "pop_vlan",
    "push_pppoe:SESSION",
    "pop_pppoe",
    "dec_ttl",
    "encap_vxlan(vni=N,src=IP,dst=IP)",
    "decap_vxlan",
    "vxlan_port(number=N,output=PORT,src=IP,dst=IP)",
    "vni_map(VNI=queue:N,VNI-VNI=port:N,...)",
    "mirror:PORT",
    "sample(probability=N,port=PORT)",
    "meter:N",
    "punt(reason=NAME)",
    "goto_table:N",
    "note:HEX",
];

/// The actions of `list`; nothing is `drop`.
pub(super) fn parse(list: Part<'_>) -> Result<Vec<Action>, ParseError> {
    let actions: Vec<_> = list.pieces()?.into_iter().map(one).collect::<Result<_, _>>()?;
    Ok(if actions.is_empty() { vec![Action::Drop] } else { actions })
}

fn one(part: Part<'_>) -> Result<Action, ParseError> {
    let end = part.text.find([':', '(']).unwrap_or(part.text.len());
    let (name, rest) = (part.cut(0, end), part.cut(end, part.text.len()));
    let value = |form: &str| match rest.text.strip_prefix(':') {
        Some(value) if !value.is_empty() => Ok(rest.cut(1, rest.text.len())),
        _ => Err(rest.error(format!("write {form}"))),
    };
    if let Some((_, field)) = SETTERS.iter().find(|(setter, _)| *setter == name.text) {
        return set(*field, value(&format!("{}:VALUE", name.text))?);
    }
    let alone = |action| {
        if rest.text.is_empty() { Ok(action) } else { Err(rest.error(format!("{} takes no value", name.text))) }
    };
    match name.text {
        "drop" => alone(Action::Drop),
        "in_port" => alone(Action::InPort),
        "pop_vlan" | "strip_vlan" => alone(Action::PopVlan),
        "pop_pppoe" => alone(Action::PopPppoe),
        "dec_ttl" => alone(Action::DecTtl),
        "decap_vxlan" if rest.text.is_empty() => Ok(Action::DecapVxlan { port: None }),
        "decap_vxlan" => decap_vxlan(part),
        "queue" => Ok(Action::Queue(value("queue:N")?.number("queue", 0xffff)?)),
        "rss" => Ok(Action::Rss(value("rss:GROUP")?.number("rss", 0xffff_ffff)?)),
        "balance" => Ok(Action::Balance(value("balance:GROUP")?.number("balance", 0xffff_ffff)?)),
        "quic" => Ok(Action::Quic(value("quic:GROUP")?.number("quic", 0xffff_ffff)?)),
        "output" if value("output:PORT")?.text == "in_port" => Ok(Action::InPort),
        "output" if value("output:PORT")?.text.eq_ignore_ascii_case("local") => Ok(Action::Output(LOCAL)),
        "output" => Ok(Action::Output(value("output:PORT")?.number("output", 0xffff_ffff)?)),
        "push_vlan" => Ok(Action::PushVlan(value("push_vlan:0x8100")?.number("push_vlan", 0xffff)?)),
        "push_pppoe" => Ok(Action::PushPppoe(value("push_pppoe:SESSION")?.number("push_pppoe", 0xffff)?)),
        "mirror" => Ok(Action::Mirror(value("mirror:PORT")?.number("mirror", 0xffff_ffff)?)),
        "meter" => Ok(Action::Meter(value("meter:N")?.number("meter", 0xffff_ffff)?)),
        "goto_table" => Ok(Action::GotoTable(value("goto_table:N")?.number("goto_table", 0xff)?)),
        "note" => note(value("note:HEX")?),
        "set_field" => set_field(value("set_field:VALUE->FIELD")?),
        "punt" | "controller" if rest.text.is_empty() => Ok(Action::Punt(Reason::Action)),
        "punt" | "controller" => punt(part),
        "sample" => sample(part),
        "encap_vxlan" => encap_vxlan(part),
        "vxlan_port" => vxlan_port(part),
        "vni_map" => vni_map(part),
        _ => Err(name.error(unknown(name.text))),
    }
}

fn unknown(name: &str) -> String {
    let words = FORMS.iter().map(|form| form.split([':', '(']).next().unwrap_or(form));
    match closest(name, words.chain(SETTERS.iter().map(|(setter, _)| *setter))) {
        Some(near) => format!("there is no action '{name}'; did you mean '{near}'?"),
        None => format!("there is no action '{name}'; there are {}", FORMS.join(", ")),
    }
}

fn set_field(part: Part<'_>) -> Result<Action, ParseError> {
    let (value, name) = part.split("->").ok_or_else(|| part.error("write set_field:VALUE->FIELD"))?;
    let field = Field::named(name.text).filter(|field| field.row().settable);
    let field = field.ok_or_else(|| {
        let names = Field::ALL.iter().filter(|field| field.row().settable).map(|field| field.name());
        let near = closest(name.text, names.clone()).map(|near| format!("; did you mean '{near}'?"));
        let all = || format!("; there are {}", names.collect::<Vec<_>>().join(", "));
        name.error(format!("there is no field '{}' that can be set{}", name.text, near.unwrap_or_else(all)))
    })?;
    set(field, value)
}

fn set(field: Field, value: Part<'_>) -> Result<Action, ParseError> {
    let (bits, mask) = text::parse(field, value.text).map_err(|wrong| value.error(wrong))?;
    if bits.and(mask) != bits || (field.row().masks == Masks::Exact && mask != field.full()) {
        return Err(value.error(format!("{} takes {}", field.name(), text::example(field.row().format))));
    }
    Ok(Action::SetField { field, value: bits, mask })
}

fn note(part: Part<'_>) -> Result<Action, ParseError> {
    let digits: String = part.text.split('.').collect();
    let byte =
        |pair: &[u8]| pair.iter().try_fold(0u8, |byte, digit| Some(byte << 4 | char::from(*digit).to_digit(16)? as u8));
    let bytes =
        (digits.len().is_multiple_of(2)).then(|| digits.as_bytes().chunks(2).map(byte).collect::<Option<Vec<u8>>>());
    match bytes.flatten().filter(|bytes| !bytes.is_empty()) {
        Some(bytes) => Ok(Action::Note(bytes)),
        None => Err(part.error("note takes hexadecimal bytes such as 01.ab.ff")),
    }
}

/// The arguments of `name(key=value,...)`.
fn arguments<'a>(part: Part<'a>, form: &str) -> Result<Vec<(Part<'a>, Part<'a>)>, ParseError> {
    let (_, inside) = part.call().ok_or_else(|| part.error(format!("write {form}")))?;
    let pair = |piece: Part<'a>| Ok(piece.split("=").unwrap_or((piece, piece.cut(piece.text.len(), piece.text.len()))));
    inside.pieces()?.into_iter().map(pair).collect()
}

fn punt(part: Part<'_>) -> Result<Action, ParseError> {
    let form = "punt(reason=NAME), where NAME is action, no_match, ttl, neighbour, mtu or a number up to 65535";
    match arguments(part, form)?[..] {
        [(key, value)] if key.text == "reason" => {
            Reason::named(value.text).map(Action::Punt).ok_or_else(|| value.error(format!("write {form}")))
        }
        _ => Err(part.error(format!("write {form}"))),
    }
}

fn sample(part: Part<'_>) -> Result<Action, ParseError> {
    let form = "sample(probability=N,port=PORT), where N is 1 to 65535";
    let (mut probability, mut port) = (None, None);
    for (key, value) in arguments(part, form)? {
        match key.text {
            "probability" => probability = Some(value.number("probability", 0xffff)?),
            "port" => port = Some(value.number("port", 0xffff_ffff)?),
            _ => return Err(key.error(format!("write {form}"))),
        }
    }
    match (probability, port) {
        (Some(probability), Some(port)) => Ok(Action::Sample { probability, port }),
        _ => Err(part.error(format!("write {form}"))),
    }
}

fn decap_vxlan(part: Part<'_>) -> Result<Action, ParseError> {
    let form = "decap_vxlan, or decap_vxlan(port=N)";
    match arguments(part, form)?[..] {
        [(key, value)] if key.text == "port" => {
            Ok(Action::DecapVxlan { port: Some(value.number("port", 0xffff_ffff)?) })
        }
        _ => Err(part.error(format!("write {form}"))),
    }
}

fn encap_vxlan(part: Part<'_>) -> Result<Action, ParseError> {
    let form =
        "encap_vxlan([vni=N,]src=IP,dst=IP[,dl_src=MAC][,dl_dst=MAC][,udp_src=N][,udp_dst=N][,tos=N][,ttl=N][,csum])";
    Ok(Action::EncapVxlan(Box::new(outer_headers(part, &arguments(part, form)?, form)?)))
}

fn vxlan_port(part: Part<'_>) -> Result<Action, ParseError> {
    let form = "vxlan_port(number=N,output=PORT,[vni=N,]src=IP,dst=IP), and more as with encap_vxlan";
    let (mut number, mut output, mut others) = (None, None, Vec::new());
    for (key, value) in arguments(part, form)? {
        match key.text {
            "number" => number = Some(value.number("number", 0xffff_ffff)?),
            "output" => output = Some(value.number("output", 0xffff_ffff)?),
            _ => others.push((key, value)),
        }
    }
    let (Some(number), Some(output)) = (number, output) else { return Err(part.error(format!("write {form}"))) };
    let outer = outer_headers(part, &others, form)?;
    Ok(Action::VxlanPort(Box::new(VxlanPort { number, output, outer })))
}

fn outer_headers(part: Part<'_>, said: &[(Part<'_>, Part<'_>)], form: &str) -> Result<Vxlan, ParseError> {
    let nobody = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let mut outer = Vxlan { vni: None, ..Vxlan::new(0, nobody, nobody) };
    let mut given = [false; 2];
    for (key, value) in said {
        let address =
            || value.text.parse::<IpAddr>().map_err(|_| value.error(format!("{} takes an IP address", key.text)));
        let mac =
            |field| text::parse(field, value.text).map(|mac| Some(mac.0.0[0])).map_err(|wrong| value.error(wrong));
        match key.text {
            "vni" => outer.vni = Some(value.number("vni", MAX_VNI.into())?),
            "src" => (given[0], outer.src) = (true, address()?),
            "dst" => (given[1], outer.dst) = (true, address()?),
            "dl_src" => outer.dl_src = mac(Field::DlSrc)?,
            "dl_dst" => outer.dl_dst = mac(Field::DlDst)?,
            "udp_src" => outer.udp_src = Some(value.number("udp_src", 0xffff)?),
            "udp_dst" => outer.udp_dst = value.number("udp_dst", 0xffff)?,
            "tos" => outer.tos = Some(value.number("tos", 0xff)?),
            "ttl" => outer.ttl = value.number("ttl", 0xff)?,
            "csum" if value.text.is_empty() => outer.checksum = true,
            _ => return Err(key.error(format!("write {form}"))),
        }
    }
    if given != [true; 2] {
        return Err(part.error(format!("write {form}")));
    }
    Ok(outer)
}

fn vni_map(part: Part<'_>) -> Result<Action, ParseError> {
    let form = "vni_map(VNI=queue:N,...): VNI may be FIRST-LAST, queue may be port, and N may be FIRST-LAST";
    let range = |part: Part<'_>, what: &str, largest: u64| -> Result<(u32, u32), ParseError> {
        let (first, last) = part.split("-").unwrap_or((part, part));
        Ok((first.number(what, largest)?, last.number(what, largest)?))
    };
    let mut runs = Vec::new();
    for (key, value) in arguments(part, form)? {
        let vnis = range(key, "a VNI", MAX_VNI.into())?;
        let (kind, numbers) = value.split(":").ok_or_else(|| value.error(format!("write {form}")))?;
        let (first, last) = range(numbers, kind.text, u16::MAX.into())?;
        let first = match kind.text {
            "queue" => Receiver::Queue(first as u16),
            "port" => Receiver::Port(first as u16),
            _ => return Err(kind.error(format!("write {form}"))),
        };
        runs.push(Run { vnis, first, last: last as u16 });
    }
    let map = VniMap::new(runs)
        .ok_or_else(|| part.error("each VNI stands once, and what is first does not come behind what is last"))?;
    Ok(Action::VniMap(Arc::new(map)))
}

impl std::str::FromStr for Action {
    type Err = ParseError;

    /// One action, such as `queue:3`.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let whole = Part::whole(text);
        match whole.pieces()?[..] {
            [only] => one(only),
            _ => Err(whole.error(format!("one action is expected; there are {}", FORMS.join(", ")))),
        }
    }
}

impl std::fmt::Display for Action {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&print::action(self))
    }
}
