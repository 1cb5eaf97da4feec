use super::*;
use crate::{DropReason, pcap::Writer};
use proptest::prelude::*;
use std::io::Cursor;

/// Header of a capture in big-endian order with microseconds, as the format's definition has it.
const BIG_MICRO: [u8; 24] = [0xa1, 0xb2, 0xc3, 0xd4, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 1];

/// The same in little-endian order with nanoseconds.
const LITTLE_NANO: [u8; 24] =
    [0x4d, 0x3c, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 1, 0, 0, 0];

fn record(seconds: u32, fraction: u32, captured: u32, original: u32, data: &[u8]) -> Vec<u8> {
    let head = [seconds, fraction, captured, original].map(u32::to_le_bytes);
    [head.as_flattened(), data].concat()
}

fn file(records: &[Vec<u8>]) -> Vec<u8> {
    [&LITTLE_NANO[..], &records.concat()].concat()
}

fn refused(bytes: &[u8]) -> ReadError {
    Reader::named(bytes, "x.pcap").err().expect("an error")
}

/// Everything the reader has to say: lengths of frames and errors, in order.
fn drain<R: Read>(reader: &mut Reader<R>) -> (Vec<usize>, Vec<ReadError>) {
    let (mut frames, mut errors) = (Vec::new(), Vec::new());
    loop {
        match reader.peek() {
            Ok(Some(frame)) => frames.push(frame.data.len()),
            Ok(None) => return (frames, errors),
            Err(error) => errors.push(error),
        }
        reader.take();
    }
}

#[test]
fn golden_bytes_big_endian_with_microseconds() {
    let mut bytes = BIG_MICRO.to_vec();
    bytes.extend([0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 99, 7, 8, 9]);
    let mut reader = Reader::new(&bytes[..]).unwrap();
    let frame = reader.peek().unwrap().unwrap();
    assert_eq!(frame, Frame { time: CaptureTime::from_nanos(1_000_002_000), original_len: 99, data: &[7, 8, 9] });
}

#[test]
fn golden_bytes_little_endian_with_nanoseconds() {
    let bytes = file(&[record(1, 2, 3, 99, &[7, 8, 9])]);
    let mut reader = Reader::new(&bytes[..]).unwrap();
    let frame = reader.peek().unwrap().unwrap();
    assert_eq!(frame, Frame { time: CaptureTime::from_nanos(1_000_000_002), original_len: 99, data: &[7, 8, 9] });
}

#[test]
fn a_frame_stays_until_it_is_taken() {
    let bytes = file(&[record(0, 0, 2, 2, &[1, 2]), record(0, 0, 1, 1, &[3])]);
    let mut reader = Reader::new(&bytes[..]).unwrap();
    for _ in 0..3 {
        assert_eq!(reader.peek().unwrap().unwrap().data, [1, 2]);
    }
    let mut buffer = [0; 1];
    let error = reader.next_into(&mut buffer).unwrap_err();
    assert!(matches!(error, ReadError::Buffer { needed: 2, given: 1 }) && !error.ends_stream());
    reader.take();
    reader.take();
    assert_eq!(reader.next_into(&mut buffer).unwrap().unwrap().len, 1);
    assert_eq!(buffer, [3]);
    assert_eq!(reader.next_into(&mut buffer).unwrap(), None);
    // Taking at the end changes nothing.
    reader.take();
    assert!(reader.peek().unwrap().is_none());
}

#[test]
fn headers_that_are_none_are_refused_with_advice() {
    let mut version = LITTLE_NANO;
    version[4] = 3;
    let mut link = LITTLE_NANO;
    link[20] = 113;
    for (bytes, hint) in [
        (&b""[..], "x.pcap is empty"),
        (b"\x0a\x0d\x0d\x0a\x1c\0\0\0", "editcap -F nsecpcap x.pcap"),
        (b"\x1f\x8b\x08\0", "gunzip"),
        (b"\x28\xb5\x2f\xfd", "unzstd"),
        (b"\xfd7zXZ\0", "unxz"),
        (b"{\"a\": 1, \"text\": \"long enough\"}", "is not a capture file"),
        (b"\x34\xcd\xb2\xa1 another kind of pcap....", "editcap"),
        (b"\xd4\xc3\xb2", "3 of the 24 bytes"),
        (&LITTLE_NANO[..23], "23 of the 24 bytes"),
        (&version, "version 3.4"),
        (&link, "link type 113 (LINUX_SLL)"),
    ] {
        let error = refused(bytes);
        assert!(error.to_string().contains(hint), "{error}");
        assert!(error.ends_stream());
        assert!(!error.to_string().contains(['{', '[']), "what is in a file is nobody's business: {error}");
    }
    let error = Reader::open("/no/such/file.pcap").err().expect("an error");
    assert!(matches!(error, ReadError::Open { .. }) && error.to_string().contains("/no/such/file.pcap"), "{error}");
    let error = Reader::open("/").err().expect("an error");
    assert!(error.to_string().contains("directory"), "{error}");
}

#[test]
fn bits_about_the_fcs_are_not_part_of_the_link_type() {
    let mut header = LITTLE_NANO;
    header[23] = 0x30;
    assert!(Reader::new(&header[..]).is_ok());
    header[23] = 0x04;
    assert!(Reader::new(&header[..]).is_ok());
    header[23] = 0x02;
    assert!(matches!(refused(&header), ReadError::LinkType { number: 0x0200_0001, .. }));
}

#[test]
fn a_file_that_ends_early_says_where_and_by_how_much() {
    let whole = file(&[record(0, 0, 3, 3, &[1, 2, 3]), record(0, 0, 5, 5, &[1, 2, 3, 4, 5])]);
    for cut in 1..21 {
        let mut reader = Reader::named(&whole[..whole.len() - cut], "x.pcap").unwrap();
        let (frames, errors) = drain(&mut reader);
        assert_eq!(frames, [3], "cut by {cut}");
        let [ReadError::Truncated { record: 2, offset: 43, missing, .. }] = errors[..] else { panic!("{errors:?}") };
        // Before the twelfth byte of the record nobody knows how much data should follow its header.
        assert_eq!(missing, if cut <= 9 { cut } else { cut - 5 });
        assert_eq!(errors[0].drop_reason(), DropReason::Truncated);
        assert!(errors[0].ends_stream());
    }
    let mut reader = Reader::new(&whole[..whole.len() - 21]).unwrap();
    assert!(drain(&mut reader).1.is_empty(), "cut between two records");
}

#[test]
fn a_length_that_is_none_ends_the_stream() {
    for length in [MAX_RECORD_LEN as u32 + 1, u32::MAX] {
        let bytes = file(&[record(0, 0, 1, 1, &[1]), record(0, 0, length, 60, &vec![0; 2 * MAX_RECORD_LEN])]);
        let (frames, errors) = drain(&mut Reader::new(&bytes[..]).unwrap());
        assert_eq!(frames, [1]);
        assert!(
            matches!(errors[..], [ReadError::Damaged { record: 2, offset: 41, length: seen, .. }] if seen == length),
            "{errors:?}"
        );
        assert_eq!(errors[0].drop_reason(), DropReason::Damaged);
    }
}

#[test]
fn a_record_longer_than_a_frame_is_left_out() {
    let lengths = [60, MAX_FRAME_LEN, MAX_FRAME_LEN + 1, 61, MAX_RECORD_LEN, 62];
    let records = lengths.map(|len| record(0, 0, len as u32, len as u32, &vec![len as u8; len]));
    let (frames, errors) = drain(&mut Reader::new(&file(&records)[..]).unwrap());
    assert_eq!(frames, [60, MAX_FRAME_LEN, 61, 62]);
    assert!(
        matches!(errors[..], [ReadError::TooLong { record: 3, .. }, ReadError::TooLong { record: 5, .. }]),
        "{errors:?}"
    );
    assert!(errors.iter().all(|error| !error.ends_stream() && error.drop_reason() == DropReason::TooLong));
}

#[test]
fn contradictions_that_harm_nobody_are_read() {
    let mut bytes = file(&[record(u32::MAX, u32::MAX, 60, 10, &[0; 60]), record(5, 1_999_999_999, 0, 0, &[])]);
    bytes[16..20].copy_from_slice(&1u32.to_le_bytes()); // A snapshot length of one byte.
    let mut reader = Reader::new(&bytes[..]).unwrap();
    assert_eq!(reader.peek().unwrap().unwrap().data.len(), 60);
    reader.take();
    assert_eq!(reader.peek().unwrap().unwrap().time.nanos(), 6_999_999_999);
}

#[test]
fn a_source_that_fails_is_named_with_the_place() {
    struct Fails<'a>(&'a [u8]);
    impl Read for Fails<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() { Err(io::Error::other("bad sector")) } else { self.0.read(into) }
        }
    }
    let bytes = file(&[record(0, 0, 2, 2, &[1, 2]), record(0, 0, 2, 2, &[])]);
    let (frames, errors) = drain(&mut Reader::named(Fails(&bytes), "x.pcap").unwrap());
    assert_eq!((frames, errors.len()), (vec![2], 1));
    assert!(errors[0].to_string().contains("x.pcap at byte 58: bad sector"), "{}", errors[0]);
    assert_eq!(errors[0].drop_reason(), DropReason::ReadFailed);
    let error = Reader::new(Fails(&bytes[..10])).err().expect("an error");
    assert!(matches!(error, ReadError::Read { offset: 10, .. }));
}

#[test]
fn rewinding_gives_the_same_again() {
    for count in [3, 40_000] {
        let records: Vec<_> = (0..count).map(|at| record(at, 0, 40, 40, &[at as u8; 40])).collect();
        let mut reader = Reader::new(Cursor::new(file(&records))).unwrap();
        for _ in 0..3 {
            let mut seen = 0;
            while let Some(frame) = reader.peek().unwrap() {
                assert_eq!((frame.time.nanos(), frame.data[39]), (u64::from(seen) * 1_000_000_000, seen as u8));
                seen += 1;
                reader.take();
            }
            assert_eq!(seen, count);
            reader.rewind().unwrap();
        }
    }
}

#[test]
fn a_source_that_cannot_seek_ends_the_stream() {
    struct OneWay;
    impl Read for OneWay {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            into.fill(0);
            into[..24].copy_from_slice(&LITTLE_NANO);
            Ok(into.len())
        }
    }
    impl Seek for OneWay {
        fn seek(&mut self, _to: io::SeekFrom) -> io::Result<u64> {
            Err(io::ErrorKind::NotSeekable.into())
        }
    }
    let mut reader = Reader::new(OneWay).unwrap();
    assert!(reader.peek().unwrap().is_some());
    assert!(reader.rewind().is_err());
    assert!(reader.peek().unwrap().is_none());
}

/// Ends when the reader says so, and says so soon enough.
fn read_out(bytes: &[u8]) {
    let Ok(mut reader) = Reader::new(bytes) else { return };
    let (frames, errors) = drain(&mut reader);
    let records = frames.len() + errors.iter().filter(|error| !error.ends_stream()).count();
    assert!(records * RECORD_HEADER_LEN + frames.iter().sum::<usize>() + FILE_HEADER_LEN <= bytes.len());
    assert!(errors.iter().filter(|error| error.ends_stream()).count() <= 1);
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        read_out(&bytes);
    }

    #[test]
    fn no_bytes_behind_a_good_header_panic(
        big: bool,
        words in proptest::collection::vec(prop_oneof![0..40u32, 16_000..17_000u32, any::<u32>()], 0..100),
        rest in proptest::collection::vec(any::<u8>(), 0..20),
        zeros in prop_oneof![Just(0usize), 0..20_000usize],
    ) {
        let header = if big { BIG_MICRO } else { LITTLE_NANO };
        let words: Vec<_> = words.into_iter().map(u32::to_le_bytes).collect();
        read_out(&[&header[..], words.as_flattened(), &rest, &vec![0; zeros]].concat());
    }

    #[test]
    fn what_is_written_is_read(frames in proptest::collection::vec(
        (any::<u32>(), 0..1_000_000_000u64, 0..MAX_FRAME_LEN, any::<u8>()), 0..40))
    {
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes).unwrap();
        let time = |seconds: u32, nanos| CaptureTime::from_nanos(u64::from(seconds) * 1_000_000_000 + nanos);
        for &(seconds, nanos, len, fill) in &frames {
            writer.write(time(seconds, nanos), &vec![fill; len]).unwrap();
        }
        drop(writer);
        let mut reader = Reader::new(&bytes[..]).unwrap();
        for &(seconds, nanos, len, fill) in &frames {
            let frame = reader.peek().unwrap().unwrap();
            prop_assert_eq!(frame.time, time(seconds, nanos));
            prop_assert_eq!(frame.original_len as usize, len);
            prop_assert_eq!(frame.data, vec![fill; len]);
            reader.take();
        }
        prop_assert!(reader.peek().unwrap().is_none());
    }
}
