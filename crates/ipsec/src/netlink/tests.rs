//! On what a Debian guest has said (`crates/ipsec/tests/data/README.md`).

use netlink_packet_core::{NLM_F_MULTIPART, NLM_F_REQUEST, NetlinkBuffer};
use netlink_packet_xfrm::constants::*;
use netlink_packet_xfrm::{AsyncEventId, UserExpire};

use super::*;
use crate::algorithm::{Aead, Keys, Unsupported};
use crate::association::{Association, Encapsulation, Id, Mode, Parameters};
use crate::database::{Change, Database};
use crate::lifetime::{End, Limits};
use crate::policy::{Action, Direction, Policy};
use crate::selector::{Mark, Port};

const NOW: u64 = 1_700_000_000;

struct Message {
    kind: u16,
    flags: u16,
    body: Vec<u8>,
}

/// All messages of the recording.
fn recorded() -> Vec<Message> {
    let file = include_bytes!("../../tests/data/xfrm.pcap");
    let (mut rest, mut messages) = (&file[24..], Vec::new());
    while !rest.is_empty() {
        let len = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
        let (packet, behind) = rest[16..].split_at(len);
        rest = behind;
        messages.extend(split(&packet[16..]));
    }
    messages
}

fn split(mut bytes: &[u8]) -> Vec<Message> {
    let mut messages = Vec::new();
    while bytes.len() >= 16 {
        let message = NetlinkBuffer::new_checked(bytes).unwrap();
        let (len, payload) = (message.length() as usize, message.payload());
        messages.push(Message { kind: message.message_type(), flags: message.flags(), body: payload.to_vec() });
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    messages
}

fn listed(kind: u16) -> Vec<Result<Vec<Change>, Error>> {
    let messages =
        recorded().into_iter().filter(|message| message.flags & NLM_F_MULTIPART != 0 && message.kind == kind);
    let mut all: Vec<_> = messages.map(|message| read(message.kind, &message.body)).collect();
    // Each list was asked for twice.
    all.truncate(all.len() / 2);
    all
}

fn listed_states() -> Vec<Parameters> {
    let changes = listed(XFRM_MSG_NEWSA).into_iter().filter_map(|result| result.ok()?.pop());
    changes
        .map(|change| match change {
            Change::Associate(parameters) => *parameters,
            other => panic!("{other:?}"),
        })
        .collect()
}

fn listed_policies() -> Vec<Policy> {
    let changes = listed(XFRM_MSG_NEWPOLICY).into_iter().flat_map(|result| result.unwrap());
    changes
        .map(|change| match change {
            Change::Policy(policy) => *policy,
            other => panic!("{other:?}"),
        })
        .collect()
}

#[test]
fn associations_as_they_were_added() {
    let states = listed_states();
    let with = |spi: u32| states.iter().find(|state| state.id.spi == spi).unwrap_or_else(|| panic!("{spi:#x}"));
    let first = with(0x1001);
    assert_eq!((first.source, first.id.destination), ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap()));
    assert_eq!((first.mode, first.reqid, first.is_extended, first.window), (Mode::Tunnel, 1, true, 128));
    assert_eq!(first.kernel_words, Some(4));
    assert!(matches!(&first.keys, Keys::Aead { aead: Aead::AesGcm128, key } if key.len() == 20));
    assert_eq!(first.limits, Limits { soft_bytes: 1_000_000, hard_bytes: 2_000_000, hard_added: 3600, ..Limits::NONE });
    assert!(first.progress.usage.added > NOW && first.selector.source.is_none());
    let second = with(0x1002);
    let rules = second.headers;
    assert_eq!((rules.dscp_out, rules.dscp_in, rules.ecn, rules.df), (true, true, false, false));
    assert_eq!((second.mode, second.window, second.selector.destination_port), (Mode::Transport, 32, Port::one(53)));
    assert!(matches!(&second.keys, Keys::Separate { check: 16, hash_key, .. } if hash_key.len() == 32));
    let third = with(0x1003);
    assert!(third.source.is_ipv6() && !third.headers.dscp_out && third.headers.df);
    let fourth = with(0x1004);
    assert_eq!(fourth.encapsulation, Some(Encapsulation { source_port: 4500, destination_port: 4501 }));
    assert_eq!((fourth.mark, fourth.if_id), (Mark { value: 7, mask: 0xff }, 0x2a));
    assert_eq!((fourth.progress.received, fourth.progress.sent), (0x22, 0x33));
    let fifth = with(0x1005);
    assert_eq!((fifth.progress.received, fifth.progress.sent), (0x1_0000_0005, 0x2_0000_0006));
    assert!(matches!(&fifth.keys, Keys::Separate { check: 32, .. }) && fifth.window == 4096);
    let refused: Vec<_> = listed(XFRM_MSG_NEWSA).into_iter().filter_map(Result::err).collect();
    let why = |spi| {
        refused.iter().find_map(|error| match error {
            Error::Unsupported { id, why, .. } if id.spi == spi => Some(why.clone()),
            _ => None,
        })
    };
    assert_eq!(why(0x1006), Some(Unsupported::Mode(4)));
    assert!(matches!(why(0x1007), Some(Unsupported::CheckLength { bits: 64, .. })));
    assert_eq!((states.len(), refused.len()), (5, 2));
}

#[test]
fn ip_prints_what_the_kernel_says() {
    let text: String = include_str!("../../tests/data/state.txt")
        // What is refused is refused there as well.
        .split("src 192.0.2.1 dst 192.0.2.5\n\tproto esp spi 0x00001007")
        .map(|part| part.split_once("src 192.0.2.1 dst 192.0.2.4").map_or("", |(_, rest)| rest))
        .collect();
    let text = format!("src 192.0.2.1 dst 192.0.2.4{text}");
    let printed = crate::text::parse(&text, |_| None).unwrap();
    let mut said = listed_states();
    for state in &mut said {
        // Neither is printed as the kernel has it.
        state.kernel_words = None;
        state.progress.usage.added = 0;
    }
    let said: Vec<_> = said.into_iter().map(|state| Change::Associate(Box::new(state))).collect();
    assert_eq!(printed, said);
    let printed = crate::text::parse(include_str!("../../tests/data/policy.txt"), |_| None).unwrap();
    let said: Vec<_> = listed_policies().into_iter().map(|policy| Change::Policy(Box::new(policy))).collect();
    assert_eq!(printed, said);
}

#[test]
fn policies_as_they_were_added() {
    let policies = listed_policies();
    assert_eq!(policies.len(), 5);
    let of = |priority, direction| {
        let found = policies.iter().find(|policy| (policy.priority, policy.direction) == (priority, direction));
        found.expect("there is such a policy")
    };
    let out = of(100, Direction::Out);
    let template = out.templates[0];
    assert_eq!((template.reqid, template.mode, template.is_optional), (1, Some(Mode::Tunnel), false));
    assert_eq!(template.source, Some("192.0.2.1".parse().unwrap()));
    assert_eq!(out.selector.source.unwrap().to_string(), "10.1.0.0/16");
    assert!(of(100, Direction::In).templates[0].is_optional);
    let block = of(5, Direction::Out);
    assert_eq!((block.action, block.if_id, block.mark), (Action::Block, 9, Mark { value: 1, mask: 3 }));
    assert_eq!((block.selector.protocol, block.selector.destination_port), (6, Port::one(443)));
    assert_eq!(block.selector.source.unwrap().to_string(), "2001:db8:1::/48");
    let any = of(900, Direction::Out).templates[0];
    assert_eq!((any.source, any.destination, any.mode), (None, None, Some(Mode::Transport)));
}

#[test]
fn events_make_and_empty_a_database() {
    let mut database = Database::new();
    let (mut most, mut refused) = ((0, 0), 0);
    let mut defaults = 0;
    for message in recorded().iter().filter(|message| message.flags & (NLM_F_REQUEST | NLM_F_MULTIPART) == 0) {
        match read(message.kind, &message.body) {
            Ok(changes) => {
                for change in changes {
                    defaults += usize::from(matches!(change, Change::Default(..)));
                    database.apply(change, NOW).unwrap();
                }
            }
            Err(Error::Unsupported { .. }) => refused += 1,
            Err(error) => panic!("{error}"),
        }
        let now = (database.associations().count(), database.policies().len());
        most = (most.0.max(now.0), most.1.max(now.1));
    }
    // The last one was over before the lists.
    assert_eq!((most, refused), ((6, 5), 2));
    assert!(defaults >= 2, "{defaults}");
    assert_eq!((database.associations().count(), database.policies().len()), (0, 0));
}

#[test]
fn reports_say_what_the_kernel_said() {
    for parameters in listed_states() {
        let association = Association::new(parameters.clone(), NOW).unwrap();
        let [message] = &split(&report(&association, 77))[..] else { panic!("one message") };
        assert_eq!((message.kind, message.flags), (XFRM_MSG_NEWAE, 1 | 4 | 0x100));
        let id = AsyncEventId::parse(&message.body).unwrap();
        assert_eq!(
            (id.sa_id.spi, id.reqid, id.flags),
            (parameters.id.spi, parameters.reqid, XFRM_AE_RVAL | XFRM_AE_LVAL)
        );
        // The same attribute as the one that was read, byte for byte.
        let attribute = |body: &[u8], header: usize, kind: u16| {
            let found =
                netlink_packet_core::NlasIterator::new(&body[header..]).flatten().find(|found| found.kind() == kind);
            found.map(|found| found.value().to_vec())
        };
        let original = recorded()
            .into_iter()
            .find(|message| {
                let is_list = message.flags & NLM_F_MULTIPART != 0 && message.kind == XFRM_MSG_NEWSA;
                is_list && message.body[72..76] == parameters.id.spi.to_be_bytes()
            })
            .unwrap();
        for kind in [XFRMA_REPLAY_VAL, XFRMA_REPLAY_ESN_VAL, XFRMA_MARK] {
            let is_ring = parameters.kernel_words.is_some();
            // Beside a ring the kernel says the other as well.
            if kind == XFRMA_REPLAY_VAL && is_ring {
                continue;
            }
            assert_eq!(
                attribute(&message.body, 48, kind),
                attribute(&original.body, 224, kind),
                "{kind} of {:#x}",
                parameters.id.spi
            );
        }
        let used = attribute(&message.body, 48, XFRMA_LTIME_VAL).unwrap();
        assert_eq!(used[16..24], parameters.progress.usage.added.to_ne_bytes());

        let message = &split(&expire(&parameters, End::Hard, 78).unwrap())[0];
        let expire = UserExpire::parse(&message.body).unwrap();
        assert_eq!((message.kind, expire.hard, expire.state.id.spi), (XFRM_MSG_EXPIRE, 1, parameters.id.spi));
        let gone = Id { destination: parameters.id.destination, spi: parameters.id.spi };
        assert_eq!(read(message.kind, &message.body), Ok(vec![Change::Dissociate(gone, parameters.mark)]));
    }
    assert_eq!(expire(&listed_states()[0], End::Open, 1), None);
}

#[test]
fn questions() {
    for (bytes, kind) in [(list_associations(5), XFRM_MSG_GETSA), (list_policies(5), XFRM_MSG_GETPOLICY)] {
        let message = NetlinkBuffer::new_checked(&bytes[..]).unwrap();
        assert_eq!((message.message_type(), message.flags(), message.sequence_number()), (kind, 0x301, 5));
    }
}

#[test]
fn cut_short_anywhere_is_an_error_or_says_less() {
    for message in recorded() {
        for len in 0..message.body.len() {
            let _ = read(message.kind, &message.body[..len]);
        }
    }
    for (kind, least) in [
        (XFRM_MSG_NEWSA, 224),
        (XFRM_MSG_DELSA, 24),
        (XFRM_MSG_EXPIRE, 232),
        (XFRM_MSG_NEWPOLICY, 168),
        (XFRM_MSG_DELPOLICY, 64),
    ] {
        assert_eq!(read(kind, &vec![0; least - 1]), Err(Error::Malformed(kind)));
    }
}

#[test]
fn rings_as_linux_turns_them() {
    // From xfrm_replay.c: the newest is at (seq - 1) % window.
    assert_eq!(ring_bit(1, 1, 128), 0);
    assert_eq!(ring_bit(130, 130, 128), 1);
    assert_eq!(ring_bit(130, 128, 128), 127);
    assert_eq!(ring_bit(1 << 32, 1 << 32, 100), (u32::MAX % 100) as usize);
}
