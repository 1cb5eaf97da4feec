//! An access concentrator, as far as a client needs one: it answers each frame at once.

use millrace_pppoe::frame::{DISCOVERY, Discovery, code};
use millrace_pppoe::tag::{self, Tags, put};
use millrace_pppoe::{MacAddress, Method};

pub const MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
pub const OWN: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);
pub const SESSION: u16 = 0x2345;

pub struct Ac {
    pub mac: MacAddress,
    pub name: &'static str,
    pub service: &'static str,
    pub session: u16,
    /// How it wants to know who the client is: PAP or CHAP.
    pub method: Option<Method>,
    pub password: &'static str,
    /// What it allows (RFC 4638).
    pub max_payload: Option<u16>,
    /// Whether echo requests as long as this are answered.
    pub longest_echo: usize,
    /// Whether it has IPv4.
    pub ipv4: bool,
    /// A tag of refusal in the PADS.
    pub refuses: Option<(u16, &'static str)>,
    /// It is there.
    pub alive: bool,
    /// Frames that came, by code of discovery or protocol.
    pub seen: Vec<u16>,
}

impl Default for Ac {
    fn default() -> Self {
        Self {
            mac: MAC,
            name: "bras",
            service: "internet",
            session: SESSION,
            method: Some(Method::Pap),
            password: "secret",
            max_payload: None,
            longest_echo: 9000,
            ipv4: true,
            refuses: None,
            alive: true,
            seen: Vec::new(),
        }
    }
}

impl Ac {
    /// What it sends after that frame of the client.
    pub fn answer(&mut self, frame: &[u8]) -> Vec<Vec<u8>> {
        if !self.alive {
            return Vec::new();
        }
        if frame[12..14] == DISCOVERY.to_be_bytes() {
            return self
                .discovery(&Discovery::parse(frame).expect("the client's frames are whole"))
                .into_iter()
                .collect();
        }
        let protocol = u16::from_be_bytes([frame[20], frame[21]]);
        let len = usize::from(u16::from_be_bytes([frame[18], frame[19]]));
        assert_eq!(frame.len(), 20 + len, "the client's frames are whole");
        if frame[..6] != self.mac.0 {
            return Vec::new();
        }
        self.seen.push(protocol);
        let packet = &frame[22..];
        assert_eq!(usize::from(u16::from_be_bytes([packet[2], packet[3]])), packet.len());
        let answers = self.ppp(protocol, packet[0], packet[1], &packet[4..]);
        answers.into_iter().map(|(protocol, packet)| self.frame(protocol, &packet)).collect()
    }

    fn discovery(&mut self, frame: &Discovery<'_>) -> Option<Vec<u8>> {
        self.seen.push(frame.code.into());
        let mut tags = Vec::new();
        let uniq = Tags::new(frame.tags).flatten().find(|(kind, _)| *kind == tag::HOST_UNIQ);
        put(&mut tags, tag::HOST_UNIQ, uniq.map_or(&[], |(_, value)| value));
        let asked = Tags::new(frame.tags).flatten().find(|(kind, _)| *kind == tag::PPP_MAX_PAYLOAD);
        if let (Some(max), Some(_)) = (self.max_payload, asked) {
            put(&mut tags, tag::PPP_MAX_PAYLOAD, &max.to_be_bytes());
        }
        let (code, session) = match frame.code {
            code::PADI => {
                put(&mut tags, tag::AC_NAME, self.name.as_bytes());
                put(&mut tags, tag::SERVICE_NAME, self.service.as_bytes());
                put(&mut tags, tag::AC_COOKIE, b"cookie");
                put(&mut tags, tag::RELAY_SESSION_ID, b"relay");
                (code::PADO, 0)
            }
            code::PADR if frame.destination == self.mac => {
                for echoed in [(tag::AC_COOKIE, &b"cookie"[..]), (tag::RELAY_SESSION_ID, b"relay")] {
                    assert!(Tags::new(frame.tags).flatten().any(|tag| tag == echoed), "{echoed:?}");
                }
                if let Some((kind, text)) = self.refuses {
                    put(&mut tags, kind, text.as_bytes());
                }
                (code::PADS, if self.refuses.is_some() { 0 } else { self.session })
            }
            _ => return None,
        };
        Some(Discovery { destination: frame.source, source: self.mac, code, session, tags: &tags }.build())
    }

    fn ppp(&mut self, protocol: u16, code: u8, id: u8, data: &[u8]) -> Vec<(u16, Vec<u8>)> {
        let ack = (protocol, packet(2, id, data));
        match (protocol, code) {
            (0xc021, 1) => vec![ack, self.ask(0, 0xc021, &self.lcp_options())],
            (0xc021, 2) if self.method == Some(Method::Chap) => vec![(0xc223, packet(1, 7, b"\x04abcdbras"))],
            (0xc021, 5) => vec![(protocol, packet(6, id, &[]))],
            (0xc021, 9) if data.len() <= self.longest_echo => {
                vec![(protocol, packet(10, id, &[&[0, 0, 0, 9], &data[4..]].concat()))]
            }
            (0xc023, 1) => vec![(protocol, packet(if self.believes_pap(data) { 2 } else { 3 }, id, b"\x05hello"))],
            (0xc223, 2) => vec![(protocol, packet(if self.believes_chap(id, data) { 3 } else { 4 }, id, b"hello"))],
            (0x8021, _) if !self.ipv4 => vec![(0xc021, packet(8, 1, &[&[0x80, 0x21, code, id, 0, 4], data].concat()))],
            (0x8021, 1) if data.windows(4).any(|address| address == [0; 4]) => {
                let nak = [3, 6, 192, 0, 2, 7, 129, 6, 192, 0, 2, 53, 131, 6, 192, 0, 2, 54];
                vec![(protocol, packet(3, id, &nak)), self.ask(1, protocol, &[3, 6, 192, 0, 2, 1])]
            }
            (0x8021, 1) => vec![ack],
            (0x8057, 1) => vec![ack, self.ask(2, protocol, &[1, 10, 0, 0, 0, 0, 0, 0, 0, 9])],
            _ => Vec::new(),
        }
    }

    fn lcp_options(&self) -> Vec<u8> {
        let method = match self.method {
            Some(Method::Pap) => &[3, 4, 0xc0, 0x23][..],
            Some(Method::Chap) => &[3, 5, 0xc2, 0x23, 5],
            _ => &[],
        };
        let mru = self.max_payload.unwrap_or(1492).to_be_bytes();
        [&[1, 4], &mru[..], method, &[5, 6, 0, 0, 0, 9]].concat()
    }

    /// Its own request; it says the same to each of the client's.
    fn ask(&self, id: u8, protocol: u16, options: &[u8]) -> (u16, Vec<u8>) {
        (protocol, packet(1, id, options))
    }

    fn believes_pap(&self, data: &[u8]) -> bool {
        data == [&b"\x02me"[..], &[self.password.len() as u8], self.password.as_bytes()].concat()
    }

    fn believes_chap(&self, id: u8, data: &[u8]) -> bool {
        use md5::{Digest, Md5};
        let hash = Md5::new().chain_update([id]).chain_update(self.password).chain_update(b"abcd").finalize();
        data == [&[16], &hash[..], b"me"].concat()
    }

    /// A frame of the session.
    pub fn frame(&self, protocol: u16, payload: &[u8]) -> Vec<u8> {
        let len = (payload.len() + 2) as u16;
        let ethernet = [&OWN.0[..], &self.mac.0, &[0x88, 0x64]].concat();
        let pppoe = [&[0x11, 0][..], &self.session.to_be_bytes(), &len.to_be_bytes(), &protocol.to_be_bytes()].concat();
        [ethernet, pppoe, payload.to_vec()].concat()
    }

    /// The end of the session.
    pub fn padt(&self) -> Vec<u8> {
        Discovery { destination: OWN, source: self.mac, code: code::PADT, session: self.session, tags: &[] }.build()
    }
}

pub fn packet(code: u8, id: u8, data: &[u8]) -> Vec<u8> {
    [&[code, id], &(data.len() as u16 + 4).to_be_bytes()[..], data].concat()
}
