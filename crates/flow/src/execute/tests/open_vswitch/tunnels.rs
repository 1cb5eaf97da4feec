//! Open vSwitch's own VXLAN as the other end: what is encapsulated here it opens to the same bytes, and the other way round.
//!
//! ```text
//! inner frames   in -- bridge "inside" -- vxlan port -- bridge "outside" -- out   VXLAN packets
//! ```

use super::super::{actions, edited};
use super::FRAMES;
use super::switch::Switch;
use crate::execute::Stop;

/// About so many of all frames, of lengths that are usual on a wire.
const FRAMES_TAKEN: usize = 2000;
const VNI: u32 = 0x0012_3456;
const OURS: &str = "02:00:00:00:00:0a";
const THEIRS: &str = "02:00:00:00:00:0b";

fn tunnel(source: &str, destination: &str, address: &str, checksum: bool) {
    let Some(switch) = Switch::empty() else { return println!("skipped: Open vSwitch is not installed") };
    let bridges = format!(
        "add-br outside -- set bridge outside datapath_type=dummy other-config:hwaddr={THEIRS} -- {} \
         -- add-br inside -- set bridge inside datapath_type=dummy fail-mode=secure -- {} \
         -- add-port inside vx -- set Interface vx type=vxlan ofport_request=2 options:remote_ip={source} \
         options:key={VNI} options:csum={checksum}",
        switch.port("outside", "out", 1),
        switch.port("inside", "in", 1),
    );
    switch.configure(&bridges.split_whitespace().collect::<Vec<_>>().join(" ")).unwrap();
    switch.rules("inside", "in_port=1,actions=output:2\nin_port=2,actions=output:1\n").unwrap();
    switch.rules("outside", "actions=normal\n").unwrap();
    let length = if address == "ip4addr" { 24 } else { 64 };
    switch.control(&format!("netdev-dummy/{address} outside {destination}/{length}"));
    switch.control(&format!("ovs/route/add {source}/{length} outside"));
    switch.control(&format!("tnl/neigh/set outside {source} {OURS}"));

    let frames: Vec<_> =
        FRAMES.1.iter().filter(|frame| frame.len() < 1400).step_by(FRAMES.1.len() / FRAMES_TAKEN).collect();
    let checksum = if checksum { ",csum" } else { "" };
    let encap =
        format!("encap_vxlan(vni={VNI},src={source},dst={destination},dl_src={OURS},dl_dst={THEIRS}{checksum})");
    let encap = actions(&encap);
    let packets: Vec<_> = frames.iter().map(|frame| edited(frame, &encap).unwrap()).collect();
    for (frame, got) in frames.iter().zip(switch.pass(&packets, "out", "in")) {
        assert_eq!(**frame, got, "opened by the switch");
    }

    let given: Vec<_> = frames.into_iter().cloned().collect();
    for (frame, packet) in given.iter().zip(switch.pass(&given, "in", "out")) {
        let opened: Result<_, Stop> = edited(&packet, &actions("decap_vxlan"));
        assert_eq!(opened.as_ref(), Ok(frame), "{packet:02x?}");
    }
}

#[test]
fn vxlan_over_ipv4() {
    tunnel("192.0.2.1", "192.0.2.2", "ip4addr", false);
    tunnel("192.0.2.1", "192.0.2.2", "ip4addr", true);
}

#[test]
fn vxlan_over_ipv6() {
    tunnel("2001:db8::1", "2001:db8::2", "ip6addr", true);
}
