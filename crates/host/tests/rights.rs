//! What a program of another user may do with a card: what was granted, as much as its quota, and nothing to others. Taken
//! by real processes of another user, which takes root; otherwise only what one user's programs may do to each other.

use crate::common::*;
use millrace::{Device, Error, ErrorCode, Joiners, Laggard, Locked, Mode, QueueId, Region, Sharing};
use millrace_abi::access::{Access, Grant, Names, Quota, Resource};
use millrace_abi::register::map::{Component, dma_base};
use millrace_abi::register::medusa as m;
use millrace_card::Card;
use millrace_driver::{Client, ClientError, Driver, Policy};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

/// Users who need not exist.
const BOB: u32 = 64_001;
const EVE: u32 = 64_002;

/// A card to which anybody can connect, with grants and a quota.
pub fn guarded() {
    let (mut access, mut quota) = (Access::default(), Quota::default());
    for text in argument("GRANTS").split_whitespace() {
        access.add(Grant::parse(text, &Names::default()).unwrap()).unwrap();
    }
    let limits = argument("QUOTA");
    if !limits.is_empty() {
        quota.set(&limits).unwrap();
    }
    let policy = Policy { access, quota, names: Names::default() };
    let path = argument("SOCKET");
    let driver = Driver::listen_for(Card::new(&options(&argument("OPTIONS"))).unwrap(), Path::new(&path), policy);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
    say("ready");
    while !listen().is_empty() {}
    drop(driver);
}

/// A program that does what it is told, in lines, and says what came of it: `done`, or the kind of refusal and its text.
pub fn other() {
    let device = match Device::open(&format!("unix:{}", argument("SOCKET"))) {
        Ok(device) => device,
        Err(error) => return say(&outcome(Err(error))),
    };
    say("done");
    let (mut queues, mut mapped): (Vec<(millrace::RxQueue, millrace::TxQueue)>, Vec<millrace::Mapping>) =
        Default::default();
    let mut readers = Vec::new();
    loop {
        let line = listen();
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<u32>().unwrap();
        let result = match words[0] {
            "pair" => device.rx(number(1)).open().and_then(|rx| {
                let tx = device.tx(number(1)).open()?;
                queues.push((rx.start()?, tx.start()?));
                Ok(())
            }),
            "traffic" => {
                let (rx, tx) = &mut queues[0];
                send_all(tx, 0, 50, 100);
                receive_all(rx, 0, 50);
                Ok(())
            }
            "join" => {
                let sharing = Sharing::Shared(words[2].parse().unwrap());
                let opened = device.rx(number(1)).sharing(sharing).open();
                opened.and_then(|rx| rx.start()).map(|rx| readers.push(rx))
            }
            "read" => device.read32(number(1)).map(drop),
            "write" => device.write32(number(1), 0),
            "clock" => device.clock().and_then(|clock| clock.now().map_err(Error::from).and(clock.step(1))),
            "plug" => device.plug(0, "null"),
            "move" => device.move_queue(QueueId::rx(0), 0),
            "lock" => device.try_lock(words[1], 1).map(drop),
            "unlock" => device.unlock(words[1], 1),
            "end" => device.end_client(1),
            "endlocks" => device.end_locks(Locked::Client(1)),
            "map" => {
                let region = Region::allocate((number(1) as usize) << 30, millrace::Pages::Ordinary).unwrap();
                device.map(&region, true, None).map(|mapping| mapped.push(mapping))
            }
            _ => return,
        };
        say(&outcome(result));
    }
}

fn outcome(result: Result<(), Error>) -> String {
    match result {
        Ok(()) => "done".to_owned(),
        Err(Error::Client(ClientError::Refused { code, text })) => format!("{code:?} {text}"),
        Err(error) => format!("failed {error}"),
    }
}

fn card(options: &str, grants: &str, quota: &str) -> Daemon {
    Daemon::start_with("guarded", &[("OPTIONS", options), ("GRANTS", grants), ("QUOTA", quota)])
}

/// A program of another user, and what its connecting came to; `None` where this process may not make one.
fn program(daemon: &Daemon, uid: u32) -> Option<(Process, String)> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: programs of another user take root");
        return None;
    }
    let mut process = Process::start_as(uid, daemon.folder(), "other", &[("SOCKET", daemon.socket())]);
    let said = process.hear().unwrap();
    Some((process, said))
}

fn ask(process: &mut Process, line: &str) -> String {
    process.tell(line);
    process.hear().unwrap_or_else(|| panic!("no answer to {line}"))
}

fn is_denied(said: &str, right: &str) {
    assert!(said.starts_with("Denied") && said.contains(&format!("--grant user:{BOB}={right}")), "{right}: {said}");
}

fn code(result: Result<impl Sized, Error>) -> ErrorCode {
    match result.err().expect("refused") {
        Error::Client(error) => error.code().expect("by the driver"),
        other => panic!("{other}"),
    }
}

#[test]
fn another_user_gets_two_queues_and_nothing_else() {
    let daemon = card("queues=2,spin=20", &format!("user:{BOB}=use:rx1,tx1"), "");
    let mut bystander = Bystander::start(daemon.device(), 0);
    let Some((mut bob, said)) = program(&daemon, BOB) else { return };
    assert_eq!(said, "done");
    assert_eq!(ask(&mut bob, "pair 1"), "done");
    assert_eq!(ask(&mut bob, "traffic"), "done");
    is_denied(&ask(&mut bob, "pair 0"), "use:rx0");
    let rxmac = Component::RxMac(0).base().unwrap();
    assert_eq!(ask(&mut bob, &format!("read {rxmac}")), "done", "who uses a queue may look");
    is_denied(&ask(&mut bob, &format!("write {rxmac}")), "registers:rxmac0:write");
    is_denied(&ask(&mut bob, &format!("write {}", Component::Tsu.base().unwrap())), "registers:tsu:write");
    is_denied(&ask(&mut bob, &format!("write {}", dma_base(QueueId::rx(0)).unwrap())), "use:rx0");
    is_denied(&ask(&mut bob, &format!("write {}", Component::TxData(0).base().unwrap())), "use:tx0");
    is_denied(&ask(&mut bob, "plug"), "configure:ports");
    is_denied(&ask(&mut bob, "clock"), "configure:clock");
    is_denied(&ask(&mut bob, "move"), "configure:workers");
    is_denied(&ask(&mut bob, "lock /mac"), "registers:write");
    is_denied(&ask(&mut bob, "end"), "admin");
    is_denied(&ask(&mut bob, "endlocks"), "admin");
    assert_eq!(ask(&mut bob, &format!("write {}", dma_base(QueueId::tx(1)).unwrap() + 0x10)), "done", "its own");
    let device = daemon.device();
    assert_eq!(device.stats().unwrap().ports[0].spec, "loopback");
    bystander.finish();
    check_equations(&device);
}

#[test]
fn who_was_granted_nothing_is_told_how_it_would_be_and_turned_away() {
    let daemon = card("queues=1", &format!("user:{BOB}=use:rx0,tx0"), "");
    let Some((_eve, said)) = program(&daemon, EVE) else { return };
    assert!(said.starts_with("Denied") && said.contains(&format!("--grant user:{EVE}=")), "{said}");
    assert!(daemon.device().clients().unwrap().iter().all(|client| client.uid != EVE));
}

#[test]
fn the_registers_of_a_queue_belong_to_whoever_holds_it() {
    let daemon = Daemon::start("queues=4,engine=calypte@3,spin=20");
    let mut bystander = Bystander::start(daemon.device(), 0);
    // Of the same user, who otherwise may do everything.
    let other = daemon.device();
    for queue in [QueueId::rx(0), QueueId::tx(0)] {
        let base = dma_base(queue).unwrap();
        for register in [m::CONTROL, m::SDP, m::DESC_BASE] {
            assert_eq!(code(other.write32(register.at(base), 0)), ErrorCode::Denied, "{queue}");
        }
        // Also as a part of a longer write, before which nothing is written.
        assert_eq!(code(other.write(base - 4, &[0; 12])), ErrorCode::Denied);
        other.write32(m::COUNTER_COMMAND.at(base), m::COUNTERS_STROBE).unwrap();
    }
    bystander.goes_on();
    // The holder itself, and whoever comes after it.
    let one = daemon.device();
    let held = one.tx(1).open().unwrap();
    let timeout = m::TIMEOUT.at(dma_base(QueueId::tx(1)).unwrap());
    one.write32(timeout, 5).unwrap();
    assert_eq!(code(other.write32(timeout, 6)), ErrorCode::Denied);
    held.close().unwrap();
    other.write32(timeout, 7).unwrap();
    assert_eq!(one.read32(timeout).unwrap(), 7);
    // One that several share is driven by the driver.
    let shared = one.rx(2).sharing(Sharing::Shared(Laggard::Drop)).open().unwrap().start().unwrap();
    for device in [&one, &other] {
        assert_eq!(code(device.write32(dma_base(QueueId::rx(2)).unwrap(), 0)), ErrorCode::Denied);
    }
    drop(shared);
    // The memory of a Calypte TX queue inside the card is the queue's.
    let calypte = one.tx(3).open().unwrap();
    for component in [Component::TxData(3), Component::TxHeaders(3)] {
        assert_eq!(code(other.write32(component.base().unwrap(), 1)), ErrorCode::Denied, "{component}");
        one.write32(component.base().unwrap(), 1).unwrap();
    }
    drop(calypte);
    bystander.finish();
    check_equations(&other);
}

#[test]
fn a_quota_is_per_user_and_leaves_the_others_theirs() {
    let daemon = card("queues=8,spin=20,buffers=128", "everyone=use:all", "queues=8,mapped=64G,connections=6");
    let Some((mut bob, said)) = program(&daemon, BOB) else { return };
    assert_eq!(said, "done");
    // A program gets half of what its user gets.
    assert_eq!([ask(&mut bob, "pair 0"), ask(&mut bob, "pair 1")], ["done", "done"]);
    let said = ask(&mut bob, "pair 2");
    assert!(said.starts_with("Quota") && said.contains("4 of the 4 that one program of user 64001 gets"), "{said}");
    let (mut another, _) = program(&daemon, BOB).unwrap();
    assert_eq!([ask(&mut another, "pair 2"), ask(&mut another, "pair 3")], ["done", "done"]);
    let (mut third, _) = program(&daemon, BOB).unwrap();
    let said = ask(&mut third, "pair 4");
    assert!(said.starts_with("Quota") && said.contains("has 8 of 8") && said.contains("--quota queues="), "{said}");
    // Memory that is never touched costs addresses all the same.
    assert_eq!(ask(&mut bob, "map 20"), "done");
    assert!(ask(&mut bob, "map 20").starts_with("Quota"));
    // Others have theirs, and the owner what there is.
    let (mut eve, _) = program(&daemon, EVE).unwrap();
    assert_eq!(ask(&mut eve, "map 30"), "done");
    assert_eq!(ask(&mut eve, "pair 5"), "done");
    let device = daemon.device();
    drop(device.rx(6).open().unwrap());
    let uses = device.usage().unwrap();
    let of = |uid: u32| uses.iter().find(|user| user.uid == uid).unwrap();
    assert_eq!((of(BOB).used.of(Resource::Queues), of(BOB).limits.of(Resource::Queues)), (8, 8));
    assert_eq!(of(EVE).used.of(Resource::Mapped), 30 << 30);
    // What ends is given back.
    bob.kill();
    within(PATIENCE, || match ask(&mut third, "pair 4") {
        said if said == "done" => Ok(()),
        said => Err(said),
    });
    eve.kill();
    let gone = || device.usage().unwrap().iter().all(|user| user.uid != EVE);
    within(PATIENCE, || if gone() { Ok(()) } else { Err("eve still has something") });
}

#[test]
fn the_kicks_of_a_program_are_paid_for() {
    let daemon = card("queues=4,workers=4,spin=20,buffers=128", "everyone=use:all", "fds=8");
    let Some((mut bob, said)) = program(&daemon, BOB) else { return };
    // Two fds for the connection, and one for each worker that serves a queue of it.
    assert_eq!([said, ask(&mut bob, "pair 0"), ask(&mut bob, "pair 1")], ["done"; 3]);
    let said = ask(&mut bob, "pair 2");
    assert!(said.starts_with("Quota") && said.contains("quota `fds`") && said.contains("has 4 of the 4"), "{said}");
    let device = daemon.device();
    let fds_of = |pid: u32| {
        let clients = device.clients().unwrap();
        clients.iter().find(|client| client.pid == pid).map(|client| client.used.of(Resource::Fds))
    };
    assert_eq!(fds_of(bob.pid()), Some(4));
    let (mut another, _) = program(&daemon, BOB).unwrap();
    assert_eq!([ask(&mut another, "pair 2"), ask(&mut another, "pair 3")], ["done", "done"]);
    let (_third, said) = program(&daemon, BOB).unwrap();
    // Refused as it connects: whether by a reply or by the last words before the end.
    assert!(said.contains("quota `fds`") && said.contains("has 8 of 8"), "{said}");
    // They are given back with the connection.
    bob.kill();
    within(PATIENCE, || match program(&daemon, BOB).unwrap() {
        (_, said) if said == "done" => Ok(()),
        (_, said) => Err(said),
    });
}

#[test]
fn a_program_of_the_owner_cannot_take_all_addresses_of_the_card() {
    let daemon = Daemon::start("queues=2,spin=20");
    let hog = daemon.device();
    let region = Region::allocate(4 << 40, millrace::Pages::Ordinary).unwrap();
    let mut mappings = Vec::new();
    let refused = loop {
        match hog.map(&region, false, None) {
            Ok(mapping) => mappings.push(mapping),
            Err(error) => break error.to_string(),
        }
        assert!(mappings.len() < 32, "{} TiB", mappings.len() * 4);
    };
    assert!(refused.contains("quota `mapped`"), "{refused}");
    // There is room for the queues of others, which it was that failed.
    drop((hog.rx(0).open().unwrap(), hog.tx(0).open().unwrap()));
    drop(mappings);
    within(PATIENCE, || hog.map(&region, false, None));
}

#[test]
fn a_stranger_cannot_join_a_queue_and_stop_it() {
    let daemon = card("queues=2,spin=20,buffers=128", "everyone=use:all", "");
    let Some((mut bob, _)) = program(&daemon, BOB) else { return };
    let device = daemon.device();
    let mut mine = rx(&device, 0, Mode::Direct, Sharing::Shared(Laggard::Block));
    let said = ask(&mut bob, "join 0 block");
    assert!(said.starts_with("Denied") && said.contains("--joiners block"), "{said}");
    // It sees every frame that it takes in time, and holds up nobody.
    assert_eq!(ask(&mut bob, "join 0 drop"), "done");
    let mut sender = tx(&device, 0, Mode::Direct, Sharing::Exclusive);
    for round in 0..20 {
        send_all(&mut sender, round * 50, round * 50 + 50, 100);
        receive_all(&mut mine, round * 50, round * 50 + 50);
    }
    // Another program of the same user may, unless the first opener says otherwise.
    drop(rx(&daemon.device(), 0, Mode::Direct, Sharing::Shared(Laggard::Block)));
    let only = |block, drop| Joiners { block, drop, evict: false };
    let share = Sharing::Shared(Laggard::Drop);
    let first = device.rx(1).sharing(share).joiners(only(true, false)).open().unwrap();
    assert_eq!(ask(&mut bob, "join 1 block"), "done");
    assert!(ask(&mut bob, "join 1 drop").starts_with("Denied"));
    drop(first);
    bob.kill();
    let first = within(PATIENCE, || device.rx(1).sharing(share).joiners(only(false, true)).open()).0;
    let again = daemon.device();
    assert_eq!(code(again.rx(1).sharing(Sharing::Shared(Laggard::Block)).open()), ErrorCode::Denied);
    drop(again.rx(1).sharing(share).open().unwrap());
    drop(first);
    check_equations(&device);
}

#[test]
fn locks_and_connections_can_be_seen_and_ended_by_an_administrator() {
    let daemon = Daemon::start("queues=1");
    let (admin, holder) = (daemon.device(), Client::connect(&daemon.path).unwrap());
    holder.lock("/mac", 0b11).unwrap();
    holder.lock("/tsu", 0b1).unwrap();
    let locks = admin.locks().unwrap();
    assert_eq!(locks.iter().map(|lock| lock.component.as_str()).collect::<Vec<_>>(), ["/mac", "/tsu"]);
    assert_eq!((locks[0].bits, locks[0].pid), (0b11, std::process::id()));
    let id = locks[0].client.unwrap();
    assert!(!admin.try_lock("/mac", 1).unwrap());
    admin.end_locks(Locked::Component("/mac".to_owned())).unwrap();
    assert!(admin.try_lock("/mac", 1).unwrap());
    assert_eq!(holder.unlock("/mac", 0b11).unwrap_err().code(), Some(ErrorCode::NotFound));
    assert_eq!(code(admin.end_locks(Locked::Component("/mac2".to_owned()))), ErrorCode::NotFound);
    admin.end_locks(Locked::Client(id)).unwrap();
    assert!(admin.try_lock("/tsu", 1).unwrap());
    // A lock of a queue that runs is seen, and stays as long as the queue.
    let queue = admin.rx(0).open().unwrap().start().unwrap();
    let locks = admin.locks().unwrap();
    let of_queue = locks.iter().find(|lock| lock.queue == Some(QueueId::rx(0))).unwrap();
    let path = of_queue.component.clone();
    assert_eq!(code(admin.end_locks(Locked::Component(path))), ErrorCode::NotFound);
    drop(queue);
    // A connection: its program is told, and not that the card is gone.
    let mine = admin.clients().unwrap();
    assert!(mine.len() == 2 && mine.iter().all(|client| client.rights == "admin"), "{mine:?}");
    admin.end_client(id).unwrap();
    let error = holder.stats().unwrap_err();
    assert!(error.code() == Some(ErrorCode::Ended) && error.to_string().contains("administrator"), "{error}");
    assert_eq!(code(admin.end_client(id)), ErrorCode::NotFound);
    assert_eq!(admin.clients().unwrap().len(), 1);
    admin.stats().unwrap();
}

#[test]
fn long_lists_come_in_parts() {
    let daemon = Daemon::start("queues=1");
    let device = daemon.device();
    let others: Vec<Client> = (0..40).map(|_| Client::connect(&daemon.path).unwrap()).collect();
    for (at, client) in others.iter().enumerate() {
        client.lock(&format!("/{}", "x".repeat(900 + at)), 1).unwrap();
    }
    let clients = device.clients().unwrap();
    assert!(clients.len() == 41 && clients.is_sorted_by_key(|client| client.id));
    let locks = device.locks().unwrap();
    assert!(locks.len() == 40 && locks.is_sorted_by_key(|lock| lock.component.len()));
    within(Duration::from_secs(60), || match device.clients().unwrap().len() {
        41 => Ok(()),
        other => Err(other),
    });
}
