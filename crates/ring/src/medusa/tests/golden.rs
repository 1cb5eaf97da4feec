//! Bytes as the bit tables of `docs/spec/nfb-card.md` §3.2 give them (`docs/spec/medusa.md` §2 to §4).

use super::*;

#[test]
fn an_upper_address_is_34_bits_from_bit_0() {
    for (iova, bytes) in [
        (0u64, [0u8; 8]),
        (1 << 30, [1, 0, 0, 0, 0, 0, 0, 0]),
        ((1 << 30) - 1, [0; 8]),
        (0x1234_5678_9abc_def0, [0xe2, 0x59, 0xd1, 0x48, 0, 0, 0, 0]),
        (u64::MAX, [0xff, 0xff, 0xff, 0xff, 0x03, 0, 0, 0]),
    ] {
        let descriptor = Descriptor::Upper(iova >> 30);
        assert_eq!(descriptor.encode().to_le_bytes(), bytes, "{iova:#x}");
        assert_eq!(Descriptor::decode(u64::from_le_bytes(bytes)), descriptor);
    }
}

#[test]
fn a_buffer_has_its_fields_where_the_table_says() {
    let none = Buffer { low: 0, len: 0, meta: 0, next: false };
    for (buffer, bytes) in [
        (none, [0, 0, 0, 0, 0, 0, 0, 0x80]),
        (Buffer { low: 0x3fff_ffff, ..none }, [0xff, 0xff, 0xff, 0x3f, 0, 0, 0, 0x80]),
        (Buffer { low: 1, ..none }, [1, 0, 0, 0, 0, 0, 0, 0x80]),
        (Buffer { len: 0xffff, ..none }, [0, 0, 0, 0, 0xff, 0xff, 0, 0x80]),
        (Buffer { len: 1, ..none }, [0, 0, 0, 0, 1, 0, 0, 0x80]),
        (Buffer { meta: 0xfff, ..none }, [0, 0, 0, 0, 0, 0, 0xff, 0x8f]),
        (Buffer { meta: 1, ..none }, [0, 0, 0, 0, 0, 0, 1, 0x80]),
        (Buffer { next: true, ..none }, [0, 0, 0, 0, 0, 0, 0, 0xa0]),
        (
            Buffer { low: 0x1234_5678, len: 0x05ea, meta: 0xabc, next: true },
            [0x78, 0x56, 0x34, 0x12, 0xea, 0x05, 0xbc, 0xaa],
        ),
    ] {
        let descriptor = Descriptor::Buffer(buffer);
        assert_eq!(descriptor.encode().to_le_bytes(), bytes, "{buffer:?}");
        assert_eq!(Descriptor::decode(u64::from_le_bytes(bytes)), descriptor);
    }
}

#[test]
fn the_bits_for_interrupt_and_shared_and_bit_31_change_nothing() {
    let word = buffer(Iova::new(0x1000), 64);
    for bit in [30, 31, 60] {
        assert_eq!(Descriptor::decode(word | 1 << bit), Descriptor::decode(word), "bit {bit}");
    }
}

#[test]
fn a_whole_buffer_keeps_the_low_30_bits() {
    let buffer = Buffer::whole(Iova::new(0xffff_ffff_ffff_ffff), 1518);
    assert_eq!(buffer, Buffer { low: 0x3fff_ffff, len: 1518, meta: 0, next: false });
}

#[test]
fn types_1_and_3_and_an_upper_address_with_other_bits_are_reserved() {
    for word in [1 << 62, 3 << 62, u64::MAX, 0x7fff_ffff_ffff_ffff] {
        assert_eq!(Descriptor::decode(word), Descriptor::Reserved, "{word:#x}");
    }
    for bit in 34..62 {
        assert_eq!(Descriptor::decode(1 << bit), Descriptor::Reserved, "bit {bit}");
    }
    assert_eq!(Descriptor::decode(Descriptor::Reserved.encode()), Descriptor::Reserved);
}

#[test]
fn upper_and_lower_part_make_the_address_again() {
    use crate::medusa::layout::{address, upper_of};
    for number in [0, 1, (1 << 30) - 1, 1 << 30, 0xdead_beef_cafe_f00d, u64::MAX] {
        let iova = Iova::new(number);
        assert_eq!(address(upper_of(iova), Buffer::whole(iova, 0).low), iova);
    }
}

#[test]
fn an_rx_header_is_four_bytes() {
    let none = RxHeader { len: 0, header_len: 0, meta: 0, freed: 0 };
    for (header, bytes) in [
        (none, [0, 0, 0, 0]),
        (RxHeader { len: 0xffff, ..none }, [0xff, 0xff, 0, 0]),
        (RxHeader { len: 60, freed: 1, ..none }, [60, 0, 0, 0x40]),
        (RxHeader { len: 60, freed: 2, ..none }, [60, 0, 0, 0x80]),
        (RxHeader { freed: 3, ..none }, [0, 0, 0, 0xc0]),
        (RxHeader { header_len: 0xff, ..none }, [0, 0, 0xff, 0]),
        (RxHeader { meta: 0xf, ..none }, [0, 0, 0, 0x0f]),
        (RxHeader { len: 0x3fff, header_len: 16, meta: 0xa, freed: 2 }, [0xff, 0x3f, 16, 0x8a]),
    ] {
        assert_eq!(header.encode().to_le_bytes(), bytes, "{header:?}");
        assert_eq!(RxHeader::decode(u32::from_le_bytes(bytes)), header);
    }
}

#[test]
fn an_rx_header_has_no_room_for_more_than_it_can_say() {
    let header = RxHeader { len: 0, header_len: 0, meta: 0xff, freed: 255 };
    assert_eq!(header.encode().to_le_bytes(), [0, 0, 0, 0xcf]);
    assert_eq!(RxHeader::decode(0x3000_0000).meta, 0, "bits 5:4 of byte 3 are reserved");
}

#[test]
fn a_pointer_word_has_descriptors_low_and_headers_high() {
    for (pointers, bytes) in [
        (Pointers { descriptors: 0, headers: 0 }, [0; 8]),
        (Pointers { descriptors: 0x0403_0201, headers: 0x0807_0605 }, [1, 2, 3, 4, 5, 6, 7, 8]),
        (Pointers { descriptors: u32::MAX, headers: 0 }, [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]),
        (Pointers { descriptors: 0, headers: u32::MAX }, [0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]),
    ] {
        assert_eq!(pointers.encode().to_le_bytes(), bytes);
        assert_eq!(Pointers::decode(u64::from_le_bytes(bytes)), pointers);
    }
}
