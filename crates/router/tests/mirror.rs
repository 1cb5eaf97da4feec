//! The mirror of what Linux has, against `ip` and `bridge`, while both change at random. Takes root: it makes a network namespace of its own.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use millrace_router::kernel::link::{Kind, Link};
use millrace_router::kernel::mirror::{GROUPS, Mirror};
use millrace_router::kernel::socket::{Events, Protocol, Questions, Received};
use millrace_router::kernel::wire;
use serde_json::Value;

/// This thread, and what it starts, alone in a network namespace.
fn alone() -> bool {
    let is_alone = nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).is_ok();
    if !is_alone {
        eprintln!("skipped: a network namespace takes root");
    }
    is_alone
}

fn run(line: &str) -> bool {
    let mut words = line.split(' ');
    let command = Command::new(words.next().unwrap()).args(words).stderr(Stdio::null()).stdout(Stdio::null()).status();
    command.unwrap().success()
}

fn json(line: &str) -> Vec<Value> {
    let mut words = line.split(' ');
    let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(output.status.success(), "{line}");
    let text = String::from_utf8(output.stdout).unwrap();
    if text.trim().is_empty() { Vec::new() } else { serde_json::from_str(&text).unwrap() }
}

/// One change out of many; most of them make sense.
fn change(random: &mut fastrand::Rng) -> String {
    let (one, other) = (random.u8(0..4), random.u8(0..4));
    let (low, high) = (random.u8(1..9), random.u8(2..250));
    match random.u8(0..22) {
        0 | 1 => format!("ip link add v{one} type veth peer name w{one}"),
        2 => format!("ip link del v{one}"),
        3 => format!("ip link add b{one} type bridge"),
        4 => format!("ip link del b{one}"),
        5 | 6 => format!("ip link set v{one} up"),
        7 => format!("ip link set w{one} down"),
        8 => format!("ip link set v{one} mtu {}", 1280 + u32::from(high)),
        9 | 10 => format!("ip link set w{one} master b{other} up"),
        11 => format!("ip link set w{one} nomaster"),
        12 => format!("ip link set v{one} address 02:00:00:00:0{one}:{high:02x}"),
        13 => format!("ip addr add 10.{one}.{low}.1/24 dev v{one}"),
        14 => format!("ip addr del 10.{one}.{low}.1/24 dev v{one}"),
        15 => format!("ip neigh replace 10.{one}.{low}.{high} lladdr 02:00:00:00:00:{high:02x} dev v{one}"),
        16 => format!("ip neigh del 10.{one}.{low}.{high} dev v{one}"),
        17 => format!("ip rule add priority {high} from 10.{one}.0.0/16 table {low}"),
        18 => format!("ip rule del priority {high}"),
        19 => format!("ip nexthop replace id {low} dev v{one}"),
        20 => format!("bridge fdb replace 02:00:00:00:01:{low:02x} dev w{one} master static"),
        _ => format!("bridge fdb del 02:00:00:00:01:{low:02x} dev w{one} master"),
    }
}

fn follow(events: &mut Events, mirror: &mut Mirror) {
    loop {
        match events.receive().unwrap() {
            Received::Nothing => return,
            Received::Overrun => panic!("a handful of events overran the buffer"),
            Received::Bytes(bytes) => wire::messages(bytes).for_each(|message| {
                mirror.apply(&message);
            }),
        }
    }
}

fn mac(text: &[u8; 6]) -> String {
    text.map(|byte| format!("{byte:02x}")).join(":")
}

fn links(mirror: &Mirror) -> BTreeSet<String> {
    let tell = |link: &Link| {
        let mac = link.mac.as_ref().map(mac).unwrap_or_default();
        let master = link.master.map(|master| mirror.name_of(master)).unwrap_or_default();
        let kind = if link.kind == Kind::Physical { "" } else { link.kind_name() };
        format!("{} {} {mac} {} {} [{master}] {kind} {}", link.index, link.name, link.mtu, link.is_up(), link.qdisc)
    };
    mirror.links.values().filter(|link| link.name != "lo").map(tell).collect()
}

fn links_of_ip() -> BTreeSet<String> {
    let tell = |link: &Value| {
        let text = |name: &str| link[name].as_str().unwrap_or_default().to_owned();
        let is_up = link["flags"].as_array().unwrap().iter().any(|flag| flag == "UP");
        let kind = link["linkinfo"]["info_kind"].as_str().unwrap_or_default();
        let (index, name, mtu) = (&link["ifindex"], text("ifname"), &link["mtu"]);
        format!("{index} {name} {} {mtu} {is_up} [{}] {kind} {}", text("address"), text("master"), text("qdisc"))
    };
    // The mirror knows Ethernet addresses of Ethernet only.
    json("ip -json -details link").iter().filter(|link| link["ifname"] != "lo").map(tell).collect()
}

fn addresses(mirror: &Mirror) -> BTreeSet<String> {
    mirror.addresses.iter().map(|one| format!("{} {}/{}", one.interface, one.address, one.prefix)).collect()
}

fn addresses_of_ip() -> BTreeSet<String> {
    let of = |link: &Value| -> Vec<String> {
        let index = link["ifindex"].clone();
        let all = link["addr_info"].as_array().cloned().unwrap_or_default();
        all.iter().map(|one| format!("{index} {}/{}", one["local"].as_str().unwrap(), one["prefixlen"])).collect()
    };
    json("ip -json addr").iter().flat_map(of).collect()
}

fn neighbours(mirror: &Mirror) -> BTreeSet<String> {
    let tell = |interface, address, mac: Option<[u8; 6]>| {
        format!("{} {address} {}", mirror.name_of(interface), mac.as_ref().map(self::mac).unwrap_or_default())
    };
    mirror.neighbours.values().map(|one| tell(one.interface, one.address, one.mac)).collect()
}

fn neighbours_of_ip() -> BTreeSet<String> {
    let text = |one: &Value, name: &str| one[name].as_str().unwrap_or_default().to_owned();
    let tell = |one: &Value| format!("{} {} {}", text(one, "dev"), text(one, "dst"), text(one, "lladdr"));
    json("ip -json neigh").iter().map(tell).collect()
}

fn stations(mirror: &Mirror) -> BTreeSet<String> {
    let name = |index| mirror.name_of(index);
    let tell = |mac: String, port, bridge| format!("{mac} {} {}", name(port), name(bridge));
    mirror.stations.values().map(|one| tell(mac(&one.mac), one.port, one.bridge)).collect()
}

fn stations_of_bridge() -> BTreeSet<String> {
    let all = json("bridge -json fdb show");
    let of_bridges = all.iter().filter(|one| one["master"].is_string());
    of_bridges
        .map(|one| {
            let text = |name: &str| one[name].as_str().unwrap().to_owned();
            let port = if one["state"] == "permanent" { text("master") } else { text("ifname") };
            format!("{} {port} {}", text("mac"), text("master"))
        })
        .collect()
}

fn rules(mirror: &Mirror) -> BTreeSet<String> {
    let of_ipv4 = mirror.rules.iter().filter(|rule| rule.version == 4);
    of_ipv4
        .map(|rule| format!("{} {:?}", rule.priority, rule.source.map(|(from, length)| format!("{from}/{length}"))))
        .collect()
}

fn rules_of_ip() -> BTreeSet<String> {
    let source = |rule: &Value| match rule["src"].as_str().unwrap() {
        "all" => None,
        from => Some(format!("{from}/{}", rule["srclen"])),
    };
    json("ip -json rule").iter().map(|rule| format!("{} {:?}", rule["priority"], source(rule))).collect()
}

/// The same, but for what counts events.
fn as_read(mirror: &Mirror) -> Mirror {
    Mirror { route_events: 0, ..mirror.clone() }
}

#[test]
fn two_hundred_random_changes_end_in_what_ip_says() {
    if !alone() {
        return;
    }
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut questions = Questions::open(Protocol::Route).unwrap();
    let mut events = Events::listen(Protocol::Route, GROUPS).unwrap();
    let mut mirror = Mirror::read(&mut questions).unwrap();
    assert!(run("ip link set lo up"));
    let mut done = 0;
    while done < 200 {
        done += u32::from(run(&change(&mut random)));
        follow(&mut events, &mut mirror);
        if done % 50 == 0 {
            check(&mut events, &mut mirror, &mut questions);
        }
    }
    check(&mut events, &mut mirror, &mut questions);
    assert!(mirror.links.len() > 2 && mirror.route_events > 0, "nothing has happened");
}

/// Compares when nothing moves: duplicate address detection ends by itself, and neighbours of IPv6 come and go.
fn check(events: &mut Events, mirror: &mut Mirror, questions: &mut Questions) {
    for attempt in 0.. {
        follow(events, mirror);
        let shown = [
            (links(mirror), links_of_ip()),
            (addresses(mirror), addresses_of_ip()),
            (neighbours(mirror), neighbours_of_ip()),
            (stations(mirror), stations_of_bridge()),
            (rules(mirror), rules_of_ip()),
        ];
        let read = Mirror::read(questions).unwrap();
        if shown.iter().all(|(ours, theirs)| ours == theirs) && as_read(mirror) == as_read(&read) {
            return;
        }
        if attempt == 20 {
            shown.iter().for_each(|(ours, theirs)| assert_eq!(ours, theirs));
            assert_eq!(as_read(mirror), as_read(&read));
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}
