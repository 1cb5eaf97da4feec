//! Messages: what is written is read again; nothing that comes makes the reader fail; bytes that others have written.

use millrace_agent::wire::action::Action;
use millrace_agent::wire::bundle::{BundleAdd, BundleControl};
use millrace_agent::wire::error::{self, ErrorMessage, Refusal};
use millrace_agent::wire::flow::{FlowMod, FlowQuestion, FlowRemoved, FlowStats, Lifetime};
use millrace_agent::wire::group::{Bucket, GroupDesc, GroupFeatures, GroupMod, GroupStats};
use millrace_agent::wire::hello::Hello;
use millrace_agent::wire::instruction::Instruction;
use millrace_agent::wire::meter::{Band, MeterConfig, MeterFeatures, MeterMod, MeterStats};
use millrace_agent::wire::multipart::{Answer, Desc, Question};
use millrace_agent::wire::oxm::Oxm;
use millrace_agent::wire::packet::{PacketIn, PacketOut};
use millrace_agent::wire::port::{Port, PortMod, PortStats, PortStatus, QueueConfig, QueueStats};
use millrace_agent::wire::switch::{Config, Features, Role, TableMod, Wants};
use millrace_agent::wire::table::{Property, TableFeatures, TableStats};
use millrace_agent::wire::{Header, Message, first};
use proptest::collection::vec;
use proptest::prelude::*;

fn oxm() -> impl Strategy<Value = Oxm> {
    let class = prop_oneof![Just((0x8000, 0)), Just((1, 0)), any::<u32>().prop_map(|who| (0xffff, who))];
    (class, 0..128u8, vec(any::<(u8, u8)>(), 1..17), any::<bool>()).prop_map(
        |((class, experimenter), field, bytes, masked)| {
            let (value, mask): (Vec<u8>, Vec<u8>) = bytes.into_iter().unzip();
            Oxm { class, field, experimenter, value, mask: masked.then_some(mask) }
        },
    )
}

fn matching() -> impl Strategy<Value = Vec<Oxm>> {
    vec(oxm(), 0..6)
}

fn action() -> impl Strategy<Value = Action> {
    let data = vec(any::<[u8; 8]>(), 0..3).prop_map(|words| words.concat());
    prop_oneof![
        any::<(u32, u16)>().prop_map(|(port, max_len)| Action::Output { port, max_len }),
        prop_oneof![
            Just(Action::CopyTtlOut),
            Just(Action::CopyTtlIn),
            Just(Action::DecMplsTtl),
            Just(Action::PopVlan),
            Just(Action::DecNwTtl),
            Just(Action::PopPbb)
        ],
        any::<u8>().prop_map(Action::SetMplsTtl),
        any::<u8>().prop_map(Action::SetNwTtl),
        any::<u16>().prop_map(Action::PushVlan),
        any::<u16>().prop_map(Action::PushMpls),
        any::<u16>().prop_map(Action::PopMpls),
        any::<u16>().prop_map(Action::PushPbb),
        any::<u32>().prop_map(Action::SetQueue),
        any::<u32>().prop_map(Action::Group),
        oxm().prop_map(Action::SetField),
        (any::<u32>(), data).prop_map(|(experimenter, data)| Action::Experimenter { experimenter, data }),
    ]
}

fn instruction() -> impl Strategy<Value = Instruction> {
    prop_oneof![
        any::<u8>().prop_map(Instruction::GotoTable),
        any::<(u64, u64)>().prop_map(|(metadata, mask)| Instruction::WriteMetadata { metadata, mask }),
        vec(action(), 0..5).prop_map(Instruction::WriteActions),
        vec(action(), 0..5).prop_map(Instruction::ApplyActions),
        Just(Instruction::ClearActions),
        any::<u32>().prop_map(Instruction::Meter),
    ]
}

fn instructions() -> impl Strategy<Value = Vec<Instruction>> {
    vec(instruction(), 0..4)
}

fn bucket() -> impl Strategy<Value = Bucket> {
    (any::<(u16, u32, u32)>(), vec(action(), 0..4)).prop_map(|((weight, watch_port, watch_group), actions)| Bucket {
        weight,
        watch_port,
        watch_group,
        actions,
    })
}

fn bands() -> impl Strategy<Value = Vec<Band>> {
    vec(any::<(u32, u32)>().prop_map(|(rate, burst)| Band::drop(rate, burst)), 0..3)
}

fn lifetime() -> impl Strategy<Value = Lifetime> {
    any::<(u32, u32)>().prop_map(|(sec, nsec)| Lifetime { sec, nsec })
}

fn port() -> impl Strategy<Value = Port> {
    (any::<(u32, [u8; 6], u32, u32, [u32; 4], u32, u32)>(), "[a-z0-9]{0,15}").prop_map(
        |((number, mac, config, state, features, speed, max_speed), name)| Port {
            number,
            mac,
            name,
            config,
            state,
            features,
            speed,
            max_speed,
        },
    )
}

fn flow_mod() -> impl Strategy<Value = Message> {
    (any::<((u64, u64, u8, u8, u16, u16), (u16, u32, u32, u32, u16))>(), matching(), instructions()).prop_map(
        |(numbers, matching, instructions)| {
            let ((cookie, cookie_mask, table, command, idle_timeout, hard_timeout), rest) = numbers;
            let (priority, buffer, out_port, out_group, flags) = rest;
            Message::FlowMod(FlowMod {
                cookie,
                cookie_mask,
                table,
                command,
                idle_timeout,
                hard_timeout,
                priority,
                buffer,
                out_port,
                out_group,
                flags,
                matching,
                instructions,
            })
        },
    )
}

fn flow_stats() -> impl Strategy<Value = FlowStats> {
    (any::<(u8, u16, u16, u16, u16, u64, u64, u64)>(), lifetime(), matching(), instructions()).prop_map(
        |(
            (table, priority, idle_timeout, hard_timeout, flags, cookie, packets, bytes),
            lifetime,
            matching,
            instructions,
        )| {
            FlowStats {
                table,
                lifetime,
                priority,
                idle_timeout,
                hard_timeout,
                flags,
                cookie,
                packets,
                bytes,
                matching,
                instructions,
            }
        },
    )
}

fn flow_removed() -> impl Strategy<Value = Message> {
    (any::<(u64, u16, u8, u8, u16, u16, u64, u64)>(), lifetime(), matching()).prop_map(
        |((cookie, priority, reason, table, idle_timeout, hard_timeout, packets, bytes), lifetime, matching)| {
            Message::FlowRemoved(FlowRemoved {
                cookie,
                priority,
                reason,
                table,
                lifetime,
                idle_timeout,
                hard_timeout,
                packets,
                bytes,
                matching,
            })
        },
    )
}

fn flow_question() -> impl Strategy<Value = FlowQuestion> {
    (any::<(u8, u32, u32, u64, u64)>(), matching()).prop_map(
        |((table, out_port, out_group, cookie, cookie_mask), matching)| FlowQuestion {
            table,
            out_port,
            out_group,
            cookie,
            cookie_mask,
            matching,
        },
    )
}

fn table_features() -> impl Strategy<Value = TableFeatures> {
    let property = (any::<u16>(), vec(any::<u8>(), 0..20)).prop_map(|(kind, data)| Property { kind, data });
    (any::<(u8, u64, u64, u32, u32)>(), "[a-z]{0,31}", vec(property, 0..4)).prop_map(
        |((table, metadata_match, metadata_write, config, max_entries), name, properties)| TableFeatures {
            table,
            name,
            metadata_match,
            metadata_write,
            config,
            max_entries,
            properties,
        },
    )
}

fn question() -> impl Strategy<Value = Question> {
    prop_oneof![
        prop_oneof![
            Just(Question::Desc),
            Just(Question::Table),
            Just(Question::GroupDesc),
            Just(Question::GroupFeatures),
            Just(Question::MeterFeatures),
            Just(Question::PortDesc)
        ],
        flow_question().prop_map(Question::Flow),
        flow_question().prop_map(Question::Aggregate),
        any::<u32>().prop_map(Question::PortStats),
        any::<(u32, u32)>().prop_map(|(port, queue)| Question::Queue(port, queue)),
        any::<u32>().prop_map(Question::Group),
        any::<u32>().prop_map(Question::Meter),
        any::<u32>().prop_map(Question::MeterConfig),
        vec(table_features(), 0..3).prop_map(Question::TableFeatures),
        (any::<u32>(), vec(any::<u8>(), 0..20))
            .prop_map(|(experimenter, data)| Question::Experimenter { experimenter, data }),
    ]
}

fn answer() -> impl Strategy<Value = Answer> {
    let counted = || vec(any::<(u64, u64)>(), 0..4);
    let group_stats = (any::<(u32, u32, u64, u64)>(), lifetime(), counted()).prop_map(
        |((group, references, packets, bytes), lifetime, buckets)| GroupStats {
            group,
            references,
            packets,
            bytes,
            lifetime,
            buckets,
        },
    );
    let meter_stats = (any::<(u32, u32, u64, u64)>(), lifetime(), counted()).prop_map(
        |((meter, flows, packets, bytes), lifetime, bands)| MeterStats {
            meter,
            flows,
            packets,
            bytes,
            lifetime,
            bands,
        },
    );
    let desc = ["[a-z]{0,255}", "[a-z ]{0,255}", "[0-9.]{0,255}", "[a-z]{0,31}", "[a-z]{0,255}"].prop_map(
        |[maker, hardware, software, serial, datapath]| {
            Answer::Desc(Desc { maker, hardware, software, serial, datapath })
        },
    );
    prop_oneof![
        desc,
        vec(flow_stats(), 0..4).prop_map(Answer::Flow),
        any::<(u64, u64, u32)>().prop_map(|(packets, bytes, flows)| Answer::Aggregate(packets, bytes, flows)),
        vec(
            any::<(u8, u32, u64, u64)>().prop_map(|(table, active, lookups, matched)| TableStats {
                table,
                active,
                lookups,
                matched
            }),
            0..4
        )
        .prop_map(Answer::Table),
        vec(
            (any::<(u32, [u64; 12])>(), lifetime()).prop_map(|((number, counters), lifetime)| PortStats {
                number,
                counters,
                lifetime
            }),
            0..4
        )
        .prop_map(Answer::PortStats),
        vec(
            (any::<(u32, u32, u64, u64, u64)>(), lifetime()).prop_map(
                |((port, queue, bytes, packets, errors), lifetime)| QueueStats {
                    port,
                    queue,
                    bytes,
                    packets,
                    errors,
                    lifetime
                }
            ),
            0..4
        )
        .prop_map(Answer::Queue),
        vec(group_stats, 0..4).prop_map(Answer::Group),
        vec(
            (any::<(u8, u32)>(), vec(bucket(), 0..3)).prop_map(|((kind, group), buckets)| GroupDesc {
                kind,
                group,
                buckets
            }),
            0..4
        )
        .prop_map(Answer::GroupDesc),
        any::<(u32, u32, [u32; 4], [u32; 4])>().prop_map(|(types, capabilities, most, actions)| Answer::GroupFeatures(
            GroupFeatures { types, capabilities, most, actions }
        )),
        vec(meter_stats, 0..4).prop_map(Answer::Meter),
        vec(
            (any::<(u16, u32)>(), bands()).prop_map(|((flags, meter), bands)| MeterConfig { flags, meter, bands }),
            0..4
        )
        .prop_map(Answer::MeterConfig),
        any::<(u32, u32, u32, u8, u8)>().prop_map(|(most, bands, capabilities, most_bands, colors)| {
            Answer::MeterFeatures(MeterFeatures { most, bands, capabilities, most_bands, colors })
        }),
        vec(table_features(), 0..3).prop_map(Answer::TableFeatures),
        vec(port(), 0..4).prop_map(Answer::PortDesc),
    ]
}

fn plain() -> impl Strategy<Value = Message> {
    let data = || vec(any::<u8>(), 0..80);
    prop_oneof![
        vec(any::<u32>(), 0..3).prop_map(|versions| Message::Hello(Hello { versions })),
        (any::<(u16, u16, u32)>(), data()).prop_map(|((kind, code, experimenter), data)| {
            let experimenter = if kind == 0xffff { experimenter } else { 0 };
            Message::Error(ErrorMessage { refusal: Refusal { kind, code }, experimenter, data })
        }),
        data().prop_map(Message::EchoRequest),
        data().prop_map(Message::EchoReply),
        any::<(u32, u16, u16)>().prop_map(|(bundle, kind, flags)| Message::BundleControl(BundleControl {
            bundle,
            kind,
            flags
        })),
        (any::<(u32, u16)>(), data()).prop_map(|((bundle, flags), message)| Message::BundleAdd(BundleAdd {
            bundle,
            flags,
            message
        })),
        (0..1000u32, any::<u32>(), data()).prop_map(|(who, kind, data)| Message::Experimenter(who, kind, data)),
        any::<(u64, u32, u8, u8, u32)>().prop_map(|(datapath, buffers, tables, auxiliary, capabilities)| {
            Message::FeaturesReply(Features { datapath, buffers, tables, auxiliary, capabilities })
        }),
        any::<(u16, u16)>().prop_map(|(flags, miss_send_len)| Message::SetConfig(Config { flags, miss_send_len })),
        any::<(u8, u32)>().prop_map(|(table, config)| Message::TableMod(TableMod { table, config })),
        any::<(u32, u64)>().prop_map(|(role, generation)| Message::RoleRequest(Role { role, generation })),
        any::<([u32; 2], [u32; 2], [u32; 2])>().prop_map(|(packet_in, port_status, flow_removed)| {
            Message::SetWants(Wants { packet_in, port_status, flow_removed })
        }),
        any::<u32>().prop_map(Message::QueueConfigRequest),
        (any::<u32>(), vec(any::<(u32, u32)>(), 0..5))
            .prop_map(|(port, queues)| Message::QueueConfigReply(QueueConfig { port, queues })),
        any::<(u32, [u8; 6], u32, u32, u32)>().prop_map(|(number, mac, config, mask, advertise)| {
            Message::PortMod(PortMod { number, mac, config, mask, advertise })
        }),
        prop_oneof![
            Just(Message::FeaturesRequest),
            Just(Message::GetConfigRequest),
            Just(Message::BarrierRequest),
            Just(Message::BarrierReply),
            Just(Message::WantsRequest)
        ],
    ]
}

fn message() -> impl Strategy<Value = Message> {
    let data = || vec(any::<u8>(), 0..80);
    prop_oneof![
        plain(),
        flow_mod(),
        flow_removed(),
        (any::<u8>(), port()).prop_map(|(reason, port)| Message::PortStatus(PortStatus { reason, port })),
        (any::<(u32, u16, u8, u8, u64)>(), matching(), data()).prop_map(
            |((buffer, len, reason, table, cookie), matching, data)| Message::PacketIn(PacketIn {
                buffer,
                len,
                reason,
                table,
                cookie,
                matching,
                data
            })
        ),
        (any::<(u32, u32)>(), vec(action(), 0..5), data()).prop_map(|((buffer, in_port), actions, data)| {
            Message::PacketOut(PacketOut { buffer, in_port, actions, data })
        }),
        (any::<(u16, u8, u32)>(), vec(bucket(), 0..4)).prop_map(|((command, kind, group), buckets)| {
            Message::GroupMod(GroupMod { command, kind, group, buckets })
        }),
        (any::<(u16, u16, u32)>(), bands()).prop_map(|((command, flags, meter), bands)| Message::MeterMod(MeterMod {
            command,
            flags,
            meter,
            bands
        })),
        (any::<u16>(), question()).prop_map(|(flags, question)| Message::MultipartRequest(flags, question)),
        (any::<u16>(), answer()).prop_map(|(flags, answer)| Message::MultipartReply(flags, answer)),
    ]
}

fn written(message: &Message, xid: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(xid, &mut bytes);
    bytes
}

fn read(bytes: &[u8]) -> Result<(Header, Message), Refusal> {
    let (header, whole) = first(bytes)?.expect("a whole message");
    assert_eq!(whole, bytes);
    Message::decode(&header, whole).map(|message| (header, message))
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(message in message(), xid: u32) {
        let bytes = written(&message, xid);
        prop_assert_eq!(bytes.len() % 256, usize::from(bytes[3]));
        let (header, again) = read(&bytes).expect("it was written");
        prop_assert_eq!((header.xid, &again), (xid, &message));
    }

    #[test]
    fn what_is_cut_off_or_too_long_is_refused_or_another_message(message in message(), cut in 8..400usize) {
        let mut bytes = written(&message, 1);
        bytes.truncate(cut.min(bytes.len()));
        let len = (bytes.len() as u16).to_be_bytes();
        bytes[2..4].copy_from_slice(&len);
        if let Ok((_, again)) = read(&bytes) {
            prop_assert_eq!(read(&written(&again, 1)).expect("it was written").1, again);
        }
    }

    #[test]
    fn noise_is_read_or_refused(kind in 0..31u8, noise in vec(any::<u8>(), 0..300)) {
        let mut bytes = vec![4, kind, 0, 0, 0, 0, 0, 1];
        bytes.extend(noise);
        let len = (bytes.len() as u16).to_be_bytes();
        bytes[2..4].copy_from_slice(&len);
        if let Ok((_, message)) = read(&bytes) {
            prop_assert_eq!(read(&written(&message, 1)).expect("it was written").1, message);
        }
    }

    #[test]
    fn one_byte_that_is_wrong_is_no_trouble(message in message(), at: prop::sample::Index, bits in 1..=255u8) {
        let mut bytes = written(&message, 1);
        let at = at.index(bytes.len());
        bytes[at] ^= bits;
        if let Ok(Some((header, whole))) = first(&bytes) {
            let _ = Message::decode(&header, whole);
        }
    }
}

fn hex(text: &str) -> Vec<u8> {
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    digits
        .as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

#[test]
fn a_stream_is_cut_into_messages() {
    let mut bytes = written(&Message::FeaturesRequest, 7);
    assert_eq!(first(&bytes[..7]), Ok(None));
    bytes.extend(written(&Message::BarrierRequest, 8));
    let (header, whole) = first(&bytes).unwrap().unwrap();
    assert_eq!((header.xid, whole.len()), (7, 8));
    let (header, _) = first(&bytes[8..]).unwrap().unwrap();
    assert_eq!((header.xid, header.kind), (8, 20));
    assert_eq!(first(&hex("04 05 0007 00000001")), Err(error::request::BAD_LEN));
}

/// The bytes of `priority=7,cookie=5,idle_timeout=9,tcp,nw_dst=10.0.0.0/8,tcp_dst=80,actions=dec_ttl,output:2`, as the specification lays them out.
#[test]
fn a_flow_mod_byte_by_byte() {
    let bytes =
        hex("040e0078 00000002 0000000000000005 0000000000000000 00000009 00000007 ffffffff ffffffff ffffffff 00000000
         00010021 80000a02 0800 80001908 0a000000 ff000000 80001401 06 80001c02 0050 00000000000000
         00040020 00000000 00180008 00000000 00000010 00000002 ffff 000000000000");
    let (header, whole) = first(&bytes).unwrap().expect("a whole message");
    let message = Message::decode(&header, whole).unwrap();
    let Message::FlowMod(change) = &message else { panic!("{message:?}") };
    assert_eq!((change.cookie, change.idle_timeout, change.priority), (5, 9, 7));
    assert_eq!(change.matching.len(), 4);
    assert_eq!(change.matching[1], Oxm { field: 12, ..Oxm::basic(12, &[10, 0, 0, 0]).masked(&[255, 0, 0, 0]) });
    assert_eq!(
        change.instructions,
        [Instruction::ApplyActions(vec![Action::DecNwTtl, Action::Output { port: 2, max_len: 0xffff }])]
    );
    assert_eq!(written(&message, 2), whole);
}

#[test]
fn what_is_wrong_has_a_name() {
    use error::{action, instruction, matching, request};
    let refused = |text: &str| read(&hex(text)).unwrap_err();
    assert_eq!(refused("01 05 0008 00000001"), request::BAD_VERSION);
    assert_eq!(refused("04 1e 0008 00000001"), request::BAD_TYPE);
    assert_eq!(refused("04 05 0009 00000001 00"), request::BAD_LEN);
    assert_eq!(refused("04 12 0010 00000001 000e0000 00000000"), request::BAD_MULTIPART);
    // A packet-out whose action has a type that there is not; one with a length that no action has.
    let out = |action: &str| refused(&format!("04 0d 0020 00000001 ffffffff 00000001 0008 000000000000 {action}"));
    assert_eq!(out("0063 0008 00000000"), action::BAD_TYPE);
    assert_eq!(out("0012 000c 00000000"), action::BAD_LEN);
    let flow = |rest: &str, len: &str| {
        let head = "0000000000000000 0000000000000000 00000000 00000000 ffffffff ffffffff ffffffff 00000000";
        refused(&format!("04 0e {len} 00000001 {head} {rest}"))
    };
    assert_eq!(flow("0000000400000000", "0038"), matching::BAD_TYPE);
    assert_eq!(flow("0001000880000a03", "0038"), matching::BAD_LEN);
    assert_eq!(flow("0001000400000000 0007000800000000", "0040"), instruction::UNKNOWN_INST);
    assert_eq!(flow("0001000400000000 0001000c00000000", "0040"), instruction::BAD_LEN);
    assert_eq!(matching::BAD_LEN.to_string(), "matching BAD_LEN");
}

/// Names have a zero behind them, and need not be UTF-8.
#[test]
fn a_name_that_fills_its_field_is_read_as_it_can_be_written() {
    for byte in [b'a', 0xff] {
        let mut bytes = vec![4, 12, 0, 80, 0, 0, 0, 1];
        bytes.extend([0; 72]);
        // Behind reason, number and address.
        bytes[32..48].fill(byte);
        let (_, message) = read(&bytes).unwrap();
        let Message::PortStatus(status) = &message else { panic!("{message:?}") };
        assert!((13..=15).contains(&status.port.name.len()), "{:?}", status.port.name);
        assert_eq!(read(&written(&message, 1)).unwrap().1, message);
    }
}
