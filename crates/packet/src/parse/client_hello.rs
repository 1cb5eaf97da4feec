//! The first message of a TLS handshake: what a client wants (RFC 8446 §4.1.2).

use super::Malformed;

/// Type of the message (RFC 8446 §4).
const CLIENT_HELLO: u8 = 1;
/// Extension with the name of the server (RFC 6066 §3).
const SERVER_NAME: u16 = 0;
/// Extension with the application's protocols (RFC 7301 §3.1).
const ALPN: u16 = 16;

/// A ClientHello. Names are bytes as the client sent them, of any kind; nothing is decoded.
#[derive(Clone, Copy, Debug)]
pub struct ClientHello<'a> {
    random: &'a [u8; 32],
    server_name: Option<&'a [u8]>,
    protocols: &'a [u8],
}

impl<'a> ClientHello<'a> {
    /// How many bytes the message has with its header, once the first four are there: up to 2^24 + 3.
    ///
    /// # Errors
    /// [`Malformed::Truncated`]; [`Malformed::Field`]: it is another message.
    pub fn len_of(bytes: &[u8]) -> Result<usize, Malformed> {
        match bytes {
            [CLIENT_HELLO, a, b, c, ..] => Ok(4 + u32::from_be_bytes([0, *a, *b, *c]) as usize),
            [kind, ..] if *kind != CLIENT_HELLO => Err(Malformed::Field),
            _ => Err(Malformed::Truncated),
        }
    }

    /// The message at the start of `bytes`.
    ///
    /// # Errors
    /// [`Malformed::Truncated`]: not all of it is there. [`Malformed::Field`]: it is another message.
    /// [`Malformed::Length`]: a length within it is more than there is.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let len = Self::len_of(bytes)?;
        let body = bytes.get(4..len).ok_or(Malformed::Truncated)?;
        // Behind the version of two bytes: random, session id, cipher suites, compression methods, extensions.
        let (_, rest) = body.split_at_checked(2).ok_or(Malformed::Length)?;
        let (random, rest) = rest.split_first_chunk::<32>().ok_or(Malformed::Length)?;
        let (_, rest) = string::<1>(rest)?;
        let (_, rest) = string::<2>(rest)?;
        let (_, rest) = string::<1>(rest)?;
        let mut hello = Self { random, server_name: None, protocols: &[] };
        let mut extensions = if rest.is_empty() { rest } else { string::<2>(rest)?.0 };
        while !extensions.is_empty() {
            let (kind, rest) = extensions.split_first_chunk::<2>().ok_or(Malformed::Length)?;
            let (content, rest) = string::<2>(rest)?;
            match u16::from_be_bytes(*kind) {
                SERVER_NAME => hello.server_name = server_name(content)?,
                ALPN => hello.protocols = string::<2>(content)?.0,
                _ => {}
            }
            extensions = rest;
        }
        Ok(hello)
    }

    /// The client's random number, by which keys in a log are found (RFC 9850 §2).
    pub fn random(&self) -> &'a [u8; 32] {
        self.random
    }

    /// The host that the client wants to speak to, without a dot at its end (RFC 6066 §3). With encrypted ClientHello
    /// this is the name of who decrypts it.
    pub fn server_name(&self) -> Option<&'a [u8]> {
        self.server_name
    }

    /// The application's protocols that the client speaks, best first; ends at one that is malformed.
    pub fn protocols(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut rest = self.protocols;
        std::iter::from_fn(move || {
            let (name, behind) = string::<1>(rest).ok()?;
            rest = behind;
            Some(name)
        })
    }
}

/// The first name of a host in the list of the extension.
fn server_name(content: &[u8]) -> Result<Option<&[u8]>, Malformed> {
    let (mut names, _) = string::<2>(content)?;
    while let Some((kind, rest)) = names.split_first() {
        let (name, rest) = string::<2>(rest)?;
        if *kind == 0 {
            return Ok(Some(name));
        }
        names = rest;
    }
    Ok(None)
}

/// A string whose length stands before it in `LEN` bytes, and what is behind it.
fn string<const LEN: usize>(bytes: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    let (len, rest) = bytes.split_first_chunk::<LEN>().ok_or(Malformed::Length)?;
    let len = len.iter().fold(0, |len, byte| len << 8 | usize::from(*byte));
    rest.split_at_checked(len).ok_or(Malformed::Length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn extension(kind: u16, content: &[u8]) -> Vec<u8> {
        [&kind.to_be_bytes()[..], &(content.len() as u16).to_be_bytes(), content].concat()
    }

    fn hello(extensions: &[u8]) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend([9; 32]);
        body.extend([0, 0, 2, 0x13, 0x01, 1, 0]);
        body.extend((extensions.len() as u16).to_be_bytes());
        body.extend(extensions);
        [&[1, 0][..], &(body.len() as u16).to_be_bytes(), &body].concat()
    }

    fn whole() -> Vec<u8> {
        let name = extension(0, b"\0\x0c\0\0\x09localhost");
        let alpn = extension(16, b"\0\x06\x02h3\x02hq");
        hello(&[extension(10, &[0, 2, 0, 29]), name, alpn].concat())
    }

    #[test]
    fn name_and_protocols() {
        let bytes = whole();
        assert_eq!(ClientHello::len_of(&bytes), Ok(bytes.len()));
        let hello = ClientHello::parse(&bytes).unwrap();
        assert_eq!(hello.random(), &[9; 32]);
        assert_eq!(hello.server_name(), Some(&b"localhost"[..]));
        assert_eq!(hello.protocols().collect::<Vec<_>>(), [b"h3", b"hq"]);
    }

    #[test]
    fn every_part_of_it_is_too_little() {
        let bytes = whole();
        for len in 0..bytes.len() {
            assert_eq!(ClientHello::parse(&bytes[..len]).unwrap_err(), Malformed::Truncated, "{len}");
        }
    }

    #[test]
    fn what_is_malformed() {
        let parse = |bytes: &[u8]| ClientHello::parse(bytes).map(|hello| hello.server_name().map(<[u8]>::len));
        assert_eq!(parse(&[2, 0, 0, 0]), Err(Malformed::Field));
        assert_eq!(parse(&[1, 0, 0, 1, 3]), Err(Malformed::Length));
        assert_eq!(parse(&hello(&[0, 0, 0, 9, 0])), Err(Malformed::Length));
        assert_eq!(parse(&hello(&extension(0, b"\0\x0c\0\0\x0flocalhost"))), Err(Malformed::Length));
        assert_eq!(parse(&hello(&extension(0, b"\0\x05\x07\0\x02ab"))), Ok(None), "no name of a host");
        assert_eq!(parse(&hello(&[])), Ok(None));
        let broken = hello(&extension(16, b"\0\x05\x02h3\x09a"));
        assert_eq!(ClientHello::parse(&broken).unwrap().protocols().collect::<Vec<_>>(), [b"h3"]);
    }

    proptest! {
        #[test]
        fn damaged(at in 4usize..90, to: u8) {
            let mut bytes = whole();
            let at = at.min(bytes.len() - 1);
            bytes[at] = to;
            if let Ok(hello) = ClientHello::parse(&bytes) {
                prop_assert!(hello.protocols().map(|name| name.len() + 1).sum::<usize>() <= bytes.len());
                prop_assert!(hello.server_name().is_none_or(|name| name.len() < bytes.len()));
            }
        }
    }
}
