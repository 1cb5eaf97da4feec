//! Routers of one network namespace, and others who stand in their way: who has an interface, and what becomes of what is left there.

mod net;

use millrace_router::daemon::choice::Place;
use millrace_router::daemon::client::Client;
use millrace_router::daemon::options::Options;
use millrace_router::daemon::protocol::{Answer, Request, Status};
use millrace_router::daemon::router::Router;
use millrace_router::engine::{Config, Engine, How};
use net::{Net, becomes};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

fn options(socket: &str, interfaces: &str, place: Place) -> Options {
    let interfaces = interfaces.split(' ').map(|name| name.parse().unwrap()).collect();
    Options { socket: socket.to_owned(), interfaces, place: Some(place), rules: 1024, ..Options::default() }
}

/// Both interfaces as XDP wants them.
fn network() -> Option<Net> {
    let net = Net::new()?;
    for (name, host) in [("left", &net.left), ("right", &net.right)] {
        host.run("ethtool -K eth0 txvlan off >/dev/null");
        net::run(&format!("ethtool -K {name} rxvlan off >/dev/null"));
    }
    Some(net)
}

/// A router that works.
struct Running {
    name: String,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start(options: Options) -> Self {
        let (name, is_over) = (options.socket.clone(), Arc::new(AtomicBool::new(false)));
        let mut router = Router::start(options).unwrap();
        let asked = is_over.clone();
        let thread = std::thread::spawn(move || router.run(|| asked.load(Ordering::Relaxed)).unwrap());
        Self { name, is_over, thread: Some(thread) }
    }

    fn status(&self) -> Status {
        match Client::connect(&self.name).unwrap().ask(Request::Status).unwrap() {
            Answer::Status(status) => *status,
            other => panic!("{other:?}"),
        }
    }

    /// How often programs were put back.
    fn put_back(&self) -> u64 {
        self.status().changes.iter().find(|(name, _)| name == "programs").map_or(0, |(_, count)| *count)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Why an interface of a router is off, by name.
fn off(status: &Status, name: &str) -> Option<String> {
    status.interfaces.iter().find(|interface| interface.name == name).unwrap().off.clone()
}

/// A user without rights has the claim of an interface, and its queue is full, so that nobody is told whose it is.
fn squatter(index: u32) -> Child {
    let program = format!(
        "import socket, sys
name = '\\0millrace-router-interface-{index}'
held = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
held.bind(name); held.listen(0)
crowd = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(8)]
for one in crowd:
    one.setblocking(False)
    try: one.connect(name)
    except BlockingIOError: pass
print('held', flush=True); sys.stdin.read()"
    );
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", &program]).uid(65_534).gid(65_534).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line == "held"));
    child
}

#[test]
fn a_router_whose_claim_is_asked_for_by_a_crowd_keeps_its_interface() {
    let Some(net) = network() else { return };
    // It does not get to its answers at all.
    let first = Router::start(options("crowd-a", "left", Place::Tc)).unwrap();
    assert_eq!(off(&first.status(), "left"), None);
    let filter = net::filter("left");
    let crowd: Vec<_> = (0..200).map(|_| ask(net.left_index)).collect();
    assert!(crowd.iter().any(|one| one.is_err()), "there is room for everybody");
    let second = Router::start(options("crowd-b", "left", Place::Tc)).unwrap();
    assert_eq!(off(&second.status(), "left").as_deref(), Some("other-router"));
    drop(second);
    assert!(filter.is_some() && net::filter("left") == filter);
    drop(first);
    assert_eq!(net::filter("left"), None);
}

/// Asks whose an interface is, and waits for no answer.
fn ask(index: u32) -> Result<rustix::fd::OwnedFd, rustix::io::Errno> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::NONBLOCK, None)?;
    let name = format!("millrace-router-interface-{index}");
    connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?).map(|()| socket)
}

#[test]
fn who_has_no_rights_and_says_nothing_stands_in_nobodys_way() {
    let Some(net) = network() else { return };
    let mut squatter = squatter(net.left_index);
    let first = Running::start(options("silent-a", "left", Place::Xdp));
    assert_eq!(off(&first.status(), "left"), None);
    // And yet the interface is the first one's: it is alive.
    let second = Running::start(options("silent-b", "left right", Place::Xdp));
    assert_eq!(off(&second.status(), "left").as_deref(), Some("other-router"), "{:?}", second.status());
    let program = net::xdp("left");
    squatter.kill().unwrap();
    squatter.wait().unwrap();
    // Both ask for the claim now, and it is the first one's.
    becomes("somebody has the claim", || ask(net.left_index).is_ok());
    becomes("who waits has asked again", || {
        let status = second.status();
        let why = status.interfaces.iter().find(|one| one.name == "left").and_then(|one| one.why.clone());
        assert_eq!(off(&status, "left").as_deref(), Some("other-router"), "{status:?}");
        why.is_some_and(|why| why.contains(&format!("process {}", std::process::id())))
    });
    drop(second);
    assert_eq!((net::xdp("left"), off(&first.status(), "left"), first.put_back()), (program, None, 0));
    drop(first);
    assert_eq!(net::xdp_if_any("left"), None);
}

#[test]
fn programs_that_somebody_ends_are_put_back() {
    let Some(net) = network() else { return };
    let router = Running::start(options("lost-a", "left right", Place::Xdp));
    assert_eq!((off(&router.status(), "left"), router.put_back()), (None, 0));
    let program = net::xdp("left");
    let somebody = Engine::load(&Config::default()).unwrap();
    assert!(somebody.adopt(net.left_index, program) && somebody.give_up(net.left_index));
    becomes("its program is back", || net::xdp_if_any("left") == Some(program));
    becomes("it is counted", || router.put_back() == 1);
    drop(router);
    assert_eq!(net::xdp_if_any("left"), None);

    let router = Running::start(options("lost-b", "left right", Place::Tc));
    let filter = net::filter("left");
    somebody.attach(net.left_index, How::Tc).unwrap();
    becomes("its filter is back", || net::filter("left") == filter);
    becomes("it is counted", || router.put_back() > 0);
    assert_eq!(off(&router.status(), "left"), None);
    let filter = net::filter("left");
    somebody.detach(net.left_index).unwrap();
    assert!(filter.is_some() && net::filter("left") == filter, "who has lost a place takes nothing of who has it");
}

#[test]
fn nothing_stays_on_an_interface_without_a_claim() {
    let Some(net) = network() else { return };
    let router = Router::start(options("engine-a", "left", Place::Xdp)).unwrap();
    // As the engine in user space of a gateway has it.
    let engine = router.engine();
    assert!(net::xdp_if_any("left").is_some() && ask(net.left_index).is_ok());
    drop(router);
    assert_eq!(net::xdp_if_any("left"), None);
    assert!(ask(net.left_index).is_err());
    let next = Router::start(options("engine-b", "left", Place::Xdp)).unwrap();
    let program = net::xdp("left");
    drop(engine);
    assert_eq!(net::xdp_if_any("left"), Some(program), "what the next one has put there is not the first one's");
    drop(next);
}

#[test]
fn what_a_router_of_another_name_has_kept_is_taken_over_and_nothing_of_it_stays() {
    let Some(net) = network() else { return };
    let namespace = std::fs::metadata("/proc/thread-self/ns/net").unwrap().ino();
    let folder = PathBuf::from(format!("/sys/fs/bpf/another_2ename-{namespace}"));
    let killed = Engine::load(&Config { pins: Some(folder.clone()), ..Config::default() }).unwrap();
    for (name, index) in [("left", net.left_index), ("right", net.right_index)] {
        killed.set_device(index, &net::device(name)).unwrap();
        killed.attach(index, How::Xdp).unwrap();
    }
    let program = net::xdp("left");
    // Nothing of it is called any more, as if it had been killed; and its descriptors keep nothing from being taken over.
    std::mem::forget(killed);
    let router = Running::start(options("heir", "left", Place::Xdp));
    // It may have beaten a moment ago.
    becomes("its place is taken", || off(&router.status(), "left").is_none());
    assert_ne!(net::xdp("left"), program);
    assert_eq!(net::xdp_if_any("right"), None, "nobody asks for it any more");
    assert!(!folder.exists(), "what was kept is kept still");
    drop(router);
    assert_eq!(net::xdp_if_any("left"), None);
}
