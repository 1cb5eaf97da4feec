//! Options of IPv4 (RFC 791 §3.1), TCP (RFC 9293 §3.1) and IPv6 (RFC 8200 §4.2): a kind, a length, data.

use super::Malformed;

/// One option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tlv<'a> {
    /// Which option it is.
    pub kind: u8,
    /// What belongs to it, without kind and length.
    pub data: &'a [u8],
}

/// Options of IPv4 or TCP, in which the length covers kind and length. Ends behind the last one, at the first that is
/// malformed, and at the option that says that it is the end.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a>(pub(super) &'a [u8]);

impl<'a> Iterator for Options<'a> {
    type Item = Result<Tlv<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let (&kind, rest) = self.0.split_first()?;
        match kind {
            0 => {
                self.0 = &[];
                None
            }
            1 => {
                self.0 = rest;
                Some(Ok(Tlv { kind, data: &[] }))
            }
            _ => {
                let Some((&len, rest)) = rest.split_first() else { return end(&mut self.0, Malformed::Truncated) };
                let Some(len) = usize::from(len).checked_sub(2) else {
                    return end(&mut self.0, Malformed::HeaderLength);
                };
                let Some((data, rest)) = rest.split_at_checked(len) else {
                    return end(&mut self.0, Malformed::Truncated);
                };
                self.0 = rest;
                Some(Ok(Tlv { kind, data }))
            }
        }
    }
}

/// Options of an IPv6 extension header, in which the length covers the data only. Ends behind the last one and at the
/// first that is malformed. One byte of padding (kind 0) counts as an option.
#[derive(Clone, Copy, Debug)]
pub struct Ipv6Options<'a>(pub(super) &'a [u8]);

impl<'a> Iterator for Ipv6Options<'a> {
    type Item = Result<Tlv<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let (&kind, rest) = self.0.split_first()?;
        if kind == 0 {
            self.0 = rest;
            return Some(Ok(Tlv { kind, data: &[] }));
        }
        let Some((&len, rest)) = rest.split_first() else { return end(&mut self.0, Malformed::Truncated) };
        let Some((data, rest)) = rest.split_at_checked(usize::from(len)) else {
            return end(&mut self.0, Malformed::Truncated);
        };
        self.0 = rest;
        Some(Ok(Tlv { kind, data }))
    }
}

/// The last thing an iterator says.
fn end<T>(rest: &mut &[u8], reason: Malformed) -> Option<Result<T, Malformed>> {
    *rest = &[];
    Some(Err(reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_tcp_and_how_they_end() {
        let found: Vec<_> = Options(&[1, 2, 4, 0x05, 0xb4, 0, 9, 9]).collect();
        assert_eq!(found, [Ok(Tlv { kind: 1, data: &[] }), Ok(Tlv { kind: 2, data: &[0x05, 0xb4] })]);
        for (bytes, reason) in
            [(&[8, 1][..], Malformed::HeaderLength), (&[8], Malformed::Truncated), (&[8, 4, 0], Malformed::Truncated)]
        {
            assert_eq!(Options(bytes).collect::<Vec<_>>(), [Err(reason)], "{bytes:?}");
        }
    }

    #[test]
    fn options_of_ipv6_and_how_they_end() {
        let found: Vec<_> = Ipv6Options(&[0, 5, 2, 7, 8, 1, 0]).map(Result::unwrap).collect();
        let data = |kind, data| Tlv { kind, data };
        assert_eq!(found, [data(0, &[]), data(5, &[7, 8]), data(1, &[])]);
        assert_eq!(Ipv6Options(&[5]).collect::<Vec<_>>(), [Err(Malformed::Truncated)]);
        assert_eq!(Ipv6Options(&[5, 2, 0]).collect::<Vec<_>>(), [Err(Malformed::Truncated)]);
    }
}
