use super::*;

/// Takes up to `room` frames, and unfinished ones if it is told to.
struct Shelf {
    offloads: Offloads,
    room: usize,
    lens: Vec<usize>,
    offloaded: Vec<Offload>,
}

impl Shelf {
    fn new(offloads: Offloads, room: usize) -> Self {
        Self { offloads, room, lens: Vec::new(), offloaded: Vec::new() }
    }
}

impl Sink for Shelf {
    fn take(&mut self, frame: Span<'_>) -> Accept {
        if self.lens.len() == self.room {
            return Accept::Full;
        }
        self.lens.push(frame.len());
        Accept::Taken
    }

    fn offloads(&self) -> Offloads {
        self.offloads
    }

    fn take_offloaded(&mut self, frame: Span<'_>, offload: &Offload) -> Accept {
        self.offloaded.push(*offload);
        self.take(frame)
    }
}

/// UDP over IPv4 with `payload` bytes.
fn udp(payload: usize) -> Vec<u8> {
    let mut frame = vec![2; 42 + payload];
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&(28 + payload as u16).to_be_bytes());
    frame[20..22].fill(0);
    frame[23] = 17;
    frame
}

/// The checksum is partial; segments of UDP of `size` bytes.
fn header(size: u16) -> [u8; 10] {
    let [low, high] = size.to_le_bytes();
    [1, if size > 0 { 5 } else { 0 }, 42, 0, low, high, 34, 0, 6, 0]
}

fn delivered(header: [u8; 10], mut frame: Vec<u8>, shelf: &mut Shelf) -> (Delivered, PortCounters) {
    let counters = PortCounters::new();
    let delivered = deliver(&header, &mut frame, shelf.offloads, shelf, &counters);
    assert_eq!(counters.rx_offered(), delivered.frames as u64, "not all is counted");
    assert_eq!(counters.rx_frames(), delivered.taken as u64);
    assert_eq!(counters.rx_bytes(), shelf.lens.iter().sum::<usize>() as u64);
    (delivered, counters)
}

#[test]
fn whole_where_it_is_taken_and_cut_where_not() {
    let mut shelf = Shelf::new(Offloads::ALL, 9);
    let (all, _) = delivered(header(1000), udp(2500), &mut shelf);
    assert_eq!(all, Delivered { frames: 1, taken: 1, full: false });
    assert_eq!((&shelf.lens[..], shelf.offloaded[0].segments.unwrap().size), (&[2542][..], 1000));

    let mut shelf = Shelf::new(Offloads { udp: false, ..Offloads::ALL }, 9);
    let (all, _) = delivered(header(1000), udp(2500), &mut shelf);
    assert_eq!(all, Delivered { frames: 3, taken: 3, full: false });
    assert_eq!((&shelf.lens[..], shelf.offloaded.len()), (&[1042, 1042, 542][..], 0));

    let mut shelf = Shelf::new(Offloads::NONE, 9);
    let (all, _) = delivered(header(0), udp(18), &mut shelf);
    assert_eq!((all.taken, &shelf.lens[..]), (1, &[60][..]));
}

#[test]
fn segments_without_room_are_dropped_and_counted() {
    let mut shelf = Shelf::new(Offloads::NONE, 2);
    let (all, counters) = delivered(header(100), udp(1000), &mut shelf);
    assert_eq!(all, Delivered { frames: 10, taken: 2, full: true });
    assert_eq!(counters.rx_dropped(DropReason::NoRoom), 8);
}

#[test]
fn what_does_not_fit_is_dropped_by_its_reason() {
    for offloads in [Offloads::NONE, Offloads::ALL] {
        let dropped = |header, frame, reason| {
            let mut shelf = Shelf::new(offloads, 9);
            let (all, counters) = delivered(header, frame, &mut shelf);
            assert_eq!((all.taken, all.full, shelf.lens.len()), (0, false, 0));
            assert_eq!(counters.rx_dropped(reason), all.frames as u64, "{reason}");
        };
        dropped([0; 10], vec![0; 13], DropReason::TooShort);
        dropped([0; 10], vec![0; 16_384], DropReason::TooLong);
        dropped(header(0), udp(16_384), DropReason::TooLong);
        dropped(header(1000), vec![0; 70_000], DropReason::TooLong);
        dropped([1, 0, 0, 0, 0, 0, 255, 255, 0, 0], udp(100), DropReason::Offload);
        dropped(header(1000), vec![0; 3000], DropReason::Offload);
    }
    let mut shelf = Shelf::new(Offloads::NONE, 9);
    let (all, counters) = delivered(header(20_000), udp(50_000), &mut shelf);
    assert_eq!((all.frames, all.taken), (3, 1), "the last one is short enough");
    assert_eq!(counters.rx_dropped(DropReason::TooLong), 2);
}
