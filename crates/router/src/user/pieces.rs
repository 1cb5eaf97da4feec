//! Cutting IPv4 packets that the path does not take whole (RFC 791 §3.2), before they are protected (RFC 4301 §8.1).

use std::ops::Range;

use millrace_ipsec::ip::Header;
use millrace_packet::checksum::Sum;

/// A packet that needs more is not cut: at the least MTU it would be longer than any packet that somebody sends.
pub(super) const MOST: usize = 64;

/// Options that are in the first piece alone do not have this bit (RFC 791 §3.1).
const COPIED: u8 = 0x80;

/// The pieces of an IPv4 packet, each of at most `mtu` bytes. `None`: it cannot be cut, or needs too many.
pub(super) fn cut(packet: &[u8], mtu: usize) -> Option<Vec<Vec<u8>>> {
    let header = Header::parse(packet).ok().filter(|header| header.source.is_ipv4())?;
    let own = u16::from_be_bytes([packet[6], packet[7]]);
    let (offset, is_last) = (usize::from(own & 0x1fff) * 8, own & 0x2000 == 0);
    let text = &packet[header.len..header.total];
    let room = mtu.checked_sub(header.len)? & !7;
    if room == 0 || text.len().div_ceil(room) > MOST {
        return None;
    }
    let mut pieces = Vec::new();
    let mut from = 0;
    while from < text.len() {
        let to = (from + room).min(text.len());
        let is_end = to == text.len() && is_last;
        pieces.push(piece(&packet[..header.len], &text[from..to], offset + from, is_end)?);
        from = to;
    }
    Some(pieces)
}

fn piece(header: &[u8], text: &[u8], offset: usize, is_end: bool) -> Option<Vec<u8>> {
    let mut bytes = [header, text].concat();
    if offset > 0 {
        without_uncopied(&mut bytes[20..header.len()]);
    }
    let more = if is_end { 0 } else { 0x2000 };
    let field = u16::try_from(offset / 8).ok().filter(|units| *units < 0x2000)? | more;
    let len = u16::try_from(bytes.len()).ok()?;
    bytes[2..4].copy_from_slice(&len.to_be_bytes());
    bytes[6..8].copy_from_slice(&field.to_be_bytes());
    bytes[10..12].fill(0);
    let sum = Sum::of(&bytes[..header.len()]).checksum();
    bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    Some(bytes)
}

/// Makes options that only the first piece has into ones that say nothing.
fn without_uncopied(options: &mut [u8]) {
    let mut at = 0;
    while let Some(Range { start, end }) = option(options, at) {
        if options[start] & COPIED == 0 {
            options[start..end].fill(1);
        }
        at = end;
    }
}

fn option(options: &[u8], at: usize) -> Option<Range<usize>> {
    let len = match options.get(at)? {
        0 => return None,
        1 => 1,
        _ => usize::from(*options.get(at + 1)?),
    };
    (len > 0 && at + len <= options.len()).then_some(at..at + len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packet(len: usize, options: usize) -> Vec<u8> {
        let mut packet: Vec<u8> = (0..len).map(|at| at as u8).collect();
        packet[..20].fill(0);
        packet[0] = 0x45 + (options / 4) as u8;
        packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        (packet[4], packet[8], packet[9]) = (7, 64, 17);
        packet[20..20 + options].fill(1);
        packet
    }

    proptest! {
        #[test]
        fn pieces_make_the_packet_again(len in 60_usize..4000, mtu in 100_usize..1500, words in 0_usize..10) {
            let whole = packet(len, words * 4);
            let head = 20 + words * 4;
            let mut text = vec![0; len - head];
            let pieces = cut(&whole, mtu);
            prop_assume!(pieces.is_some());
            let mut last = None;
            for piece in pieces.unwrap() {
                prop_assert!(piece.len() <= mtu && Sum::of(&piece[..head]).folded() == 0xffff);
                let field = usize::from(u16::from_be_bytes([piece[6], piece[7]]));
                let (at, body) = ((field & 0x1fff) * 8, &piece[head..]);
                text[at..at + body.len()].copy_from_slice(body);
                prop_assert!(last.is_none());
                last = (field & 0x2000 == 0).then_some(at + body.len());
            }
            prop_assert_eq!((last, &text[..]), (Some(len - head), &whole[head..]));
        }

        #[test]
        fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..200), mtu in 0_usize..200) {
            let _ = cut(&bytes, mtu);
        }
    }

    #[test]
    fn options_for_the_first_alone_are_not_in_others() {
        let mut whole = packet(1000, 12);
        whole[20..32].copy_from_slice(&[7, 3, 4, 0x82, 4, 9, 9, 68, 5, 5, 0, 0]);
        let pieces = cut(&whole, 500).unwrap();
        assert_eq!(pieces[0][20..32], whole[20..32]);
        assert_eq!(pieces[1][20..32], [1, 1, 1, 0x82, 4, 9, 9, 1, 1, 1, 1, 1]);
        assert!(cut(&whole, 39).is_none() && cut(&packet(4000, 0), 68).is_none());
    }
}
