//! What LCP agrees on (RFC 1661 §6): sizes, magic numbers, authentication. What PPPoE has no use for is refused (RFC 2516 §7).

use crate::config::Method;
use crate::control::{Answer, Item, Verdict, protocol, put};
use crate::layer::Agreement;
use fastrand::Rng;

const MRU: u8 = 1;
const AUTHENTICATION: u8 = 3;
const MAGIC: u8 = 5;

/// Nobody who can carry IPv4 wants less.
const LEAST_MRU: u16 = 576;
/// What a side takes that has not said otherwise.
const USUAL_MRU: u16 = 1500;
/// Times in a row that our own magic number comes back before the line counts as looped.
const MOST_ECHOES: u8 = 3;

/// See above.
#[derive(Debug)]
pub(crate) struct Lcp {
    random: Rng,
    methods: Vec<Method>,
    /// What we want to receive at most, as was configured and found out.
    limit: u16,
    mru: u16,
    asks_mru: bool,
    pub magic: u32,
    asks_magic: bool,
    /// What the other side takes.
    pub peer_mru: u16,
    pub method: Option<Method>,
    /// What it wants and cannot have.
    pub refused: Option<String>,
    same_magic: u8,
}

impl Lcp {
    /// To receive packets of up to `limit` bytes.
    pub fn new(limit: u16, methods: Vec<Method>, random: Rng) -> Self {
        let mut lcp = Self {
            random,
            methods,
            limit,
            mru: limit,
            asks_mru: true,
            magic: 0,
            asks_magic: true,
            peer_mru: USUAL_MRU,
            method: None,
            refused: None,
            same_magic: 0,
        };
        lcp.begin();
        lcp
    }

    /// Whether all that comes was sent by ourselves.
    pub fn is_looped(&self) -> bool {
        self.same_magic >= MOST_ECHOES
    }

    /// What we take at most.
    pub fn mru(&self) -> u16 {
        self.mru
    }

    fn another_magic(&mut self) -> u32 {
        self.random.u32(1..)
    }

    fn authentication(&mut self, option: &Item<'_>, answer: &mut Answer) -> Option<Method> {
        let wanted = match option.value {
            [0xc0, 0x23] => Ok(Method::Pap),
            [0xc2, 0x23, 5] => Ok(Method::Chap),
            [0xc2, 0x23, 0x81] => Ok(Method::MsChapV2),
            [0xc2, 0x23, 0x80] => Err("MS-CHAP".to_owned()),
            [0xc2, 0x27, ..] => Err("EAP".to_owned()),
            other => Err(format!("protocol {}", hex(other))),
        };
        match wanted {
            Ok(method) if self.methods.contains(&method) => return Some(method),
            Ok(method) => self.refused = Some(method.to_string()),
            Err(other) => self.refused = Some(other),
        }
        match self.methods.first() {
            Some(Method::Pap) => answer.nak(option, &protocol::PAP.to_be_bytes()),
            Some(Method::Chap) => answer.nak(option, &[0xc2, 0x23, 5]),
            Some(Method::MsChapV2) => answer.nak(option, &[0xc2, 0x23, 0x81]),
            None => answer.reject(option),
        }
        None
    }

    fn magic(&mut self, option: &Item<'_>, answer: &mut Answer) {
        let Some(theirs) = word(option.value) else { return answer.reject(option) };
        if theirs != 0 && (theirs != self.magic || !self.asks_magic) {
            self.same_magic = 0;
            return;
        }
        if theirs != 0 {
            self.same_magic = self.same_magic.saturating_add(1);
        }
        let other = self.another_magic();
        answer.nak(option, &other.to_be_bytes());
    }
}

impl Agreement for Lcp {
    const PROTOCOL: u16 = protocol::LCP;

    fn begin(&mut self) {
        (self.mru, self.asks_mru, self.asks_magic) = (self.limit, true, true);
        self.magic = self.another_magic();
        (self.peer_mru, self.method, self.refused, self.same_magic) = (USUAL_MRU, None, None, 0);
    }

    fn request(&self, options: &mut Vec<u8>) {
        if self.asks_mru {
            put(options, MRU, &self.mru.to_be_bytes());
        }
        if self.asks_magic {
            put(options, MAGIC, &self.magic.to_be_bytes());
        }
    }

    fn judge(&mut self, options: &[Item<'_>], insist: bool) -> Verdict {
        let mut answer = Answer::default();
        let (mut peer_mru, mut method) = (USUAL_MRU, None);
        for option in options {
            match (option.kind, option.value) {
                (MRU, [a, b]) => match u16::from_be_bytes([*a, *b]) {
                    mru @ LEAST_MRU.. => peer_mru = mru,
                    _ => answer.nak(option, &crate::USUAL_MTU.to_be_bytes()),
                },
                (AUTHENTICATION, _) => method = self.authentication(option, &mut answer),
                (MAGIC, _) => self.magic(option, &mut answer),
                _ => answer.reject(option),
            }
        }
        let verdict = answer.verdict(insist);
        if verdict == Verdict::Ack {
            (self.peer_mru, self.method) = (peer_mru, method);
        }
        verdict
    }

    fn suggested(&mut self, option: &Item<'_>) {
        match (option.kind, option.value) {
            // Less than we can take is taken, more is not.
            (MRU, [a, b]) => self.mru = u16::from_be_bytes([*a, *b]).clamp(LEAST_MRU, self.limit.max(LEAST_MRU)),
            (MAGIC, _) => self.magic = self.another_magic(),
            _ => {}
        }
    }

    fn rejected(&mut self, kind: u8) {
        match kind {
            MRU => self.asks_mru = false,
            MAGIC => (self.asks_magic, self.magic) = (false, 0),
            _ => {}
        }
    }
}

/// Four bytes as a number.
pub(crate) fn word(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.try_into().ok()?))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Options;

    fn lcp(methods: &[Method]) -> Lcp {
        Lcp::new(1492, methods.to_vec(), Rng::with_seed(7))
    }

    fn judged(lcp: &mut Lcp, options: &[u8]) -> Verdict {
        let options: Vec<_> = Options(options).map(Result::unwrap).collect();
        lcp.judge(&options, false)
    }

    #[test]
    fn what_pppoe_has_no_use_for_is_refused() {
        let mut lcp = lcp(&Method::ALL);
        // The map of control characters, and both compressions.
        let useless = [2, 6, 0, 0, 0, 0, 7, 2, 8, 2, 4, 4, 0xc0, 0x25];
        assert_eq!(judged(&mut lcp, &useless), Verdict::Reject(useless.to_vec()));
        assert_eq!(judged(&mut lcp, &[1, 4, 0x05, 0xd4, 5, 6, 1, 2, 3, 4]), Verdict::Ack);
        assert_eq!(lcp.peer_mru, 1492);
        assert_eq!(judged(&mut lcp, &[1, 4, 0, 100]), Verdict::Nak(vec![1, 4, 0x05, 0xd4]));
        assert_eq!(judged(&mut lcp, &[1, 3, 5]), Verdict::Reject(vec![1, 3, 5]));
        // Nothing said is the usual size.
        assert_eq!((judged(&mut lcp, &[]), lcp.peer_mru), (Verdict::Ack, 1500));
    }

    #[test]
    fn authentication_is_chosen() {
        let chap = [3, 5, 0xc2, 0x23, 5];
        let mut all = lcp(&Method::ALL);
        assert_eq!((judged(&mut all, &chap), all.method), (Verdict::Ack, Some(Method::Chap)));
        assert_eq!(judged(&mut all, &[3, 5, 0xc2, 0x23, 0x80]), Verdict::Nak(vec![3, 5, 0xc2, 0x23, 0x81]));
        let mut pap = lcp(&[Method::Pap]);
        assert_eq!(judged(&mut pap, &chap), Verdict::Nak(vec![3, 4, 0xc0, 0x23]));
        assert_eq!(pap.refused.as_deref(), Some("CHAP"));
        assert_eq!(judged(&mut lcp(&[]), &chap), Verdict::Reject(chap.to_vec()));
    }

    #[test]
    fn a_looped_line_is_noticed() {
        let mut lcp = lcp(&Method::ALL);
        for _ in 0..MOST_ECHOES {
            assert!(!lcp.is_looped());
            let own = [&[5, 6][..], &lcp.magic.to_be_bytes()].concat();
            assert!(matches!(judged(&mut lcp, &own), Verdict::Nak(_)));
        }
        assert!(lcp.is_looped());
    }

    #[test]
    fn we_take_what_is_suggested_within_limits() {
        let mut lcp = lcp(&Method::ALL);
        for (suggested, taken) in [(1000u16, 1000), (9000, 1492), (0, 576)] {
            let option = [&[1, 4][..], &suggested.to_be_bytes()].concat();
            lcp.suggested(&Options(&option).next().unwrap().unwrap());
            assert_eq!(lcp.mru(), taken);
        }
        lcp.rejected(MAGIC);
        let mut options = Vec::new();
        lcp.request(&mut options);
        assert_eq!((options, lcp.magic), (vec![1, 4, 0x02, 0x40], 0));
    }
}
