//! Frames of PPPoE that others have captured.

use crate::ac::OWN;
use crate::client::{client, config};
use millrace_pppoe::frame::{Discovery, code};
use millrace_pppoe::tag::{self, Tags};
use millrace_pppoe::{Received, Unheard};
use pcap_file::pcap::PcapReader;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

fn frames(name: &str) -> Option<Vec<Vec<u8>>> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/captures");
    let folder = std::env::var_os("MILLRACE_CAPTURES").map_or_else(beside, PathBuf::from);
    let Ok(file) = File::open(folder.join(name)) else {
        println!("skipped: there is no {name} in {}", folder.display());
        return None;
    };
    let mut reader = PcapReader::new(file).unwrap();
    let next = || reader.next_packet().map(|packet| packet.unwrap().data.into_owned());
    Some(std::iter::from_fn(next).collect())
}

#[test]
fn somebody_elses_padi() {
    let Some(frames) = frames("pppoe.pcap") else { return };
    let [frame] = &frames[..] else { panic!("{} frames", frames.len()) };
    let padi = Discovery::parse(frame).unwrap();
    assert_eq!((padi.code, padi.session, padi.destination.0), (code::PADI, 0, [0xff; 6]));
    let tags: Vec<_> = Tags::new(padi.tags).map(Result::unwrap).map(|(kind, _)| kind).collect();
    assert_eq!(tags, [tag::SERVICE_NAME, tag::PPP_MAX_PAYLOAD, tag::HOST_UNIQ]);
    assert_eq!(client(config()).receive(Duration::ZERO, frame), Received::Unheard(Unheard::Stranger));
}

#[test]
fn somebody_elses_echo_requests() {
    let Some(frames) = frames("pppoes.pcap") else { return };
    assert_eq!(frames.len(), 2);
    let mut client = client(config());
    for frame in frames {
        assert_ne!(frame[..6], OWN.0);
        assert_eq!(client.receive(Duration::ZERO, &frame), Received::Unheard(Unheard::Untimely));
    }
}
