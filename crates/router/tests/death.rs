//! The process that has loaded the engine is killed: its rules go on, or Linux does at once, and the next process takes over.

mod net;

use libbpf_rs::query::{LinkInfo, LinkInfoIter, LinkTypeInfo};
use millrace_router::Reason;
use millrace_router::engine::pins::Signs;
use millrace_router::engine::{Config, Engine, How, Mode, State};
use net::Net;
use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

fn start(pins: Option<PathBuf>, left: u32, right: u32) -> Engine {
    let engine = Engine::load(&Config { pins, ..Config::default() }).unwrap();
    for (name, ifindex) in [("left", left), ("right", right)] {
        engine.set_device(ifindex, &net::device(name)).unwrap();
        engine.attach(ifindex, How::Xdp).unwrap();
    }
    engine.set_mode(Mode::Route);
    engine
}

/// What the process that will be killed does; the test below starts it.
#[test]
#[ignore = "it is started by another test, and lives until that kills it"]
fn the_process_that_will_be_killed() {
    let Ok(indexes) = std::env::var("ROUTER_TEST_INDEXES") else { return };
    let mut indexes = indexes.split(',').map(|index| index.parse().unwrap());
    let _engine = start(
        std::env::var_os("ROUTER_TEST_PINS").map(PathBuf::from),
        indexes.next().unwrap(),
        indexes.next().unwrap(),
    );
    println!("\nit runs");
    std::thread::sleep(Duration::from_secs(60));
}

fn child(net: &Net, pins: Option<&PathBuf>) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "the_process_that_will_be_killed", "--nocapture"]).stdout(Stdio::piped());
    command.env("ROUTER_TEST_INDEXES", format!("{},{}", net.left_index, net.right_index));
    if let Some(pins) = pins {
        command.env("ROUTER_TEST_PINS", pins);
    }
    let mut child = command.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line == "it runs"));
    child
}

fn forwarded_by_linux() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
    text.lines().filter(|line| line.starts_with("Ip: ")).nth(1).unwrap().split(' ').nth(6).unwrap().parse().unwrap()
}

fn is_attached(name: &str) -> bool {
    let output = Command::new("ip").args(["link", "show", "dev", name]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).contains("prog/xdp")
}

/// The number of the link by which a program is on an interface; other namespaces have interfaces of the same number.
fn link_of(ifindex: u32, program: u32) -> Option<u32> {
    let is_there = |link: &LinkInfo| matches!(&link.info, LinkTypeInfo::Xdp(xdp) if xdp.ifindex == ifindex);
    let is_it = |link: &LinkInfo| link.prog_id == program && is_there(link);
    LinkInfoIter::default().find(is_it).map(|link| link.id)
}

#[test]
fn rules_outlive_the_process_or_do_not() {
    let Some(net) = Net::new() else { return };
    let pins = PathBuf::from(format!("/sys/fs/bpf/millrace-test-{}", std::process::id()));
    let right = net.right.act(|| UdpSocket::bind("10.2.0.2:5007").unwrap());
    let left = net.left.act(|| UdpSocket::bind("10.1.0.2:4000").unwrap());
    right.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let send = |count: u32| {
        let before = forwarded_by_linux();
        for _ in 0..count {
            left.send_to(b"hello", "10.2.0.2:5007").unwrap();
            assert_eq!(right.recv(&mut [0; 16]).unwrap(), 5);
        }
        forwarded_by_linux() - before
    };

    let mut first = child(&net, Some(&pins));
    assert!(send(20) <= 5, "the first packet or two are Linux's");
    first.kill().unwrap();
    first.wait().unwrap();
    assert!(is_attached("left") && is_attached("right"));
    assert_eq!(send(20), 0, "the rules go on without the process");

    let second = start(Some(pins.clone()), net.left_index, net.right_index);
    assert!(second.left_behind().is_empty());
    assert!(send(20) <= 5, "the next one makes its own");
    assert!(second.rules().any(|rule| rule.state == State::Active));
    assert!(second.counters().unwrap().iter().any(|counter| counter.reason == Reason::Fast && counter.packets >= 15));
    drop(second);
    assert!(!is_attached("left") && !is_attached("right"), "who ends in order leaves nothing");
    assert_eq!(send(5), 5);

    // Found and kept, it is one link all the same, and stays on the interface without a gap.
    let mut kept = child(&net, Some(&pins));
    let program = net::xdp("left");
    let link = link_of(net.left_index, program);
    kept.kill().unwrap();
    kept.wait().unwrap();
    let heir = Engine::load(&Config { pins: Some(pins.clone()), ..Config::default() }).unwrap();
    assert!(heir.adopt(net.left_index, program));
    heir.set_device(net.left_index, &net::device("left")).unwrap();
    heir.attach(net.left_index, How::Xdp).unwrap();
    let heirs = net::xdp("left");
    assert!(link.is_some() && link_of(net.left_index, heirs) == link && heirs != program);
    // Nobody beats for what was killed.
    let another = Engine::load(&Config::default()).unwrap();
    heir.heartbeat().unwrap();
    assert_eq!(another.signs_of_life(&[net::xdp("left")], Duration::from_secs(60)), Signs::Alive);
    assert_eq!(
        heir.signs_of_life(&[net::xdp("left")], Duration::from_secs(60)),
        Signs::None,
        "its own says nothing about others"
    );
    let right = [0, net::xdp("right")];
    net::becomes("it is seen that it is dead", || heir.signs_of_life(&right, Duration::from_secs(2)) == Signs::None);
    drop(heir);
    assert!(!is_attached("left"));

    // What was kept where the next one does not see it is found by its number.
    let mut hidden = child(&net, Some(&pins));
    let program = net::xdp("left");
    hidden.kill().unwrap();
    hidden.wait().unwrap();
    assert!(
        !Engine::load(&Config::default()).unwrap().has_lost(net.left_index, [0; 2]),
        "what it has not cannot be lost"
    );
    let next = Engine::load(&Config::default()).unwrap();
    assert!(next.attach(net.left_index, How::Xdp).is_err(), "another one's program is there");
    assert!(!next.adopt(net.left_index, program + 1) && !next.adopt(net.right_index, u32::MAX));
    assert!(next.adopt(net.left_index, program) && next.adopt(net.right_index, net::xdp("right")));
    next.set_device(net.left_index, &net::device("left")).unwrap();
    next.attach(net.left_index, How::Xdp).unwrap();
    assert!(is_attached("left") && net::xdp("left") != program);
    assert_eq!(next.left_behind(), [net.right_index].into());
    assert!(next.give_up(net.right_index) && !next.give_up(net.left_index), "what is its own stays");
    assert!(!is_attached("right"));
    drop(next);
    assert!(!is_attached("left"), "it has ended, though the link is kept elsewhere");
    std::fs::remove_dir_all(&pins).unwrap();

    let mut third = child(&net, None);
    assert!(send(20) <= 5);
    third.kill().unwrap();
    third.wait().unwrap();
    // The kernel takes the program away when it gets to it.
    net::becomes("its programs have ended", || !is_attached("left") && !is_attached("right"));
    assert_eq!(send(5), 5, "Linux does it all");
    let _ = std::fs::remove_dir(&pins);
}
