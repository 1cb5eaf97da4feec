//! What came out of it: what whoever moves packets has to know.

use crate::{MacAddress, Method};
use serde::{Deserialize, Serialize};
use std::net::{Ipv4Addr, Ipv6Addr};

/// The two ends of a session by IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ipv4Ends {
    /// Our address.
    pub own: Ipv4Addr,
    /// That of the other side, if it has said so.
    pub peer: Option<Ipv4Addr>,
}

/// The two ends of a session by IPv6: addresses of the link, from their interface identifiers (RFC 5072 §5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ipv6Ends {
    /// Our address.
    pub own: Ipv6Addr,
    /// That of the other side, if it has said so.
    pub peer: Option<Ipv6Addr>,
}

/// A session that carries packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// Its number, in network terms the SESSION_ID.
    pub session: u16,
    /// The MAC address of the access concentrator.
    #[serde(with = "mac")]
    pub ac: MacAddress,
    /// Its name.
    pub ac_name: String,
    /// Our own MAC address.
    #[serde(with = "mac")]
    pub own: MacAddress,
    /// The largest packet that may be sent, in bytes, without the session header.
    pub mtu: u16,
    /// The largest packet that the other side may send.
    pub mru: u16,
    /// IPv4, if it was agreed on.
    pub ipv4: Option<Ipv4Ends>,
    /// IPv6, if it was agreed on.
    pub ipv6: Option<Ipv6Ends>,
    /// Servers of the domain name system, at most two.
    pub dns: Vec<Ipv4Addr>,
    /// How we have said who we are, if we were asked.
    pub method: Option<Method>,
}

/// A MAC address as people write it.
mod mac {
    use super::MacAddress;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(address: &MacAddress, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(address)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<MacAddress, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_json_is_read_back() {
        let session = Session {
            session: 0x1234,
            ac: MacAddress([2, 0, 0, 0, 0, 1]),
            ac_name: "bras".into(),
            own: MacAddress([2, 0, 0, 0, 0, 2]),
            mtu: 1492,
            mru: 1492,
            ipv4: Some(Ipv4Ends { own: Ipv4Addr::new(192, 0, 2, 7), peer: Some(Ipv4Addr::new(192, 0, 2, 1)) }),
            ipv6: Some(Ipv6Ends { own: "fe80::1".parse().unwrap(), peer: None }),
            dns: vec![Ipv4Addr::new(192, 0, 2, 53)],
            method: Some(Method::MsChapV2),
        };
        let text = serde_json::to_string(&session).unwrap();
        assert!(text.contains(r#""ac":"02:00:00:00:00:01""#) && text.contains(r#""method":"mschapv2""#), "{text}");
        assert_eq!(serde_json::from_str::<Session>(&text).unwrap(), session);
    }
}
