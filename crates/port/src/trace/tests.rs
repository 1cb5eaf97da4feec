use super::*;
use crate::{
    PortSpec, open,
    pcap::{ReadError, Reader},
};
use std::collections::VecDeque;

/// A wire on which `coming` come, and which sends everything.
#[derive(Default)]
struct Wire {
    coming: VecDeque<Vec<u8>>,
    counters: Arc<PortCounters>,
}

impl PortQueue for Wire {
    fn transmit(&mut self, frame: Span<'_>) -> TxOutcome {
        self.counters.count_tx(1, frame.len() as u64);
        TxOutcome::Sent
    }

    fn offloads(&self) -> Offloads {
        Offloads::ALL
    }

    fn transmit_offloaded(&mut self, frame: Span<'_>, _: &Offload) -> TxOutcome {
        self.transmit(frame)
    }

    fn receive(&mut self, budget: usize, sink: &mut dyn Sink) -> usize {
        let frames: Vec<_> = self.coming.iter().take(budget).map(|frame| Span::from_slice(frame)).collect();
        let taken = sink.take_burst(&frames);
        self.counters.count_rx(taken as u64, 0);
        self.coming.drain(..taken);
        taken
    }

    fn can_wait(&self) -> bool {
        true
    }

    fn counters(&self) -> &Arc<PortCounters> {
        &self.counters
    }
}

fn lens(path: &Path) -> Vec<usize> {
    let mut reader = Reader::open(path).unwrap();
    let mut lens = Vec::new();
    loop {
        match reader.peek() {
            Ok(Some(frame)) => lens.push(frame.data.len()),
            Ok(None) => return lens,
            // Our own reader is for frames that a port carries.
            Err(ReadError::TooLong { length, .. }) => lens.push(length as usize),
            Err(error) => panic!("{error}"),
        }
        reader.take();
    }
}

fn traced(options: &str, wire: Wire, folder: &Path) -> (TracePort, PathBuf) {
    let file = folder.join("a.pcap");
    let PortSpec::Trace(spec) = format!("trace:{}{options},port=(null)", file.display()).parse().unwrap() else {
        panic!()
    };
    (TracePort::wrap(&spec, vec![Box::new(wire)]).unwrap().remove(0), file)
}

/// Three frames from the wire, of which the card takes two at first, and two frames to it.
fn exercise(port: &mut TracePort) {
    let mut room = 2;
    let mut card = |_: Span<'_>| {
        room -= 1;
        if room >= 0 { Accept::Taken } else { Accept::Full }
    };
    assert_eq!(port.receive(9, &mut card), 2);
    assert_eq!(port.receive(9, &mut |_: Span<'_>| Accept::Taken), 1);
    assert_eq!(port.transmit(Span::from_slice(&[1; 100])), TxOutcome::Sent);
    assert_eq!(port.transmit_offloaded(Span::from_slice(&[1; 65_000]), &Offload::default()), TxOutcome::Sent);
}

#[test]
fn what_passes_is_in_the_file_once_and_in_order() {
    for (options, expected) in [
        ("", &[60, 61, 62, 100, 65_000][..]),
        (",direction=rx", &[60, 61, 62]),
        (",direction=tx", &[100, 65_000]),
        (",limit=4", &[60, 61, 62, 100]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let coming = [60, 61, 62].map(|len| vec![7; len]).into();
        let (mut port, file) = traced(options, Wire { coming, ..Wire::default() }, folder.path());
        exercise(&mut port);
        assert_eq!((port.counters().rx_frames(), port.counters().tx_frames()), (3, 2));
        assert_eq!(port.offloads(), Offloads::ALL);
        drop(port);
        assert_eq!(lens(&file), expected, "{options}");
    }
}

#[test]
fn a_file_that_takes_no_more_is_counted_and_frames_pass() {
    let PortSpec::Trace(spec) = "trace:/dev/full,port=(null)".parse().unwrap() else { panic!() };
    let error = TracePort::wrap(&spec, vec![Box::new(Wire::default())]).err().expect("an error").to_string();
    assert!(error.contains("/dev/full") && error.contains("a device"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let (mut port, _) = traced("", Wire::default(), folder.path());
    // More than a record holds.
    let long = vec![1; 200_000];
    assert_eq!(port.transmit_offloaded(Span::from_slice(&long), &Offload::default()), TxOutcome::Sent);
    assert_eq!(port.counters().tx_events().find(|(event, _)| *event == Event::TraceLost), Some((Event::TraceLost, 1)));
    assert_eq!(port.counters().tx_frames(), 1);
}

#[test]
fn each_queue_has_a_file() {
    assert_eq!(file_of("/x/a.b.pcap", 0), Path::new("/x/a.b.pcap"));
    assert_eq!(file_of("/x/a.b.pcap", 2), Path::new("/x/a.b-2.pcap"));
    assert_eq!(file_of("a", 1), Path::new("a-1"));
}

#[test]
fn a_trace_in_a_trace_is_opened_from_its_specification() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let spec = format!(
        "trace:{},direction=rx,port=(trace:{},direction=tx,port=(generator:size=64,count=3))",
        file("rx.pcap").display(),
        file("tx.pcap").display()
    );
    let mut ports = open(&spec.parse().unwrap()).unwrap();
    ports[0].receive(9, &mut |_: Span<'_>| Accept::Taken);
    assert_eq!(ports[0].transmit(Span::from_slice(&[0; 77])), TxOutcome::Sent);
    drop(ports);
    assert_eq!((lens(&file("rx.pcap")), lens(&file("tx.pcap"))), (vec![64; 3], vec![77]));
    let error = open(&"trace:/no/such/folder/a.pcap,port=(null)".parse().unwrap()).err().expect("an error").to_string();
    assert!(error.contains("/no/such/folder/a.pcap"), "{error}");
}
