//! ICMP (RFC 792) and ICMPv6 (RFC 4443), with the target of neighbour discovery (RFC 4861).

use super::Malformed;
use super::bytes::{array, be16};
use std::net::Ipv6Addr;

/// What both have in common: type, code, checksum, four bytes that depend on the type; then the rest.
macro_rules! message {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name<'a> {
            fixed: &'a [u8; 8],
            payload: &'a [u8],
        }

        impl<'a> $name<'a> {
            /// Bytes that every message has.
            pub const LEN: usize = 8;

            /// The message that `bytes` are.
            ///
            /// # Errors
            /// [`Malformed::Truncated`].
            #[inline]
            pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
                let (fixed, payload) = bytes.split_first_chunk().ok_or(Malformed::Truncated)?;
                Ok(Self { fixed, payload })
            }

            /// Type of the message.
            #[inline]
            pub fn kind(&self) -> u8 {
                self.fixed[0]
            }

            /// Which of its type.
            #[inline]
            pub fn code(&self) -> u8 {
                self.fixed[1]
            }

            /// The checksum as it stands there.
            #[inline]
            pub fn checksum(&self) -> u16 {
                be16(self.fixed, 2)
            }

            /// The four bytes that depend on the type.
            #[inline]
            pub fn rest_of_header(&self) -> [u8; 4] {
                array(self.fixed, 4)
            }

            /// Identifier and sequence number, if it is an echo request or reply.
            #[inline]
            pub fn echo(&self) -> Option<(u16, u16)> {
                Self::ECHOES.contains(&self.kind()).then(|| (be16(self.fixed, 4), be16(self.fixed, 6)))
            }

            /// The start of the packet that an error message is about.
            #[inline]
            pub fn quoted(&self) -> Option<&'a [u8]> {
                Self::ERRORS.contains(&self.kind()).then_some(self.payload)
            }

            /// What follows the first eight bytes.
            #[inline]
            pub fn payload(&self) -> &'a [u8] {
                self.payload
            }
        }
    };
}

message! {
    /// A message of ICMP (RFC 792).
    Icmp
}

message! {
    /// A message of ICMPv6 (RFC 4443 §2.1).
    Icmpv6
}

impl Icmp<'_> {
    /// Echo reply and request.
    const ECHOES: [u8; 2] = [0, 8];
    /// Unreachable, source quench, redirect, time exceeded, parameter problem.
    const ERRORS: [u8; 5] = [3, 4, 5, 11, 12];
}

impl Icmpv6<'_> {
    /// Echo request and reply (RFC 4443 §4).
    const ECHOES: [u8; 2] = [128, 129];
    /// Unreachable, too big, time exceeded, parameter problem (RFC 4443 §3).
    const ERRORS: [u8; 4] = [1, 2, 3, 4];
    /// Neighbour solicitation and advertisement, redirect (RFC 4861 §4.3 to §4.5).
    const WITH_TARGET: [u8; 3] = [135, 136, 137];

    /// The target address of neighbour discovery, if the message has one.
    #[inline]
    pub fn target(&self) -> Option<Ipv6Addr> {
        let address = self.payload.first_chunk::<16>()?;
        Self::WITH_TARGET.contains(&self.kind()).then(|| Ipv6Addr::from(*address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn echo_error_and_others() {
        let mut bytes = [8, 1, 0xab, 0xcd, 0, 5, 0, 6, 0x45];
        let icmp = Icmp::parse(&bytes).unwrap();
        assert_eq!((icmp.kind(), icmp.code(), icmp.checksum()), (8, 1, 0xabcd));
        assert_eq!((icmp.echo(), icmp.quoted(), icmp.rest_of_header()), (Some((5, 6)), None, [0, 5, 0, 6]));
        assert_eq!(Icmpv6::parse(&bytes).unwrap().echo(), None);
        bytes[0] = 3;
        let icmp = Icmp::parse(&bytes).unwrap();
        assert_eq!((icmp.echo(), icmp.quoted(), icmp.payload()), (None, Some(&[0x45][..]), &[0x45][..]));
        assert_eq!(Icmp::parse(&bytes[..7]).unwrap_err(), Malformed::Truncated);
    }

    #[test]
    fn target_of_neighbour_discovery() {
        let mut bytes = [7; 24];
        bytes[0] = 135;
        assert_eq!(Icmpv6::parse(&bytes).unwrap().target(), Some(Ipv6Addr::from([7; 16])));
        assert_eq!(Icmpv6::parse(&bytes[..23]).unwrap().target(), None);
        bytes[0] = 134;
        assert_eq!(Icmpv6::parse(&bytes).unwrap().target(), None);
        bytes[0] = 129;
        assert_eq!(Icmpv6::parse(&bytes).unwrap().echo(), Some((0x707, 0x707)));
    }
}
