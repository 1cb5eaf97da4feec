//! Nothing is allocated per frame.

use millrace_dma::Span;
use millrace_port::{Accept, PortQueue, PortSpec, TxOutcome, open, pcap};

/// Moves frames both ways.
fn work(port: &mut dyn PortQueue, rounds: usize) {
    for _ in 0..rounds {
        for _ in 0..32 {
            assert_eq!(port.transmit(Span::from_slice(&[0x55; 1500])), TxOutcome::Sent);
        }
        port.flush();
        port.receive(32, &mut |_: Span<'_>| Accept::Taken);
    }
}

#[test]
fn ports_allocate_nothing_per_frame() {
    let folder = tempfile::tempdir().unwrap();
    let read = folder.path().join("read.pcap");
    let mut writer = pcap::Writer::create(&read).unwrap();
    for at in 0..5000 {
        writer.write(pcap::CaptureTime::from_nanos(at), &[at as u8; 200]).unwrap();
    }
    drop(writer);
    let written = folder.path().join("written.pcap");
    for spec in [
        "null".to_owned(),
        "generator:size=1518".to_owned(),
        "generator:rate=1M".to_owned(),
        format!("pcap:{},loop=forever,write={}", read.display(), written.display()),
        format!("pcap:{},loop=forever,speed=10Mpps", read.display()),
        format!("pcap:{},loop=forever,speed=recorded", read.display()),
    ] {
        let mut port = open(&spec.parse::<PortSpec>().unwrap()).unwrap().remove(0);
        work(&mut *port, 10);
        let allocations = allocation_counter::measure(|| work(&mut *port, 1000));
        assert_eq!(allocations.count_total, 0, "{spec}");
        assert!(port.counters().tx_frames() == 32 * 1010, "{spec}");
    }
}
