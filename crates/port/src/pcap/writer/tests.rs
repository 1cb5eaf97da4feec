use super::*;
use crate::pcap::Reader;

/// Takes `room` bytes, at most `step` at a time, then the disk is full.
struct Disk {
    bytes: Vec<u8>,
    room: usize,
    step: usize,
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(self.room - self.bytes.len()).min(self.step);
        if count == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.bytes.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn on_disk(room: usize, step: usize) -> Result<Writer<Disk>, WriteError> {
    let disk = Disk { bytes: Vec::new(), room, step };
    Writer::start(disk, "x.pcap".into(), |disk, len| disk.bytes.truncate(len as usize))
}

#[test]
fn golden_bytes() {
    let mut bytes = Vec::new();
    let mut writer = Writer::new(&mut bytes).unwrap();
    writer.write(CaptureTime::from_nanos(0x0102_0304 * 1_000_000_000 + 0x0a0b_0c0d), &[0xaa, 0xbb, 0xcc]).unwrap();
    writer.flush().unwrap();
    assert_eq!(writer.written(), Tally { frames: 1, bytes: 3 });
    drop(writer);
    #[rustfmt::skip]
    let golden = [
        0x4d, 0x3c, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1, 0, 0, 0,
        4, 3, 2, 1, 0x0d, 0x0c, 0x0b, 0x0a, 3, 0, 0, 0, 3, 0, 0, 0, 0xaa, 0xbb, 0xcc,
    ];
    assert_eq!(bytes, golden);
}

#[test]
fn short_writes_are_continued() {
    let mut writer = on_disk(usize::MAX, 7).unwrap();
    for len in 0..100 {
        writer.write(CaptureTime::default(), &vec![len as u8; len]).unwrap();
    }
    writer.flush().unwrap();
    let mut reader = Reader::new(&writer.sink.bytes[..]).unwrap();
    for len in 0..100 {
        assert_eq!(reader.peek().unwrap().unwrap().data, vec![len as u8; len]);
        reader.take();
    }
}

#[test]
fn a_full_disk_leaves_whole_records_and_exact_numbers() {
    // 24 bytes of header, records of 16 + 4.
    for room in 0..24 {
        let error = on_disk(room, 1000).err().expect("no room for the header");
        assert!(matches!(error, WriteError::Create { .. }) && error.is_disk_full());
    }
    for room in 24..24 + 3 * 20 {
        let mut writer = on_disk(room, 13).unwrap();
        for at in 0..3 {
            writer.write(CaptureTime::default(), &[at; 4]).unwrap();
        }
        assert_eq!((writer.written().frames, writer.pending().frames), (0, 3));
        let error = writer.flush().unwrap_err();
        assert!(error.is_disk_full() && error.to_string().contains("x.pcap"), "{error}");
        let WriteError::Write { written, lost, .. } = error else { panic!("{error}") };
        let whole = (room as u64 - 24) / 20;
        assert_eq!(written, Tally { frames: whole, bytes: 4 * whole });
        assert_eq!(lost, Tally { frames: 3 - whole, bytes: 4 * (3 - whole) });
        assert_eq!(writer.sink.bytes.len() as u64, 24 + 20 * whole);
        assert_eq!((writer.written(), writer.pending()), (written, Tally::default()));

        let mut reader = Reader::new(&writer.sink.bytes[..]).unwrap();
        for _ in 0..whole {
            assert!(reader.peek().unwrap().is_some());
            reader.take();
        }
        assert!(reader.peek().unwrap().is_none());

        let error = writer.write(CaptureTime::default(), &[0; 4]).unwrap_err();
        assert!(matches!(error, WriteError::Stopped { .. }), "{error}");
        writer.flush().unwrap();
    }
}

#[test]
fn a_write_in_the_middle_can_fail_too() {
    let mut writer = on_disk(1000, 1000).unwrap();
    let mut accepted = 0;
    let error = loop {
        match writer.write(CaptureTime::default(), &[0; 1000]) {
            Ok(()) => accepted += 1,
            Err(error) => break error,
        }
    };
    let WriteError::Write { written, lost, .. } = error else { panic!("{error}") };
    assert_eq!((written.frames, lost.frames), (0, accepted));
    assert_eq!(accepted as usize, BUFFER_LEN / 1016);
}

#[test]
fn dev_full_is_a_full_disk_with_a_name() {
    let error = Writer::create("/dev/full").err().expect("an error");
    assert!(error.is_disk_full());
    let text = error.to_string();
    assert!(text.contains("/dev/full") && text.contains("free some space"), "{text}");
}

#[test]
fn a_file_that_cannot_be_made_is_named() {
    let error = Writer::create("/no/such/folder/x.pcap").err().expect("an error");
    assert!(!error.is_disk_full());
    assert!(error.to_string().contains("/no/such/folder/x.pcap"), "{error}");
}

#[test]
fn a_record_has_a_limit() {
    let mut writer = Writer::new(io::sink()).unwrap();
    writer.write(CaptureTime::default(), &[0; SNAPSHOT_LEN]).unwrap();
    let error = writer.write(CaptureTime::default(), &[0; SNAPSHOT_LEN + 1]).unwrap_err();
    assert!(matches!(error, WriteError::TooLong { len: 131_073, .. }), "{error}");
    assert_eq!(writer.pending().frames, 1);
}

#[test]
fn dropping_the_writer_completes_the_file() {
    let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
    let mut writer = Writer::create(&path).unwrap();
    writer.write(CaptureTime::from_nanos(1), &[1; 60]).unwrap();
    drop(writer);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 24 + 16 + 60);
}
