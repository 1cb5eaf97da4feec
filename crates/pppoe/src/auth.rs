//! Saying who we are: PAP (RFC 1334), CHAP with MD5 (RFC 1994), MS-CHAPv2 (RFC 2759).

use crate::config::{Method, Secret};
use crate::control::{Packet, protocol};
use crate::layer::Out;
use crate::mschap::Exchange;
use crate::{Failure, Moment, text};
use fastrand::Rng;
use md5::{Digest, Md5};
use std::time::Duration;

/// PAP: how long an answer is waited for, and how often it is asked for.
const RESTART: Duration = Duration::from_secs(3);
const MOST_REQUESTS: u8 = 10;
/// CHAP: how long the other side may take until it asks, and until it answers.
const PATIENCE: Duration = Duration::from_secs(30);

const CHALLENGE: u8 = 1;
const RESPONSE: u8 = 2;
const SUCCESS: u8 = 3;
const FAILURE: u8 = 4;
/// PAP's.
const REQUEST: u8 = 1;
const ACK: u8 = 2;
const NAK: u8 = 3;

/// What became of it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Nothing yet, or nothing new.
    Open,
    /// The other side believes us.
    Done,
    Failed(Failure),
}

/// Who says who we are.
#[derive(Debug)]
pub(crate) struct Auth {
    method: Method,
    user: String,
    password: Secret,
    random: Rng,
    id: u8,
    tries: u8,
    timer: Option<Moment>,
    /// The challenge that was answered last has this number; with MS-CHAPv2, what the other side has to send.
    answered: Option<(u8, Option<String>)>,
    done: bool,
}

impl Auth {
    pub fn new(method: Method, user: &str, password: &Secret, random: Rng, now: Moment, out: &mut Out) -> Self {
        let (user, password) = (user.to_owned(), password.clone());
        let mut auth = Self {
            method,
            user,
            password,
            random,
            id: 0,
            tries: MOST_REQUESTS,
            timer: None,
            answered: None,
            done: false,
        };
        match method {
            Method::Pap => auth.ask(now, out),
            _ => auth.timer = Some(now + PATIENCE),
        }
        auth
    }

    pub fn method(&self) -> Method {
        self.method
    }

    pub fn timer(&self) -> Option<Moment> {
        self.timer
    }

    /// The protocol that it speaks.
    pub fn protocol(&self) -> u16 {
        if self.method == Method::Pap { protocol::PAP } else { protocol::CHAP }
    }

    pub fn tick(&mut self, now: Moment, out: &mut Out) -> Outcome {
        if self.timer.is_none_or(|timer| now < timer) {
            return Outcome::Open;
        }
        if self.method == Method::Pap && self.tries > 0 {
            self.ask(now, out);
            return Outcome::Open;
        }
        self.timer = None;
        Outcome::Failed(Failure::AuthenticationSilent(self.method))
    }

    /// A packet of its protocol.
    pub fn receive(&mut self, now: Moment, packet: &Packet<'_>, out: &mut Out) -> Outcome {
        match self.method {
            Method::Pap => self.pap(packet),
            _ => self.chap(now, packet, out),
        }
    }

    fn ask(&mut self, now: Moment, out: &mut Out) {
        self.id = self.id.wrapping_add(1);
        self.tries -= 1;
        self.timer = Some(now + RESTART);
        // Both are at most 255 bytes: `Config::check`.
        let (user, password) = (self.user.as_bytes(), self.password.bytes());
        let data = [&[user.len() as u8], user, &[password.len() as u8], password].concat();
        out.push((protocol::PAP, Packet { code: REQUEST, id: self.id, data: &data }.build()));
    }

    fn pap(&mut self, packet: &Packet<'_>) -> Outcome {
        if self.done || packet.id != self.id {
            return Outcome::Open;
        }
        let said = packet
            .data
            .split_first()
            .map_or("".into(), |(len, rest)| text(rest.get(..usize::from(*len)).unwrap_or(rest)));
        match packet.code {
            ACK => self.believed(),
            NAK => self.not_believed(said),
            _ => Outcome::Open,
        }
    }

    fn believed(&mut self) -> Outcome {
        (self.timer, self.done) = (None, true);
        Outcome::Done
    }

    fn not_believed(&mut self, text: String) -> Outcome {
        self.timer = None;
        Outcome::Failed(Failure::NotAuthenticated { method: self.method, text })
    }

    fn chap(&mut self, now: Moment, packet: &Packet<'_>, out: &mut Out) -> Outcome {
        match (packet.code, &self.answered) {
            (CHALLENGE, _) => {
                self.challenged(now, packet, out);
                Outcome::Open
            }
            (SUCCESS, Some((id, proof))) if *id == packet.id => {
                if proof.as_ref().is_some_and(|proof| !proves(packet.data, proof)) {
                    return Outcome::Failed(Failure::Impostor);
                }
                // Of a later challenge: still believed.
                let news = !self.done;
                let believed = self.believed();
                if news { believed } else { Outcome::Open }
            }
            (FAILURE, Some((id, _))) if *id == packet.id => {
                let said = text(packet.data);
                self.not_believed(said)
            }
            _ => Outcome::Open,
        }
    }

    /// It may ask at any time (RFC 1994 §2).
    fn challenged(&mut self, now: Moment, packet: &Packet<'_>, out: &mut Out) {
        let Some((len, rest)) = packet.data.split_first() else { return };
        let Some(challenge) = rest.get(..usize::from(*len)) else { return };
        let (value, proof) = match (self.method, challenge) {
            (_, []) => return,
            (Method::MsChapV2, theirs) => {
                let Ok(theirs) = theirs.try_into() else { return };
                let ours: [u8; 16] = std::array::from_fn(|_| self.random.u8(..));
                let (user, password) = (self.user.as_bytes(), self.password.bytes());
                let exchange = Exchange { user, password, theirs, ours: &ours };
                let response = exchange.response();
                ([&ours[..], &[0; 8], &response, &[0]].concat(), Some(exchange.proof(&response)))
            }
            (_, theirs) => {
                let hash =
                    Md5::new().chain_update([packet.id]).chain_update(self.password.bytes()).chain_update(theirs);
                (hash.finalize().to_vec(), None)
            }
        };
        let data = [&[value.len() as u8][..], &value, self.user.as_bytes()].concat();
        out.push((protocol::CHAP, Packet { code: RESPONSE, id: packet.id, data: &data }.build()));
        self.answered = Some((packet.id, proof));
        if !self.done {
            // From the first on: who asks again and again has not more time.
            self.timer = self.timer.or(Some(now + PATIENCE));
        }
    }
}

/// Whether a Success of MS-CHAPv2 proves that the other side knows the password: `S=` and 40 letters, and a remark.
fn proves(message: &[u8], proof: &str) -> bool {
    let letters = message.strip_prefix(b"S=").and_then(|rest| rest.get(..40));
    letters.is_some_and(|letters| letters.eq_ignore_ascii_case(proof.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Moment = Moment::ZERO;

    fn auth(method: Method) -> (Auth, Out) {
        let mut out = Out::new();
        let auth = Auth::new(method, "me", &"secret".into(), Rng::with_seed(1), NOW, &mut out);
        (auth, out)
    }

    fn hear(auth: &mut Auth, code: u8, id: u8, data: &[u8]) -> (Outcome, Out) {
        let mut out = Out::new();
        (auth.receive(NOW, &Packet { code, id, data }, &mut out), out)
    }

    #[test]
    fn a_password_in_the_clear() {
        let (mut pap, out) = auth(Method::Pap);
        assert_eq!(out, [(protocol::PAP, b"\x01\x01\x00\x0e\x02me\x06secret".to_vec())]);
        assert_eq!(hear(&mut pap, ACK, 7, b"\0").0, Outcome::Open);
        assert_eq!(hear(&mut pap, ACK, 1, b"\0").0, Outcome::Done);
        let (mut pap, _) = auth(Method::Pap);
        let failure = Failure::NotAuthenticated { method: Method::Pap, text: "no?".into() };
        assert_eq!(hear(&mut pap, NAK, 1, b"\x03no\n...").0, Outcome::Failed(failure));
    }

    #[test]
    fn a_password_that_nobody_answers_is_said_ten_times() {
        let (mut pap, mut out) = auth(Method::Pap);
        let mut now = NOW;
        loop {
            now += RESTART;
            if let Outcome::Failed(failure) = pap.tick(now, &mut out) {
                assert_eq!(failure, Failure::AuthenticationSilent(Method::Pap));
                break;
            }
        }
        assert_eq!((out.len(), pap.timer()), (10, None));
    }

    /// MD5 of 01, the password and the challenge, as `md5sum` says it.
    #[test]
    fn a_challenge_is_answered() {
        let (mut chap, out) = auth(Method::Chap);
        assert!(out.is_empty());
        // Nobody has asked.
        assert_eq!(hear(&mut chap, SUCCESS, 0, b""), (Outcome::Open, vec![]));
        let (outcome, out) = hear(&mut chap, CHALLENGE, 1, b"\x04abcdserver");
        assert_eq!(outcome, Outcome::Open);
        let (_, answer) = &out[0];
        assert_eq!(answer[..5], [RESPONSE, 1, 0, 23, 16]);
        assert_eq!(answer[5..21], Md5::digest(b"\x01secretabcd")[..]);
        assert_eq!(answer[21..], b"me"[..]);
        assert_eq!(hear(&mut chap, FAILURE, 2, b"").0, Outcome::Open);
        assert_eq!(hear(&mut chap, SUCCESS, 1, b"hello").0, Outcome::Done);
        assert_eq!(chap.timer(), None);
        // It asks again, and still believes us; or not any more.
        assert_eq!(hear(&mut chap, CHALLENGE, 5, b"\x01x").1.len(), 1);
        assert_eq!(hear(&mut chap, SUCCESS, 5, b"").0, Outcome::Open);
        hear(&mut chap, CHALLENGE, 6, b"\x01x");
        assert!(matches!(hear(&mut chap, FAILURE, 6, b"go").0, Outcome::Failed(Failure::NotAuthenticated { .. })));
        for malformed in [&b""[..], b"\0", b"\x05abc"] {
            assert!(hear(&mut chap, CHALLENGE, 1, malformed).1.is_empty());
        }
    }

    #[test]
    fn who_does_not_know_the_password_is_an_impostor() {
        let (mut chap, _) = auth(Method::MsChapV2);
        let theirs = [7; 16];
        let challenge = [&[16][..], &theirs, b"server"].concat();
        let (_, out) = hear(&mut chap, CHALLENGE, 1, &challenge);
        let value = &out[0].1[5..54];
        let (ours, response) = (value[..16].try_into().unwrap(), value[24..48].try_into().unwrap());
        let exchange = Exchange { user: b"me", password: b"secret", theirs: &theirs, ours: &ours };
        assert_eq!(exchange.response(), response);
        let proof = format!("S={} M=welcome", exchange.proof(&response));
        let wrong = proof.replace("S=", "S=0");
        assert_eq!(hear(&mut chap, SUCCESS, 1, wrong.as_bytes()).0, Outcome::Failed(Failure::Impostor));
        assert_eq!(hear(&mut chap, SUCCESS, 1, b"").0, Outcome::Failed(Failure::Impostor));
        assert_eq!(hear(&mut chap, SUCCESS, 1, proof.as_bytes()).0, Outcome::Done);
    }

    #[test]
    fn who_asks_for_ever_has_not_more_time() {
        let (mut chap, _) = auth(Method::Chap);
        let mut out = Out::new();
        for second in 0..30 {
            let now = Duration::from_secs(second);
            assert_eq!(chap.tick(now, &mut out), Outcome::Open);
            chap.receive(now, &Packet { code: CHALLENGE, id: 1, data: b"\x01x" }, &mut out);
        }
        assert!(matches!(chap.tick(PATIENCE, &mut out), Outcome::Failed(Failure::AuthenticationSilent(_))));
    }
}
