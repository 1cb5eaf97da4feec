use super::*;
use crate::number::{Gid, Psn, Qpn};
use proptest::prelude::*;

#[test]
fn no_field_is_behind_the_end() {
    assert!(ENDS.iter().all(|end| *end <= DATA * 8));
}

/// Fields where `rdma_cm` of Linux has them, as bytes of the whole datagram.
#[test]
fn a_request_stands_byte_for_byte() {
    let request = Request {
        local_id: 0x0102_0304,
        service: 0x0000_0000_0106_1d2f,
        local_guid: 0x1112_1314_1516_1718,
        local_qpn: Qpn::new(0x21_2223),
        responder_resources: 0x31,
        initiator_depth: 0x32,
        remote_response_timeout: 18,
        transport: 1,
        flow_control: true,
        starting_psn: Psn::new(0x41_4243),
        local_response_timeout: 17,
        retry_count: 6,
        pkey: 0xffff,
        path_mtu: 3,
        rnr_retry_count: 5,
        max_retries: 15,
        shared_receive: true,
        primary_local_lid: 0xffff,
        primary_local_gid: Gid([0x51; 16]),
        primary_remote_gid: Gid([0x52; 16]),
        primary_flow_label: 0x6_1626,
        primary_rate: 3,
        primary_traffic_class: 0x71,
        primary_hop_limit: 64,
        primary_service_level: 2,
        primary_subnet_local: true,
        primary_ack_timeout: 14,
        private: [0x99; 92],
        ..Request::empty()
    };
    let bytes = build(0x0807_0605_0403_0201, &request.into());
    assert_eq!(bytes[..24], [1, 7, 2, 3, 0, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0x10, 0, 0, 0, 0, 0, 0]);
    let data = &bytes[24..];
    assert_eq!(data[..8], [1, 2, 3, 4, 0, 0, 0, 0]);
    assert_eq!(data[8..16], [0, 0, 0, 0, 1, 6, 0x1d, 0x2f]);
    assert_eq!(data[16..24], [0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18]);
    assert_eq!(data[24..36], [0, 0, 0, 0, 0, 0, 0, 0, 0x21, 0x22, 0x23, 0x31]);
    assert_eq!(data[36..44], [0, 0, 0, 0x32, 0, 0, 0, 18 << 3 | 1 << 1 | 1]);
    assert_eq!(data[44..48], [0x41, 0x42, 0x43, 17 << 3 | 6]);
    assert_eq!(data[48..56], [0xff, 0xff, 3 << 4 | 5, 15 << 4 | 1 << 3, 0xff, 0xff, 0, 0]);
    assert_eq!((&data[56..72], &data[72..88]), (&[0x51; 16][..], &[0x52; 16][..]));
    assert_eq!(data[88..96], [0x61, 0x62, 0x60, 3, 0x71, 64, 2 << 4 | 1 << 3, 14 << 3]);
    assert_eq!((&data[96..140], &data[140..]), (&[0; 44][..], &[0x99; 92][..]));
    assert_eq!(parse(&bytes), Ok((0x0807_0605_0403_0201, request.into())));
}

#[test]
fn a_reply_and_a_rejection_stand_byte_for_byte() {
    let reply = Reply {
        local_id: 1,
        remote_id: 2,
        local_qpn: Qpn::new(0x33_3333),
        starting_psn: Psn::new(0x44_4444),
        responder_resources: 5,
        initiator_depth: 6,
        ack_delay: 7,
        failover: 1,
        flow_control: true,
        rnr_retry_count: 7,
        shared_receive: true,
        local_guid: u64::MAX,
        private: [9; 196],
        ..Reply::empty()
    };
    let data = &build(0, &reply.into())[24..];
    assert_eq!(data[..16], [0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0x33, 0x33, 0x33, 0]);
    assert_eq!(data[16..28], [0, 0, 0, 0, 0x44, 0x44, 0x44, 0, 5, 6, 7 << 3 | 1 << 1 | 1, 7 << 5 | 1 << 4]);
    assert_eq!((&data[28..36], &data[36..]), (&[255; 8][..], &[9; 196][..]));
    let rejection = Rejection {
        remote_id: 2,
        about: 1,
        information_len: 1,
        reason: reason::CONSUMER,
        information: [4; 72],
        private: [5; 148],
        ..Rejection::empty()
    };
    let data = &build(0, &rejection.into())[24..];
    assert_eq!(data[..12], [0, 0, 0, 0, 0, 0, 0, 2, 1 << 6, 1 << 1, 0, 28]);
    assert_eq!((&data[12..84], &data[84..]), (&[4; 72][..], &[5; 148][..]));
}

#[test]
fn what_is_no_message_is_named() {
    let good = build(1, &Ready::empty().into());
    let with = |at: usize, value: u8| {
        let mut bytes = good;
        bytes[at] = value;
        parse(&bytes).map(|_| ())
    };
    assert_eq!(with(255, 7), Ok(()));
    assert_eq!(with(0, 2), Err(Malformed::BaseVersion));
    assert_eq!(with(1, 3), Err(Malformed::Class));
    assert_eq!(with(2, 1), Err(Malformed::ClassVersion));
    assert_eq!(with(3, 0x81), Err(Malformed::Method));
    assert_eq!(with(17, 0x19), Err(Malformed::Attribute));
    assert_eq!(with(16, 1), Err(Malformed::Attribute));
    assert_eq!(parse(&good[1..]).map(|_| ()), Err(Malformed::Length));
    assert_eq!(parse(&[]).map(|_| ()), Err(Malformed::Length));
}

proptest! {
    /// What is read is written again bit for bit where there are fields, and as zeros elsewhere.
    #[test]
    fn messages_are_read_as_they_are_written(attribute in 0x10u8..=0x18, data in proptest::collection::vec(any::<u8>(), DATA)) {
        let mut bytes = build(5, &Ready::empty().into());
        bytes[17] = attribute;
        bytes[HEADER..].copy_from_slice(&data);
        let (transaction, message) = parse(&bytes).unwrap();
        let again = build(transaction, &message);
        prop_assert_eq!(again[17], attribute);
        prop_assert_eq!(parse(&again), Ok((5, message)));
        prop_assert!(again.iter().zip(&bytes).all(|(written, read)| written & !read == 0));
    }
}
