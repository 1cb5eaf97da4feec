//! Bytes as the bit tables of `docs/spec/nfb-card.md` §3.1 give them (`docs/spec/sze.md` §2 and §3).

use super::*;

#[test]
fn a_run_of_pages_has_its_address_and_its_length_minus_one() {
    for (at, count, bytes) in [
        (0u64, 1, [0u8; 8]),
        (0x1000, 1, [0, 0x10, 0, 0, 0, 0, 0, 0]),
        (0, 2, [0x02, 0, 0, 0, 0, 0, 0, 0]),
        (0, 1024, [0xfe, 0x07, 0, 0, 0, 0, 0, 0]),
        (0xffff_ffff_ffff_f000, 1024, [0xfe, 0xf7, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
        (0x1234_5678_9abc_d000, 3, [0x04, 0xd0, 0xbc, 0x9a, 0x78, 0x56, 0x34, 0x12]),
    ] {
        let descriptor = Descriptor::Pages { at: Iova::new(at), count };
        assert_eq!(descriptor.encode().to_le_bytes(), bytes, "{descriptor:?}");
        assert_eq!(Descriptor::decode(u64::from_le_bytes(bytes)), descriptor);
    }
}

#[test]
fn a_jump_is_an_address_with_bit_0_set() {
    for (at, bytes) in [
        (0u64, [1u8, 0, 0, 0, 0, 0, 0, 0]),
        (8, [9, 0, 0, 0, 0, 0, 0, 0]),
        (0xffff_ffff_ffff_fff8, [0xf9, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
    ] {
        let descriptor = Descriptor::Next(Iova::new(at));
        assert_eq!(descriptor.encode().to_le_bytes(), bytes);
        assert_eq!(Descriptor::decode(u64::from_le_bytes(bytes)), descriptor);
    }
}

#[test]
fn crooked_jumps_and_runs_above_4_mib_are_reserved() {
    for word in [0b011u64, 0b101, 0b111, u64::MAX, 0x800, 0xffe, 0xffff_ffff_ffff_fffe] {
        assert_eq!(Descriptor::decode(word), Descriptor::Reserved, "{word:#x}");
    }
    assert_eq!(Descriptor::decode(0x7fe), Descriptor::Pages { at: Iova::new(0), count: 1024 });
    assert_eq!(Descriptor::decode(Descriptor::Reserved.encode()), Descriptor::Reserved);
}

#[test]
fn a_packet_header_is_two_little_endian_sizes() {
    for (total, meta, bytes) in [
        (0u16, 0u16, [0u8; 4]),
        (65, 0, [65, 0, 0, 0]),
        (0x3fff + 8, 0, [0x07, 0x40, 0, 0]),
        (0x1234, 0x5678, [0x34, 0x12, 0x78, 0x56]),
        (0xffff, 0xffff, [0xff; 4]),
    ] {
        let header = PacketHeader { total, meta };
        assert_eq!(header.encode().to_le_bytes(), bytes);
        assert_eq!(PacketHeader::decode(u32::from_le_bytes(bytes)), header);
    }
}

#[test]
fn frames_and_packets_begin_at_multiples_of_8() {
    for len in (57..=200).chain([0x3ffe, 0x3fff]) {
        let header = PacketHeader::for_frame(len);
        assert_eq!((header.total, header.meta), (len + 8, 0), "TX: total = align8(4 + meta) + frame");
        assert_eq!((header.frame_at(), header.frame_len()), (8, Some(u32::from(len))));
        assert_eq!(header.stride(), (u32::from(len) + 8).div_ceil(8) * 8);
        assert_eq!(HostTx::stride(len), header.stride());
    }
    for (meta, at) in [(0, 8), (1, 8), (4, 8), (5, 16), (12, 16), (13, 24), (0xffff, 0x1_0008)] {
        assert_eq!(PacketHeader { total: 0, meta }.frame_at(), at, "{meta} bytes of metadata");
    }
}

#[test]
fn sizes_that_contradict_each_other_are_no_frame() {
    let len = |total, meta| PacketHeader { total, meta }.frame_len();
    assert_eq!(len(7, 0), None);
    assert_eq!(len(8, 0), Some(0));
    assert_eq!(len(15, 5), None);
    assert_eq!(len(16, 5), Some(0));
    assert_eq!(len(0xffff, 0xffff), None);
    assert_eq!(len(0xffff, 0), Some(0xfff7));
    assert_eq!(PacketHeader { total: 0xffff, meta: 0 }.stride(), 0x1_0000);
}

#[test]
fn a_list_without_offset_has_one_stage() {
    let list = descriptor_list(RING_AT, 4 * PAGE, 0, LIST_AT);
    assert_eq!(list, [RING_AT.get() | 3 << 1, LIST_AT.get() | 1]);
}

#[test]
fn a_list_with_an_offset_begins_there_and_goes_round_in_its_second_stage() {
    let list = descriptor_list(RING_AT, 4 * PAGE, 3 * PAGE, LIST_AT);
    assert_eq!(list, [RING_AT.get() + 3 * PAGE, RING_AT.get() | 3 << 1, (LIST_AT.get() + 8) | 1]);
}

#[test]
fn a_list_for_more_than_4_mib_has_several_runs() {
    let list = descriptor_list(RING_AT, 16 << 20, 4096, LIST_AT);
    let runs: Vec<_> = list.iter().map(|&word| Descriptor::decode(word)).collect();
    let run = |mib: u64, skip, count| Descriptor::Pages { at: RING_AT.plus((mib << 20) + skip), count };
    let first = [run(0, 4096, 1024), run(4, 4096, 1024), run(8, 4096, 1024), run(12, 4096, 1023)];
    let second = [run(0, 0, 1024), run(4, 0, 1024), run(8, 0, 1024), run(12, 0, 1024)];
    assert_eq!(runs[..4], first);
    assert_eq!(runs[4..8], second);
    assert_eq!(runs[8..], [Descriptor::Next(LIST_AT.plus(32))]);
}
