//! The link of a port and the module in its cage, as `nfb-mdio`, `nfb-eth`, DPDK and pynfb look at them
//! (`docs/spec/nfb-card.md` §2.3, §2.6): register traces with expected answers.

use crate::common::*;
use millrace_abi::queue::QueueId;
use millrace_abi::register::map::Component;
use millrace_abi::register::medusa as m;
use millrace_card::Card;

/// `nc_mdio_dmap_read`: two bytes.
fn mdio(card: &Card, port: u32, device: u32, register: u32) -> u16 {
    let mut bytes = [0; 2];
    card.read(Component::Pcs(port).base().unwrap() + device * 0x10000 + register * 2, &mut bytes);
    u16::from_le_bytes(bytes)
}

fn mdio_write(card: &Card, port: u32, device: u32, register: u32, value: u16) {
    card.write(Component::Pcs(port).base().unwrap() + device * 0x10000 + register * 2, &value.to_le_bytes());
}

fn rxmac_link(card: &Card, port: u32) -> bool {
    read32(card, Component::RxMac(port).base().unwrap() + 0x28) & 0x80 != 0
}

fn txmac_link(card: &Card, port: u32) -> bool {
    read32(card, Component::TxMac(port).base().unwrap() + 0x30) & 0x80 != 0
}

#[test]
fn a_port_is_a_100g_link_that_is_up() {
    let card = card("spin=0,port=loopback,port=null");
    for port in 0..2 {
        // Speed: bits 13 and 6, code 3 of the PMA and 4 of the PCS.
        assert_eq!((mdio(&card, port, 1, 0), mdio(&card, port, 3, 0)), (0x2040 | 3 << 2, 0x2040 | 4 << 2));
        // Link, twice: latched and current.
        for device in [1, 3] {
            assert_eq!([mdio(&card, port, device, 1), mdio(&card, port, device, 1)], [0x0006, 0x0006]);
            assert_eq!(mdio(&card, port, device, 8) & 0xcc00, 0x8000, "present, no fault");
        }
        assert_eq!(mdio(&card, port, 1, 4), 1 << 9);
        // 100GBASE-SR4, which is among the types that it can be.
        assert_eq!((mdio(&card, port, 1, 7), mdio(&card, port, 1, 13) & (1 << 7)), (0x2f, 1 << 7));
        assert_eq!(
            (mdio(&card, port, 1, 8) & 1, mdio(&card, port, 1, 13) >> 15),
            (1, 0),
            "loopback: local, not remote"
        );
        assert_eq!(mdio(&card, port, 1, 200), 4, "RS-FEC, which SR4 needs");
        assert_eq!(mdio(&card, port, 1, 201), 0xcf00);
        assert_eq!((0..4).map(|lane| mdio(&card, port, 1, 206) >> (2 * lane) & 3).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!((mdio(&card, port, 3, 32), mdio(&card, port, 3, 33)), (0x1001, 0x8000));
        let locks: Vec<u16> = (50..54).map(|register| mdio(&card, port, 3, register)).collect();
        assert_eq!(locks, [0x10ff, 0x0fff, 0x00ff, 0x0fff]);
        assert!((0..20).all(|lane| mdio(&card, port, 3, 400 + lane) == lane as u16));
        assert!((0..20).all(|lane| mdio(&card, port, 3, 200 + lane) == 0));
        assert_eq!((mdio(&card, port, 2, 0), mdio(&card, port, 1, 32767), mdio(&card, port, 3, 16385)), (0, 0, 0));
        assert!(rxmac_link(&card, port) && txmac_link(&card, port));
    }
    assert_eq!(mdio(&card, 2, 1, 0), 0, "there are two ports");
}

#[test]
fn reset_and_low_power_take_the_link_down_and_it_is_remembered_until_read() {
    let card = card("spin=0,port=loopback,port=null");
    for (device, bit) in [(1, 15), (1, 11), (3, 15), (3, 11)] {
        let control = mdio(&card, 0, device, 0);
        mdio_write(&card, 0, device, 0, control | 1 << bit);
        assert_eq!(mdio(&card, 0, device, 0), control | 1 << bit, "{device}.0 bit {bit} sticks");
        assert!(!rxmac_link(&card, 0) && !txmac_link(&card, 0));
        assert!(rxmac_link(&card, 1), "the other port");
        assert_eq!(mdio(&card, 0, 1, 1), 0x0082, "no link, fault");
        assert_eq!(mdio(&card, 0, 1, 8) & 0x0c00, 0x0400, "nothing is received");
        assert_eq!((mdio(&card, 0, 3, 32), mdio(&card, 0, 3, 50), mdio(&card, 0, 1, 201)), (0, 0, 0));
        mdio_write(&card, 0, device, 0, control);
        assert!(rxmac_link(&card, 0) && txmac_link(&card, 0));
        for status in [1, 3] {
            assert_eq!([mdio(&card, 0, status, 1), mdio(&card, 0, status, 1)], [0x0002, 0x0006], "{status}.1");
        }
        assert_eq!([mdio(&card, 0, 3, 33), mdio(&card, 0, 3, 33)], [0, 0x8000]);
    }
    // Reading a register does not read its neighbour: the latch of 1.1 outlives a look at 1.0.
    mdio_write(&card, 0, 1, 0, 1 << 15);
    mdio_write(&card, 0, 1, 0, 0);
    for register in [0, 2, 0] {
        mdio(&card, 0, 1, register);
    }
    assert_eq!([mdio(&card, 0, 1, 1), mdio(&card, 0, 1, 1)], [0x0002, 0x0006]);
}

#[test]
fn what_can_be_written_reads_back_and_nothing_else() {
    let card = card("spin=0");
    mdio_write(&card, 0, 1, 0, 0xffff);
    assert_eq!(mdio(&card, 0, 1, 0), 0x2040 | 3 << 2 | 0x8801);
    mdio_write(&card, 0, 3, 0, 0xffff);
    assert_eq!(mdio(&card, 0, 3, 0), 0x2040 | 4 << 2 | 0x8800);
    // DPDK: fec_set.
    mdio_write(&card, 0, 1, 200, 0);
    assert_eq!((mdio(&card, 0, 1, 200), mdio(&card, 0, 1, 201)), (0, 0));
    mdio_write(&card, 0, 1, 200, 0xffff);
    assert_eq!(mdio(&card, 0, 1, 200), 4);
    // nfb-eth -Ps: a type that it can be, and one that it cannot.
    mdio_write(&card, 0, 1, 7, 0x2a);
    assert_eq!(mdio(&card, 0, 1, 7), 0x2a);
    mdio_write(&card, 0, 1, 7, 0x5c);
    assert_eq!(mdio(&card, 0, 1, 7), 0x2a);
    for register in [1, 4, 8, 13, 201] {
        let before = mdio(&card, 0, 1, register);
        mdio_write(&card, 0, 1, register, !before);
        assert_eq!(mdio(&card, 0, 1, register), before, "1.{register}");
    }
}

#[test]
fn without_a_link_nothing_leaves_and_it_is_counted() {
    for port in ["loopback", "null"] {
        let card = card(&format!("spin=20,port={port}"));
        let tx = Bench::started(&card, QueueId::tx(0));
        let mut host = tx.tx();
        mdio_write(&card, 0, 1, 0, 1 << 15);
        send(&tx, &mut host, 10, 100);
        wait_for("frames", || tx.read32(m::HDP) == host.sdp());
        mdio_write(&card, 0, 1, 0, 0);
        send(&tx, &mut host, 5, 100);
        wait_for("frames", || tx.read32(m::HDP) == host.sdp());
        let base = Component::TxMac(0).base().unwrap();
        card.write(base + 0x2c, &1u32.to_le_bytes());
        assert_eq!((read32(&card, base), read32(&card, base + 0x0c)), (15, 5), "total, sent");
        assert_eq!((read64(&card, base + 0x48), read64(&card, base + 0x58)), (10, 0), "no link, disabled");
        let stats = card.stats();
        assert_eq!((stats.ports[0].tx_drops[0].reason.as_str(), stats.ports[0].tx_drops[0].count), ("link-down", 10));
        check_equations(&card);
        tx.end();
    }
}

#[test]
fn pma_loopback_carries_traffic_and_cuts_the_wire_off() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let sent = tempfile::NamedTempFile::new().unwrap();
    let mut writer = millrace_port::pcap::Writer::create(file.path()).unwrap();
    (0..10).for_each(|_| writer.write(Default::default(), &[0x5a; 64]).unwrap());
    writer.flush().unwrap();
    let (read, write) = (file.path().display(), sent.path().display());
    let card = card(&format!("spin=20,tx=3,workers=1,port=(pcap:{read},write={write},speed=1kpps,loop=forever)"));
    // nfb-eth -Pc "+PMA local loopback" and the same of pynfb: read, set bit 0, write.
    let control = mdio(&card, 0, 1, 0);
    mdio_write(&card, 0, 1, 0, control | 1);
    assert_eq!(mdio(&card, 0, 1, 0), control | 1);
    // The port queue plays from the start: what came before the loopback was on has been counted as received.
    let cut_off = || {
        let stats = card.stats();
        stats.ports[0].rx_drops.iter().find(|drop| drop.reason == "pma-loopback").map_or(0, |drop| drop.count)
    };
    wait_for("the wire to be cut off", || cut_off() > 0);
    let early = card.stats().ports[0].rx_frames;
    let rx = [0, 1].map(|index| Bench::started(&card, QueueId::rx(index)));
    let tx = [0, 1, 2].map(|index| Bench::started(&card, QueueId::tx(index)));
    let mut host_rx = [rx[0].rx(), rx[1].rx()];
    for (bench, host) in rx.iter().zip(&mut host_rx) {
        (0..60).for_each(|number| assert!(host.post(bench.frame(number), 2048)));
        bench.write32(m::SDP, host.sdp());
    }
    for (bench, count) in tx.iter().zip([10, 7, 5]) {
        let mut host = bench.tx();
        send(bench, &mut host, count, 100);
        wait_for("frames", || bench.read32(m::HDP) == host.sdp());
    }
    // To the queue of the same index; what has none, to the first. Nothing of the port queue.
    assert_eq!([host_rx[0].ready(), host_rx[1].ready()], [15, 7]);
    assert!((0..15).all(|ahead| host_rx[0].header(ahead).len == 100));
    let before = cut_off();
    wait_for("frames of the wire", || cut_off() >= before + 5);
    let stats = card.stats();
    assert_eq!((stats.ports[0].rx_frames, stats.ports[0].tx_frames), (early + 22, 22));
    let base = Component::RxMac(0).base().unwrap();
    card.write(base + 0x2c, &1u32.to_le_bytes());
    let seen = early as u32 + 22;
    assert_eq!((read32(&card, base), read32(&card, base + 4)), (seen, seen), "the MAC saw what came back");
    // And off again: the port queue is back, and frames leave through it.
    mdio_write(&card, 0, 1, 0, control);
    wait_for("frames of the wire", || card.stats().ports[0].rx_frames > early + 22);
    let [_, tx1, _] = tx;
    tx1.end();
    let tx1 = Bench::started(&card, QueueId::tx(1));
    let mut host = tx1.tx();
    send(&tx1, &mut host, 3, 100);
    wait_for("frames", || tx1.read32(m::HDP) == host.sdp());
    assert_eq!(host_rx[1].ready(), 7, "not looped any more");
    assert_eq!(card.stats().ports[0].tx_frames, 25);
    let stats = card.stats();
    for queue in stats.queues {
        let dropped: u64 = queue.drops.iter().map(|drop| drop.count).sum();
        assert_eq!(queue.offered, queue.passed + dropped);
    }
}

/// One byte through the master, as `nc_i2c` does it; whether it was acknowledged.
fn i2c_byte(card: &Card, base: u32, data: u8, flags: u8) -> bool {
    card.write(base + 4, &(u32::from(data) << 8 | u32::from(flags)).to_le_bytes());
    let mut status = [0];
    card.read(base + 4, &mut status);
    assert_eq!(status[0] & 0x22, 0, "a transfer is never in progress, nobody else is on the bus");
    status[0] & 0x80 == 0 || flags & 0x40 != 0
}

/// `nc_i2c_controller_read_reg`.
fn i2c_read(card: &Card, port: u32, address: u8, register: u8, size: usize) -> Option<Vec<u8>> {
    let base = Component::I2c(port).base().unwrap();
    let prescale = read32(card, base) & 0xffff;
    card.write(base, &(0x80_0000 | prescale).to_le_bytes());
    let mut good = i2c_byte(card, base, address, 0x90);
    good &= i2c_byte(card, base, register, 0x50);
    good &= i2c_byte(card, base, address | 1, 0x90);
    let mut bytes = Vec::new();
    for at in 0..size {
        good &= i2c_byte(card, base, 0, if at + 1 == size { 0x68 } else { 0x20 });
        bytes.push((read32(card, base + 4) >> 8) as u8);
    }
    card.write(base, &prescale.to_le_bytes());
    good.then_some(bytes)
}

/// `nc_i2c_controller_write_reg`.
fn i2c_write(card: &Card, port: u32, register: u8, data: &[u8]) -> bool {
    let base = Component::I2c(port).base().unwrap();
    card.write(base, &0x80_00f9u32.to_le_bytes());
    let mut good = i2c_byte(card, base, 0xa0, 0x90) && i2c_byte(card, base, register, 0x10);
    for (at, &byte) in data.iter().enumerate() {
        good &= i2c_byte(card, base, byte, if at + 1 == data.len() { 0x50 } else { 0x10 });
    }
    card.write(base, &0x00f9u32.to_le_bytes());
    good
}

#[test]
fn a_module_sits_in_every_cage_and_says_what_it_is() {
    let card = card("spin=0,port=null,port=null");
    for port in 0..2 {
        let mut status = [0xff];
        card.read(Component::Pmd(port).base().unwrap(), &mut status);
        assert_eq!(status[0] & 0x10, 0, "present");
        let read = |register, size| i2c_read(&card, port, 0xa0, register, size).unwrap();
        assert_eq!(read(0, 3), [0x11, 0x08, 0x04], "QSFP28, data ready");
        assert_eq!(read(22, 2), [40, 0], "40 degrees");
        assert_eq!(read(148, 16), b"Millrace        ");
        assert_eq!(read(168, 16), b"MR-SR4-100G     ");
        assert_eq!(read(196, 16), format!("MR00000000-{port:02}   ").as_bytes());
        assert_eq!((read(130, 2), read(192, 1)), (vec![0x0c, 0x80], vec![0x02]), "MPO, 100GBASE-SR4");
        assert_eq!(read(34, 8), [0x27, 0x10].repeat(4), "a milliwatt on each lane");
        // Checksums of SFF-8636 over the two parts of page 0.
        let memory: Vec<u8> = (0..=255).map(|register| read(register, 1)[0]).collect();
        let sum = |range: core::ops::Range<usize>| memory[range].iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
        assert_eq!((memory[191], memory[223]), (sum(128..191), sum(192..223)));
        assert_eq!(read(0, 256), memory, "at one go too");
    }
}

#[test]
fn transmitters_can_be_switched_off_and_pages_not_selected() {
    let card = card("spin=0");
    assert!(i2c_write(&card, 0, 86, &[0x0f]));
    assert_eq!(i2c_read(&card, 0, 0xa0, 86, 1).unwrap(), [0x0f]);
    assert!(i2c_write(&card, 0, 86, &[0xf5]));
    assert_eq!(i2c_read(&card, 0, 0xa0, 86, 2).unwrap(), [0x05, 0]);
    assert!(i2c_write(&card, 0, 127, &[0x11]));
    assert_eq!(i2c_read(&card, 0, 0xa0, 127, 2).unwrap(), [0, 0x11], "page 0, and what is on it");
    assert!(i2c_write(&card, 0, 148, b"somebody else"));
    assert_eq!(i2c_read(&card, 0, 0xa0, 148, 8).unwrap(), b"Millrace");
}

#[test]
fn nobody_else_answers_on_the_bus_and_nothing_hangs() {
    let card = card("spin=0");
    let base = Component::I2c(0).base().unwrap();
    for address in (0..=0xfe).step_by(2).filter(|&address| address != 0xa0) {
        assert_eq!(i2c_read(&card, 0, address, 0, 1), None, "{address:#x}");
    }
    assert!(i2c_read(&card, 0, 0xa0, 0, 1).is_some(), "and the module still does");
    // A master that is off does nothing.
    assert!(!i2c_byte(&card, base, 0xa0, 0x90));
    // Whatever is written, in whatever order: a transfer is never in progress for ever.
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    for _ in 0..20_000 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let bytes = random.to_le_bytes();
        card.write(base + u32::from(bytes[7] % 8), &bytes[..1 + usize::from(bytes[6] % 4)]);
        let mut status = [0];
        card.read(base + 4, &mut status);
        assert_eq!(status[0] & 0x22, 0);
    }
    assert!(i2c_read(&card, 0, 0xa0, 148, 8).is_some_and(|name| name == b"Millrace"), "nor is the module spoilt");
    // Where there is no port there is no cage.
    let mut status = [0];
    card.read(Component::Pmd(1).base().unwrap(), &mut status);
    assert_eq!((status[0] & 0x10, read32(&card, Component::I2c(1).base().unwrap() + 4)), (0x10, 0));
}
