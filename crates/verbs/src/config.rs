//! What `MILLRACE_VERBS` says: which card, and as whom.

use millrace_dma::Scope;
use millrace_link::Wanted;
use millrace_rdma::number::Gid;
use std::net::IpAddr;
use thiserror::Error;

/// The environment variable.
pub(crate) const VARIABLE: &str = "MILLRACE_VERBS";

/// What programs see of the device, and where its frames go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    /// Name of the card; without one, the card that commands would use.
    pub card: Option<String>,
    /// A port to be worked on without a card.
    pub port: Option<String>,
    /// Where counters are written when the last context is closed.
    pub stats: Option<String>,
    /// Where it is written then what took how long.
    pub profile: Option<String>,
    /// Name of the device.
    pub name: String,
    /// Address; without one, one that follows from the TX queue.
    pub ip: Option<IpAddr>,
    /// MAC address; without one, one that follows from the address.
    pub mac: Option<[u8; 6]>,
    /// Bytes of payload of a packet; without one, what fits into frames of the card.
    pub mtu: Option<u16>,
    /// TX queue; without one, the first that is free.
    pub tx: Option<u32>,
    /// RX queue; without one, the one that belongs to the TX queue.
    pub rx: Option<u32>,
    /// What the device says of its maker: programs know devices by it.
    pub vendor: u32,
    /// What the device says which it is.
    pub part: u32,
    /// Whether ends of the same kind repeat only what is lost.
    pub extended: bool,
    /// Whether processes of this user on the same card are reached without frames.
    pub local: bool,
    /// Which registered memory becomes shared memory, so that those processes store straight into it.
    pub adopt: Option<Scope>,
    /// That none does was said, and not only left open.
    pub adopts_nothing: bool,
    /// Whether it is said at the end how other ends were reached.
    pub report: bool,
    /// Whether a thread takes over when the program does not poll.
    pub helper: bool,
    /// Whether the engine is that of the card, which all its programs share, and not one in this process.
    pub in_card: bool,
    /// Where the backend of the split driver is whose engine it is.
    pub split: Option<String>,
    /// Blocks of so many bytes and more are allocated in pages of a transport that takes no memory where it lies.
    pub from: Option<usize>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            card: None,
            port: None,
            stats: None,
            profile: None,
            name: "millrace0".to_owned(),
            ip: None,
            mac: None,
            mtu: None,
            tx: None,
            rx: None,
            vendor: 0,
            part: 0,
            extended: true,
            local: true,
            adopt: None,
            adopts_nothing: false,
            report: false,
            helper: true,
            in_card: false,
            split: None,
            from: None,
        }
    }
}

/// A word that means nothing.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{VARIABLE}: {word:?}: {problem}")]
pub(crate) struct BadConfig {
    word: String,
    problem: &'static str,
}

impl Config {
    /// What its link is to go by.
    pub fn wanted(&self) -> Wanted {
        Wanted { card: self.card.clone(), port: self.port.clone(), tx: self.tx, rx: self.rx }
    }

    /// Whether the engine is outside of this process.
    pub fn is_outside(&self) -> bool {
        self.in_card || self.split.is_some()
    }

    /// What the environment says.
    pub fn from_environment() -> Result<Self, BadConfig> {
        match std::env::var_os(VARIABLE) {
            None => Ok(Self::default()),
            Some(text) => {
                let text = text.into_string().map_err(|text| BadConfig {
                    word: text.to_string_lossy().into_owned(),
                    problem: "it is not UTF-8",
                })?;
                Self::parse(&text)
            }
        }
    }

    /// Words with spaces between them: the name of a card, and options `word=value`.
    pub fn parse(text: &str) -> Result<Self, BadConfig> {
        let mut config = Self::default();
        for word in text.split_ascii_whitespace() {
            config.take(word).map_err(|problem| BadConfig { word: word.to_owned(), problem })?;
        }
        Ok(config)
    }

    fn take(&mut self, word: &str) -> Result<(), &'static str> {
        // Names of cards have `=` too, but behind a colon.
        let (key, value) = match word.split_once('=') {
            Some((key, value)) if !key.contains(':') => (key, value),
            _ if self.card.is_some() => {
                return Err("there is a card already: the options are separated by spaces, and are word=value");
            }
            _ => {
                self.card = Some(word.to_owned());
                return Ok(());
            }
        };
        match key {
            "name" => self.name = name(value)?,
            "port" => self.port = Some(value.to_owned()),
            "stats" => self.stats = Some(value.to_owned()),
            "profile" => self.profile = Some(value.to_owned()),
            "ip" => self.ip = Some(address(value)?),
            "mac" => {
                self.mac =
                    Some(mac(value).ok_or("a MAC address is meant, such as 02:00:00:00:00:01, which is no group's")?)
            }
            "mtu" => self.mtu = Some(mtu(value)?),
            "tx" => self.tx = Some(number(value)?),
            "rx" => self.rx = Some(number(value)?),
            "vendor" => self.vendor = number(value)?,
            "part" => self.part = number(value)?,
            "extended" => self.extended = switch(value)?,
            "local" => self.local = switch(value)?,
            "adopt" => {
                self.adopt = scope(value)?;
                self.adopts_nothing = self.adopt.is_none();
            }
            "report" => self.report = switch(value)?,
            "helper" => self.helper = switch(value)?,
            "place" => self.in_card = place(value)?,
            "split" => self.split = Some(value.to_owned()),
            "from" => self.from = Some(number(value)? as usize),
            _ => {
                return Err(
                    "not an option; there are name, port, ip, mac, mtu, tx, rx, vendor, part, extended, local, adopt, report, helper, place, split, from, stats and profile",
                );
            }
        }
        Ok(())
    }
}

fn name(value: &str) -> Result<String, &'static str> {
    let fits =
        (1..=63).contains(&value.len()) && value.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    if fits { Ok(value.to_owned()) } else { Err("a name of 1 to 63 letters, digits, _ or - is meant") }
}

fn address(value: &str) -> Result<IpAddr, &'static str> {
    let ip: IpAddr = value.parse().map_err(|_| "an IP address is meant, such as 10.0.0.1")?;
    if Gid::from_ip(ip).is_end() {
        Ok(ip)
    } else {
        Err("the address of one host is meant, such as 10.0.0.1: a free one of its network")
    }
}

fn mac(value: &str) -> Option<[u8; 6]> {
    let mut bytes = [0; 6];
    let mut parts = value.split(':');
    for byte in &mut bytes {
        *byte = u8::from_str_radix(parts.next().filter(|part| part.len() <= 2)?, 16).ok()?;
    }
    (parts.next().is_none() && bytes[0] & 1 == 0 && bytes != [0; 6]).then_some(bytes)
}

fn mtu(value: &str) -> Result<u16, &'static str> {
    match value {
        "256" => Ok(256),
        "512" => Ok(512),
        "1024" => Ok(1024),
        "2048" => Ok(2048),
        "4096" => Ok(4096),
        _ => Err("256, 512, 1024, 2048 or 4096 is meant"),
    }
}

fn number(value: &str) -> Result<u32, &'static str> {
    match value.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => value.parse(),
    }
    .map_err(|_| "a number is meant")
}

fn switch(value: &str) -> Result<bool, &'static str> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("on or off is meant"),
    }
}

fn place(value: &str) -> Result<bool, &'static str> {
    match value {
        "card" => Ok(true),
        "library" => Ok(false),
        _ => Err("card or library is meant"),
    }
}

fn scope(value: &str) -> Result<Option<Scope>, &'static str> {
    match value {
        "on" => Ok(Some(Scope::Mappings)),
        "heap" => Ok(Some(Scope::Heap)),
        "off" => Ok(None),
        _ => Err("on, heap or off is meant"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_become_a_configuration() {
        let text = "unix:/tmp/card.sock ip=10.0.0.1 mac=02:00:00:00:00:0a mtu=4096 tx=1 rx=0x2 part=4129 helper=off";
        let config = Config::parse(text).unwrap();
        assert_eq!(config.card.as_deref(), Some("unix:/tmp/card.sock"));
        assert_eq!(config.ip, Some("10.0.0.1".parse().unwrap()));
        assert_eq!((config.mac, config.mtu), (Some([2, 0, 0, 0, 0, 10]), Some(4096)));
        assert_eq!((config.tx, config.rx, config.part, config.helper), (Some(1), Some(2), 4129, false));
        let adopt = |text| Config::parse(text).unwrap().adopt;
        assert_eq!(
            ["adopt=on", "adopt=heap", "adopt=off"].map(adopt),
            [Some(Scope::Mappings), Some(Scope::Heap), None]
        );
        let in_card = |text| Config::parse(text).unwrap().in_card;
        assert_eq!(["place=card", "place=library", ""].map(in_card), [true, false, false]);
        let split = Config::parse("split=/run/split.sock").unwrap();
        assert!(split.is_outside() && split.split.as_deref() == Some("/run/split.sock"));
        assert_eq!(Config::parse("split=xen from=4096").unwrap().from, Some(4096));
        assert_eq!(Config::parse("").unwrap(), Config::default());
        assert_eq!(Config::parse("embedded:queues=2").unwrap().card.as_deref(), Some("embedded:queues=2"));
    }

    #[test]
    fn what_means_nothing_is_named() {
        for word in [
            "ip=10.0.0",
            "ip=0.0.0.0",
            "ip=127.0.0.1",
            "ip=224.0.0.1",
            "mac=01:00:00:00:00:00",
            "mac=1:2:3",
            "mtu=1500",
            "tx=-1",
            "helper=1",
            "from=much",
            "adopt=1",
            "place=here",
            "what=1",
            "name=",
        ] {
            let said = Config::parse(word).unwrap_err().to_string();
            assert!(said.contains(word), "{said}");
        }
        assert!(Config::parse("unix:/a unix:/b").is_err());
    }
}
