//! The MACs of a port: what they let through, and that their counters add up (`docs/spec/nfb-card.md` §2.4, §2.5).
//!
//! Registers are read as the vendor's library reads them (numbers instead of names, bulk reads after a strobe), so that
//! a mistake in the register tables shows here.

use crate::common::*;
use millrace_abi::queue::QueueId;
use millrace_abi::register::map::Component;
use millrace_abi::register::medusa as m;
use millrace_abi::tree::{Tree, compatible};
use millrace_card::Card;
use millrace_dma::Span;
use millrace_port::{Accept, PortSpec};
use millrace_ring::medusa::{HostRx, HostTx};
use std::path::{Path, PathBuf};

fn write(card: &Card, component: Component, offset: u32, value: u32) {
    card.write(component.base().unwrap() + offset, &value.to_le_bytes());
}

fn bulk<const N: usize>(card: &Card, component: Component, offset: u32) -> [u8; N] {
    let mut bytes = [0; N];
    card.read(component.base().unwrap() + offset, &mut bytes);
    bytes
}

fn u32_at(bytes: &[u8], at: usize) -> u64 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()).into()
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Rx {
    total: u64,
    received: u64,
    dropped: u64,
    overflowed: u64,
    received_octets: u64,
    octets: u64,
    filtered: u64,
    erroneous: u64,
    disabled: u64,
    mii: u64,
    crc: u64,
    length: u64,
    over_max: u64,
    under_min: u64,
    broadcast: u64,
    multicast: u64,
    fragments: u64,
    jabbers: u64,
    /// <64, 64, 65, 128, 256, 512, 1024, 1519, 2048, 4096, 8192.
    sizes: [u64; 11],
}

/// Reads the counters as `nc_rxmac_read_counters` does, and checks everything that must hold at any strobe.
fn rx(card: &Card, port: u32) -> Rx {
    let mac = Component::RxMac(port);
    write(card, mac, 0x2c, 1);
    let base: [u8; 32] = bulk(card, mac, 0x00);
    let pair = |at| u32_at(&base, at) | u32_at(&base, at + 16) << 32;
    let reasons: [u8; 48] = bulk(card, mac, 0x1a0);
    let ether: [u8; 160] = bulk(card, mac, 0x100);
    let halves = |at| u32_at(&ether, at * 4) | u32_at(&ether, at * 4 + 56) << 32;
    let mut sizes = [0; 11];
    sizes[0] = u64_at(&ether, 0x78);
    (1..7).for_each(|at| sizes[at] = halves(7 + at));
    (7..11).for_each(|at| sizes[at] = u64_at(&ether, 0x80 + (at - 7) * 8));
    assert_eq!(u64_at(&ether, 0x70), sizes[7..].iter().sum::<u64>(), "over 1518");
    let counters = Rx {
        total: pair(0),
        received: pair(4),
        dropped: pair(8),
        overflowed: pair(12),
        received_octets: u64_at(&bulk::<8>(card, mac, 0x3c), 0),
        octets: halves(7),
        filtered: u64_at(&reasons, 0),
        erroneous: u64_at(&reasons, 8),
        disabled: u64_at(&reasons, 16),
        mii: u64_at(&reasons, 24),
        crc: u64_at(&reasons, 32),
        length: u64_at(&reasons, 40),
        over_max: halves(1),
        under_min: halves(2),
        broadcast: halves(3),
        multicast: halves(4),
        fragments: halves(5),
        jabbers: halves(6),
        sizes,
    };
    assert_eq!(halves(0), counters.crc);
    counters.check();
    counters
}

impl Rx {
    fn check(&self) {
        assert_eq!(self.total, self.received + self.dropped, "{self:?}");
        assert_eq!(self.dropped, self.overflowed + self.filtered + self.disabled + self.erroneous, "{self:?}");
        assert_eq!(self.erroneous, self.mii + self.crc + self.length, "{self:?}");
        assert_eq!(self.total, self.sizes.iter().sum::<u64>(), "{self:?}");
        assert!(self.received_octets <= self.octets, "{self:?}");
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Tx {
    total: u64,
    sent: u64,
    dropped: u64,
    sent_octets: u64,
    octets: u64,
    link_down: u64,
    length: u64,
    disabled: u64,
}

/// As `nc_txmac_read_counters`.
fn tx(card: &Card, port: u32) -> Tx {
    let mac = Component::TxMac(port);
    write(card, mac, 0x2c, 1);
    let base: [u8; 32] = bulk(card, mac, 0x00);
    let pair = |at| u32_at(&base, at) | u32_at(&base, at + 16) << 32;
    let more: [u8; 32] = bulk(card, mac, 0x40);
    let counters = Tx {
        total: pair(0),
        sent_octets: pair(4),
        dropped: pair(8),
        sent: pair(12),
        octets: u64_at(&more, 0),
        link_down: u64_at(&more, 8),
        length: u64_at(&more, 16),
        disabled: u64_at(&more, 24),
    };
    assert_eq!(counters.total, counters.sent + counters.dropped, "{counters:?}");
    assert_eq!(counters.dropped, counters.link_down + counters.length + counters.disabled, "{counters:?}");
    counters
}

fn reset(card: &Card) {
    write(card, Component::RxMac(0), 0x2c, 2);
    write(card, Component::TxMac(0), 0x2c, 2);
}

/// Two queues of a loopback card that send, and receive whatever comes.
struct Loop<'c> {
    card: &'c Card,
    tx: Bench<'c>,
    rx: Bench<'c>,
    host_tx: HostTx,
    host_rx: HostRx,
    received: u64,
}

impl<'c> Loop<'c> {
    fn new(card: &'c Card) -> Self {
        let (rx, tx) = (Bench::started(card, QueueId::rx(0)), Bench::started(card, QueueId::tx(0)));
        let (host_rx, host_tx) = (rx.rx(), tx.tx());
        let mut this = Self { card, tx, rx, host_tx, host_rx, received: 0 };
        this.post(64);
        this
    }

    fn post(&mut self, count: u32) {
        (0..count).for_each(|number| assert!(self.host_rx.post(self.rx.frame(number.into()), 2048)));
        self.rx.write64(m::SDP, u64::from(self.host_rx.sdp()) | u64::from(self.host_rx.shp()) << 32);
    }

    /// Sends frames, waits until the card has taken them and returns the lengths of those that arrived.
    fn send(&mut self, frames: &[Vec<u8>]) -> Vec<u16> {
        for (number, frame) in (0..).zip(frames) {
            write_frame(&self.tx, number, frame);
            assert!(self.host_tx.post(self.tx.frame(number), frame.len() as u16));
        }
        self.tx.write32(m::SDP, self.host_tx.sdp());
        wait_for("frames", || self.tx.read32(m::HDP) == self.host_tx.sdp());
        self.host_tx.completed();
        let ready = self.host_rx.ready();
        let lengths = (0..ready).map(|ahead| self.host_rx.header(ahead).len).collect();
        self.host_rx.release(ready);
        self.received += u64::from(ready);
        self.post(ready);
        check_equations(self.card);
        assert_eq!(self.card.stats().ports[0].rx_frames, self.received);
        lengths
    }

    fn end(self) {
        self.tx.end();
        self.rx.end();
    }
}

fn frame(to: [u8; 6], len: usize) -> Vec<u8> {
    let mut frame = vec![0x5a; len];
    frame[..6].copy_from_slice(&to);
    frame
}

const MINE: [u8; 6] = [0x00, 0x11, 0x22, 0x33, 0x44, 0x55];
const OTHER: [u8; 6] = [0x00, 0x11, 0x22, 0x33, 0x44, 0x56];
const BROADCAST: [u8; 6] = [0xff; 6];
const MULTICAST: [u8; 6] = [0x01, 0x00, 0x5e, 0x00, 0x00, 0x01];

#[test]
fn a_port_is_enabled_from_the_start_and_shows_what_it_is() {
    let card = card("spin=0");
    // nc_rxmac_read_status: 28 bytes at 0x20.
    let status: [u8; 28] = bulk(&card, Component::RxMac(0), 0x20);
    assert_eq!(u32_at(&status, 0), 1, "enabled");
    assert_eq!(u32_at(&status, 4), 0x1b, "error mask");
    assert_eq!(u32_at(&status, 8), 16 << 23 | 5 << 4 | 1 << 7, "16 addresses, 100G, link up, no overflow");
    assert_eq!((u32_at(&status, 16), u32_at(&status, 20), u32_at(&status, 24)), (64, 0x3fff + 4, 0));
    assert_eq!(u32_at(&bulk::<4>(&card, Component::TxMac(0), 0x20), 0), 1, "enabled");
    assert_eq!(u32_at(&bulk::<4>(&card, Component::TxMac(0), 0x30), 0), 5 << 4 | 1 << 7);
    // nfb-eth -e0, -L 9000, -m 31, -M normal: everything reads back, and nothing else changes.
    for (offset, value) in [(0x20, 0), (0x34, 9000), (0x24, 0x1f), (0x38, 1), (0x30, 100)] {
        write(&card, Component::RxMac(0), offset, value);
        assert_eq!(u32_at(&bulk::<4>(&card, Component::RxMac(0), offset), 0), u64::from(value), "{offset:#x}");
    }
    assert_eq!(u32_at(&bulk::<4>(&card, Component::TxMac(0), 0x20), 0), 1);
    assert_eq!(rx(&card, 0), Rx::default());
}

#[test]
fn the_longest_frame_is_what_the_device_tree_says_can_be_set() {
    for (options, mtu) in [("", 0x3fff + 4), ("frame-max=9000", 9004), ("frame-max=1000", 1518)] {
        let card = card(options);
        let tree = Tree::parse(card.device_tree()).unwrap();
        for compatible in [compatible::RXMAC, compatible::TXMAC] {
            assert_eq!(tree.compatible(compatible).next().unwrap().u32("mtu"), Ok(mtu), "{options}");
        }
        let longest = u32_at(&bulk::<4>(&card, Component::RxMac(0), 0x34), 0);
        assert_eq!(longest, if options == "frame-max=1000" { 1004 } else { mtu.into() }, "{options}");
    }
}

#[test]
fn the_address_table_is_edited_as_nfb_eth_does() {
    let card = card("spin=0");
    let base = Component::RxMac(0).base().unwrap();
    let entry = |index: u32| read64(&card, base + 0x80 + 8 * index);
    assert!((0..16).all(|index| entry(index) == 0));
    let valid = 1u64 << 48;
    for index in 0..16u32 {
        card.write(base + 0x80 + 8 * index, &(0x0011_2233_4400 | u64::from(index) | valid).to_le_bytes());
    }
    assert!((0..16).all(|index| entry(index) == 0x0011_2233_4400 | u64::from(index) | valid));
    // Removed: the address stays, the valid bit goes. Bits that an entry has not are not kept.
    card.write(base + 0x80, &(0x0011_2233_4400u64 | 0xff << 50).to_le_bytes());
    assert_eq!(entry(0), 0x0011_2233_4400);
    assert_eq!(read64(&card, base + 0x100), 0, "behind the table are the counters");
}

#[test]
fn every_filter_mode_lets_in_what_it_says_and_counts_the_rest() {
    let card = card("spin=20");
    let base = Component::RxMac(0).base().unwrap();
    card.write(base + 0x80 + 8 * 5, &(0x0011_2233_4455u64 | 1 << 48).to_le_bytes());
    let mut path = Loop::new(&card);
    // One length for each kind.
    let frames = [frame(MINE, 60), frame(OTHER, 61), frame(BROADCAST, 62), frame(MULTICAST, 63)];
    let expected: [&[u16]; 4] = [&[60, 61, 62, 63], &[60], &[60, 62], &[60, 62, 63]];
    for (mode, let_in) in (0..).zip(expected) {
        write(&card, Component::RxMac(0), 0x38, mode);
        for mask in [0x1f, 0x0f, 0x10, 0x00] {
            write(&card, Component::RxMac(0), 0x24, mask);
            reset(&card);
            // The mask decides whether the filter is in force at all.
            let let_in = if mask & 0x10 == 0 { expected[0] } else { let_in };
            assert_eq!(path.send(&frames), let_in, "mode {mode}, mask {mask:#x}");
            let counted = rx(&card, 0);
            assert_eq!((counted.total, counted.received), (4, let_in.len() as u64));
            assert_eq!((counted.filtered, counted.erroneous), (4 - let_in.len() as u64, 0));
            assert_eq!((counted.broadcast, counted.multicast), (1, 1));
            assert_eq!(counted.octets, 60 + 61 + 62 + 63 + 4 * 4);
            assert_eq!(counted.received_octets, let_in.iter().map(|len| u64::from(len + 4)).sum::<u64>());
            assert_eq!(counted.sizes, [0, 1, 3, 0, 0, 0, 0, 0, 0, 0, 0]);
            assert_eq!((tx(&card, 0).total, tx(&card, 0).sent), (4, 4));
        }
    }
    let stats = card.stats();
    assert_eq!(stats.ports[0].rx_drops.len(), 1, "{stats:?}");
    assert_eq!((stats.ports[0].rx_drops[0].reason.as_str(), stats.ports[0].rx_drops[0].count), ("filtered", 12));
    path.end();
}

#[test]
fn frame_lengths_are_checked_as_the_error_mask_says() {
    let card = card("spin=20,frame-min=14");
    let mut path = Loop::new(&card);
    let lengths = [14u16, 59, 60, 61, 100, 1000, 1514, 1515, 2000];
    let frames: Vec<Vec<u8>> = lengths.iter().map(|&len| frame(OTHER, len.into())).collect();
    for (min, max) in [(64, 1518), (0, 0x4003), (105, 104), (1004, 1004), (u32::MAX, 0)] {
        write(&card, Component::RxMac(0), 0x30, min);
        write(&card, Component::RxMac(0), 0x34, max);
        for mask in [0x00, 0x04, 0x08, 0x0c, 0x1f] {
            write(&card, Component::RxMac(0), 0x24, mask);
            reset(&card);
            let is_short = |len: u16| u32::from(len) + 4 < min;
            let is_long = |len: u16| u32::from(len) + 4 > max;
            let drops = |len: u16| (is_short(len) && mask & 4 != 0) || (is_long(len) && mask & 8 != 0);
            let expected: Vec<u16> = lengths.iter().copied().filter(|&len| !drops(len)).collect();
            assert_eq!(path.send(&frames), expected, "{min} to {max}, mask {mask:#x}");
            let counted = rx(&card, 0);
            assert_eq!((counted.total, counted.received), (9, expected.len() as u64));
            assert_eq!((counted.length, counted.erroneous), (counted.dropped, counted.dropped));
            // Counted by the configured limits whether dropped or not.
            let count = |of: &dyn Fn(u16) -> bool| lengths.iter().filter(|&&len| of(len)).count() as u64;
            assert_eq!(counted.under_min, count(&|len| is_short(len)), "{min} to {max}, mask {mask:#x}");
            assert_eq!(counted.over_max, count(&|len| is_long(len)), "{min} to {max}, mask {mask:#x}");
            assert_eq!(counted.sizes, [2, 1, 2, 0, 0, 1, 1, 2, 0, 0, 0]);
        }
    }
    path.end();
}

#[test]
fn by_default_short_and_long_frames_pass() {
    let card = card("spin=20,frame-min=14,buffer=2048");
    let mut path = Loop::new(&card);
    assert_eq!(path.send(&[frame(OTHER, 14), frame(BROADCAST, 42), frame(OTHER, 2048)]), [14, 42, 2048]);
    let counted = rx(&card, 0);
    assert_eq!((counted.received, counted.under_min, counted.broadcast, counted.over_max), (3, 2, 1, 0));
    path.end();
}

#[test]
fn a_disabled_half_drops_and_counts_where_it_stands() {
    let card = card("spin=20");
    let mut path = Loop::new(&card);
    let ten: Vec<Vec<u8>> = (0..10).map(|_| frame(OTHER, 100)).collect();
    assert_eq!(path.send(&ten).len(), 10);
    write(&card, Component::TxMac(0), 0x20, 0);
    assert_eq!(path.send(&ten).len(), 0);
    write(&card, Component::TxMac(0), 0x20, 1);
    assert_eq!((tx(&card, 0).sent, tx(&card, 0).disabled, rx(&card, 0).total), (10, 10, 10));
    assert_eq!((tx(&card, 0).sent_octets, tx(&card, 0).octets), (1040, 2080));
    write(&card, Component::RxMac(0), 0x20, 0);
    assert_eq!(path.send(&[&ten[..9], &[frame(BROADCAST, 100)]].concat()).len(), 0);
    write(&card, Component::RxMac(0), 0x20, 1);
    let counted = rx(&card, 0);
    assert_eq!((counted.total, counted.received, counted.disabled, counted.broadcast), (20, 10, 10, 1));
    assert_eq!((counted.octets, counted.received_octets), (2080, 1040));
    assert_eq!((tx(&card, 0).sent, tx(&card, 0).disabled), (20, 10));
    // The queue handed all of them over; the port says what became of them.
    let stats = card.stats();
    let queue = stats.queues.iter().find(|queue| queue.queue == QueueId::tx(0)).unwrap();
    assert_eq!((queue.passed, queue.drops.len()), (30, 0));
    assert_eq!(stats.ports[0].tx_drops[0].reason, "disabled");
    assert_eq!(stats.ports[0].rx_drops[0].reason, "disabled");
    reset(&card);
    assert_eq!((rx(&card, 0), tx(&card, 0).total), (Rx::default(), 0));
    assert_eq!(path.send(&ten).len(), 10);
    assert_eq!((rx(&card, 0).received, tx(&card, 0).sent), (10, 10));
    path.end();
}

#[test]
fn what_is_read_belongs_to_the_last_strobe() {
    let card = card("spin=20");
    let mut path = Loop::new(&card);
    let frames = [frame(OTHER, 200)];
    path.send(&frames);
    assert_eq!(u32_at(&bulk::<4>(&card, Component::RxMac(0), 0), 0), 0, "not before the first strobe");
    assert_eq!(rx(&card, 0).total, 1);
    path.send(&frames);
    assert_eq!(u32_at(&bulk::<4>(&card, Component::RxMac(0), 0), 0), 1, "as of the last strobe");
    assert_eq!(rx(&card, 0).total, 2);
    // Writing a counter changes nothing, nor does a command that there is not.
    write(&card, Component::RxMac(0), 0x00, 77);
    write(&card, Component::RxMac(0), 0x2c, 3);
    assert_eq!(u32_at(&bulk::<4>(&card, Component::RxMac(0), 0), 0), 2);
    path.end();
}

#[test]
fn snapshots_are_whole_while_frames_pass() {
    let card = card("spin=20,tx=1,rx=1,port=(generator:size=64)");
    let bench = Bench::started(&card, QueueId::rx(0));
    let mut host = bench.rx();
    let (mut last, mut round) = (Rx::default(), 0u32);
    wait_for("enough frames of both kinds", || {
        round += 1;
        let ready = host.ready();
        host.release(ready);
        while host.free() > 1 && host.post(bench.frame(0), 2048) {}
        bench.write64(m::SDP, u64::from(host.sdp()) | u64::from(host.shp()) << 32);
        write(&card, Component::RxMac(0), 0x20, (round / 16) & 1);
        let now = rx(&card, 0);
        assert!(now.total >= last.total && now.received >= last.received && now.disabled >= last.disabled);
        assert_eq!((now.received_octets, now.octets), (now.received * 68, now.total * 68));
        last = now;
        round > 500 && last.received > 2000 && last.disabled > 2000
    });
    bench.end();
}

#[test]
fn a_live_port_without_room_behind_it_overflows() {
    // A capture played at a rate waits for nobody.
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut writer = millrace_port::pcap::Writer::create(file.path()).unwrap();
    (0..10).for_each(|_| writer.write(Default::default(), &[0x5a; 64]).unwrap());
    writer.flush().unwrap();
    let card = card(&format!("spin=0,tx=1,rx=1,port=(pcap:{},speed=1kpps,loop=50)", file.path().display()));
    let bench = Bench::started(&card, QueueId::rx(0));
    let mut host = bench.rx();
    (0..50).for_each(|number| assert!(host.post(bench.frame(number), 2048)));
    bench.write32(m::SDP, host.sdp());
    wait_for("the capture", || rx(&card, 0).total == 500);
    let counted = rx(&card, 0);
    // What came before the queue was started went as far as the queue.
    let stats = card.stats();
    let stopped: u64 = stats.queues[0].drops.iter().map(|drop| drop.count).sum();
    assert_eq!(stats.queues[0].passed, 50, "as many as there were buffers");
    assert_eq!((counted.received, counted.received + counted.overflowed), (50 + stopped, 500));
    assert_eq!((counted.received_octets, counted.octets), ((50 + stopped) * 68, 500 * 68));
    assert_eq!(u32_at(&bulk::<4>(&card, Component::RxMac(0), 0x28), 0) & 1, 1, "the status says so");
    let drop = &stats.ports[0].rx_drops[0];
    assert_eq!((drop.reason.as_str(), drop.count), ("no-room", counted.overflowed));
    check_equations(&card);
    bench.end();
}

#[test]
fn queues_belong_to_the_ports_that_libnfb_works_out() {
    for ports in [1u32, 2, 4] {
        let names = vec!["port=loopback"; ports as usize].join(",");
        let card = card(&format!("spin=20,queues=8,{names}"));
        for index in 0..8 {
            let bench = Bench::started(&card, QueueId::tx(index));
            let mut host = bench.tx();
            send(&bench, &mut host, u64::from(index) + 1, 64);
            wait_for("frames", || bench.read32(m::HDP) == host.sdp());
            bench.end();
        }
        // nc_ifc_map_info_create_ordinary: queue * interfaces / queues, rounded down.
        for port in 0..ports {
            let of_port = (0..8u64).filter(|index| index * u64::from(ports) / 8 == u64::from(port));
            let frames: u64 = of_port.map(|index| index + 1).sum();
            assert_eq!((tx(&card, port).sent, rx(&card, port).received), (frames, frames), "port {port} of {ports}");
        }
        check_equations(&card);
    }
}

#[test]
fn the_tree_says_when_the_card_came_to_be() {
    let seconds = || std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() as u32;
    let before = seconds();
    let card = card("spin=0");
    let tree = millrace_abi::tree::Tree::parse(card.device_tree()).unwrap();
    let built = tree.node("/firmware").unwrap().u32("build-time").unwrap();
    assert!((before..=seconds()).contains(&built), "{built}");
}

fn captures() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/captures");
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.sort();
    files
}

/// What the MAC has to say about frames, worked out in another way.
fn expect(frames: &[Vec<u8>], mode: u32, mask: u32) -> Rx {
    let mut all = Rx::default();
    for frame in frames {
        let length = frame.len() as u64 + 4;
        let is_broadcast = frame[..6] == BROADCAST;
        let is_multicast = frame[0] & 1 == 1 && !is_broadcast;
        let short = length < 64;
        let dropped_short = short && mask & 4 != 0;
        let let_in = mode == 0 || is_broadcast && mode >= 2 || is_multicast && mode == 3;
        let edges = [64, 65, 128, 256, 512, 1024, 1519, 2048, 4096, 8192];
        all.sizes[edges.iter().filter(|&&edge| length >= edge).count()] += 1;
        all.total += 1;
        all.octets += length;
        all.under_min += u64::from(short);
        if dropped_short {
            all.length += 1;
            continue;
        }
        all.broadcast += u64::from(is_broadcast);
        all.multicast += u64::from(is_multicast);
        if let_in {
            all.received += 1;
            all.received_octets += length;
        } else {
            all.filtered += 1;
        }
    }
    all.erroneous = all.length;
    all.dropped = all.length + all.filtered;
    all
}

/// Lets a capture in and takes what arrives; `None` for one that is no Ethernet.
fn let_capture_in(file: &Path, mode: u32, mask: u32) -> Option<(Vec<Vec<u8>>, u64, Rx)> {
    let spec: PortSpec = format!("pcap:{}", file.display()).parse().ok()?;
    let mut port = millrace_port::open(&spec).ok()?.remove(0);
    let mut frames = Vec::new();
    let mut sink = |frame: Span<'_>| {
        let mut bytes = vec![0; frame.len()];
        frame.read_into(&mut bytes);
        frames.push(bytes);
        Accept::Taken
    };
    while port.receive(64, &mut sink) > 0 {}
    let unreadable = port.counters().rx_drops().map(|(_, count)| count).sum::<u64>();
    let card = card(&format!("spin=0,rx=1,tx=1,buffer=16384,port=(pcap:{})", file.display()));
    write(&card, Component::RxMac(0), 0x38, mode);
    write(&card, Component::RxMac(0), 0x24, mask);
    let bench = Bench::started(&card, QueueId::rx(0));
    let mut host = bench.rx();
    wait_for("the capture", || {
        let ready = host.ready();
        host.release(ready);
        while host.free() > 1 && host.post(bench.frame(0), 16384) {}
        bench.write64(m::SDP, u64::from(host.sdp()) | u64::from(host.shp()) << 32);
        let stats = card.stats();
        let dropped: u64 = stats.ports[0].rx_drops.iter().map(|drop| drop.count).sum();
        stats.ports[0].rx_frames + dropped == frames.len() as u64 + unreadable
    });
    let counted = rx(&card, 0);
    check_equations(&card);
    bench.end();
    Some((frames, unreadable, counted))
}

#[test]
fn captures_are_counted_as_they_are() {
    let (mut files, mut all, mut damaged) = (0, 0, 0);
    for (number, file) in captures().into_iter().enumerate() {
        let (mode, mask) = [(0, 0x1b), (0, 0x1f), (1, 0x1f), (2, 0x1f), (3, 0x1b)][number % 5];
        let Some((frames, unreadable, counted)) = let_capture_in(&file, mode, mask) else { continue };
        let mut expected = expect(&frames, mode, mask);
        // What the port could not read is an error of some kind; its length is not known.
        assert_eq!(counted.total, expected.total + unreadable, "{}", file.display());
        assert_eq!(counted.erroneous, expected.erroneous + unreadable, "{}", file.display());
        if unreadable > 0 {
            damaged += 1;
            expected = Rx { octets: counted.octets, received: counted.received, ..expected };
            assert_eq!(counted.received_octets, expected.received_octets, "{}", file.display());
        } else {
            assert_eq!(counted, expected, "{} mode {mode} mask {mask:#x}", file.display());
        }
        (files, all) = (files + 1, all + frames.len());
    }
    println!("{files} captures with {all} frames, {damaged} of them damaged");
}
