use super::*;
use crate::queue::{Direction, Engine, QueueId};
use proptest::prelude::*;

fn card(name: &str) -> CardOptions {
    match name.parse() {
        Ok(DeviceName::Embedded(options)) => options,
        other => panic!("{name}: {other:?}"),
    }
}

fn refusal(name: &str) -> (usize, String) {
    let error = name.parse::<DeviceName>().expect_err(name);
    (error.position, error.problem.to_string())
}

#[test]
fn without_options_it_is_a_small_loopback_card() {
    for name in ["embedded", "embedded:"] {
        assert_eq!(card(name), CardOptions::default());
    }
    let options = CardOptions::default();
    assert_eq!((options.rx_queues, options.tx_queues, options.buffers, options.buffer_size), (2, 2, 2048, 2048));
    assert_eq!((options.frame_min, options.frame_max, options.sze_ring), (60, 16383, 1 << 20));
    assert_eq!(options.ports, ["loopback"]);
    assert_eq!(options.engine_of(QueueId::rx(0)), Engine::Medusa);
    assert_eq!(DeviceName::default().to_string(), "embedded");
    options.validate().unwrap();
}

#[test]
fn a_function_is_named_by_its_address() {
    let name: DeviceName = "pci:00:04.0".parse().unwrap();
    assert_eq!(name.to_string(), "pci:0000:00:04.0");
    assert_eq!(name.to_string().parse(), Ok(name));
    assert_eq!(refusal("pci:4").0, 5);
}

fn range(direction: Option<Direction>, first: u32, last: u32) -> Selection {
    Selection::Range { direction, first, last }
}

#[test]
fn every_option_is_understood_with_any_separator() {
    let expected = CardOptions {
        rx_queues: 4,
        tx_queues: 3,
        engines: vec![EngineRule { engine: Engine::Sze, queues: Selection::All }],
        buffers: 512,
        buffer_size: 4096,
        sze_ring: 64 << 10,
        calypte_blocks: 4096,
        dd_descriptors: 64,
        ports: vec!["null".to_owned(), "tap:mr0".to_owned()],
        connections: vec![(0, 1)],
        workers: 2,
        priority: vec![range(None, 0, 0), range(Some(Direction::Tx), 1, 2)],
        cpus: vec![1, 3, 4],
        poll: true,
        spin_us: 7,
        frame_min: 64,
        frame_max: 1514,
        discard: true,
        tsu: true,
    };
    let name = "embedded:rx=4,tx=3,engine=sze,buffers=512,buffer=4K,ring=64k,blocks=4096,descriptors=64,port=null,port=tap:mr0,connect=0-1,workers=2,priority=0,priority=tx1-2,cpu=1,\
                cpu=3-4,poll,spin=7,frame-min=64,frame-max=1514,discard,tsu=on";
    assert_eq!(card(name), expected);
    assert_eq!(card(&name.replace(',', ";")), expected);
    assert_eq!(card(&name.replace(',', "+")), expected);
    assert_eq!(card(&name.replace(',', ";").replace('=', ":")), expected, "as DPDK can pass it on");
    assert_eq!(card("embedded:port:(pcap:a=b.pcap;speed:full)").ports, ["pcap:a=b.pcap,speed:full"]);
    assert_eq!(card("embedded:queues=7").tx_queues, 7);
    assert!(!card("embedded:poll;poll=false").poll && !card("embedded:tsu;tsu=off").tsu);
    assert_eq!(card("embedded:rx=3,rx=4,tx=0").rx_queues, 4);
    assert_eq!(card("embedded:cpu=(5,0-2)").cpus, [5, 0, 1, 2]);
}

#[test]
fn every_word_of_the_help_is_accepted_and_all_numbers_have_help() {
    for help in OPTIONS {
        let value = match help.word {
            "port" => "null",
            "connect" => "0-0",
            "engine" => "sze",
            "buffer" => "2048",
            "ring" => "1M",
            "buffers" | "blocks" | "descriptors" => "256",
            "frame-max" => "1514",
            _ => "1",
        };
        let option = if help.value.is_empty() { help.word.to_owned() } else { format!("{}={value}", help.word) };
        card(&format!("embedded:{option}"));
    }
    for number in &number::NUMBERS {
        assert!(OPTIONS.iter().any(|help| help.word == number.word));
        number.check(&CardOptions::default()).unwrap();
    }
}

#[test]
fn engines_are_chosen_for_some_queues() {
    let options = card("embedded:rx=8,tx=4,engine=(sze@0-3,tx1),engine=medusa@rx2");
    let engine = |queue| options.engine_of(queue);
    assert_eq!((engine(QueueId::rx(0)), engine(QueueId::tx(3))), (Engine::Sze, Engine::Sze));
    assert_eq!((engine(QueueId::rx(2)), engine(QueueId::tx(2))), (Engine::Medusa, Engine::Sze));
    assert_eq!((engine(QueueId::rx(4)), engine(QueueId::rx(7))), (Engine::Medusa, Engine::Medusa));
    assert_eq!(options.packet_memory_of(QueueId::rx(0)), 1 << 20);
    assert_eq!(options.packet_memory_of(QueueId::rx(7)), 4 << 20);
    // Rules may come before the number of queues.
    card("embedded:engine=sze@7,rx=8");
    assert!(refusal("embedded:engine=sze@tx7,rx=8").1.contains("engine=sze@tx7 speaks of queues that a card with"));
}

#[test]
fn ports_with_options_of_their_own_are_put_in_parentheses() {
    let ports = |name: &str| card(name).ports;
    assert_eq!(ports("embedded:port=(pcap:a.pcap,speed=full),poll"), ["pcap:a.pcap,speed=full"]);
    assert_eq!(ports("embedded:port=(pcap:a.pcap;speed=full);poll"), ["pcap:a.pcap,speed=full"]);
    assert_eq!(ports("embedded:port=pcap:a.pcap,port=generator:size=64"), ["pcap:a.pcap", "generator:size=64"]);
    assert_eq!(ports("embedded:port=(pcap:a+b (1).pcap)"), ["pcap:a+b (1).pcap"]);
    assert_eq!(ports(r"embedded:port=pcap:a\+b\,\\c\(.pcap"), [r"pcap:a+b,\c(.pcap"]);
    assert_eq!(ports(r"embedded:port=(pcap:\;\).pcap)"), ["pcap:;).pcap"]);
}

#[test]
fn a_refusal_says_where_why_and_what_instead() {
    let accepted = [
        ("usb:1", 1, "accepted: embedded[:options] for a card in this process, unix:PATH"),
        ("", 1, "not a device"),
        ("embeddedly", 1, "not a device"),
        ("unix:", 6, "write unix:PATH"),
        ("unix:a\0b", 7, "zero byte"),
        ("embedded:rx=4,qx=4", 15, r#""qx" is not an option; accepted: rx, tx, queues, engine, buffers"#),
        (
            "embedded:port=pcap:x,speed=full",
            22,
            r#""speed" is not an option of a card; if it belongs to the port before it, write that in parentheses: port=(pcap:x,speed...)"#,
        ),
        ("embedded:=4", 10, r#""" is not an option"#),
        ("embedded:rx", 10, "rx needs a value: a number from 0 to 4096 queues"),
        ("embedded:rx=", 10, "rx needs a value"),
        ("embedded:rx=4097", 10, "rx=4097: accepted is a number from 0 to 4096 queues"),
        ("embedded:queues=x", 10, "queues=x: accepted is a number from 0 to 4096 queues"),
        ("embedded:rx=1K", 10, "rx=1K: accepted"),
        ("embedded:rx=-1", 10, "rx=-1: accepted"),
        ("embedded:spin=99999999999", 10, "accepted is a number from 0 to 1000000 microseconds"),
        ("embedded:ring=4G", 10, "a power of two from 32768 to 1073741824 bytes, K, M and G allowed"),
        ("embedded:poll,buffers=1000", 15, "a power of two from 128 to 32768"),
        ("embedded:buffer=100", 10, "a multiple of 64 from 64 to 65472 bytes"),
        ("embedded:engine=dma", 10, "engine=dma: accepted is sze, medusa, calypte or dd"),
        ("embedded:engine=sze@3-1", 10, "sze@rx0-3"),
        ("embedded:engine=sze@é", 10, "sze@rx0-3"),
        ("embedded:cpu=1024", 10, "a core from 0 to 1023"),
        ("embedded:cpu=0-4294967295", 10, "a core from 0 to 1023"),
        ("embedded:poll=maybe", 10, "poll alone, poll=on or poll=off"),
        ("embedded:port=", 10, "port needs a value: kind:argument"),
        ("embedded:rx=1,,tx=1", 15, "an option is missing"),
        ("embedded:rx=1,", 15, "an option is missing"),
        ("embedded:port=(a", 15, "this '(' is not closed"),
        ("embedded:port=(a)b", 18, "text behind ')'"),
        ("embedded:port=a(b)", 16, "put the whole value into parentheses"),
        ("embedded:port)", 14, "put the whole value into parentheses"),
        ("embedded:port=é\\", 16, "it needs a character"),
        ("embedded:rx=0,tx=0", 10, "a card without queues"),
        ("embedded:frame-min=100,frame-max=99", 10, "frame-min=100 is more than frame-max=99"),
        ("embedded:buffer=64,frame-min=65", 10, "does not fit into buffer=64"),
    ];
    for (name, position, text) in accepted {
        let (at, problem) = refusal(name);
        assert!(at == position && problem.contains(text), "{name}: character {at}: {problem}");
    }
    assert_eq!(
        "embedded:rx=x".parse::<DeviceName>().unwrap_err().to_string(),
        "device name \"embedded:rx=x\", character 10: rx=x: accepted is a number from 0 to 4096 queues"
    );
}

#[test]
fn a_daemon_is_named_by_its_socket() {
    let path = "unix:/run/millrace,a;b+c(:.sock";
    let name: DeviceName = path.parse().unwrap();
    assert_eq!(name, DeviceName::Unix("/run/millrace,a;b+c(:.sock".into()));
    assert_eq!(name.to_string(), path);
    assert!(format!("unix:{}", "x".repeat(107)).parse::<DeviceName>().is_ok());
    assert!(refusal(&format!("unix:{}", "x".repeat(108))).1.contains("108 bytes, a Unix socket takes at most 107"));
}

#[test]
fn the_environment_names_the_device_or_leaves_it_to_the_default() {
    use std::os::unix::ffi::OsStrExt;
    let variable = |value: &[u8]| DeviceName::from_variable(Some(OsStr::from_bytes(value)));
    assert_eq!(DeviceName::from_variable(None), Ok(DeviceName::default()));
    assert_eq!(variable(b""), Ok(DeviceName::default()));
    assert_eq!(variable(b"unix:/x"), Ok(DeviceName::Unix("/x".into())));
    let error = variable(b"nfb0").unwrap_err().to_string();
    assert!(error.starts_with("MILLRACE_DEVICE: device name \"nfb0\", character 1: not a device"), "{error}");
    assert!(variable(b"unix:\xff").unwrap_err().to_string().contains("not valid UTF-8"));
}

#[test]
fn a_queue_of_each_engine_has_its_own_memory() {
    let options = card(
        "embedded:engine=sze@0,engine=calypte@1,engine=dd@3,queues=4,ring=32k,blocks=512,buffers=128,buffer=64,descriptors=16",
    );
    let memory = |queue| options.packet_memory_of(queue);
    let sizes = [QueueId::rx(0), QueueId::rx(1), QueueId::rx(2), QueueId::rx(3)].map(memory);
    assert_eq!(sizes, [32 << 10, 64 << 10, 8 << 10, 1 << 10]);
    assert_eq!(memory(QueueId::tx(1)), 64 << 10, "of the device, whatever the options say");
}

#[test]
fn options_built_by_hand_are_checked_too() {
    let invalid = |change: fn(&mut CardOptions)| {
        let mut options = CardOptions::default();
        change(&mut options);
        options.validate().unwrap_err().to_string()
    };
    assert!(invalid(|o| o.ports.clear()).contains("0 ports; accepted are 1 to 32"));
    assert!(invalid(|o| o.ports[0].clear()).contains("port needs a value"));
    assert!(invalid(|o| o.sze_ring = 100_000).contains("ring=100000: accepted is a power of two"));
    assert!(invalid(|o| o.cpus = vec![5000]).contains("cpu=5000"));
    assert!(invalid(|o| o.workers = 1000).contains("workers=1000"));
    assert!(
        invalid(|o| o.connections = vec![(0, 1)])
            .contains("connect=0-1 speaks of a port that is not there: this card has port 0")
    );
    let two = |o: &mut CardOptions| (o.ports, o.connections) = (vec!["null".into(); 2], vec![(0, 2)]);
    assert!(invalid(two).ends_with("this card has ports 0 to 1"));
    assert!(invalid(|o| o.priority = vec![range(None, 2, 2)]).contains("priority speaks of queues"));
    assert!(invalid(|o| (o.workers, o.priority) = (1, vec![range(None, 0, 0)])).contains("leaves none for the others"));
}

fn any_rule() -> impl Strategy<Value = EngineRule> {
    let engine = proptest::sample::select(&Engine::ALL[..]);
    let direction = prop_oneof![Just(None), Just(Some(Direction::Rx)), Just(Some(Direction::Tx))];
    let range = (direction, 0..9u32, 0..9u32);
    (engine, proptest::option::of(range)).prop_map(|(engine, range)| {
        let queues = range.map_or(Selection::All, |(direction, a, b)| Selection::Range {
            direction,
            first: a.min(b),
            last: a.max(b),
        });
        EngineRule { engine, queues }
    })
}

fn any_options() -> impl Strategy<Value = CardOptions> {
    let queues = (9..=4096u32, 9..=4096u32, proptest::collection::vec(any_rule(), 0..4));
    let memory = (7..=15u32, 4..=1023u32, 15..=30u32, 8..=15u32, 3..=15u32);
    let ports = proptest::collection::vec(".{1,12}|[a-z:,;+()\\\\=]{1,12}", 1..4);
    let threads =
        (1..=256u32, proptest::collection::vec(0..=1023u32, 0..4), any::<bool>(), 0..=1_000_000u32, any::<[bool; 2]>());
    let frames = (1..=256u32, 256..=0x3fffu32);
    (queues, memory, ports, threads, frames).prop_map(|(queues, memory, ports, threads, frames)| CardOptions {
        rx_queues: queues.0,
        tx_queues: queues.1,
        engines: queues.2,
        buffers: 1 << memory.0,
        buffer_size: memory.1 * 64,
        sze_ring: 1 << memory.2,
        calypte_blocks: 1 << memory.3,
        dd_descriptors: 1 << memory.4,
        ports,
        connections: Vec::new(),
        workers: threads.0,
        priority: Vec::new(),
        cpus: threads.1,
        poll: threads.2,
        spin_us: threads.3,
        discard: threads.4[0],
        tsu: threads.4[1],
        frame_min: frames.0,
        frame_max: frames.1,
    })
}

proptest! {
    #[test]
    fn what_is_printed_reads_back(options in any_options()) {
        let name = DeviceName::Embedded(options);
        prop_assert_eq!(name.to_string().parse(), Ok(name.clone()));
        let without_commas = format!("{name:#}");
        prop_assert!(!without_commas.contains(','));
        let DeviceName::Embedded(options) = &name else { unreachable!() };
        prop_assert!(!without_commas.contains('=') || options.ports.iter().any(|port| port.contains('=')));
        prop_assert_eq!(without_commas.parse(), Ok(name));
    }

    #[test]
    fn options_survive_the_socket(options in any_options()) {
        let bytes = postcard::to_stdvec(&options).unwrap();
        prop_assert_eq!(postcard::from_bytes::<CardOptions>(&bytes), Ok(options));
    }

    #[test]
    fn no_text_makes_it_panic(tail in ".*|[a-z0-9=@,;+()\\\\-]*", kind in "embedded:|unix:|embedded:port=|embedded:engine=sze@|") {
        let name = format!("{kind}{tail}");
        match name.parse::<DeviceName>() {
            Ok(device) => prop_assert_eq!(device.to_string().parse(), Ok(device)),
            Err(error) => prop_assert!(error.position <= name.chars().count() + 1, "{}", error),
        }
    }
}
