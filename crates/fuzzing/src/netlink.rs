//! Any bytes as datagrams of netlink for `millrace-router`: as they are, and as messages of the kinds that it reads. The mirror of what Linux has holds no
//! more than it was told, and what one message makes of it, the same message makes again.

use millrace_router::kernel::mirror::Mirror;
use millrace_router::kernel::wire::{self, Message, Request};
use millrace_router::kernel::{KINDS, read_all};
use std::hint::black_box;

/// The longest body of a message that is made here.
const LONGEST: usize = 255;

/// First a datagram of the whole input, then one message after the other: its kind, its length, its body. How many of them said something.
pub fn netlink(input: &[u8]) -> u64 {
    let mut mirror = Mirror::default();
    let mut told = 0;
    let mut read = wire::messages(input).map(|message| tell(&mut mirror, &message)).sum::<u64>();
    let mut rest = input;
    while let [kind, length, bytes @ ..] = rest {
        let (body, left) = bytes.split_at(bytes.len().min(usize::from(*length)));
        let kind = KINDS[usize::from(*kind) % KINDS.len()];
        let mut request = Request::new(kind, 0, &body[..body.len().min(LONGEST)]);
        let datagram = request.numbered(0);
        read += wire::messages(datagram).map(|message| tell(&mut mirror, &message)).sum::<u64>();
        (told, rest) = (told + 1, left);
    }
    let most = told + input.len() / 16;
    assert!(mirror.links.len() <= most && mirror.neighbours.len() + mirror.stations.len() <= most);
    read
}

fn tell(mirror: &mut Mirror, message: &Message<'_>) -> u64 {
    let found = read_all(message);
    let change = mirror.apply(message);
    let after = mirror.clone();
    black_box(mirror.apply(message));
    // But for how many events there were, and what there was no room for.
    (mirror.route_events, mirror.left_out) = (after.route_events, after.left_out);
    assert_eq!(*mirror, after, "told twice, it is another");
    found + u64::from(change.is_some())
}

#[cfg(test)]
mod tests {
    use crate::short_run;

    #[test]
    fn short_netlink() {
        assert!(short_run(super::netlink, 20_000) > 0);
    }
}
