//! A machine that has no thread left for a while: what guests give back, and what is left of them, waits for one, and is not forgotten. Alone in
//! its program, because it takes threads from it.

mod running;

use millrace_split::{Access, Backend, Config, Door, Endpoint, Frontend, Limits, PAGE, Report, memory};
use running::until;
use rustix::process::{Resource, Rlimit, Uid, getrlimit, setrlimit};
use rustix::thread::set_thread_res_uid;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A user who has no programs, and none of the rights of root.
const NOBODY: u32 = 65_533;

/// The calling thread can start no others, until it is said otherwise.
fn can_start_threads(can: bool) {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nproc);
    if can {
        setrlimit(Resource::Nproc, Rlimit { current: maximum, maximum }).unwrap();
        let _ = set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT);
    } else {
        // Root may have as many as it likes: this thread is no root meanwhile.
        let nobody = Uid::from_raw(NOBODY);
        let _ = set_thread_res_uid(nobody, nobody, Uid::ROOT);
        setrlimit(Resource::Nproc, Rlimit { current: Some(0), maximum }).unwrap();
    }
    let started = std::thread::Builder::new().spawn(|| ());
    assert_eq!(started.is_ok(), can);
}

/// Mappings of memory that programs have brought.
fn mapped() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("/memfd:")).count()
}

fn open(path: &Path) -> Endpoint {
    Endpoint::open(&Config { place: path.to_str().unwrap().to_owned(), depth: 64 }).unwrap()
}

#[test]
fn what_is_given_back_and_what_is_left_wait_for_a_thread() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("split.sock");
    let door: Box<dyn Door> = Box::new(memory::MemoryDoor::at(path.clone(), 0).unwrap());
    let [may_not, can_not, stop, has_left] = [(); 4].map(|()| AtomicBool::new(false));
    let is = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut backend = Backend::new(Limits::default(), vec![door]);
            // On the thread of the backend, at each of its turns.
            let turn = || {
                if is(&may_not) != is(&can_not) {
                    can_start_threads(is(&can_not));
                    can_not.store(!is(&can_not), Ordering::Relaxed);
                }
                is(&stop)
            };
            backend.run(&turn, |report| has_left.store(matches!(report, Report::Left { .. }), Ordering::Relaxed));
        });
        let _stop = AtTheEnd([&stop, &may_not]);
        let (mut gives, ends) = (Frontend::call_at(path.to_str().unwrap()).unwrap(), open(&path));
        let (at, memory) = gives.share(PAGE).unwrap();
        let left = ends.allocate(PAGE, Access::ALL).unwrap();
        assert!(mapped() > 0);
        may_not.store(true, Ordering::Relaxed);
        until("there are no threads", || is(&can_not));
        let giver = scope.spawn(move || gives.release(at).and_then(|()| gives.status().map(drop)));
        // It gives nothing back.
        drop((ends, left, memory));
        until("it has left", || is(&has_left));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!giver.is_finished(), "nothing can be unmapped");
        may_not.store(false, Ordering::Relaxed);
        until("there are threads", || !is(&can_not));
        giver.join().unwrap().unwrap();
        until("what they had is unmapped", || mapped() == 0);
        let next = open(&path);
        assert!(next.status().is_ok(), "who comes is let in again");
    });
}

/// Has the backend end, with threads, also when the test fails.
struct AtTheEnd<'s>([&'s AtomicBool; 2]);

impl Drop for AtTheEnd<'_> {
    fn drop(&mut self) {
        let [stop, may_not] = self.0;
        may_not.store(false, Ordering::Relaxed);
        stop.store(true, Ordering::Relaxed);
    }
}
