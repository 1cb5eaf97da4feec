//! A control protocol: the automaton, its timer, its identifiers, and limits on how long the other side may make it talk.

use crate::Moment;
use crate::automaton::{Action, Event, State, transition};
use crate::control::{Item, Options, Packet, Verdict, code};
use std::time::Duration;

/// How long an answer is waited for (RFC 1661 §4.6).
const RESTART: Duration = Duration::from_secs(3);
/// The same at the end, when nothing depends on it.
const RESTART_END: Duration = Duration::from_secs(1);
/// Max-Configure.
const MOST_REQUESTS: u8 = 10;
/// Max-Terminate.
const MOST_TERMINATES: u8 = 2;
/// Max-Failure: Naks before Reject.
const MOST_NAKS: u8 = 5;
/// Configure packets that the other side may send until there is an agreement, and as long as none has lasted for [`CALM`].
const MOST_WORDS: u8 = 60;
/// An agreement that has held for so long is one.
const CALM: Duration = Duration::from_secs(60);

/// Packets that go out: protocol and bytes.
pub(crate) type Out = Vec<(u16, Vec<u8>)>;

/// What a protocol agrees on.
pub(crate) trait Agreement {
    /// Its number.
    const PROTOCOL: u16;
    /// Forgets what was agreed on, for another negotiation.
    fn begin(&mut self);
    /// What we want.
    fn request(&self, options: &mut Vec<u8>);
    /// What we say to what the other side wants. It counts if that is [`Verdict::Ack`].
    fn judge(&mut self, options: &[Item<'_>], insist: bool) -> Verdict;
    /// What the other side wants of us instead of what we have asked for.
    fn suggested(&mut self, option: &Item<'_>);
    /// What the other side does not want of us at all.
    fn rejected(&mut self, kind: u8);
}

/// What a layer says to the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    Up,
    Down,
    Finished(Cause),
}

/// Why it has finished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Cause {
    /// We wanted it, or what is below has gone.
    #[default]
    Ours,
    /// No answers.
    Silence,
    /// The other side has ended it.
    Theirs,
    /// The other side does not know what we cannot do without.
    Rejected,
    /// Too many words.
    Endless,
}

/// A control protocol.
#[derive(Debug)]
pub(crate) struct Layer<A> {
    pub agreement: A,
    state: State,
    id: u8,
    /// The options of the last request.
    asked: Vec<u8>,
    tries: u8,
    timer: Option<Moment>,
    naks: u8,
    words: u8,
    opened: Moment,
    cause: Cause,
    signals: Vec<Signal>,
}

impl<A: Agreement> Layer<A> {
    pub fn new(agreement: A, id: u8) -> Self {
        Self {
            agreement,
            state: State::Initial,
            id,
            asked: Vec::new(),
            tries: 0,
            timer: None,
            naks: 0,
            words: MOST_WORDS,
            opened: Moment::ZERO,
            cause: Cause::Ours,
            signals: Vec::new(),
        }
    }

    pub fn state(&self) -> State {
        self.state
    }

    pub fn is_open(&self) -> bool {
        self.state == State::Opened
    }

    /// When the timer ends.
    pub fn timer(&self) -> Option<Moment> {
        self.timer
    }

    /// The next thing that it has to say.
    pub fn signal(&mut self) -> Option<Signal> {
        (!self.signals.is_empty()).then(|| self.signals.remove(0))
    }

    /// Something that no packet has told.
    pub fn happens(&mut self, now: Moment, event: Event, out: &mut Out) {
        self.step(now, event, &Packet { code: 0, id: 0, data: &[] }, Verdict::Ack, out);
    }

    /// Ends it with a reason of its own.
    fn give_up(&mut self, now: Moment, cause: Cause, event: Event, out: &mut Out) {
        self.cause = cause;
        self.happens(now, event, out);
    }

    /// If it is time.
    pub fn tick(&mut self, now: Moment, out: &mut Out) {
        if self.timer.is_none_or(|timer| now < timer) {
            return;
        }
        if self.tries > 0 {
            return self.happens(now, Event::Timeout, out);
        }
        if !matches!(self.state, State::Closing | State::Stopping) {
            self.cause = Cause::Silence;
        }
        self.happens(now, Event::LastTimeout, out);
    }

    /// A packet of this protocol. Codes above [`code::CODE_REJECT`] are LCP's alone, and have been looked at.
    pub fn receive(&mut self, now: Moment, packet: &Packet<'_>, out: &mut Out) {
        if matches!(self.state, State::Initial | State::Starting) {
            return;
        }
        match packet.code {
            code::CONFIGURE_REQUEST => self.requested(now, packet, out),
            code::CONFIGURE_ACK if packet.id == self.id && packet.data == self.asked => {
                self.with_words(now, Event::Ack, packet, out);
            }
            code::CONFIGURE_NAK | code::CONFIGURE_REJECT if packet.id == self.id => self.declined(now, packet, out),
            // An answer to something else.
            code::CONFIGURE_ACK | code::CONFIGURE_NAK | code::CONFIGURE_REJECT => {}
            code::TERMINATE_REQUEST => {
                if !matches!(self.state, State::Closing | State::Stopping) {
                    self.cause = Cause::Theirs;
                }
                self.step(now, Event::Terminate, packet, Verdict::Ack, out);
            }
            code::TERMINATE_ACK => self.happens(now, Event::TerminateAck, out),
            code::CODE_REJECT => match packet.data.first() {
                Some(code::CONFIGURE_REQUEST..=code::CODE_REJECT) => {
                    self.give_up(now, Cause::Rejected, Event::Fatal, out);
                }
                _ => self.happens(now, Event::Rejected, out),
            },
            _ => self.step(now, Event::Unknown, packet, Verdict::Ack, out),
        }
    }

    /// The other side does not know this protocol.
    pub fn not_known(&mut self, now: Moment, out: &mut Out) {
        if !matches!(self.state, State::Initial | State::Starting) {
            self.give_up(now, Cause::Rejected, Event::Fatal, out);
        }
    }

    /// A packet by which the other side talks instead of agreeing.
    fn with_words(&mut self, now: Moment, event: Event, packet: &Packet<'_>, out: &mut Out) {
        self.with_verdict(now, event, packet, Verdict::Ack, out);
    }

    fn with_verdict(&mut self, now: Moment, event: Event, packet: &Packet<'_>, verdict: Verdict, out: &mut Out) {
        if self.is_open() && now.saturating_sub(self.opened) >= CALM {
            (self.words, self.naks) = (MOST_WORDS, 0);
        }
        match self.words.checked_sub(1) {
            Some(left) => self.words = left,
            None => return self.give_up(now, Cause::Endless, Event::Fatal, out),
        }
        self.step(now, event, packet, verdict, out);
    }

    fn requested(&mut self, now: Moment, packet: &Packet<'_>, out: &mut Out) {
        let Ok(options) = Options(packet.data).collect::<Result<Vec<_>, _>>() else { return };
        if matches!(self.state, State::Stopped | State::Opened) {
            self.agreement.begin();
        }
        let verdict = if matches!(self.state, State::Closed | State::Closing | State::Stopping) {
            Verdict::Ack
        } else {
            self.agreement.judge(&options, self.naks >= MOST_NAKS)
        };
        if matches!(verdict, Verdict::Nak(_)) {
            self.naks = self.naks.saturating_add(1);
        }
        let event = if verdict == Verdict::Ack { Event::GoodRequest } else { Event::BadRequest };
        self.with_verdict(now, event, packet, verdict, out);
    }

    fn declined(&mut self, now: Moment, packet: &Packet<'_>, out: &mut Out) {
        let Ok(options) = Options(packet.data).collect::<Result<Vec<_>, _>>() else { return };
        if matches!(self.state, State::ReqSent | State::AckRcvd | State::AckSent | State::Opened) {
            for option in &options {
                match packet.code {
                    code::CONFIGURE_NAK => self.agreement.suggested(option),
                    _ => self.agreement.rejected(option.kind),
                }
            }
        }
        self.with_words(now, Event::Nak, packet, out);
    }

    fn step(&mut self, now: Moment, event: Event, packet: &Packet<'_>, verdict: Verdict, out: &mut Out) {
        let Some((actions, next)) = transition(self.state, event) else { return };
        if next == State::Opened && self.state != State::Opened {
            self.opened = now;
        }
        // What is asked for the first time is asked for anew.
        if matches!(event, Event::Up | Event::Open) && actions.contains(&Action::SendRequest) {
            self.agreement.begin();
            (self.words, self.naks, self.cause) = (MOST_WORDS, 0, Cause::Ours);
        }
        self.state = next;
        for action in actions {
            self.act(now, *action, event, packet, &verdict, out);
        }
        if !self.state.is_timed() {
            self.timer = None;
        }
    }

    fn act(
        &mut self,
        now: Moment,
        action: Action,
        event: Event,
        packet: &Packet<'_>,
        verdict: &Verdict,
        out: &mut Out,
    ) {
        let mut send = |code, id, data: &[u8]| out.push((A::PROTOCOL, Packet { code, id, data }.build()));
        match action {
            Action::LayerUp => self.signals.push(Signal::Up),
            Action::LayerDown => self.signals.push(Signal::Down),
            Action::LayerStarted => {}
            Action::LayerFinished => self.signals.push(Signal::Finished(self.cause)),
            Action::InitCount => {
                let ending = matches!(self.state, State::Closing | State::Stopping);
                self.tries = if ending { MOST_TERMINATES } else { MOST_REQUESTS };
            }
            Action::ZeroCount => (self.tries, self.timer) = (0, Some(now + RESTART_END)),
            Action::SendRequest => {
                self.ask(event == Event::Timeout);
                send(code::CONFIGURE_REQUEST, self.id, &self.asked);
                (self.tries, self.timer) = (self.tries.saturating_sub(1), Some(now + RESTART));
            }
            Action::SendAck => send(code::CONFIGURE_ACK, packet.id, packet.data),
            Action::SendNak => match verdict {
                Verdict::Nak(options) => send(code::CONFIGURE_NAK, packet.id, options),
                Verdict::Reject(options) => send(code::CONFIGURE_REJECT, packet.id, options),
                Verdict::Ack => {}
            },
            Action::SendTerminate => {
                self.id = self.id.wrapping_add(1);
                send(code::TERMINATE_REQUEST, self.id, &[]);
                (self.tries, self.timer) = (self.tries.saturating_sub(1), Some(now + RESTART_END));
            }
            Action::SendTerminateAck => send(code::TERMINATE_ACK, packet.id, &[]),
            Action::SendCodeReject => {
                self.id = self.id.wrapping_add(1);
                send(code::CODE_REJECT, self.id, &rejected(packet));
            }
            // LCP's echoes are answered by the link, which knows the magic number.
            Action::SendEcho => {}
        }
    }

    /// What we ask for; what is only asked for once more has the same identifier, so that a late answer is one.
    fn ask(&mut self, again: bool) {
        if again && !self.asked.is_empty() {
            return;
        }
        self.id = self.id.wrapping_add(1);
        self.asked.clear();
        self.agreement.request(&mut self.asked);
    }

    /// An identifier for a packet of LCP that nobody asks for.
    pub fn next_id(&mut self) -> u8 {
        self.id = self.id.wrapping_add(1);
        self.id
    }
}

/// A packet as it stands in a reject: no longer than any side has to take.
fn rejected(packet: &Packet<'_>) -> Vec<u8> {
    let mut bytes = packet.build();
    bytes.truncate(512);
    bytes
}
