//! The automaton of RFC 1661 §4: what a control protocol of PPP does at what happens.

use Action::*;
use State::*;

/// Where a control protocol is (RFC 1661 §4.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// What is below is down, and nobody wants it.
    #[default]
    Initial,
    /// What is below is down, and it is wanted.
    Starting,
    /// Nobody wants it.
    Closed,
    /// It waits for the other side to begin, or has given up.
    Stopped,
    /// We want to end it, and wait for the answer.
    Closing,
    /// The other side has ended it.
    Stopping,
    /// We have asked.
    ReqSent,
    /// We have asked, and are answered.
    AckRcvd,
    /// We have asked, and have answered.
    AckSent,
    /// Both.
    Opened,
}

/// What happens (RFC 1661 §4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// What is below is up.
    Up,
    /// What is below is down.
    Down,
    /// It is wanted.
    Open,
    /// It is not wanted any more.
    Close,
    /// The timer has ended, and there is another try.
    Timeout,
    /// The timer has ended, and there is none.
    LastTimeout,
    /// A Configure-Request that we agree with.
    GoodRequest,
    /// One that we do not.
    BadRequest,
    /// A Configure-Ack.
    Ack,
    /// A Configure-Nak or Configure-Reject.
    Nak,
    /// A Terminate-Request.
    Terminate,
    /// A Terminate-Ack.
    TerminateAck,
    /// A code that is not known.
    Unknown,
    /// A reject of what can be done without.
    Rejected,
    /// A reject of what cannot.
    Fatal,
    /// An Echo-Request, Echo-Reply or Discard-Request.
    Echo,
}

/// What is to be done (RFC 1661 §4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// tlu: it is up.
    LayerUp,
    /// tld: it is down.
    LayerDown,
    /// tls: what is below is wanted.
    LayerStarted,
    /// tlf: what is below is not wanted any more.
    LayerFinished,
    /// irc: as many tries as there are.
    InitCount,
    /// zrc: no more tries.
    ZeroCount,
    /// scr
    SendRequest,
    /// sca
    SendAck,
    /// scn: Nak or Reject.
    SendNak,
    /// str
    SendTerminate,
    /// sta
    SendTerminateAck,
    /// scj
    SendCodeReject,
    /// ser
    SendEcho,
}

impl State {
    /// All, in the RFC's order.
    pub const ALL: [Self; 10] =
        [Initial, Starting, Closed, Stopped, Closing, Stopping, ReqSent, AckRcvd, AckSent, Opened];

    /// Whether the restart timer runs.
    pub fn is_timed(self) -> bool {
        matches!(self, Closing | Stopping | ReqSent | AckRcvd | AckSent)
    }
}

impl Event {
    /// All, in the RFC's order.
    pub const ALL: [Self; 16] = [
        Self::Up,
        Self::Down,
        Self::Open,
        Self::Close,
        Self::Timeout,
        Self::LastTimeout,
        Self::GoodRequest,
        Self::BadRequest,
        Self::Ack,
        Self::Nak,
        Self::Terminate,
        Self::TerminateAck,
        Self::Unknown,
        Self::Rejected,
        Self::Fatal,
        Self::Echo,
    ];
}

/// What is to be done, in this order, and where it leads; `None` where the event cannot be (RFC 1661 §4.1: `-`).
///
/// Without the option of restarting (`r`), and with passive (`p`) left to whoever opens it again.
pub fn transition(state: State, event: Event) -> Option<(&'static [Action], State)> {
    // What is below decides first: a frame cannot come where it is down.
    match (state, event) {
        (Initial | Starting, Event::Up | Event::Open | Event::Close) => {}
        (Initial | Starting, _) | (_, Event::Up) => return None,
        _ => {}
    }
    let done: (&'static [Action], State) = match event {
        Event::Up if state == Initial => (&[], Closed),
        Event::Up => (&[InitCount, SendRequest], ReqSent),
        Event::Down => down(state),
        Event::Open => open(state),
        Event::Close => close(state),
        Event::Timeout | Event::LastTimeout if !state.is_timed() => return None,
        Event::Timeout => timeout(state),
        Event::LastTimeout if state == Closing => (&[LayerFinished], Closed),
        Event::LastTimeout => (&[LayerFinished], Stopped),
        Event::GoodRequest => good_request(state),
        Event::BadRequest => bad_request(state),
        Event::Ack => ack(state),
        Event::Nak => nak(state),
        Event::Terminate => terminate(state),
        Event::TerminateAck => terminate_ack(state),
        Event::Unknown => (&[SendCodeReject], state),
        Event::Rejected if state == AckRcvd => (&[], ReqSent),
        Event::Rejected => (&[], state),
        Event::Fatal => fatal(state),
        Event::Echo if state == Opened => (&[SendEcho], state),
        Event::Echo => (&[], state),
    };
    Some(done)
}

type Done = (&'static [Action], State);

fn down(state: State) -> Done {
    match state {
        Closed | Closing | Initial => (&[], Initial),
        Stopped => (&[LayerStarted], Starting),
        Opened => (&[LayerDown], Starting),
        _ => (&[], Starting),
    }
}

fn open(state: State) -> Done {
    match state {
        Initial => (&[LayerStarted], Starting),
        Closed => (&[InitCount, SendRequest], ReqSent),
        Closing => (&[], Stopping),
        same => (&[], same),
    }
}

fn close(state: State) -> Done {
    match state {
        Starting => (&[LayerFinished], Initial),
        Initial => (&[], Initial),
        Closed | Stopped => (&[], Closed),
        Closing | Stopping => (&[], Closing),
        Opened => (&[LayerDown, InitCount, SendTerminate], Closing),
        _ => (&[InitCount, SendTerminate], Closing),
    }
}

fn timeout(state: State) -> Done {
    match state {
        Closing | Stopping => (&[SendTerminate], state),
        AckSent => (&[SendRequest], AckSent),
        _ => (&[SendRequest], ReqSent),
    }
}

fn good_request(state: State) -> Done {
    match state {
        Stopped => (&[InitCount, SendRequest, SendAck], AckSent),
        ReqSent | AckSent => (&[SendAck], AckSent),
        AckRcvd => (&[SendAck, LayerUp], Opened),
        Opened => (&[LayerDown, SendRequest, SendAck], AckSent),
        other => not_now(other),
    }
}

fn bad_request(state: State) -> Done {
    match state {
        Stopped => (&[InitCount, SendRequest, SendNak], ReqSent),
        ReqSent | AckSent => (&[SendNak], ReqSent),
        AckRcvd => (&[SendNak], AckRcvd),
        Opened => (&[LayerDown, SendRequest, SendNak], ReqSent),
        other => not_now(other),
    }
}

fn ack(state: State) -> Done {
    match state {
        Stopped => (&[SendTerminateAck], Stopped),
        ReqSent => (&[InitCount], AckRcvd),
        AckRcvd => (&[SendRequest], ReqSent),
        AckSent => (&[InitCount, LayerUp], Opened),
        Opened => (&[LayerDown, SendRequest], ReqSent),
        other => not_now(other),
    }
}

fn nak(state: State) -> Done {
    match state {
        Stopped => (&[SendTerminateAck], Stopped),
        ReqSent => (&[InitCount, SendRequest], ReqSent),
        AckRcvd => (&[SendRequest], ReqSent),
        AckSent => (&[InitCount, SendRequest], AckSent),
        Opened => (&[LayerDown, SendRequest], ReqSent),
        other => not_now(other),
    }
}

/// Negotiation where there is none: who closes says that it has ended, who waits for the end says nothing.
fn not_now(state: State) -> Done {
    if state == Closed { (&[SendTerminateAck], Closed) } else { (&[], state) }
}

fn terminate(state: State) -> Done {
    match state {
        Opened => (&[LayerDown, ZeroCount, SendTerminateAck], Stopping),
        AckRcvd | AckSent => (&[SendTerminateAck], ReqSent),
        same => (&[SendTerminateAck], same),
    }
}

fn terminate_ack(state: State) -> Done {
    match state {
        Closing => (&[LayerFinished], Closed),
        Stopping => (&[LayerFinished], Stopped),
        AckRcvd => (&[], ReqSent),
        Opened => (&[LayerDown, SendRequest], ReqSent),
        same => (&[], same),
    }
}

fn fatal(state: State) -> Done {
    match state {
        Closed | Closing => (&[LayerFinished], Closed),
        Opened => (&[LayerDown, InitCount, SendTerminate], Stopping),
        _ => (&[LayerFinished], Stopped),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of RFC 1661 §4.1, a line for each event, a column for each state: actions in the RFC's letters, and the number of the next state. Letters behind
    /// it (restart, passive, crossed) are remarks.
    const TABLE: &str = "
        Up   | 2     irc,scr/6 -     -             -     -     | -         -         -         -
        Down | -     -         0     tls/1         0     1     | 1         1         1         tld/1
        Open | tls/1 1     irc,scr/6 3r            5r    5r    | 6         7         8         9r
        Close| 0     tlf/0     2     2             4     4     | irc,str/4 irc,str/4 irc,str/4 tld,irc,str/4
        TO+  | -     -         -     -             str/4 str/5 | scr/6     scr/6     scr/8     -
        TO-  | -     -         -     -             tlf/2 tlf/3 | tlf/3p    tlf/3p    tlf/3p    -
        RCR+ | -     -         sta/2 irc,scr,sca/8 4     5     | sca/8     sca,tlu/9 sca/8     tld,scr,sca/8
        RCR- | -     -         sta/2 irc,scr,scn/6 4     5     | scn/6     scn/7     scn/6     tld,scr,scn/6
        RCA  | -     -         sta/2 sta/3         4     5     | irc/7     scr/6x    irc,tlu/9 tld,scr/6x
        RCN  | -     -         sta/2 sta/3         4     5     | irc,scr/6 scr/6x    irc,scr/8 tld,scr/6x
        RTR  | -     -         sta/2 sta/3         sta/4 sta/5 | sta/6     sta/6     sta/6     tld,zrc,sta/5
        RTA  | -     -         2     3             tlf/2 tlf/3 | 6         6         8         tld,scr/6
        RUC  | -     -         scj/2 scj/3         scj/4 scj/5 | scj/6     scj/7     scj/8     scj/9
        RXJ+ | -     -         2     3             4     5     | 6         6         8         9
        RXJ- | -     -         tlf/2 tlf/3         tlf/2 tlf/3 | tlf/3     tlf/3     tlf/3     tld,irc,str/5
        RXR  | -     -         2     3             4     5     | 6         7         8         ser/9";

    fn action(letters: &str) -> Action {
        match letters {
            "tlu" => LayerUp,
            "tld" => LayerDown,
            "tls" => LayerStarted,
            "tlf" => LayerFinished,
            "irc" => InitCount,
            "zrc" => ZeroCount,
            "scr" => SendRequest,
            "sca" => SendAck,
            "scn" => SendNak,
            "str" => SendTerminate,
            "sta" => SendTerminateAck,
            "scj" => SendCodeReject,
            "ser" => SendEcho,
            other => panic!("{other}"),
        }
    }

    fn cell(text: &str) -> Option<(Vec<Action>, State)> {
        let (actions, state) = text.rsplit_once('/').unwrap_or(("", text));
        let state: usize = state.trim_end_matches(['r', 'p', 'x']).parse().ok()?;
        Some((actions.split(',').filter(|word| !word.is_empty()).map(action).collect(), State::ALL[state]))
    }

    #[test]
    fn the_table_of_the_rfc() {
        let lines = TABLE.lines().filter(|line| line.contains('|'));
        let mut cells = 0;
        for (event, line) in Event::ALL.into_iter().zip(lines) {
            let words: Vec<_> = line.split('|').skip(1).flat_map(str::split_whitespace).collect();
            assert_eq!(words.len(), State::ALL.len(), "{line}");
            for (state, word) in State::ALL.into_iter().zip(words) {
                let got = transition(state, event).map(|(actions, state)| (actions.to_vec(), state));
                assert_eq!(got, cell(word), "{event:?} in {state:?}: {word}");
                cells += 1;
            }
        }
        assert_eq!(cells, 160);
    }
}
