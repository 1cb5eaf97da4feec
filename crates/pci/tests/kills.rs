//! Machines that are killed, with SIGKILL and at any moment, as processes of their own: nothing of them is left, and nobody else notices.
//! Not in the program of the other tests, because this one counts what its process has.

#[expect(dead_code, reason = "shared with the other tests")]
mod driver;
#[expect(dead_code, reason = "shared with the other tests")]
mod machine;

use driver::{exchange, pair};
use machine::{Machine, Served, wait_until};
use millrace_abi::control::QueueState;
use millrace_abi::queue::QueueId;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Where the machine that is to be killed finds its function.
const FUNCTION: &str = "MILLRACE_TEST_FUNCTION";
/// How many are killed, if not these.
const KILLS: &str = "MILLRACE_TEST_KILLS";
const USUAL_KILLS: u32 = 100;

#[test]
#[ignore = "the machine that the other test kills"]
fn machine() {
    let Some(path) = std::env::var_os(FUNCTION) else { return };
    let mut machine = ready(Path::new(&path));
    loop {
        let (mut tx, mut rx) = pair(&mut machine, 0);
        for _ in 0..10 {
            exchange(&mut machine, &mut tx, &mut rx, 50);
        }
        machine.client.reset().unwrap();
        machine.set_master(true);
    }
}

/// With memory, and as a bus master.
fn ready(path: &Path) -> Machine {
    let mut machine = Machine::at(path);
    machine.map_memory();
    machine.set_master(true);
    machine
}

fn launch(served: &Served) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "machine"]).env(FUNCTION, served.path(0));
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Descriptors of this process, and how often memory of files is mapped.
fn holdings() -> (usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    (std::fs::read_dir("/proc/self/fd").unwrap().count(), maps.lines().filter(|line| line.contains("memfd:")).count())
}

#[test]
fn machines_are_killed_at_any_moment() {
    let kills = std::env::var(KILLS).map_or(USUAL_KILLS, |kills| kills.parse().unwrap());
    let served = Served::new("queues=2", 2);
    let (ends, exchanged) = (AtomicBool::new(false), AtomicU64::new(0));
    let beside = served.path(1);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut machine = ready(&beside);
            let (mut tx, mut rx) = pair(&mut machine, 0);
            while !ends.load(Ordering::Relaxed) {
                // Every frame, in order, whole.
                exchange(&mut machine, &mut tx, &mut rx, 50);
                exchanged.fetch_add(1, Ordering::Relaxed);
            }
        });
        wait_until("the bystander", || exchanged.load(Ordering::Relaxed) > 0);
        let state = |queue| served.driver.card().state(queue);
        let is_idle = || [QueueId::rx(0), QueueId::tx(0)].into_iter().all(|id| state(id) != Some(QueueState::Running));
        let before = holdings();
        let mut random: u64 = 88_172_645_463_325_252;
        for round in 0..kills {
            let mut child = launch(&served);
            // Half of them in the midst of traffic, the others wherever they are by then.
            if round % 2 == 0 {
                wait_until("a queue that runs", || state(QueueId::tx(0)) == Some(QueueState::Running));
            }
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            std::thread::sleep(Duration::from_micros(random % 30_000));
            child.kill().unwrap();
            child.wait().unwrap();
            wait_until("queues that stand still", is_idle);
        }
        // The next finds it as the first did.
        let mut machine = Machine::new(&served, 0);
        let (mut tx, mut rx) = pair(&mut machine, 0);
        exchange(&mut machine, &mut tx, &mut rx, 50);
        drop(machine);
        wait_until("nothing that is left", || is_idle() && holdings() == before);
        let seen = exchanged.load(Ordering::Relaxed);
        wait_until("a bystander that goes on", || exchanged.load(Ordering::Relaxed) > seen);
        ends.store(true, Ordering::Relaxed);
    });
    assert!(served.driver.card().stats().queues.iter().any(|queue| queue.queue == QueueId::tx(0) && queue.passed > 0));
}
