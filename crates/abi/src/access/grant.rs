//! Grants: the text that gives rights to users and groups.

use super::rights::{Configure, Queues, Rights, WORDS};
use super::{Names, Peer};
use crate::queue::{Direction, QueueId};
use crate::register::map::{Component, MAX_QUEUES};

/// Longest grant in bytes.
pub const MAX_GRANT: usize = 4096;
/// Most grants that a card takes.
pub const MAX_GRANTS: usize = 4096;

/// To whom something is granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Who {
    /// A user, by number.
    User(u32),
    /// All who are in a group, by number.
    Group(u32),
    /// Everyone who can connect.
    Everyone,
}

/// Rights for somebody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Who.
    pub who: Who,
    /// What.
    pub rights: Rights,
}

/// What is wrong with a grant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("grant {text:?}, at byte {at}: {what}")]
pub struct GrantError {
    /// The beginning of the grant.
    pub text: String,
    /// Where in it, in bytes from 0.
    pub at: usize,
    /// What is wrong, and what would be right.
    pub what: String,
}

/// All grants of a card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    grants: Vec<Grant>,
}

impl Access {
    /// Adds a grant.
    ///
    /// # Errors
    /// [`GrantError`] beyond [`MAX_GRANTS`].
    pub fn add(&mut self, grant: Grant) -> Result<(), GrantError> {
        if self.grants.len() >= MAX_GRANTS {
            let what = format!("at most {MAX_GRANTS} grants");
            return Err(GrantError { text: String::new(), at: 0, what });
        }
        self.grants.push(grant);
        Ok(())
    }

    /// Adds the grants of a text: one in each line, `#` begins a comment, empty lines count for nothing.
    ///
    /// # Errors
    /// The number of the line, from 1, and what is wrong with it.
    pub fn add_lines(&mut self, text: &str, names: &Names) -> Result<(), (usize, GrantError)> {
        for (at, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or("").trim();
            if !line.is_empty() {
                Grant::parse(line, names).and_then(|grant| self.add(grant)).map_err(|error| (at + 1, error))?;
            }
        }
        Ok(())
    }

    /// The grants, in the order in which they were added.
    pub fn grants(&self) -> &[Grant] {
        &self.grants
    }

    /// What a peer may do on a card that `owner` runs: everything for that user and root, for others all that is granted to
    /// them.
    pub fn rights_of(&self, peer: &Peer, owner: u32) -> Rights {
        if peer.uid == owner || peer.uid == 0 {
            return Rights::all();
        }
        let mut rights = Rights::default();
        for grant in &self.grants {
            let meant = match grant.who {
                Who::User(uid) => uid == peer.uid,
                Who::Group(gid) => peer.gids.contains(&gid),
                Who::Everyone => true,
            };
            if meant {
                rights.add(&grant.rights);
            }
        }
        rights
    }

    /// The first queue that is granted and that a card with so many does not have.
    pub fn beyond(&self, rx_queues: u32, tx_queues: u32) -> Option<QueueId> {
        let missing = |queues: &Queues| {
            let count = if queues.direction == Direction::Rx { rx_queues } else { tx_queues };
            let last = QueueId { direction: queues.direction, index: queues.last };
            // `use:all` is about those that there are.
            (queues.last >= count && queues.last != MAX_QUEUES - 1).then_some(last)
        };
        self.grants.iter().flat_map(|grant| &grant.rights.queues).find_map(missing)
    }
}

/// A part of a grant and where it begins.
struct Part<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Part<'t> {
    /// The parts between separators.
    fn split(&self, separator: char) -> impl Iterator<Item = Part<'t>> {
        let (text, at) = (self.text, self.at);
        text.split(separator).map(move |part| {
            let offset = part.as_ptr().addr() - text.as_ptr().addr();
            Part { text: part, at: at + offset }
        })
    }
}

type Fault = (usize, String);

impl Grant {
    /// Reads a grant; see [the module](super) for the grammar.
    ///
    /// # Errors
    /// [`GrantError`], with the place and what would be right there.
    pub fn parse(text: &str, names: &Names) -> Result<Self, GrantError> {
        let shown = |(at, what)| GrantError { text: text.chars().take(60).collect(), at, what };
        if text.len() > MAX_GRANT {
            return Err(shown((MAX_GRANT, format!("longer than {MAX_GRANT} bytes"))));
        }
        let Some((who, rights)) = text.split_once('=') else {
            let what = "WHO=RIGHTS is wanted, such as user:bob=use:rx0,tx0".to_owned();
            return Err(shown((text.len(), what)));
        };
        let rights = Part { text: rights, at: who.len() + 1 };
        let mut all = Rights::default();
        for part in rights.split('+') {
            right(&part, &mut all).map_err(shown)?;
        }
        Ok(Self { who: whom(who, names).map_err(shown)?, rights: all })
    }
}

fn whom(text: &str, names: &Names) -> Result<Who, Fault> {
    if text == "everyone" {
        return Ok(Who::Everyone);
    }
    let unknown = |kind: &str, name: &str, file: &str| {
        (kind.len() + 1, format!("{file} has no {kind} {name:?}; a number, such as {kind}:1000, needs no name"))
    };
    match text.split_once(':') {
        Some(("user", name)) => names.user(name).map(Who::User).ok_or_else(|| unknown("user", name, "/etc/passwd")),
        Some(("group", name)) => names.group(name).map(Who::Group).ok_or_else(|| unknown("group", name, "/etc/group")),
        _ => Err((0, format!("{text:?} is nobody: user:NAME, group:NAME or everyone is wanted"))),
    }
}

fn right(part: &Part<'_>, all: &mut Rights) -> Result<(), Fault> {
    let unknown = || (part.at, format!("{:?} is no right; there are {WORDS}", part.text));
    let (kind, rest) = part.text.split_once(':').unwrap_or((part.text, ""));
    let rest = Part { text: rest, at: part.at + kind.len() + 1 };
    match kind {
        "admin" if part.text == "admin" => all.admin = true,
        "capture" if part.text == "capture" => all.capture = true,
        "rdma" if part.text == "rdma" => all.rdma = true,
        "use" if rest.text == "all" => {
            for direction in [Direction::Rx, Direction::Tx] {
                all.queues.push(Queues { direction, first: 0, last: MAX_QUEUES - 1 });
            }
        }
        "use" => {
            for range in rest.split(',') {
                all.queues.push(queues(&range)?);
            }
        }
        "registers" => match rest.text {
            "read" => all.read = true,
            "write" => all.write = true,
            text => {
                let component = text.strip_suffix(":write").ok_or_else(unknown)?;
                all.components.push(known(component).ok_or_else(|| {
                    let of_queue = "registers of queues come with use:QUEUE";
                    let accepted = "test, tsu, rxmac0, txmac0, pcs0, pmd0, i2c0, or without the number for all ports";
                    (rest.at, format!("{component:?} is no component; accepted: {accepted}; {of_queue}"))
                })?);
            }
        },
        "configure" => all.configure.push(match rest.text {
            "ports" => Configure::Ports,
            "workers" => Configure::Workers,
            "rules" => Configure::Rules,
            "clock" => Configure::Clock,
            _ => return Err(unknown()),
        }),
        _ => return Err(unknown()),
    }
    Ok(())
}

/// A word for components of which there is one kind: `rxmac0`, or `rxmac` for those of all ports.
fn known(word: &str) -> Option<String> {
    let component = word.parse().or_else(|_| format!("{word}0").parse()).ok()?;
    let of_queue = matches!(component, Component::Dma(_) | Component::TxData(_) | Component::TxHeaders(_));
    (!of_queue).then(|| word.to_owned())
}

fn queues(part: &Part<'_>) -> Result<Queues, Fault> {
    let wrong = || {
        let example = "queues are written rx0, tx0-3 or all";
        (part.at, format!("{:?} is no queue of a card; {example}, with numbers below {MAX_QUEUES}", part.text))
    };
    let (direction, range) = match (part.text.strip_prefix("rx"), part.text.strip_prefix("tx")) {
        (Some(range), _) => (Direction::Rx, range),
        (_, Some(range)) => (Direction::Tx, range),
        _ => return Err(wrong()),
    };
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u32>().ok());
    let (first, last) = (digits(first).flatten().ok_or_else(wrong)?, digits(last).flatten().ok_or_else(wrong)?);
    if first > last || last >= MAX_QUEUES { Err(wrong()) } else { Ok(Queues { direction, first, last }) }
}

#[cfg(test)]
mod tests {
    use super::super::Right;
    use super::*;

    fn names() -> Names {
        Names::new("root:x:0:0\nbob:x:1000:1000\n", "lab:x:50:\n")
    }

    fn access(grants: &[&str]) -> Access {
        let mut access = Access::default();
        grants.iter().for_each(|text| access.add(Grant::parse(text, &names()).unwrap()).unwrap());
        access
    }

    fn peer(uid: u32, gids: &[u32]) -> Peer {
        Peer { pid: 1, uid, gids: gids.to_vec() }
    }

    #[test]
    fn owner_and_root_have_everything_and_others_what_is_granted() {
        let access = access(&["user:bob=use:rx0-1,tx3", "group:lab=configure:ports", "everyone=registers:read"]);
        for uid in [0, 77] {
            assert!(access.rights_of(&peer(uid, &[]), 77).has(&Right::Admin), "{uid}");
        }
        let bob = access.rights_of(&peer(1000, &[1000, 50]), 77);
        for right in [Right::Use(QueueId::rx(1)), Right::Use(QueueId::tx(3)), Right::Configure(Configure::Ports)] {
            assert!(bob.has(&right), "{right}");
        }
        for right in [Right::Use(QueueId::rx(2)), Right::Use(QueueId::tx(0)), Right::Configure(Configure::Workers)] {
            assert!(!bob.has(&right), "{right}");
        }
        assert_eq!(bob.to_string(), "use:rx0-1,tx3+registers:read+configure:ports");
        let stranger = access.rights_of(&peer(1001, &[1001]), 77);
        assert!(stranger.has(&Right::ReadRegisters) && !stranger.has(&Right::WriteRegisters));
        assert!(Access::default().rights_of(&peer(1001, &[]), 77).is_empty());
        let eve = self::access(&["user:1002=capture"]).rights_of(&peer(1002, &[]), 77);
        assert!(eve.has(&Right::Capture) && !bob.has(&Right::Capture) && eve.to_string() == "capture");
    }

    #[test]
    fn registers_are_written_by_component_and_the_clock_is_one() {
        let access = access(&["user:1=registers:rxmac:write+registers:pcs1:write", "user:2=configure:clock"]);
        let (one, two) = (access.rights_of(&peer(1, &[]), 9), access.rights_of(&peer(2, &[]), 9));
        let may = |rights: &Rights, name: &str| rights.has(&Right::WriteComponent(name.parse().unwrap()));
        assert!(may(&one, "rxmac0") && may(&one, "rxmac7") && may(&one, "pcs1"));
        assert!(!may(&one, "pcs0") && !may(&one, "pcs11") && !may(&one, "txmac0") && !may(&one, "tsu"));
        assert!(may(&two, "tsu") && !may(&two, "rxmac0"));
        // Queues are given by `use`.
        assert!(!may(&one, "rx0") && !one.has(&Right::Use(QueueId::rx(0))));
    }

    #[test]
    fn a_wrong_grant_says_where_and_what_would_be_right() {
        for (text, at, what) in [
            ("user:bob", 8, "WHO=RIGHTS"),
            ("bob=admin", 0, "user:NAME, group:NAME or everyone"),
            ("user:eve=admin", 5, "/etc/passwd has no user \"eve\""),
            ("group:bob=admin", 6, "/etc/group has no group"),
            ("user:bob=", 9, "there are use:QUEUES"),
            ("user:bob=admin+fly", 15, "\"fly\" is no right"),
            ("user:bob=admin:x", 9, "is no right"),
            ("user:bob=use:rx0,ty1", 17, "\"ty1\" is no queue"),
            ("user:bob=use:rx5-3", 13, "is no queue"),
            ("user:bob=use:rx4096", 13, "below 4096"),
            ("user:bob=use:rx+1", 13, "is no queue"),
            ("user:bob=use:", 13, "is no queue"),
            ("user:bob=registers:rx0:write", 19, "registers of queues come with use:QUEUE"),
            ("user:bob=registers:wood:write", 19, "accepted: test, tsu"),
            ("user:bob=configure:weather", 9, "configure:ports"),
        ] {
            let error = Grant::parse(text, &names()).unwrap_err();
            assert_eq!(error.at, at, "{error}");
            assert!(error.to_string().contains(what), "{error}");
        }
        let long = format!("user:bob=use:{}rx1", "rx0,".repeat(2000));
        let error = Grant::parse(&long, &names()).unwrap_err().to_string();
        assert!(error.contains("longer than 4096 bytes") && error.len() < 200, "{error}");
    }

    #[test]
    fn lines_have_comments_and_numbers() {
        let mut access = Access::default();
        access.add_lines("# who\n\n user:bob=use:all # all\n", &names()).unwrap();
        assert!(access.rights_of(&peer(1000, &[]), 9).has(&Right::Use(QueueId::tx(4095))));
        let (line, error) = access.add_lines("\nuser:bob=no\n", &names()).unwrap_err();
        assert!(line == 2 && error.at == 9, "{error}");
    }

    #[test]
    fn queues_that_the_card_does_not_have_are_found() {
        assert_eq!(access(&["everyone=use:rx0-3,tx0"]).beyond(4, 1), None);
        assert_eq!(access(&["everyone=use:rx0-3,tx0"]).beyond(3, 1), Some(QueueId::rx(3)));
        assert_eq!(access(&["everyone=use:tx2"]).beyond(4, 2), Some(QueueId::tx(2)));
        assert_eq!(access(&["everyone=use:all"]).beyond(1, 1), None);
    }
}
