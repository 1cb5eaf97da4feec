//! Associations and policies as `ip xfrm` prints them, for people and to be read again.

use std::fmt::Write;

use crate::algorithm::{Keys, Secret};
use crate::association::{Association, Mode};
use crate::policy::{Action, Direction, Policy, Template};
use crate::selector::{Mark, Port, Prefix, Selector};

/// An association, as `ip -s xfrm state` prints it; with its keys only if they are asked for.
pub fn state(association: &Association, with_keys: bool) -> String {
    let (parameters, progress) = (association.parameters(), association.progress());
    let mut text = format!("src {} dst {}\n", parameters.source, parameters.id.destination);
    // Writing into a string does not fail.
    let mut line = |words: String| _ = writeln!(text, "\t{words}");
    let mode = mode_of(Some(parameters.mode));
    line(format!("proto esp spi {:#010x} reqid {} mode {mode}", parameters.id.spi, parameters.reqid));
    line(format!("replay-window {}{}", parameters.window, flags(association)));
    match &parameters.keys {
        Keys::Aead { aead, key } => line(format!("aead {} {} 128", aead.name(), key_of(key, with_keys))),
        Keys::Separate { cipher, cipher_key, hash, hash_key, check } => {
            line(format!("auth-trunc {} {} {}", hash.name(), key_of(hash_key, with_keys), check * 8));
            line(format!("enc {} {}", cipher.name(), key_of(cipher_key, with_keys)));
        }
    }
    if let Some(ports) = parameters.encapsulation {
        let (source, destination) = (ports.source_port, ports.destination_port);
        let unspecified = Prefix::all_like(parameters.source).address;
        line(format!("encap type espinudp sport {source} dport {destination} addr {unspecified}"));
    }
    if parameters.mark.mask != 0 {
        line(mark_of(parameters.mark));
    }
    if parameters.if_id != 0 {
        line(format!("if_id {:#x}", parameters.if_id));
    }
    if parameters.fill_to != 0 {
        line(format!("tfcpad {}", parameters.fill_to));
    }
    if parameters.selector != Selector::ALL {
        line(format!("sel {}", selector_of(&parameters.selector)));
    }
    let halves = |number: u64| (number >> 32, number & 0xffff_ffff);
    let ((sent_high, sent), (high, received)) = (halves(progress.sent), halves(progress.received));
    line(format!(
        "replay-oseq {sent:#x} replay-oseq-hi {sent_high:#x} replay-seq {received:#x} replay-seq-hi {high:#x}"
    ));
    lifetimes(&mut text, association);
    text
}

fn lifetimes(text: &mut String, association: &Association) {
    let (limits, usage) = (association.lifetime().limits, association.lifetime().usage);
    let mut line = |words: String| _ = writeln!(text, "\t{words}");
    let count = |value: u64| if value == u64::MAX { "(INF)".to_owned() } else { value.to_string() };
    line("lifetime config:".into());
    line(format!("  limit: soft {}(bytes), hard {}(bytes)", count(limits.soft_bytes), count(limits.hard_bytes)));
    line(format!(
        "  limit: soft {}(packets), hard {}(packets)",
        count(limits.soft_packets),
        count(limits.hard_packets)
    ));
    line(format!("  expire add: soft {}(sec), hard {}(sec)", limits.soft_added, limits.hard_added));
    line(format!("  expire use: soft {}(sec), hard {}(sec)", limits.soft_used, limits.hard_used));
    line("lifetime current:".into());
    line(format!("  {}(bytes), {}(packets)", usage.bytes, usage.packets));
    let statistics = association.statistics();
    line("stats:".into());
    let (old, again, wrong) = (statistics.too_old, statistics.replayed, statistics.integrity);
    line(format!("  replay-window {old} replay {again} failed {wrong}"));
}

fn flags(association: &Association) -> String {
    let parameters = association.parameters();
    let rules = parameters.headers;
    let flags = [
        (!rules.ecn, "noecn"),
        (rules.dscp_in, "decap-dscp"),
        (!rules.df, "nopmtudisc"),
        (parameters.selector.source.is_none(), "af-unspec"),
        (parameters.is_extended, "esn"),
    ];
    let names: Vec<&str> = flags.iter().filter(|(is_set, _)| *is_set).map(|(_, name)| *name).collect();
    let flags = if names.is_empty() { String::new() } else { format!(" flag {}", names.join(" ")) };
    let extra = if rules.dscp_out { "" } else { " extra-flag dont-encap-dscp" };
    format!("{flags}{extra}")
}

fn key_of(key: &Secret, is_shown: bool) -> String {
    if !is_shown {
        return "<<Keys hidden>>".to_owned();
    }
    if key.is_empty() {
        return "''".to_owned();
    }
    key.bytes().iter().fold("0x".to_owned(), |mut text, byte| {
        _ = write!(text, "{byte:02x}");
        text
    })
}

fn mode_of(mode: Option<Mode>) -> &'static str {
    match mode {
        Some(Mode::Transport) => "transport",
        Some(Mode::Tunnel) => "tunnel",
        None => "other",
    }
}

fn mark_of(mark: Mark) -> String {
    format!("mark {:#x}/{:#x}", mark.value, mark.mask)
}

fn selector_of(selector: &Selector) -> String {
    let mut words = Vec::new();
    if let Some(source) = selector.source {
        words.push(format!("src {source}"));
    }
    if let Some(destination) = selector.destination {
        words.push(format!("dst {destination}"));
    }
    if selector.protocol != 0 {
        words.push(format!("proto {}", selector.protocol));
    }
    let mut port = |name: &str, port: Port| {
        if port.mask != 0 {
            words.push(format!("{name} {}", port.value));
        }
    };
    port("sport", selector.source_port);
    port("dport", selector.destination_port);
    words.join(" ")
}

/// A policy, as `ip xfrm policy` prints it.
pub fn policy(policy: &Policy) -> String {
    let direction = match policy.direction {
        Direction::In => "in",
        Direction::Out => "out",
        Direction::Forward => "fwd",
    };
    let action = if policy.action == Action::Block { " action block" } else { "" };
    let mut text = format!("{}\n", selector_of(&policy.selector)).trim_start().to_owned();
    let indent = if text.is_empty() { "" } else { "\t" };
    _ = writeln!(text, "{indent}dir {direction}{action} index {} priority {}", policy.index, policy.priority);
    if policy.mark.mask != 0 {
        _ = writeln!(text, "\t{}", mark_of(policy.mark));
    }
    if policy.if_id != 0 {
        _ = writeln!(text, "\tif_id {:#x}", policy.if_id);
    }
    for template in &policy.templates {
        template_into(&mut text, template);
    }
    text
}

fn template_into(text: &mut String, template: &Template) {
    let end = |name: &str, address: Option<std::net::IpAddr>| {
        address.map_or_else(String::new, |address| format!("{name} {address} "))
    };
    let ends = end("src", template.source) + &end("dst", template.destination);
    let level = if template.is_optional { " level use" } else { "" };
    let (protocol, spi, reqid) = (template.protocol, template.spi, template.reqid);
    _ = writeln!(text, "\ttmpl {}", ends.trim_end());
    _ = writeln!(text, "\t\tproto {protocol} spi {spi:#010x} reqid {reqid} mode {}{level}", mode_of(template.mode));
}
