use super::*;
use crate::{MAX_FRAME_LEN, PortSpec, pcap::Tally};
use std::io::{self, Cursor};
use std::time::Duration;

type Memory = Cursor<Vec<u8>>;

/// Frames with the given times in milliseconds and lengths.
fn capture(frames: &[(u64, usize)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = Writer::new(&mut bytes).unwrap();
    for (at, (millis, len)) in frames.iter().enumerate() {
        writer.write(CaptureTime::from_nanos(millis * 1_000_000), &vec![at as u8; *len]).unwrap();
    }
    drop(writer);
    bytes
}

fn spec(options: &str) -> PcapSpec {
    match format!("pcap:x{options}").parse().unwrap() {
        PortSpec::Pcap(spec) => spec,
        other => panic!("{other}"),
    }
}

fn reading(bytes: Vec<u8>, options: &str) -> PcapPort<Memory, Vec<u8>> {
    PcapPort::assemble(Some(Reader::new(Cursor::new(bytes)).unwrap()), None, &spec(options))
}

fn writing<W: Write>(sink: W) -> PcapPort<Memory, W> {
    PcapPort::assemble(None, Some(Writer::named(sink, "out.pcap").unwrap()), &spec(""))
}

/// First bytes of the frames that come until none are due any more.
fn all(port: &mut impl PortQueue) -> Vec<u8> {
    let mut seen = Vec::new();
    while port.next_due().is_some() {
        port.receive(3, &mut |frame: Span<'_>| {
            let mut first = [0];
            frame.read_into(&mut first);
            seen.push(first[0]);
            Accept::Taken
        });
    }
    seen
}

#[test]
fn at_full_speed_nothing_is_lost_when_the_card_is_full() {
    let mut port = reading(capture(&[(0, 60), (9000, 61), (5, 62)]), ",loop=2");
    assert!(port.can_wait());
    let mut calls = 0;
    let mut lens = Vec::new();
    while port.next_due().is_some() {
        port.receive(4, &mut |frame: Span<'_>| {
            calls += 1;
            if calls % 2 == 0 {
                return Accept::Full;
            }
            lens.push(frame.len());
            Accept::Taken
        });
    }
    assert_eq!(lens, [60, 61, 62, 60, 61, 62]);
    assert_eq!((port.counters().rx_frames(), port.counters().rx_bytes()), (6, 366));
    assert_eq!(port.counters().rx_offered(), 6);
}

#[test]
fn a_loop_without_end_goes_on_and_one_without_frames_ends() {
    let mut port = reading(capture(&[(0, 60)]), ",loop=forever");
    assert_eq!(port.receive(1000, &mut |_: Span<'_>| Accept::Taken), 500, "every second look is a new pass");
    assert!(port.next_due().is_some());
    let mut port = reading(capture(&[]), ",loop=forever");
    assert_eq!(all(&mut port), []);
    // Too long to be frames, so no frame either.
    let mut bytes = capture(&[(0, MAX_FRAME_LEN), (0, 20_000)]);
    bytes.drain(24..24 + 16 + MAX_FRAME_LEN);
    let mut port = reading(bytes, ",loop=forever");
    assert_eq!(all(&mut port), []);
    assert_eq!(port.counters().rx_dropped(DropReason::TooLong), 1);
}

#[test]
fn a_live_wire_waits_for_nobody() {
    for speed in [",speed=1Gpps", ",speed=recorded"] {
        let mut port = reading(capture(&[(7, 60), (7, 61), (7, 62)]), speed);
        assert!(!port.can_wait());
        while port.next_due().is_some() {
            port.receive(2, &mut |frame: Span<'_>| if frame.len() == 61 { Accept::Taken } else { Accept::Full });
        }
        let counters = port.counters();
        assert_eq!((counters.rx_frames(), counters.rx_dropped(DropReason::NoRoom)), (1, 2));
        assert_eq!(counters.rx_offered(), 3);
    }
}

#[test]
fn recorded_times_are_kept() {
    // The third runs backwards and comes at once; the second pass begins with the end of the first.
    let mut port = reading(capture(&[(1000, 60), (1030, 60), (1020, 60), (1060, 60)]), ",speed=recorded,loop=2");
    let started = Instant::now();
    let mut due = Vec::new();
    while port.next_due().is_some() {
        port.receive(1, &mut |_: Span<'_>| {
            due.push(Instant::now() - started);
            Accept::Taken
        });
    }
    let earliest = [0, 30, 30, 60, 60, 90, 90, 120].map(Duration::from_millis);
    assert_eq!(due.len(), earliest.len());
    assert!(due.iter().zip(earliest).all(|(due, earliest)| *due >= earliest), "{due:?}");
}

#[test]
fn what_is_not_due_is_announced() {
    let mut port = reading(capture(&[(0, 60), (u64::from(u32::MAX) * 1000, 60)]), ",speed=recorded");
    assert!(port.next_due().unwrap() <= Instant::now());
    let before = Instant::now();
    assert_eq!(port.receive(9, &mut |_: Span<'_>| Accept::Taken), 1);
    assert!(port.next_due().unwrap() > before + Duration::from_secs(1_000_000));
    let mut port = reading(capture(&[(0, 60), (0, 60)]), ",speed=1pps");
    let before = Instant::now();
    assert_eq!(port.receive(9, &mut |_: Span<'_>| Accept::Taken), 1);
    assert!(port.next_due().unwrap() >= before + Duration::from_secs(1));
}

#[test]
fn every_record_is_counted_under_one_name() {
    let lens = [60, 13, 0, 14, MAX_FRAME_LEN, MAX_FRAME_LEN + 1, 60];
    let bytes = capture(&lens.map(|len| (0, len)));
    for cut in 0..76 {
        let mut port = reading(bytes[..bytes.len() - cut].to_vec(), "");
        let frames = all(&mut port);
        let counters = port.counters();
        assert_eq!(counters.rx_dropped(DropReason::TooShort), 2);
        assert_eq!(counters.rx_dropped(DropReason::TooLong), 1);
        assert_eq!(counters.rx_dropped(DropReason::Truncated), u64::from(cut > 0));
        assert_eq!(counters.rx_offered(), 7);
        assert_eq!(frames, if cut == 0 { &[0, 3, 4, 6][..] } else { &[0, 3, 4] });
    }
}

#[test]
fn a_damaged_record_ends_even_a_loop() {
    let mut bytes = capture(&[(0, 60), (0, 60)]);
    bytes[24 + 76 + 8..][..4].fill(0xff);
    let mut port = reading(bytes, ",loop=forever");
    assert_eq!(all(&mut port), [0]);
    assert_eq!(port.counters().rx_dropped(DropReason::Damaged), 1);
    assert_eq!(port.receive(9, &mut |_: Span<'_>| panic!("behind the end")), 0);
}

#[test]
fn a_file_that_fails_is_counted() {
    struct Fails(Memory);
    impl Read for Fails {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            match self.0.read(into)? {
                0 => Err(io::Error::other("bad sector")),
                count => Ok(count),
            }
        }
    }
    impl Seek for Fails {
        fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
            self.0.seek(to)
        }
    }
    let reader = Reader::new(Fails(Cursor::new(capture(&[(0, 60)])))).unwrap();
    let mut port: PcapPort<_, Vec<u8>> = PcapPort::assemble(Some(reader), None, &spec(""));
    assert_eq!(all(&mut port), [0]);
    assert_eq!(port.counters().rx_dropped(DropReason::ReadFailed), 1);
}

#[test]
fn files_that_cannot_work_are_refused_when_the_port_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let whole = capture(&[(0, 60), (0, 60)]);
    std::fs::write(path("good"), &whole).unwrap();
    std::fs::write(path("first-cut"), &whole[..60]).unwrap();
    std::fs::write(path("text"), "this is not a capture, is it?").unwrap();
    std::fs::write(path("ng"), b"\x0a\x0d\x0d\x0a and so on").unwrap();
    std::fs::hard_link(path("good"), path("link")).unwrap();
    let refused = |read: &str, write: Option<&str>| {
        let spec = PcapSpec { read: Some(read.into()), write: write.map(Into::into), ..PcapSpec::default() };
        PcapPort::open(&spec).err().unwrap_or_else(|| panic!("{read} opens")).to_string()
    };
    for (name, hint) in [
        ("first-cut", "truncated"),
        ("text", "text is not a capture file; `file "),
        ("ng", "pcapng"),
        ("none", "cannot open"),
    ] {
        let error = refused(&path(name), Some(&path("never")));
        assert!(error.contains(hint) && error.contains(&path(name)), "{error}");
    }
    assert!(!folder.path().join("never").exists(), "a file was made in vain");
    assert!(refused(&path(""), None).contains("no regular file"));
    assert!(refused("/dev/zero", None).contains("no regular file"));
    assert!(refused(&path("good"), Some(&path("good"))).contains("cannot be read and written at once"));
    assert!(refused(&path("good"), Some(&path("link"))).contains("cannot be read and written at once"));
    assert!(refused(&path("good"), Some("/dev/full")).contains("/dev/full"));
    assert_eq!(std::fs::read(path("good")).unwrap(), whole);
}

#[test]
fn a_first_record_that_is_left_out_is_counted_too() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), capture(&[(0, MAX_FRAME_LEN + 1), (0, 60)])).unwrap();
    let spec = PcapSpec { read: Some(file.path().display().to_string()), ..PcapSpec::default() };
    let mut port = PcapPort::open(&spec).unwrap();
    assert_eq!(all(&mut port), [1]);
    assert_eq!(port.counters().rx_offered(), 2);
}

#[test]
fn what_is_sent_is_in_the_file_with_a_time() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().display().to_string();
    let mut port = PcapPort::open(&PcapSpec { write: Some(path.clone()), ..PcapSpec::default() }).unwrap();
    let before = CaptureTime::now();
    assert_eq!(port.transmit(Span::from_slice(&[1; 60])), TxOutcome::Sent);
    assert_eq!(port.transmit(Span::from_slice(&[2; MAX_FRAME_LEN])), TxOutcome::Sent);
    assert_eq!(port.transmit(Span::from_slice(&[3; 13])), TxOutcome::Dropped(DropReason::TooShort));
    assert_eq!(port.transmit(Span::from_slice(&[3; MAX_FRAME_LEN + 1])), TxOutcome::Dropped(DropReason::TooLong));
    port.flush();
    // The file is brought up to date by the clock, not by the burst.
    let on_disk = || Reader::open(&path).unwrap().peek_info().unwrap().is_some();
    while port.next_due().is_some() {
        port.receive(1, &mut |_: Span<'_>| panic!("a frame from nowhere"));
    }
    assert!(on_disk());
    let counters = port.counters().clone();
    drop(port);
    assert_eq!((counters.tx_frames(), counters.tx_bytes()), (2, 60 + MAX_FRAME_LEN as u64));
    assert_eq!(counters.tx_offered(), 4);

    let mut reader = Reader::open(&path).unwrap();
    let mut last = before;
    for (fill, len) in [(1, 60), (2, MAX_FRAME_LEN)] {
        let frame = reader.peek().unwrap().unwrap();
        assert_eq!(frame.data, vec![fill; len]);
        assert!(frame.time >= last && frame.time <= CaptureTime::now());
        last = frame.time;
        reader.take();
    }
    assert!(reader.peek().unwrap().is_none());
}

#[test]
fn without_a_file_to_write_what_is_sent_is_forgotten_but_counted() {
    let mut port = reading(capture(&[]), "");
    assert_eq!(port.transmit(Span::from_slice(&[1; 60])), TxOutcome::Sent);
    port.flush();
    assert_eq!(port.counters().tx_frames(), 1);
}

/// Has room for the header and 1.5 frames of 60 bytes.
struct SmallDisk(usize);

impl Write for SmallDisk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(self.0);
        self.0 -= count;
        if count == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(count) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_moves_what_was_lost_to_the_drops() {
    let mut port = writing(SmallDisk(24 + 76 + 38));
    let send = |port: &mut PcapPort<Memory, SmallDisk>| port.transmit(Span::from_slice(&[1; 60]));
    for _ in 0..3 {
        assert_eq!(send(&mut port), TxOutcome::Sent);
    }
    assert_eq!(port.counters().tx_frames(), 3);
    port.flush();
    while port.next_due().is_some() {
        port.receive(1, &mut |_: Span<'_>| Accept::Taken);
    }
    assert_eq!(send(&mut port), TxOutcome::Dropped(DropReason::WriteFailed));
    let counters = port.counters().clone();
    drop(port);
    assert_eq!((counters.tx_frames(), counters.tx_bytes()), (1, 60));
    assert_eq!(counters.tx_dropped(DropReason::WriteFailed), 3);
    assert_eq!(counters.tx_offered(), 4);
}

#[test]
fn a_disk_that_is_found_full_at_the_end_is_counted() {
    let mut port = writing(SmallDisk(24));
    assert_eq!(port.transmit(Span::from_slice(&[1; 60])), TxOutcome::Sent);
    let counters = port.counters().clone();
    assert_eq!(port.sink.as_ref().unwrap().pending(), Tally { frames: 1, bytes: 60 });
    drop(port);
    assert_eq!((counters.tx_frames(), counters.tx_dropped(DropReason::WriteFailed)), (0, 1));
}
