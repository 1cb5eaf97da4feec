//! Checksums that Linux left unfinished.
//!
//! A frame that Linux sends to a veth interface never saw a wire, and so its TCP or UDP checksum may not be there yet: in its
//! place stands the sum over the pseudo header, and a note beside the frame says so. XDP shows the frame without the note.
//! But the sum gives itself away: a frame in whose checksum field it stands is either unfinished, or one in 65,536 of the
//! complete ones that have it there by chance, which finishing does not change. A damaged frame could be taken for good by it
//! with the same small probability with which its checksum fails to notice damage at all.

use millrace_packet::{checksum::Sum, offload::PartialChecksum};

/// Fills in the checksum of `frame` if Linux did not. Returns whether it was so.
pub(super) fn finish(frame: &mut [u8]) -> bool {
    let found = find(frame);
    found.is_some_and(|(checksum, end)| checksum.fill_in(&mut frame[..end]).is_ok())
}

/// Whether [`finish`] has something to do.
#[inline]
pub(super) fn is_unfinished(frame: &[u8]) -> bool {
    find(frame).is_some()
}

const TCP: u8 = 6;
const UDP: u8 = 17;

/// The checksum that is not there yet, and where the bytes that it covers end: behind them can be padding.
#[inline]
fn find(frame: &[u8]) -> Option<(PartialChecksum, usize)> {
    let mut ethertype_at = 12;
    // VLAN tags of customers and providers.
    while matches!(word(frame, ethertype_at)?, 0x8100 | 0x88a8) {
        ethertype_at += 4;
    }
    let ip = ethertype_at + 2;
    let (addresses, protocol, start, end) = match word(frame, ethertype_at)? {
        0x0800 => {
            let header_len = usize::from(frame.get(ip)? & 0xf) * 4;
            // A fragment has but a part of what the checksum covers, and Linux does not leave it unfinished.
            if word(frame, ip + 6)? & 0x3fff != 0 || header_len < 20 {
                return None;
            }
            (ip + 12..ip + 20, *frame.get(ip + 9)?, ip + header_len, ip + usize::from(word(frame, ip + 2)?))
        }
        0x86dd => {
            let end = ip + 40 + usize::from(word(frame, ip + 4)?);
            let (mut protocol, mut at) = (*frame.get(ip + 6)?, ip + 40);
            // Hop-by-hop options, routing, destination options.
            while matches!(protocol, 0 | 43 | 60) {
                (protocol, at) = (*frame.get(at)?, at + 8 + usize::from(*frame.get(at + 1)?) * 8);
            }
            (ip + 8..ip + 40, protocol, at, end)
        }
        _ => return None,
    };
    let offset = match protocol {
        TCP => 16,
        UDP => 6,
        _ => return None,
    };
    if end > frame.len() || start + offset + 2 > end {
        return None;
    }
    let pseudo = Sum::of(frame.get(addresses)?).with(protocol.into()).with((end - start) as u32);
    let checksum = PartialChecksum { start: u16::try_from(start).ok()?, offset: offset as u16 };
    (word(frame, start + offset)? == pseudo.folded()).then_some((checksum, end))
}

fn word(frame: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What of a frame can be different here.
    #[derive(Clone, Debug)]
    struct Made {
        tags: usize,
        v6: bool,
        options: usize,
        tcp: bool,
        payload: Vec<u8>,
        padding: usize,
    }

    impl Made {
        fn any() -> impl Strategy<Value = Self> {
            let payload = proptest::collection::vec(any::<u8>(), 0..200);
            (0..3usize, any::<bool>(), 0..3usize, any::<bool>(), payload, 0..20usize).prop_map(
                |(tags, v6, options, tcp, payload, padding)| Made { tags, v6, options, tcp, payload, padding },
            )
        }

        /// The frame with the sum of the pseudo header in the place of its checksum, where the transport header begins,
        /// and where the checksum belongs.
        fn frame(&self) -> (Vec<u8>, usize, usize) {
            let (protocol, header_len, offset) = if self.tcp { (TCP, 20, 16) } else { (UDP, 8, 6) };
            let len = header_len + self.payload.len();
            let mut frame = vec![0xee; 12];
            (0..self.tags).for_each(|_| frame.extend_from_slice(&[0x81, 0, 0, 7]));
            let addresses = if self.v6 {
                let inside = len + 8 * self.options;
                frame.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0, (inside >> 8) as u8, inside as u8]);
                frame.extend_from_slice(&[if self.options > 0 { 60 } else { protocol }, 64]);
                let at = frame.len();
                frame.extend((0..32).map(|byte| byte * 7));
                for option in (0..self.options).rev() {
                    frame.extend_from_slice(&[if option > 0 { 60 } else { protocol }, 0, 1, 4, 0, 0, 0, 0]);
                }
                frame[at..at + 32].to_vec()
            } else {
                let total = 20 + 4 * self.options + len;
                frame.extend_from_slice(&[8, 0, 0x45 + self.options as u8, 0, (total >> 8) as u8, total as u8]);
                frame.extend_from_slice(&[0, 1, 0x40, 0, 64, protocol, 0, 0, 10, 9, 8, 7, 10, 9, 8, 6]);
                frame.resize(frame.len() + 4 * self.options, 1);
                vec![10, 9, 8, 7, 10, 9, 8, 6]
            };
            let start = frame.len();
            frame.resize(start + header_len, 0x3c);
            let pseudo = Sum::of(&addresses).with(protocol.into()).with(len as u32).folded();
            frame[start + offset..start + offset + 2].copy_from_slice(&pseudo.to_be_bytes());
            frame.extend_from_slice(&self.payload);
            frame.resize(frame.len() + self.padding, 0x77);
            (frame, start, start + offset)
        }
    }

    proptest! {
        #[test]
        fn what_linux_left_is_found_and_finished(made in Made::any()) {
            let (mut frame, start, field) = made.frame();
            let before = frame.clone();
            let end = frame.len() - made.padding;
            let pseudo = word(&frame, field).unwrap();
            prop_assert!(is_unfinished(&frame) && finish(&mut frame));
            // What a receiver computes: everything and the pseudo header add up to nothing.
            let sum = Sum::of(&frame[start..end]).with(pseudo.into());
            prop_assert_eq!(sum.folded(), 0xffff);
            frame[field..field + 2].copy_from_slice(&before[field..field + 2]);
            prop_assert_eq!(&frame, &before);
        }

        #[test]
        fn a_complete_frame_stays_as_it_is(made in Made::any(), byte in 1..=255u8) {
            let (mut frame, _, field) = made.frame();
            // One that happens to have this checksum is finished again, and comes out the same.
            finish(&mut frame);
            let complete = frame.clone();
            finish(&mut frame);
            prop_assert_eq!(&frame, &complete);
            // A damaged one stays damaged.
            frame[field] = frame[field].wrapping_add(byte);
            let damaged = frame.clone();
            if !is_unfinished(&frame) {
                prop_assert!(!finish(&mut frame));
                prop_assert_eq!(&frame, &damaged);
            }
        }

        #[test]
        fn any_bytes_will_do(mut frame in proptest::collection::vec(any::<u8>(), 0..100), made in Made::any(), cut in 0..150usize) {
            finish(&mut frame);
            let (mut frame, ..) = made.frame();
            frame.truncate(cut);
            finish(&mut frame);
        }
    }
}
