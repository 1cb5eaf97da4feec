//! Open vSwitch as the judge: the same rules in its userspace datapath and in ours, the same frames into both, and the same
//! bytes out of every port. The switch runs without rights, on dummy ports, in a folder of its own.

use super::{World, build};
use crate::execute::{Emissions, Frame, HEADROOM, Target, execute};
use crate::extract::Ingress;
use crate::language::parse_rule;
use crate::table::{Classifier, Miss, VerdictId};
use crate::version::{Change, Limits, Writer};
use millrace_packet::parse::{Fragment, Layers};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use std::fmt::Write;
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const FRAMES: usize = 3000;
/// Ports of the switch. Frames come in at the first; the last is only for marks.
const PORTS: u32 = 5;
/// How many frames wait at a dummy port at most is 100.
const BATCH: usize = 64;
/// An EtherType for experiments (RFC 9542): when the mark is out, so is what was before it.
const MARK: [u8; 14] = [2, 0, 0, 0, 0, 5, 2, 0, 0, 0, 0, 6, 0x88, 0xb5];

const RULES: &str = "
priority=900,dl_type=0x88b5,actions=output:5
priority=500,tcp,tcp_dst=80,nw_src=10.0.0.1,dl_vlan=5,actions=pop_vlan,output:2
priority=400,dl_vlan_pcp=7,actions=push_vlan:0x88a8,output:2,pop_vlan,pop_vlan,output:3
priority=300,arp,arp_op=1,actions=set_field:2->arp_op,set_field:02:aa:00:00:00:01->arp_sha,set_field:192.0.2.9->arp_spa,in_port
priority=300,tcp,actions=set_field:192.0.2.1->nw_src,output:2,set_field:8080->tcp_dst,set_field:99->tcp_src,output:3,dec_ttl,output:4
priority=300,udp,nw_frag=no,actions=output:2,set_field:192.0.2.2->nw_dst,set_field:53535->udp_src,dec_ttl,output:1,goto_table:1
priority=300,sctp,nw_frag=no,actions=set_field:1234->sctp_src,output:2,set_field:4321->sctp_dst,set_field:12->nw_tos,output:2
priority=300,icmp,nw_frag=no,actions=set_field:3->nw_ecn,output:3,set_field:5->nw_ttl,goto_table:2
priority=300,tcp6,actions=set_field:2001:db8::1->ipv6_src,set_field:2001:db8::2->ipv6_dst,output:2,set_field:7->tcp_dst,goto_table:2
priority=300,udp6,actions=set_field:2001:db8::/ffff:ffff::->ipv6_dst,output:2,set_field:53->udp_dst,dec_ttl,output:2,dec_ttl,output:3
priority=310,icmp6,icmp_type=136,icmp_code=0,actions=set_field:fe80::9->nd_target,output:2,set_field:fe80::1->ipv6_src,output:3
priority=300,icmp6,actions=set_field:0x12345->ipv6_label,set_field:46->ip_dscp,set_field:::1->ipv6_src,output:2
priority=300,sctp6,nw_frag=no,actions=set_field:1->sctp_src,set_field:2001:db8::9->ipv6_src,output:2,output:3
priority=300,mpls,actions=set_field:77->mpls_label,set_field:5->mpls_tc,output:2,set_field:9->mpls_ttl,output:3
priority=100,ip,actions=set_field:02:00:00:00:00:77->dl_dst,set_field:0.0.0.99/0.0.0.255->nw_dst,output:2,dec_ttl,output:3
priority=100,ipv6,actions=set_field:02:bb:00:00:00:00/ff:ff:00:00:00:00->dl_src,output:2,dec_ttl,output:3
priority=0,actions=output:2,in_port
table=1,priority=9,udp,nw_dst=192.0.2.2,udp_src=53535,nw_ttl=63,actions=set_field:5->reg0,set_field:0->udp_dst,output:4
table=2,priority=9,ip,nw_ttl=5,nw_ecn=3,actions=dec_ttl,dec_ttl,dec_ttl,dec_ttl,output:2,dec_ttl,output:3
table=2,priority=9,tcp6,tcp_dst=7,ipv6_src=2001:db8::1,actions=push_vlan:0x8100,output:4,pop_vlan,output:3
";

/// The switch, which ends with this.
struct Switch {
    folder: PathBuf,
    programs: Vec<Child>,
}

impl Drop for Switch {
    fn drop(&mut self) {
        for program in &mut self.programs {
            let _ = program.kill();
            let _ = program.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Switch {
    /// A bridge with dummy ports, or `None` where Open vSwitch is not installed.
    fn start(rules: &str) -> Option<Self> {
        if !Path::new("/usr/share/openvswitch/vswitch.ovsschema").exists() {
            return None;
        }
        let folder = std::env::temp_dir().join(format!("millrace-execute-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut switch = Self { folder, programs: Vec::new() };
        let (database, control) = (switch.unix("db.sock"), switch.path("switch.ctl"));
        let schema = "/usr/share/openvswitch/vswitch.ovsschema";
        switch.run("ovsdb-tool", &["create", &switch.path("conf.db"), schema])?;
        let listen = format!("--remote=p{database}");
        let own = format!("--unixctl={}", switch.path("database.ctl"));
        switch.launch("ovsdb-server", &[&switch.path("conf.db"), &listen, &own])?;
        until("the database listens", || Path::new(&switch.path("db.sock")).exists());
        let db = format!("--db={database}");
        switch.run("ovs-vsctl", &[&db, "--no-wait", "init"])?;
        let own = format!("--unixctl={control}");
        switch.launch(
            "ovs-vswitchd",
            &["--enable-dummy", "--disable-system", "--disable-system-route", &database, &own],
        )?;
        let mut words = format!("{db} --timeout=60 set Open_vSwitch . other_config:vlan-limit=2 -- add-br br0");
        write!(words, " -- set bridge br0 datapath_type=dummy fail-mode=secure").unwrap();
        for port in 1..=PORTS {
            let pcap = switch.path(&format!("{port}.pcap"));
            write!(words, " -- add-port br0 p{port} -- set Interface p{port} type=dummy ofport_request={port}")
                .unwrap();
            write!(words, " options:tx_pcap={pcap}").unwrap();
        }
        switch.run("ovs-vsctl", &words.split(' ').collect::<Vec<_>>())?;
        std::fs::write(switch.path("rules"), rules).unwrap();
        let bridge = switch.unix("br0.mgmt");
        switch.run("ovs-ofctl", &["set-frags", &bridge, "nx-match"])?;
        switch.run("ovs-ofctl", &["-O", "OpenFlow13", "add-flows", &bridge, &switch.path("rules")])?;
        Some(switch)
    }

    fn path(&self, name: &str) -> String {
        self.folder.join(name).to_str().unwrap().to_owned()
    }

    fn unix(&self, name: &str) -> String {
        format!("unix:{}", self.path(name))
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
        command.args(arguments).env("PATH", path).stdin(Stdio::null()).stdout(Stdio::null());
        for name in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
            command.env(name, &self.folder);
        }
        command
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Option<()> {
        let output = self.command(program, arguments).output().ok()?;
        assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        Some(())
    }

    fn launch(&mut self, program: &str, arguments: &[&str]) -> Option<()> {
        let log = std::fs::File::create(self.folder.join(format!("{program}.log"))).ok()?;
        let child = self.command(program, arguments).arg("--no-chdir").stderr(log).spawn().ok()?;
        self.programs.push(child);
        Some(())
    }

    /// Lets frames come in at port 1, and waits until they are out.
    fn feed(&self, frames: &[Vec<u8>]) {
        let stream = UnixStream::connect(self.path("switch.ctl")).unwrap();
        let mut answers = serde_json::Deserializer::from_reader(&stream).into_iter::<serde_json::Value>();
        for (number, batch) in frames.chunks(BATCH).enumerate() {
            for frame in batch.iter().map(Vec::as_slice).chain([&MARK[..]]) {
                let hex = frame.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
                let ask = serde_json::json!({"id": 0, "method": "netdev-dummy/receive", "params": ["p1", hex]});
                (&stream).write_all(ask.to_string().as_bytes()).unwrap();
                let answer = answers.next().unwrap().unwrap();
                assert!(answer["error"].is_null(), "{answer}");
            }
            until("the mark is out", || self.sent(PORTS).len() > number);
        }
    }

    /// What a port has sent.
    fn sent(&self, port: u32) -> Vec<Vec<u8>> {
        let file = std::fs::read(self.path(&format!("{port}.pcap"))).unwrap();
        let (mut rest, mut frames) = (file.get(24..).unwrap_or_default(), Vec::new());
        while let Some((head, behind)) = rest.split_first_chunk::<16>() {
            let len = u32::from_le_bytes([head[8], head[9], head[10], head[11]]) as usize;
            let Some((frame, behind)) = behind.split_at_checked(len) else { break };
            frames.push(frame.to_vec());
            rest = behind;
        }
        frames
    }
}

/// What our ports send of a frame that comes in at port 1.
fn ours(classifier: &mut Classifier, frame: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let mut buffer = vec![0; frame.len() + HEADROOM];
    let mut frame = Frame::new(frame, &mut buffer, Ingress { port: 1, ..Ingress::default() });
    let mut out = Emissions::new(64, 1 << 16);
    let mut ids = [VerdictId::default()];
    classifier.lookup(0, &[frame.key()], &mut ids);
    let verdict = classifier.verdict(ids[0]);
    assert!(verdict.again.is_none(), "no rule here changes layers");
    let _ = execute(&verdict.actions, &mut frame, &mut World::new(), &mut out);
    assert_eq!(out.lost(), 0);
    let port = |target| if let Target::Port(port) = target { Some(port) } else { None };
    let sent = out.list().iter().filter_map(|one| Some((port(one.target)?, out.bytes(one, &frame).to_vec())));
    sent.collect()
}

/// Frames whose checksums hold, of which both say the same. Left out are drop-eligible bits, which the switch clears;
/// UDP-Lite, and packets on their way through a routing header, whose checksums it lets go wrong; later fragments, in whose
/// data version 3.1 writes a checksum; and what would get a third tag, where it loses the innermost.
fn frames() -> Vec<Vec<u8>> {
    let mut runner = TestRunner::deterministic();
    let mut frames = Vec::new();
    while frames.len() < FRAMES {
        let frame = build::frame().new_tree(&mut runner).unwrap().current();
        let layers = Layers::parse(&frame);
        let eligible = layers.tags().iter().any(|tag| tag.tci.drop_eligible());
        let mut extensions = layers.ipv6(&frame).into_iter().flat_map(|header| header.extensions().flatten());
        let routed = extensions.any(|one| one.routing().is_some_and(|(_, left)| left > 0));
        let crowded = matches!(layers.tags(), [outer, _] if outer.tci.priority() == 7 || layers.protocol() == Some(6));
        if !eligible && !crowded && !routed && layers.protocol() != Some(136) && layers.fragment() != Fragment::Later {
            frames.push(frame);
        }
    }
    frames
}

#[test]
fn the_same_bytes_out_of_every_port() {
    let Some(switch) = Switch::start(RULES) else {
        println!("skipped: Open vSwitch is not installed");
        return;
    };
    let mut writer = Writer::new(1, Limits::default());
    let rules = RULES.lines().filter(|line| !line.is_empty()).map(|line| Change::Add(parse_rule(line).unwrap()));
    writer.commit(rules.chain([Change::Miss(Miss::Drop)]).collect(), 0).unwrap();
    let mut classifier = writer.classifier(0, 4096);
    let frames = frames();
    switch.feed(&frames);
    let theirs: Vec<_> = (1..PORTS).map(|port| switch.sent(port)).collect();
    let mut seen = [0; PORTS as usize];
    for frame in &frames {
        for (port, bytes) in ours(&mut classifier, frame) {
            let at = port as usize - 1;
            let wanted = theirs[at].get(seen[at]);
            assert_eq!(Some(&bytes), wanted, "port {port} of {frame:02x?}");
            seen[at] += 1;
        }
    }
    let sent: Vec<_> = theirs.iter().map(Vec::len).collect();
    assert_eq!(seen[..PORTS as usize - 1], sent);
    assert!(sent.iter().all(|count| *count > 200), "every port has something to do: {sent:?}");
}
