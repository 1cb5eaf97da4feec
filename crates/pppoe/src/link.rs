//! PPP in a session: LCP, then who we are, then the networks (RFC 1661 §3).

use crate::auth::{Auth, Outcome};
use crate::automaton::{Event, State};
use crate::control::{Packet, code, protocol};
use crate::echo::{Echo, Shown};
use crate::ipcp::Ipcp;
use crate::ipv6cp::Ipv6cp;
use crate::layer::{Agreement, Cause, Layer, Out, Signal};
use crate::lcp::{Lcp, word};
use crate::session::{Ipv4Ends, Ipv6Ends};
use crate::{Config, Failure, Method, Moment, text};
use fastrand::Rng;

/// The smallest MTU with which there may be IPv6 (RFC 8200 §5).
const LEAST_IPV6: u16 = 1280;

/// What the link says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// Packets can go.
    Up,
    /// They still can; addresses or sizes have changed.
    Changed,
    /// They cannot for now, or not any more.
    Suspended(Failure),
    /// Large packets do not get through: the MTU is the usual one now. [`News::Changed`] follows.
    Small,
    /// It is over.
    Ended(Failure),
}

/// What a packet of PPP was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// A control packet, looked at.
    Control,
    /// It is malformed.
    Malformed,
    /// It is of a protocol that is not spoken now.
    Untimely,
}

/// PPP in a session.
#[derive(Debug)]
pub(crate) struct Link {
    config: Config,
    random: Rng,
    /// The largest packet that the session may carry.
    limit: u16,
    lcp: Layer<Lcp>,
    ipcp: Layer<Ipcp>,
    ipv6cp: Layer<Ipv6cp>,
    auth: Option<Auth>,
    /// Networks are negotiated.
    networks: bool,
    /// Why there is no IPv4, no IPv6.
    without: [Option<Failure>; 2],
    up: bool,
    echo: Option<Echo>,
    /// Until when packets have to be able to go.
    deadline: Moment,
    /// Why it is being ended, by us.
    failure: Option<Failure>,
    /// What the other side says at the end.
    farewell: String,
    ended: bool,
}

impl Link {
    /// Begins, in a session that carries packets of up to `limit` bytes.
    pub fn new(config: &Config, limit: u16, mut random: Rng, now: Moment, out: &mut Out) -> Self {
        let lcp = Lcp::new(config.mru.min(limit), config.methods.clone(), random.fork());
        let mut link = Self {
            config: config.clone(),
            limit,
            lcp: Layer::new(lcp, random.u8(..)),
            ipcp: Layer::new(Ipcp::default(), random.u8(..)),
            ipv6cp: Layer::new(Ipv6cp::new(random.fork()), random.u8(..)),
            random,
            auth: None,
            networks: false,
            without: [None, None],
            up: false,
            echo: None,
            deadline: now + config.setup,
            failure: None,
            farewell: String::new(),
            ended: false,
        };
        link.lcp.happens(now, Event::Open, out);
        link.lcp.happens(now, Event::Up, out);
        link
    }

    /// The largest packet that may be sent.
    pub fn mtu(&self) -> u16 {
        self.lcp.agreement.peer_mru.min(self.limit)
    }

    /// The largest packet that comes.
    pub fn mru(&self) -> u16 {
        self.lcp.agreement.mru()
    }

    pub fn ipv4(&self) -> Option<Ipv4Ends> {
        let own = self.ipcp.agreement.own().filter(|_| self.ipcp.is_open())?;
        Some(Ipv4Ends { own, peer: self.ipcp.agreement.peer() })
    }

    pub fn ipv6(&self) -> Option<Ipv6Ends> {
        let agreement = &self.ipv6cp.agreement;
        self.ipv6cp.is_open().then(|| Ipv6Ends { own: agreement.own(), peer: agreement.peer() })
    }

    pub fn dns(&self) -> Vec<std::net::Ipv4Addr> {
        self.ipcp.agreement.dns()
    }

    pub fn method(&self) -> Option<Method> {
        self.auth.as_ref().map(Auth::method)
    }

    /// Why we are ending it.
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// When it goes on by itself.
    pub fn timer(&self) -> Option<Moment> {
        let layers = [self.lcp.timer(), self.ipcp.timer(), self.ipv6cp.timer()];
        let others = [
            self.auth.as_ref().and_then(Auth::timer),
            self.echo.as_ref().map(Echo::timer),
            (!self.up && self.failure.is_none()).then_some(self.deadline),
        ];
        layers.into_iter().chain(others).flatten().min()
    }

    /// Ends it, and says so to the other side.
    pub fn close(&mut self, now: Moment, out: &mut Out, news: &mut Vec<News>) {
        self.fail(now, Failure::Closed, out);
        self.settle(now, out, news);
    }

    /// If it is time.
    pub fn tick(&mut self, now: Moment, out: &mut Out, news: &mut Vec<News>) {
        self.lcp.tick(now, out);
        self.ipcp.tick(now, out);
        self.ipv6cp.tick(now, out);
        let said = self.auth.as_mut().map_or(Outcome::Open, |auth| auth.tick(now, out));
        self.authenticated(now, said, out);
        let lcp = &mut self.lcp;
        match self.echo.as_mut().map_or(Shown::Nothing, |echo| echo.tick(now, || lcp.next_id(), out)) {
            Shown::Nothing => {}
            Shown::Gone(count) => self.lose(now, Failure::Gone(count), out, news),
            Shown::Small => {
                self.limit = crate::USUAL_MTU;
                news.extend([News::Small, News::Changed]);
            }
        }
        if !self.up && self.failure.is_none() && now >= self.deadline {
            let why = self.reason(Failure::TooLong(self.config.setup));
            self.fail(now, why, out);
        }
        self.settle(now, out, news);
    }

    /// A packet of another protocol than IPv4 and IPv6.
    pub fn receive(&mut self, now: Moment, number: u16, bytes: &[u8], out: &mut Out, news: &mut Vec<News>) -> Heard {
        let heard = self.hear(now, number, bytes, out);
        self.settle(now, out, news);
        heard
    }

    fn hear(&mut self, now: Moment, number: u16, bytes: &[u8], out: &mut Out) -> Heard {
        let known = matches!(number, protocol::LCP | protocol::PAP | protocol::CHAP);
        let wanted = number == protocol::IPCP && self.config.ipv4 || number == protocol::IPV6CP && self.config.ipv6;
        if !known && !wanted {
            return self.reject_protocol(number, bytes, out);
        }
        let Ok(packet) = Packet::parse(bytes) else { return Heard::Malformed };
        match number {
            protocol::LCP => self.hear_lcp(now, &packet, out),
            protocol::IPCP if self.networks => self.ipcp.receive(now, &packet, out),
            protocol::IPV6CP if self.networks => self.ipv6cp.receive(now, &packet, out),
            _ => match self.auth.as_mut().filter(|auth| auth.protocol() == number) {
                Some(auth) => {
                    let said = auth.receive(now, &packet, out);
                    self.authenticated(now, said, out);
                }
                None => return Heard::Untimely,
            },
        }
        Heard::Control
    }

    fn reject_protocol(&mut self, number: u16, bytes: &[u8], out: &mut Out) -> Heard {
        if !self.lcp.is_open() {
            return Heard::Untimely;
        }
        let data = [&number.to_be_bytes()[..], &bytes[..bytes.len().min(512)]].concat();
        let id = self.lcp.next_id();
        out.push((protocol::LCP, Packet { code: code::PROTOCOL_REJECT, id, data: &data }.build()));
        Heard::Control
    }

    fn hear_lcp(&mut self, now: Moment, packet: &Packet<'_>, out: &mut Out) {
        let open = self.lcp.is_open();
        match packet.code {
            code::PROTOCOL_REJECT if open => {
                match packet.data.first_chunk().map(|number| u16::from_be_bytes(*number)) {
                    Some(protocol::IPCP) => self.ipcp.not_known(now, out),
                    Some(protocol::IPV6CP) => self.ipv6cp.not_known(now, out),
                    Some(protocol::LCP | protocol::PAP | protocol::CHAP) => {
                        self.fail(now, Failure::NoAgreement("LCP"), out)
                    }
                    _ => {}
                }
            }
            code::ECHO_REQUEST if open => self.answer_echo(packet, out),
            code::ECHO_REPLY if open => {
                let own = self.lcp.agreement.magic;
                let theirs = packet.data.get(..4).and_then(word);
                if let Some(echo) = self.echo.as_mut().filter(|_| theirs.is_some_and(|magic| magic != own || own == 0))
                {
                    echo.replied(packet);
                }
            }
            code::PROTOCOL_REJECT | code::ECHO_REQUEST | code::ECHO_REPLY | code::DISCARD_REQUEST => {}
            kind => {
                if kind == code::TERMINATE_REQUEST {
                    self.farewell = text(packet.data);
                }
                self.lcp.receive(now, packet, out);
                // RFC 1661 would go on asking; but who ends it here gives no session to this request.
                if kind == code::TERMINATE_REQUEST && self.lcp.state() == State::ReqSent {
                    let why = self.reason(Failure::Terminated(self.farewell.clone()));
                    self.fail(now, why, out);
                }
            }
        }
    }

    fn answer_echo(&mut self, packet: &Packet<'_>, out: &mut Out) {
        let own = self.lcp.agreement.magic;
        // Without a magic number it is none, and with our own one it is ours.
        let Some((theirs, rest)) = packet.data.split_first_chunk::<4>() else { return };
        if own != 0 && u32::from_be_bytes(*theirs) == own {
            return;
        }
        let most = usize::from(self.mtu()).saturating_sub(8);
        let data = [&own.to_be_bytes()[..], &rest[..rest.len().min(most)]].concat();
        out.push((protocol::LCP, Packet { code: code::ECHO_REPLY, id: packet.id, data: &data }.build()));
    }

    fn authenticated(&mut self, now: Moment, said: Outcome, out: &mut Out) {
        match said {
            Outcome::Open => {}
            Outcome::Done => self.begin_networks(now, out),
            Outcome::Failed(failure) => self.fail(now, failure, out),
        }
    }

    fn begin_networks(&mut self, now: Moment, out: &mut Out) {
        self.networks = true;
        if self.config.ipv4 {
            begin(&mut self.ipcp, now, out);
        }
        if self.config.ipv6 && self.mtu() >= LEAST_IPV6 {
            begin(&mut self.ipv6cp, now, out);
        } else {
            self.without[1] = Some(Failure::NoNetwork);
        }
        if !self.config.ipv4 {
            self.without[0] = Some(Failure::NoNetwork);
        }
    }

    /// Why it ends, if that is what is seen of it: who ends it because of how we may say who we are does not say so.
    pub fn reason(&self, seen: Failure) -> Failure {
        match &self.lcp.agreement.refused {
            Some(method) if self.lcp.agreement.method.is_none() => Failure::NoMethod(method.clone()),
            _ => seen,
        }
    }

    /// We end it, and say so.
    fn fail(&mut self, now: Moment, failure: Failure, out: &mut Out) {
        self.failure.get_or_insert(failure);
        self.echo = None;
        self.lcp.happens(now, Event::Close, out);
    }

    /// We end it, and wait for no answer.
    fn lose(&mut self, now: Moment, failure: Failure, out: &mut Out, news: &mut Vec<News>) {
        self.fail(now, failure, out);
        self.end(news);
    }

    fn end(&mut self, news: &mut Vec<News>) {
        if !std::mem::replace(&mut self.ended, true) {
            news.push(News::Ended(self.failure.take().unwrap_or(Failure::Closed)));
        }
    }

    /// Does what the layers have to say, until they have nothing more. Each signal costs its layer a state, so this ends.
    fn settle(&mut self, now: Moment, out: &mut Out, news: &mut Vec<News>) {
        if self.lcp.agreement.is_looped() {
            self.lose(now, Failure::Looped, out, news);
        }
        while let Some(signal) = self.lcp.signal() {
            self.lcp_signal(now, signal, out, news);
        }
        while let Some(signal) = self.ipcp.signal() {
            self.network_signal(now, 0, signal, out, news);
        }
        while let Some(signal) = self.ipv6cp.signal() {
            self.network_signal(now, 1, signal, out, news);
        }
        // Closed without having been open.
        if self.failure.is_some() && self.lcp.state() == State::Closed {
            self.end(news);
        }
    }

    fn lcp_signal(&mut self, now: Moment, signal: Signal, out: &mut Out, news: &mut Vec<News>) {
        match signal {
            Signal::Up => match self.lcp.agreement.method {
                Some(method) => {
                    let (user, password) = (&self.config.user, &self.config.password);
                    self.auth = Some(Auth::new(method, user, password, self.random.fork(), now, out));
                }
                None => self.begin_networks(now, out),
            },
            Signal::Down => {
                self.ipcp.happens(now, Event::Down, out);
                self.ipv6cp.happens(now, Event::Down, out);
                (self.auth, self.networks, self.without) = (None, false, [None, None]);
                self.suspend(now, news);
            }
            Signal::Finished(cause) => {
                let why = match cause {
                    Cause::Theirs => Failure::Terminated(std::mem::take(&mut self.farewell)),
                    Cause::Silence => Failure::Silent("LCP"),
                    _ => Failure::NoAgreement("LCP"),
                };
                let why = self.reason(why);
                self.failure.get_or_insert(why);
                self.end(news);
            }
        }
    }

    fn suspend(&mut self, now: Moment, news: &mut Vec<News>) {
        if std::mem::replace(&mut self.up, false) {
            (self.echo, self.deadline) = (None, now + self.config.setup);
            if self.failure.is_none() && !self.ended {
                // Until the end that the other side has begun, RFC 1661 waits a while.
                let theirs = self.lcp.state() == State::Stopping;
                let why = if theirs { Failure::Terminated(self.farewell.clone()) } else { Failure::Renegotiation };
                news.push(News::Suspended(why));
            }
        }
    }

    fn network_signal(&mut self, now: Moment, number: usize, signal: Signal, out: &mut Out, news: &mut Vec<News>) {
        let name = ["IPCP", "IPv6CP"][number];
        match signal {
            Signal::Up if number == 0 && self.ipcp.agreement.own().is_none() => {
                self.without[0] = Some(Failure::NoAddress);
                self.ipcp.happens(now, Event::Close, out);
            }
            Signal::Up => self.without[number] = None,
            Signal::Down => {}
            Signal::Finished(cause) => {
                let why = match cause {
                    Cause::Silence => Failure::Silent(name),
                    Cause::Endless => Failure::NoAgreement(name),
                    _ => Failure::NoNetwork,
                };
                self.without[number].get_or_insert(why);
            }
        }
        self.announce(now, out, news);
    }

    /// Says whether packets can go, after something has changed.
    fn announce(&mut self, now: Moment, out: &mut Out, news: &mut Vec<News>) {
        if !self.networks || self.failure.is_some() {
            return;
        }
        if let [Some(ipv4), Some(ipv6)] = &self.without {
            let failure = if self.config.ipv4 { ipv4 } else { ipv6 }.clone();
            return self.fail(now, failure, out);
        }
        // IPv4 is waited for, IPv6 comes when it comes.
        let has_ipv4 = self.ipv4().is_some();
        let ready = has_ipv4 || self.without[0].is_some() && self.ipv6cp.is_open();
        match (self.up, ready) {
            (true, true) => news.push(News::Changed),
            (true, false) => self.suspend(now, news),
            (false, true) => {
                self.up = true;
                let Config { echo_interval, echo_failures, .. } = self.config;
                let probe = Some(self.mtu()).filter(|mtu| *mtu > crate::USUAL_MTU);
                self.echo = Some(Echo::new(echo_interval, echo_failures, self.lcp.agreement.magic, probe, now));
                news.push(News::Up);
            }
            (false, false) => {}
        }
    }
}

fn begin<A: Agreement>(layer: &mut Layer<A>, now: Moment, out: &mut Out) {
    layer.happens(now, Event::Open, out);
    layer.happens(now, Event::Up, out);
}
