//! What clients ask of associations and policies, answered; entries in the words of `ip xfrm`.

use std::net::IpAddr;

use millrace_ipsec::association::{Association, Id, Mode};
use millrace_ipsec::database::{Change, Database};
use millrace_ipsec::lifetime::End;
use millrace_ipsec::policy::PolicyKey;
use millrace_ipsec::selector::Mark;
use millrace_ipsec::text;

use crate::daemon::ipsec::{Answer, Association as Said, Entry, LONGEST_TEXT, PAGE};

/// Adds all entries, or none. How many there were.
///
/// # Errors
/// In words, with the line.
pub(super) fn add(database: &mut Database, words: &str, now: u64) -> Result<u64, String> {
    let changes = text::parse(words, index_of).map_err(|error| error.to_string())?;
    for change in &changes {
        if let Change::Associate(parameters) = change {
            Association::new((**parameters).clone(), now).map_err(|why| why.to_string())?;
        }
    }
    let count = changes.len() as u64;
    for change in changes {
        database.apply(change, now).map_err(|why| why.to_string())?;
    }
    Ok(count)
}

/// The number of an interface.
pub(super) fn index_of(name: &str) -> Option<u32> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None).ok()?;
    netdevice::name_to_index(&socket, name).ok()
}

/// Removes what is named in the words of `ip xfrm state delete` or `ip xfrm policy delete`. How many there were.
///
/// # Errors
/// In words.
pub(super) fn delete(database: &mut Database, words: &str, now: u64) -> Result<u64, String> {
    let mut rest: Vec<&str> = words.split_whitespace().collect();
    rest.drain(..rest.iter().take_while(|word| ["ip", "xfrm"].contains(word)).count());
    let kind = rest.first().copied();
    let from = if rest.get(1).is_some_and(|word| ["delete", "del", "d"].contains(word)) { 2 } else { 1 };
    let rest = rest.get(from..).unwrap_or_default();
    let before = database.associations().count() + database.policies().len();
    let change = match kind {
        Some("state") => dissociate(rest)?,
        Some("policy") => remove_policy(rest)?,
        _ => return Err("expected `state ...` or `policy ...`, as behind `ip xfrm`".to_owned()),
    };
    database.apply(change, now).map_err(|why| why.to_string())?;
    match before - database.associations().count() - database.policies().len() {
        0 => Err("there is none such; `millrace router sa list` shows all".to_owned()),
        count => Ok(count as u64),
    }
}

fn dissociate(words: &[&str]) -> Result<Change, String> {
    let behind = |name: &str| words.windows(2).find(|pair| pair[0] == name).map(|pair| pair[1]);
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    let destination: Option<IpAddr> = behind("dst").and_then(|word| word.parse().ok());
    let spi = behind("spi").and_then(number);
    let (Some(destination), Some(spi)) = (destination, spi) else {
        return Err("an association is named by `dst ADDRESS` and `spi NUMBER`".to_owned());
    };
    let value = behind("mark").and_then(number);
    let mask = behind("mask").and_then(number).or(value.map(|_| u32::MAX)).unwrap_or_default();
    Ok(Change::Dissociate(Id { destination, spi }, Mark { value: value.unwrap_or_default(), mask }))
}

fn remove_policy(words: &[&str]) -> Result<Change, String> {
    let entry = format!("policy add {}", words.join(" "));
    let changes = text::parse(&entry, index_of).map_err(|error| error.what.to_string())?;
    let Some(Change::Policy(policy)) = changes.into_iter().next() else {
        return Err("a policy is named by `dir DIRECTION` and its selector".to_owned());
    };
    let index = policy.index;
    Ok(Change::RemovePolicy(PolicyKey {
        direction: policy.direction,
        index,
        selector: policy.selector,
        mark: policy.mark,
        if_id: policy.if_id,
    }))
}

/// One page of all that there is.
pub(super) fn list(database: &Database, from: u64, with_keys: bool, now: u64) -> Answer {
    let associations = database.associations().map(|association| entry(association, with_keys, now));
    let policies = database.policies().iter().map(|policy| Entry {
        kind: "policy".to_owned(),
        text: text::print_policy(policy),
        association: None,
    });
    let mut rest = associations.chain(policies).skip(usize::try_from(from).unwrap_or(usize::MAX)).peekable();
    let (mut entries, mut len) = (Vec::new(), 0);
    while let Some(entry) = rest.next_if(|_| entries.len() < PAGE && len < LONGEST_TEXT) {
        len += entry.text.len();
        entries.push(entry);
    }
    let next = rest.peek().is_some().then_some(from.saturating_add(entries.len() as u64));
    Answer::List { entries, next }
}

fn entry(association: &Association, with_keys: bool, now: u64) -> Entry {
    let (parameters, statistics) = (association.parameters(), association.statistics());
    let (life, mode) = (association.lifetime().end(now), parameters.mode);
    let said = Said {
        source: parameters.source.to_string(),
        destination: parameters.id.destination.to_string(),
        spi: parameters.id.spi,
        reqid: parameters.reqid,
        mode: if mode == Mode::Tunnel { "tunnel" } else { "transport" }.to_owned(),
        packets: association.lifetime().usage.packets,
        bytes: association.lifetime().usage.bytes,
        sent: association.sent(),
        received: association.received(),
        replayed: statistics.replayed,
        too_old: statistics.too_old,
        integrity: statistics.integrity,
        inner_mtu: association.inner_mtu() as u64,
        life: life_name(life).to_owned(),
    };
    Entry { kind: "association".to_owned(), text: text::print_state(association, with_keys), association: Some(said) }
}

/// How far a life is, in a word.
pub(super) const fn life_name(end: End) -> &'static str {
    match end {
        End::Open => "open",
        End::Soft => "soft",
        End::Hard => "hard",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATE: &str = "state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x1000 reqid 1 mode tunnel replay-window 64 \
        aead rfc4106(gcm(aes)) 0x000102030405060708090a0b0c0d0e0f10111213 128";
    const POLICY: &str = "policy add dir out src 10.1.0.0/16 dst 10.2.0.0/16 tmpl src 192.0.2.1 dst 192.0.2.2 proto esp reqid 1 mode tunnel";

    fn all(database: &Database, with_keys: bool) -> Vec<Entry> {
        let (mut all, mut from) = (Vec::new(), Some(0));
        while let Some(at) = from {
            let Answer::List { entries, next } = list(database, at, with_keys, 0) else { panic!("another answer") };
            all.extend(entries);
            from = next;
        }
        all
    }

    #[test]
    fn what_is_added_is_listed_and_goes() {
        let mut database = Database::new();
        assert_eq!(add(&mut database, &format!("{STATE}\n{POLICY}"), 0), Ok(2));
        let entries = all(&database, true);
        let again: String = entries.iter().map(|entry| entry.text.as_str()).collect();
        let mut copy = Database::new();
        assert_eq!(add(&mut copy, &again, 0), Ok(2), "{again}");
        assert_eq!(all(&copy, true), entries);
        assert!(!all(&database, false)[0].text.contains("00010203"), "keys are not for everybody");

        assert_eq!(delete(&mut database, "state delete dst 192.0.2.2 proto esp spi 0x1000", 0), Ok(1));
        assert_eq!(delete(&mut database, "ip xfrm policy del dir out src 10.1.0.0/16 dst 10.2.0.0/16", 0), Ok(1));
        assert!(all(&database, true).is_empty());
        assert!(delete(&mut database, "state delete dst 192.0.2.2 spi 4096", 0).unwrap_err().contains("none such"));
        for words in ["", "state", "policy", "state delete dst x spi 1", "route del dst 1.1.1.1 spi 1"] {
            assert!(delete(&mut database, words, 0).is_err(), "{words}");
        }
    }

    #[test]
    fn all_or_nothing() {
        let mut database = Database::new();
        let bad = STATE.replace("0x1000", "0x10");
        assert!(add(&mut database, &format!("{STATE}\n{bad}"), 0).is_err());
        assert!(add(&mut database, &format!("{STATE}\nnonsense"), 0).unwrap_err().contains('2'));
        assert!(all(&database, true).is_empty());
    }

    #[test]
    fn many_are_listed_in_pages() {
        let mut database = Database::new();
        for spi in 0..200 {
            add(&mut database, &STATE.replace("0x1000", &(0x1000 + spi).to_string()), 0).unwrap();
        }
        assert_eq!(all(&database, true).len(), 200);
    }
}
