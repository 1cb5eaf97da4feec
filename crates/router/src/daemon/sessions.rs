//! Sessions of PPPoE. Programs in user space tell of theirs again and again, and each has an interface that goes when the program dies. The kernel's
//! are looked for when an interface has changed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::protocol::Session;
use crate::kernel::link::Kind;
use crate::kernel::mirror::Mirror;
use crate::kernel::pppoe;

/// Who has not told of a session for so long has none any more.
pub const LEASE: Duration = Duration::from_secs(10);

/// Sessions at a time.
const MOST: usize = 64;

/// What is known of them, by the name of the interface for packets.
#[derive(Debug, Default)]
pub struct Sessions {
    known: BTreeMap<String, (Session, Instant)>,
    of_kernel: Option<Session>,
}

/// A session as the engine is told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carried {
    /// The Ethernet interface, or a VLAN on one.
    pub lower: u32,
    /// Its number.
    pub session: u16,
    /// The access concentrator.
    pub ac: [u8; 6],
    /// Our end.
    pub own: [u8; 6],
}

impl Sessions {
    /// Takes in what a program tells; whether something is different now.
    ///
    /// # Errors
    /// Why it cannot be one, in words.
    pub fn tell(&mut self, told: Session, now: Instant) -> Result<bool, String> {
        let is_name = |name: &str| (1..16).contains(&name.len());
        let is_station = |mac: [u8; 6]| mac[0] & 1 == 0 && mac != [0; 6];
        if !is_name(&told.name) || !is_name(&told.interface) || told.name == told.interface {
            return Err("a session has an Ethernet interface, and another one for packets".to_owned());
        }
        if matches!(told.session, 0 | 0xffff) || !is_station(told.ac) || !is_station(told.own) {
            return Err("no session of PPPoE has such a number or such addresses".to_owned());
        }
        if self.known.len() >= MOST && !self.known.contains_key(&told.name) {
            return Err(format!("there are {MOST} sessions already"));
        }
        let before = self.known.insert(told.name.clone(), (told.clone(), now));
        Ok(before.is_none_or(|(before, _)| before != told))
    }

    /// A session is over; whether there was one.
    pub fn over(&mut self, name: &str) -> bool {
        self.known.remove(name).is_some()
    }

    /// Forgets those of which nobody has told for too long: their names.
    pub fn forget(&mut self, now: Instant) -> Vec<String> {
        let is_old = |told: &Instant| now.saturating_duration_since(*told) > LEASE;
        let old: Vec<String> =
            self.known.iter().filter(|(_, (_, told))| is_old(told)).map(|(name, _)| name.clone()).collect();
        for name in &old {
            self.known.remove(name);
        }
        old
    }

    /// Looks for the kernel's session; the names of interfaces for which something is different now.
    pub fn look(&mut self, mirror: &Mirror) -> Vec<String> {
        let has_any = mirror.links.values().any(|link| link.kind == Kind::Ppp);
        self.of_kernel_is(if has_any { the_only(&pppoe::sessions(), mirror) } else { None })
    }

    fn of_kernel_is(&mut self, found: Option<Session>) -> Vec<String> {
        if found == self.of_kernel {
            return Vec::new();
        }
        let before = std::mem::replace(&mut self.of_kernel, found);
        [&before, &self.of_kernel].into_iter().flatten().map(|session| session.name.clone()).collect()
    }

    /// The session that an interface of this name is for, if the one below is there.
    pub fn of(&self, name: &str, mirror: &Mirror) -> Option<Carried> {
        let of_kernel = self.of_kernel.as_ref().filter(|session| session.name == name);
        let told = self.known.get(name).map(|(told, _)| told).or(of_kernel)?;
        let lower = mirror.links.values().find(|link| link.name == told.interface)?.index;
        Some(Carried { lower, session: told.session, ac: told.ac, own: told.own })
    }

    /// All of them.
    pub fn all(&self) -> Vec<Session> {
        self.known.values().map(|(told, _)| told).chain(&self.of_kernel).cloned().collect()
    }
}

/// The kernel's session, if it has one, and one interface that it can be for: of several nobody says which is whose.
fn the_only(found: &[pppoe::Session], mirror: &Mirror) -> Option<Session> {
    let [session] = found else { return None };
    let mut interfaces = mirror.links.values().filter(|link| link.kind == Kind::Ppp);
    let (Some(link), None) = (interfaces.next(), interfaces.next()) else { return None };
    let own = mirror.named(&session.interface)?.mac?;
    let (interface, ac) = (session.interface.clone(), session.peer);
    Some(Session { name: link.name.clone(), interface, session: session.number, ac, own })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::link::Link;
    use crate::kernel::wire::Request;

    fn session(name: &str, number: u16) -> Session {
        Session {
            name: name.to_owned(),
            interface: "eth0".to_owned(),
            session: number,
            ac: [2, 0, 0, 0, 0, 1],
            own: [2, 0, 0, 0, 0, 2],
        }
    }

    #[test]
    fn a_session_lives_as_long_as_somebody_tells_of_it() {
        let (mut sessions, begin) = (Sessions::default(), Instant::now());
        assert_eq!(sessions.tell(session("ppp0", 1), begin), Ok(true));
        assert_eq!(sessions.tell(session("ppp0", 1), begin + LEASE), Ok(false));
        assert!(sessions.forget(begin + LEASE * 2).is_empty());
        assert_eq!(sessions.tell(session("ppp0", 2), begin + LEASE), Ok(true));
        assert_eq!(sessions.forget(begin + LEASE * 3), ["ppp0"]);
        assert!(sessions.all().is_empty() && !sessions.over("ppp0"));
    }

    #[test]
    fn the_kernels_session_is_that_of_the_only_interface_for_one() {
        let link = |index: u32, name: &str, medium: u16| {
            let mut header = [0; 16];
            header[2..4].copy_from_slice(&medium.to_ne_bytes());
            header[4..8].copy_from_slice(&index.to_ne_bytes());
            let mut request = Request::new(16, 0, &header).with(3, &[name.as_bytes(), b"\0"].concat());
            if medium == 1 {
                request = request.with(1, &[2, 0, 0, 0, 0, 2]);
            }
            Link::read(&request.numbered(0)[16..]).unwrap()
        };
        let mut mirror = Mirror::default();
        mirror.links.insert(2, link(2, "eth0", 1));
        let found = [pppoe::Session { number: 1, peer: [2, 0, 0, 0, 0, 1], interface: "eth0".to_owned() }];
        assert_eq!(the_only(&found, &mirror), None);
        mirror.links.insert(3, link(3, "ppp0", 512));
        assert_eq!(the_only(&found, &mirror), Some(session("ppp0", 1)));
        assert_eq!(the_only(&[found.clone(), found.clone()].concat(), &mirror), None);
        let mut sessions = Sessions::default();
        assert_eq!(sessions.of_kernel_is(the_only(&found, &mirror)), ["ppp0"]);
        assert_eq!(sessions.of("ppp0", &mirror).map(|carried| (carried.lower, carried.session)), Some((2, 1)));
        assert!(sessions.of_kernel_is(the_only(&found, &mirror)).is_empty());
        mirror.links.insert(4, link(4, "ppp1", 512));
        assert_eq!(sessions.of_kernel_is(the_only(&found, &mirror)), ["ppp0"]);
        assert!(sessions.all().is_empty());
    }

    #[test]
    fn what_can_be_no_session_is_refused() {
        let (mut sessions, now) = (Sessions::default(), Instant::now());
        let mut multicast = session("ppp0", 1);
        multicast.ac[0] = 1;
        for wrong in [session("ppp0", 0), session("eth0", 1), session("", 1), multicast] {
            assert!(sessions.tell(wrong, now).is_err());
        }
        for number in 0..MOST {
            assert_eq!(sessions.tell(session(&format!("ppp{number}"), 1), now), Ok(true));
        }
        assert!(sessions.tell(session("more", 1), now).is_err());
        assert!(sessions.tell(session("ppp0", 2), now).is_ok() && sessions.over("ppp0"));
        assert!(sessions.tell(session("more", 1), now).is_ok());
    }
}
