//! Where controllers are, as Open vSwitch writes it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

/// The port that IANA has given OpenFlow.
const PORT: u16 = 6653;

/// An address to listen at, or to connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Whether others connect to it.
    pub listens: bool,
    /// Whether TLS is spoken.
    pub tls: bool,
    /// Where.
    pub socket: SocketAddr,
}

const FORM: &str = "write ptcp:PORT or ptcp:PORT:ADDRESS to listen, tcp:ADDRESS or tcp:ADDRESS:PORT to connect, \
     pssl and ssl for TLS; an address is a number, in brackets if it is of IPv6";

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (method, rest) = text.split_once(':').unwrap_or((text, ""));
        let read = match method {
            "ptcp" | "pssl" => listening(rest).map(|socket| Self { listens: true, tls: method == "pssl", socket }),
            "tcp" | "ssl" => connecting(rest).map(|socket| Self { listens: false, tls: method == "ssl", socket }),
            _ => None,
        };
        read.ok_or_else(|| FORM.to_owned())
    }
}

fn listening(rest: &str) -> Option<SocketAddr> {
    let (port, ip) = rest.split_once(':').map_or((rest, None), |(port, ip)| (port, Some(ip)));
    let port = if port.is_empty() { PORT } else { port.parse().ok()? };
    let ip = ip.map_or(Some(IpAddr::V4(Ipv4Addr::UNSPECIFIED)), address)?;
    Some(SocketAddr::new(ip, port))
}

fn connecting(rest: &str) -> Option<SocketAddr> {
    if let Some(ip) = address(rest) {
        return Some(SocketAddr::new(ip, PORT));
    }
    let (ip, port) = rest.rsplit_once(':')?;
    Some(SocketAddr::new(address(ip)?, port.parse().ok()?))
}

/// An address, in brackets if it is of IPv6.
fn address(text: &str) -> Option<IpAddr> {
    match text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
        Some(inside) => inside.parse().ok().map(IpAddr::V6),
        None => text.parse().ok().map(IpAddr::V4),
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ip, port) = (self.socket.ip(), self.socket.port());
        let ip = if ip.is_ipv6() { format!("[{ip}]") } else { ip.to_string() };
        let method = if self.tls { "ssl" } else { "tcp" };
        if self.listens { write!(f, "p{method}:{port}:{ip}") } else { write!(f, "{method}:{ip}:{port}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_open_vswitch() {
        for (text, wanted) in [
            ("ptcp:", "ptcp:6653:0.0.0.0"),
            ("ptcp:6633", "ptcp:6633:0.0.0.0"),
            ("ptcp:6633:127.0.0.1", "ptcp:6633:127.0.0.1"),
            ("ptcp:6633:[::1]", "ptcp:6633:[::1]"),
            ("pssl:", "pssl:6653:0.0.0.0"),
            ("ssl:192.0.2.1", "ssl:192.0.2.1:6653"),
            ("tcp:192.0.2.1", "tcp:192.0.2.1:6653"),
            ("tcp:192.0.2.1:6633", "tcp:192.0.2.1:6633"),
            ("tcp:[2001:db8::1]", "tcp:[2001:db8::1]:6653"),
            ("tcp:[2001:db8::1]:1", "tcp:[2001:db8::1]:1"),
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), wanted);
        }
        for text in ["", "tcp", "tcp:", "tcp:::1", "tcp:name:6653", "ptcp:x", "udp:1", "tcp:1.2.3.4:99999"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
