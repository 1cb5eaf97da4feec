use super::*;
use crate::{MAX_FRAME_LEN, MIN_FRAME_LEN};
use proptest::prelude::*;
use std::num::{NonZeroU16, NonZeroU64};
use std::time::Duration;

fn parse(text: &str) -> PortSpec {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn every_kind_is_understood() {
    assert_eq!(parse("loopback"), PortSpec::Loopback);
    assert_eq!(parse("none"), PortSpec::None);
    assert_eq!(parse("null"), PortSpec::Null);
    assert_eq!(parse("generator"), PortSpec::Generator(GeneratorSpec::default()));
    assert_eq!(parse("generator:"), parse("generator"));
    assert_eq!(
        parse("generator:count=5,size=1518,rate=2M"),
        PortSpec::Generator(GeneratorSpec { size: 1518, rate: Rate::new(2_000_000), count: Some(5) })
    );
    assert_eq!(
        parse("pcap:a.pcap,write=b=c.pcap,loop=3,speed=10kpps"),
        PortSpec::Pcap(PcapSpec {
            read: Some("a.pcap".into()),
            write: Some("b=c.pcap".into()),
            speed: Speed::Fixed(Rate::new(10_000).unwrap()),
            passes: Passes::Times(NonZeroU64::new(3).unwrap()),
        })
    );
    assert_eq!(parse("pcap:a,speed=full,loop=1"), parse("pcap:a"));
    assert_eq!(parse("pcap:a,speed:full,write:b:c=d"), parse("pcap:a,write=b:c=d"));
    let tap = InterfaceSpec { name: "mill0".parse().unwrap(), queues: NonZeroU16::MIN };
    let eth1 =
        AfXdpSpec { name: "eth1".parse().unwrap(), queues: NonZeroU16::MIN, mode: XdpMode::Auto, busy_poll: false };
    assert_eq!(parse("af_xdp:eth1,queues=1,mode=auto"), PortSpec::AfXdp(eth1.clone()));
    let two = AfXdpSpec { queues: NonZeroU16::new(2).unwrap(), mode: XdpMode::ZeroCopy, busy_poll: true, ..eth1 };
    assert_eq!(parse("af_xdp:eth1,mode=zero-copy,queues=2,busy-poll=on"), PortSpec::AfXdp(two));
    assert_eq!(parse("tap:mill0"), PortSpec::Tap(tap.clone()));
    assert_eq!(
        parse("tap:mill0,queues=4"),
        PortSpec::Tap(InterfaceSpec { queues: NonZeroU16::new(4).unwrap(), ..tap })
    );
    let PortSpec::Trace(trace) =
        parse("trace:a.pcap,limit=3,direction:rx,port:(fault:loss=0.25%,delay=3ms,port=(tap:a))")
    else {
        panic!()
    };
    assert_eq!((&trace.file[..], trace.directions, trace.limit), ("a.pcap", Directions::Rx, Some(3)));
    let PortSpec::Fault(fault) = *trace.port else { panic!() };
    assert_eq!((fault.loss.millionths(), fault.delay, fault.seed), (2_500, Duration::from_millis(3), 1));
    assert_eq!(*fault.port, parse("tap:a"));
    let vm = |client, queues| PortSpec::VhostUser(VhostUserSpec { path: "/run/a b.sock".into(), client, queues });
    assert_eq!(parse("vhost-user:/run/a b.sock"), vm(false, 1));
    assert_eq!(parse("vhost-user:/run/a b.sock,server,queues=4"), vm(false, 4));
    assert_eq!(parse("vhost-user:/run/a b.sock,queues=128,client"), vm(true, 128));
    let switch =
        |server, queues| PortSpec::VirtioUser(VirtioUserSpec { path: "/run/ovs/card0".into(), server, queues });
    assert_eq!(parse("virtio-user:/run/ovs/card0"), switch(false, 1));
    assert_eq!(parse("virtio-user:/run/ovs/card0,client,queues=4"), switch(false, 4));
    assert_eq!(parse("virtio-user:/run/ovs/card0,queues=128,server"), switch(true, 128));
    let PortSpec::Pcap(spec) = parse(r"pcap:dir:x\,y\\z,loop=forever,speed=recorded") else { panic!() };
    assert_eq!(spec.read.as_deref(), Some(r"dir:x,y\z"));
    assert_eq!((spec.speed, spec.passes), (Speed::Recorded, Passes::Forever));
}

#[test]
fn what_is_wrong_is_named_with_what_would_be_right() {
    for (text, hint) in [
        ("", "write loopback, none, null"),
        ("pcab:x", "no port kind `pcab`"),
        ("null:x", "write `null` instead"),
        ("loopback:", "takes no argument"),
        ("pcap", "pcap:capture.pcap"),
        ("pcap:", "pcap:capture.pcap"),
        ("pcap:a,b", "no option `b`"),
        ("pcap:a,rate=5", "speed=full|recorded"),
        ("pcap:a,write=", "the file to write"),
        ("pcap:a,speed=5", "1000pps"),
        ("pcap:a,speed=0pps", "1000pps"),
        ("pcap:a,speed=2Gpps", "1000pps"),
        ("pcap:a,loop=0", "forever"),
        ("pcap:a,loop=1,loop=2", "twice"),
        (r"pcap:a\b", "backslash"),
        (r"pcap:a\", "backslash"),
        ("generator:64", "size=N"),
        ("generator:size=13", "from 14 to 16383"),
        ("generator:size=16384", "from 14 to 16383"),
        ("generator:size=+64", "from 14 to 16383"),
        ("generator:rate=0", "from 1 to 1G"),
        ("generator:count=-1", "a number of frames"),
        ("generator:count=99999999999G", "a number of frames"),
        ("generator:,", "size=N"),
        ("af_xdp", "af_xdp:eth1"),
        ("af_xdp:,queues=2", "af_xdp:eth1"),
        ("af_xdp:a-name-of-16-byte", "15 bytes"),
        ("af_xdp:eth1,queues=0", "from 1 to 256"),
        ("af_xdp:eth1,mode=fast", "auto, zero-copy or copy"),
        ("af_xdp:eth1,busy-poll=yes", "on or off"),
        ("af_xdp:eth1,speed=full", "queues=N, mode="),
        ("vhost-user", "vhost-user:/run/vm1.sock"),
        ("vhost-user:,client", "vhost-user:/run/vm1.sock"),
        ("vhost-user:a,client,server", "twice"),
        ("vhost-user:a,queues=0", "from 1 to 128"),
        ("vhost-user:a,queues=129", "from 1 to 128"),
        ("vhost-user:a,b", "server, client and queues=N"),
        ("virtio-user", "virtio-user:/run/openvswitch/card0"),
        ("virtio-user:a,server,server", "twice"),
        ("virtio-user:a,queues=129", "from 1 to 128"),
        ("virtio-user:a,size=3", "server, client and queues=N"),
        ("tap", "tap:mill0"),
        ("tap:", "tap:mill0"),
        ("tap:a-name-of-16-byte", "15 bytes"),
        ("tap:a/b", "visible ASCII"),
        ("tap:a,b", "no option `b`; it has queues=N"),
        (r"tap:a\,b", "visible ASCII"),
        ("tap:a,queues=0", "from 1 to 256"),
        ("tap:a,queues=257", "from 1 to 256"),
        ("tap:..", "directory"),
        ("af_packet", "af_packet:eth0"),
        ("tap:tap%d", "visible ASCII"),
        ("trace", "port=(SPEC)"),
        ("trace:a.pcap", "trace:seen.pcap,port=(tap:mill0)"),
        ("trace:a.pcap,port=null", "port=(SPEC)"),
        ("trace:port=(null)", "needs a file"),
        (r"trace:a\,port=(null)", "port=(SPEC)"),
        ("trace:a,port=(null),limit=3", "last: port=(SPEC)"),
        ("trace:a,port=(loopback)", "have none"),
        ("fault:port=(none)", "have none"),
        ("trace:a,direction=up,port=(null)", "rx (from the wire"),
        ("trace:a,limit=-1,port=(null)", "a number of frames"),
        ("pcap:a\u{1b}[2J", "no control characters"),
        ("trace:a,port=(pcap:b\n)", "no control characters"),
        ("trace:a,port=(pcab:x)", "no port kind `pcab`"),
        ("fault:loss=1%", "fault:loss=1%,port=(tap:mill0)"),
        ("fault:loss=1,port=(null)", "from 0% to 100%"),
        ("fault:loss=100.1%,port=(null)", "from 0% to 100%"),
        ("fault:loss=1.%,port=(null)", "from 0% to 100%"),
        ("fault:loss=0.00001%,port=(null)", "four digits"),
        ("fault:delay=5,port=(null)", "such as 50us"),
        ("fault:delay=11s,port=(null)", "up to 10s"),
        ("fault:lose=1%,port=(null)", "no option `lose=1%`; it has loss=P%"),
    ] {
        let error = text.parse::<PortSpec>().expect_err(text).to_string();
        assert!(error.contains(hint), "{text}: {error}");
    }
}

#[test]
fn a_rate_spreads_frames_evenly() {
    let rate = Rate::new(3).unwrap();
    assert_eq!([0, 1, 2, 3, 4].map(|n| rate.due_ns(n)), [0, 333_333_333, 666_666_666, 1_000_000_000, 1_333_333_333]);
    assert_eq!(rate.due_ns(u64::MAX), u64::MAX);
    assert_eq!(Rate::new(1_000_000_000).unwrap().due_ns(7), 7);
}

fn any_spec() -> impl Strategy<Value = PortSpec> {
    let rate = (1..=1_000_000_000u64).prop_map(|pps| Rate::new(pps).unwrap());
    let file = "[a-z,\\\\:= é]{1,12}";
    let speed = prop_oneof![Just(Speed::Full), Just(Speed::Recorded), rate.clone().prop_map(Speed::Fixed)];
    let passes = prop_oneof![
        Just(Passes::Forever),
        (1..u64::MAX).prop_map(|times| Passes::Times(NonZeroU64::new(times).unwrap()))
    ];
    let wire = prop_oneof![
        Just(PortSpec::Null),
        (MIN_FRAME_LEN..=MAX_FRAME_LEN, proptest::option::of(rate), any::<Option<u64>>())
            .prop_map(|(size, rate, count)| PortSpec::Generator(GeneratorSpec { size, rate, count })),
        (proptest::option::of(file), file, speed, passes).prop_map(|(read, write, speed, passes)| {
            PortSpec::Pcap(PcapSpec { read, write: Some(write), speed, passes })
        }),
        ("[a-z0-9.-]{3,15}", 1..=MAX_INTERFACE_QUEUES, any::<bool>()).prop_map(|(name, queues, tap)| {
            let spec = InterfaceSpec { name: name.parse().unwrap(), queues: NonZeroU16::new(queues).unwrap() };
            if tap { PortSpec::Tap(spec) } else { PortSpec::AfPacket(spec) }
        }),
        (file, any::<bool>(), 1..=VhostUserSpec::MAX_QUEUES)
            .prop_map(|(path, client, queues)| PortSpec::VhostUser(VhostUserSpec { path, client, queues })),
        (file, any::<bool>(), 1..=VirtioUserSpec::MAX_QUEUES)
            .prop_map(|(path, server, queues)| PortSpec::VirtioUser(VirtioUserSpec { path, server, queues })),
    ];
    let wrapped = wire.prop_recursive(3, 4, 1, move |inner| {
        let directions = || prop_oneof![Just(Directions::Both), Just(Directions::Rx), Just(Directions::Tx)];
        let chance =
            || prop_oneof![Just(0u32), 0..=1_000_000u32].prop_map(|parts| Chance::from_millionths(parts).unwrap());
        let delay = prop_oneof![Just(0), 0..10_000_000_000u64].prop_map(Duration::from_nanos);
        let chances = (chance(), chance(), chance(), chance());
        prop_oneof![
            (file, directions(), any::<Option<u64>>(), inner.clone()).prop_map(|(file, directions, limit, port)| {
                PortSpec::Trace(TraceSpec { file, directions, limit, port: Box::new(port) })
            }),
            (chances, delay, any::<u64>(), directions(), inner).prop_map(|(chances, delay, seed, directions, port)| {
                let (loss, duplicate, reorder, corrupt) = chances;
                let port = Box::new(port);
                PortSpec::Fault(FaultSpec { loss, duplicate, reorder, corrupt, delay, seed, directions, port })
            }),
        ]
    });
    prop_oneof![Just(PortSpec::Loopback), Just(PortSpec::None), wrapped]
}

#[test]
fn wrappers_end() {
    let nested = |depth| format!("{}null{}", "fault:port=(".repeat(depth), ")".repeat(depth));
    assert_eq!(parse(&nested(8)).to_string().matches("fault").count(), 8);
    assert_eq!(nested(9).parse::<PortSpec>(), Err(SpecError::TooDeep(8)));
    assert!(nested(100_000).parse::<PortSpec>().is_err());
}

proptest! {
    #[test]
    fn what_is_printed_reads_back(spec in any_spec()) {
        prop_assert_eq!(spec.to_string().parse::<PortSpec>(), Ok(spec));
    }

    #[test]
    fn no_text_panics(text in "(loopback|null|generator|pcap|tap|vhost-user|af_xdp|trace:a,port=|fault:port=)?:?[a-z0-9=,:()%\\\\ é]{0,30}") {
        if let Ok(spec) = text.parse::<PortSpec>() {
            prop_assert_eq!(spec.to_string().parse::<PortSpec>(), Ok(spec));
        }
    }
}

#[test]
fn a_port_says_which_file_it_begins_anew() {
    let of = |text: &str| text.parse::<PortSpec>().unwrap().overwrites().map(str::to_owned);
    assert_eq!(of("pcap:,write=out.pcap").as_deref(), Some("out.pcap"));
    assert_eq!(of("trace:t.pcap,port=(null)").as_deref(), Some("t.pcap"));
    assert_eq!(of("fault:loss=1%,port=(pcap:in.pcap,write=deep.pcap)").as_deref(), Some("deep.pcap"));
    assert_eq!(of("pcap:in.pcap"), None);
    assert_eq!(of("fault:loss=1%,port=(null)"), None);
    assert_eq!(of("loopback"), None);
}
