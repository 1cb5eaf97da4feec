//! Messages to the kernel.

use netlink_packet_core::{Emitable, NLM_F_ACK, NLM_F_DUMP, NLM_F_REPLACE, NLM_F_REQUEST};
use netlink_packet_xfrm::constants::*;
use netlink_packet_xfrm::{
    Address, AsyncEventId, Id as KernelId, Lifetime, Mark as KernelMark, Replay, ReplayEsn, UserExpire, UserSaId,
    UserSaInfo, XfrmAttrs,
};

use super::ring_bit;
use crate::association::{Association, Id, Parameters, Progress};
use crate::ip::protocol;
use crate::lifetime::End;

/// Bytes of `nlmsghdr`.
const HEADER: usize = 16;

/// Of the kernel's bitmap where it is not a ring: 32 numbers.
const SHORT_WINDOW: u32 = 32;

/// A message of this kind with this body; `sequence` comes back with the answer.
fn message(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + body.len());
    bytes.extend_from_slice(&((HEADER + body.len()) as u32).to_ne_bytes());
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(&(NLM_F_REQUEST | flags).to_ne_bytes());
    bytes.extend_from_slice(&sequence.to_ne_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(body);
    bytes
}

fn emitted(header: &impl Emitable, attributes: &[XfrmAttrs]) -> Vec<u8> {
    let attributes_len: usize = attributes.buffer_len();
    let mut bytes = vec![0; header.buffer_len() + attributes_len];
    let (front, back) = bytes.split_at_mut(header.buffer_len());
    header.emit(front);
    attributes.emit(back);
    bytes
}

/// Asks for all associations. The answers are `XFRM_MSG_NEWSA`, and `NLMSG_DONE` at the end.
pub fn list_associations(sequence: u32) -> Vec<u8> {
    message(XFRM_MSG_GETSA, NLM_F_DUMP, sequence, &[])
}

/// Asks for all policies. The answers are `XFRM_MSG_NEWPOLICY`, and `NLMSG_DONE` at the end.
pub fn list_policies(sequence: u32) -> Vec<u8> {
    message(XFRM_MSG_GETPOLICY, NLM_F_DUMP, sequence, &[])
}

fn family(id: Id) -> u16 {
    if id.destination.is_ipv4() { AF_INET } else { AF_INET6 }
}

fn marks(parameters: &Parameters) -> Option<XfrmAttrs> {
    let mark = parameters.mark;
    (mark.mask != 0).then_some(XfrmAttrs::Mark(KernelMark { value: mark.value, mask: mark.mask }))
}

/// Tells the kernel how far an association is: sequence numbers, the window, what was used (`XFRM_MSG_NEWAE`). Its answer is an
/// acknowledgement, or `ESRCH` when it has no such association any more.
pub fn report(association: &Association, sequence: u32) -> Vec<u8> {
    let (parameters, progress) = (association.parameters(), association.progress());
    let id = AsyncEventId {
        sa_id: UserSaId {
            daddr: Address::from_ip(&parameters.id.destination),
            spi: parameters.id.spi,
            family: family(parameters.id),
            proto: protocol::ESP,
        },
        saddr: Address::from_ip(&parameters.source),
        flags: XFRM_AE_RVAL | XFRM_AE_LVAL,
        reqid: parameters.reqid,
    };
    let usage = progress.usage;
    let lifetime = XfrmAttrs::LifetimeBytes(Lifetime {
        bytes: usage.bytes,
        packets: usage.packets,
        add_time: usage.added,
        use_time: usage.used,
    });
    let replay = match parameters.kernel_words {
        Some(words) => XfrmAttrs::ReplayStateEsn(ring(&progress, parameters.window, words)),
        None => XfrmAttrs::ReplayState(Replay {
            oseq: progress.sent as u32,
            seq: progress.received as u32,
            bitmap: progress.came.first().copied().unwrap_or(0) as u32 & short_mask(parameters.window),
        }),
    };
    let attributes: Vec<_> = [replay, lifetime].into_iter().chain(marks(parameters)).collect();
    message(XFRM_MSG_NEWAE, NLM_F_REPLACE | NLM_F_ACK, sequence, &emitted(&id, &attributes))
}

const fn short_mask(window: u32) -> u32 {
    if window >= SHORT_WINDOW { u32::MAX } else { (1 << window) - 1 }
}

fn ring(progress: &Progress, window: u32, words: u32) -> ReplayEsn {
    // As long as the kernel said that it is, which Linux bounds by a window of 4,096.
    let mut bmp = vec![0u32; words.min(128) as usize];
    for back in 0..u64::from(window).min(progress.received) {
        let has_come = progress.came.get((back / 64) as usize).is_some_and(|word| word & (1 << (back % 64)) != 0);
        let bit = ring_bit(progress.received, progress.received - back, window);
        if let Some(word) = bmp.get_mut(bit / 32).filter(|_| has_come) {
            *word |= 1 << (bit % 32);
        }
    }
    ReplayEsn {
        bmp_len: words,
        oseq: progress.sent as u32,
        seq: progress.received as u32,
        oseq_hi: (progress.sent >> 32) as u32,
        seq_hi: (progress.received >> 32) as u32,
        replay_window: window,
        bmp,
    }
}

/// Tells the kernel, and IKE by it, that an association should be renewed or is over (`XFRM_MSG_EXPIRE`). With [`End::Hard`]
/// the kernel forgets it. `None`: there is nothing to tell.
pub fn expire(parameters: &Parameters, end: End, sequence: u32) -> Option<Vec<u8>> {
    if end == End::Open {
        return None;
    }
    let state = UserSaInfo {
        id: KernelId {
            daddr: Address::from_ip(&parameters.id.destination),
            spi: parameters.id.spi,
            proto: protocol::ESP,
        },
        saddr: Address::from_ip(&parameters.source),
        reqid: parameters.reqid,
        family: family(parameters.id),
        ..UserSaInfo::default()
    };
    let expire = UserExpire { state, hard: u8::from(end == End::Hard) };
    let attributes: Vec<_> = marks(parameters).into_iter().collect();
    Some(message(XFRM_MSG_EXPIRE, NLM_F_ACK, sequence, &emitted(&expire, &attributes)))
}
