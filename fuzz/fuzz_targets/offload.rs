//! A `virtio_net_hdr` and the frame behind it, from somebody who wishes us ill.
#![no_main]

use millrace_packet::offload::{MAX_SEGMENTS, Offload, VIRTIO_HEADER_LEN};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((header, frame)) = input.split_first_chunk::<VIRTIO_HEADER_LEN>() else { return };
    let Ok(offload) = Offload::from_virtio(header, frame.len()) else { return };
    assert_eq!(Offload::from_virtio(&offload.to_virtio(), frame.len()), Ok(offload));
    let fits = offload.check(frame, frame.len());
    let (mut emitted, mut bytes) = (0, 0);
    let finished = offload.finish(&mut frame.to_vec(), |segment| {
        assert!(segment.len() <= frame.len());
        emitted += 1;
        bytes += segment.len();
        true
    });
    assert_eq!(fits, finished.map(drop));
    match finished {
        Ok(count) => assert!(count == emitted && (1..=MAX_SEGMENTS).contains(&count) && bytes >= frame.len()),
        Err(_) => assert_eq!(emitted, 0),
    }
});
