//! Every capture of the project's collection is read, whatever is in it, and what is a frame comes through a port.

use millrace_dma::Span;
use millrace_packet::offload::{Offload, PartialChecksum, SegmentKind, Segments};
use millrace_port::{
    Accept, DropReason, PortSpec, open,
    pcap::{ReadError, Reader},
};
use std::path::{Path, PathBuf};

/// The collection, which lies beside the workspace and not in it.
fn captures() -> Option<Vec<PathBuf>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/captures");
    let Ok(entries) = std::fs::read_dir(&folder) else {
        println!("skipped: there is no folder {}", folder.display());
        return None;
    };
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    Some(files)
}

/// Frames of a file, and the errors that came up between and behind them.
fn read(path: &Path) -> Result<(Vec<Vec<u8>>, Vec<ReadError>), ReadError> {
    let mut reader = Reader::open(path)?;
    let (mut frames, mut errors) = (Vec::new(), Vec::new());
    loop {
        match reader.peek() {
            Ok(Some(frame)) => frames.push(frame.data.to_vec()),
            Ok(None) => return Ok((frames, errors)),
            Err(error) => errors.push(error),
        }
        reader.take();
    }
}

#[test]
fn every_capture_is_read_or_refused_with_a_reason() {
    let Some(files) = captures() else { return };
    let (mut readable, mut frames, mut refused) = (0, 0, 0);
    for path in files {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        match read(&path) {
            Ok((found, errors)) => {
                readable += 1;
                frames += found.len();
                for error in errors {
                    println!("{error}");
                }
            }
            Err(error) => {
                refused += 1;
                assert!(error.to_string().contains(&name), "{error}");
                let expected = match name.ends_with(".pcapng") {
                    true => matches!(error, ReadError::PcapNg(_)),
                    false => matches!(error, ReadError::LinkType { .. } | ReadError::PcapNg(_)),
                };
                assert!(expected, "{error}");
            }
        }
    }
    println!("{readable} captures with {frames} frames read, {refused} refused");
    assert!(readable > 0 && frames > 0);
}

#[test]
fn a_port_carries_what_the_reader_finds() {
    let Some(files) = captures() else { return };
    for path in files {
        let Ok((frames, errors)) = read(&path) else { continue };
        let spec: PortSpec = format!("pcap:{}", path.display()).parse().unwrap();
        let mut port = match open(&spec) {
            Ok(mut ports) => ports.remove(0),
            Err(error) => {
                assert!(frames.is_empty() && errors.iter().any(ReadError::ends_stream), "{error}");
                continue;
            }
        };
        let mut frames = frames.iter().filter(|frame| frame.len() >= 14);
        while port.next_due().is_some() {
            port.receive(7, &mut |frame: Span<'_>| {
                let mut bytes = vec![0; frame.len()];
                frame.read_into(&mut bytes);
                assert_eq!(Some(&bytes), frames.next(), "{}", path.display());
                Accept::Taken
            });
        }
        assert_eq!(frames.next(), None, "{}", path.display());
        let counters = port.counters();
        let failed = counters.rx_dropped(DropReason::Truncated)
            + counters.rx_dropped(DropReason::Damaged)
            + counters.rx_dropped(DropReason::TooLong);
        assert_eq!(failed, errors.len() as u64, "{}", path.display());
    }
}

/// What somebody could claim about any frame: a checksum or segments of every kind, where the headers may have them.
fn claims() -> impl Iterator<Item = Offload> {
    let starts = [34, 38, 42, 54, 58, 74];
    let kinds = [None, Some(SegmentKind::Tcp4), Some(SegmentKind::Tcp6), Some(SegmentKind::Udp)];
    let sizes = [1, 100, 1448];
    starts.into_iter().flat_map(move |start| {
        kinds.into_iter().flat_map(move |kind| {
            sizes.into_iter().map(move |size| Offload {
                checksum: Some(PartialChecksum { start, offset: if kind == Some(SegmentKind::Udp) { 6 } else { 16 } }),
                segments: kind.map(|kind| Segments { kind, ecn: false, size, header_len: 0 }),
            })
        })
    })
}

#[test]
fn every_frame_is_finished_or_refused_whatever_is_said_of_it() {
    let Some(files) = captures() else { return };
    let (mut cut, mut refused) = (0, 0);
    for frame in files.iter().filter_map(|path| read(path).ok()).flat_map(|(frames, _)| frames) {
        for claim in claims() {
            let fits = claim.check(&frame, frame.len());
            let done = claim.finish(&mut frame.clone(), |segment| {
                assert!(segment.len() <= frame.len());
                true
            });
            assert_eq!(fits, done.map(drop));
            cut += u64::from(claim.segments.is_some() && done.is_ok());
            refused += u64::from(done.is_err());
        }
    }
    println!("{cut} claims cut, {refused} refused");
    assert!(cut > 1000 && refused > 1000);
}
