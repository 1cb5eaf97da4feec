//! Bytes as the bit tables of `docs/spec/nfb-card.md` §3.2 give them (`docs/spec/calypte.md` §2).

use super::*;

#[test]
fn a_header_has_its_fields_where_the_table_says() {
    let none = Header::default();
    for (header, valid, bytes) in [
        (none, false, [0; 8]),
        (none, true, [0, 0, 0, 0, 1, 0, 0, 0]),
        (Header { len: 0xffff, ..none }, false, [0xff, 0xff, 0, 0, 0, 0, 0, 0]),
        (Header { len: 60, ..none }, true, [60, 0, 0, 0, 1, 0, 0, 0]),
        (Header { at: 0xffff, ..none }, false, [0, 0, 0xff, 0xff, 0, 0, 0, 0]),
        (Header { at: 0x0120, ..none }, true, [0, 0, 0x20, 1, 1, 0, 0, 0]),
        (Header { header_len: 0xff, ..none }, false, [0, 0, 0, 0, 0, 0xff, 0, 0]),
        (Header { flags: 0xf, ..none }, false, [0, 0, 0, 0, 0, 0, 0x0f, 0]),
        (Header { len: 0x3fff, at: 0x1234, header_len: 16, flags: 0xa }, true, [0xff, 0x3f, 0x34, 0x12, 1, 16, 0xa, 0]),
    ] {
        let word = header.encode(valid);
        assert_eq!(word.to_le_bytes(), bytes, "{header:?}");
        assert_eq!((Header::decode(word), Header::valid_bit(word)), (header, valid));
    }
}

#[test]
fn reserved_bits_mean_nothing_and_flags_have_no_room_for_more_than_four() {
    let header = Header { len: 60, at: 7, header_len: 3, flags: 5 };
    for bit in (33..40).chain(52..64) {
        assert_eq!(Header::decode(header.encode(false) | 1 << bit), header, "bit {bit}");
    }
    assert_eq!(Header { flags: 0xff, ..header }.encode(false), Header { flags: 0xf, ..header }.encode(false));
}

#[test]
fn what_software_writes_without_knowing_laps_turns_the_valid_bit_round() {
    let word = Header { len: 60, at: 32, ..Header::default() };
    for given in [false, true] {
        assert_eq!(Header::following(word.encode(given), 0), word.encode(true));
        assert_eq!(Header::following(word.encode(given), u64::MAX), word.encode(false));
    }
}

#[test]
fn a_pointer_word_has_data_low_and_headers_high() {
    for (pointers, bytes) in [
        (Pointers { data: 0x0403_0201, headers: 0x0807_0605 }, [1, 2, 3, 4, 5, 6, 7, 8]),
        (Pointers { data: u32::MAX, headers: 0 }, [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]),
        (Pointers { data: 0, headers: u32::MAX }, [0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]),
    ] {
        assert_eq!(pointers.encode().to_le_bytes(), bytes);
        assert_eq!(Pointers::decode(u64::from_le_bytes(bytes)), pointers);
    }
}

#[test]
fn a_packet_takes_whole_blocks() {
    let blocks = |len| Header { len, ..Header::default() }.blocks();
    assert_eq!([0, 1, 128, 129, 1518, 0x3fff, 0xffff].map(blocks), [0, 1, 1, 2, 12, 128, 512]);
    assert_eq!([0, 1, 32, 33, 60, 1518, 0xffff].map(HostTx::stride), [32, 32, 32, 64, 64, 1536, 65536]);
    assert_eq!(header_entries(65536), 2048);
}
