//! Whoever takes away memory that he has registered has the engine wait.

use super::*;
use rustix::fs::{FallocateFlags, fallocate};

/// Bytes of which a hole takes a tenth of a second or so.
const LARGE: usize = 1 << 29;
const STEP: usize = 1 << 20;
const HOLE: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);

/// Registers all of a memory.
fn register(end: &End, memory: &Region) -> Key {
    let bytes = Bytes { parts: part(0, memory.len() as u64), skip: 0, len: memory.len() as u64, base: 0 };
    let asked = Request::Register(Register { domain: end.domain, access: ALL, bytes });
    let (mut words, _) = end.client.call(&asked, &[memory.fd().unwrap()]).unwrap();
    Key::new(words.word().unwrap() as u32)
}

/// Waits until something is so, which it may not be at once.
fn comes(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < until, "{what}: not in a minute");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn whoever_takes_memory_away_again_and_again_is_put_out_and_nobody_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("card.rdma");
    let mut server = Server::listen(path.clone()).unwrap();
    let user = Arc::new(AtomicU32::new(0));
    let asked = user.clone();
    let may = move |_: BorrowedFd<'_>| {
        let uid = asked.load(Ordering::Relaxed);
        Some(Caller { pid: 0, uid, is_limited: uid != 0 })
    };
    start_for(&mut server, Box::new(may));
    let [mut a, b] = two(&path);
    user.store(1000, Ordering::Relaxed);
    let [mut eve, other] = two(&path);
    let memory = Region::allocate(LARGE, Pages::Ordinary).unwrap();
    let key = register(&other, &memory);
    let until = Instant::now() + Duration::from_secs(60);
    let is_out = |client: &Client| {
        let gone = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut [PollFd::new(&client.fd(), PollFlags::RDHUP)], Some(&gone)), Ok(1))
    };
    let (mut punched, ones) = (0, vec![1; STEP]);
    while !is_out(&other.client) && !is_out(&eve.client) {
        assert!(Instant::now() < until, "{punched} holes");
        // All of it is there.
        for at in (0..LARGE).step_by(STEP) {
            memory.window().span_mut(at, STEP).unwrap().write_from(&ones);
        }
        std::thread::scope(|scope| {
            let hole = scope.spawn(|| fallocate(memory.fd().unwrap(), HOLE, 0, LARGE as u64));
            for at in (0..LARGE as u64).step_by(STEP).cycle().take_while(|_| !hole.is_finished()) {
                if !eve.try_post(Operation::Write { address: at, rkey: key, immediate: None }) {
                    eve.program.poll(eve.queue, &mut [Completion::default(); 64]).unwrap();
                }
            }
            hole.join().unwrap().unwrap();
        });
        punched += 1;
        a.post(Operation::Write { address: 1 << 20, rkey: b.key, immediate: None });
        assert_eq!(a.completion().status, Status::Success);
    }
    // What they have had is unmapped first: of so much that takes a while.
    comes("both are of one user", || is_out(&eve.client) && is_out(&other.client));
    comes("he is turned away", || {
        let again = Client::connect(&path).unwrap();
        matches!(again.call(&Request::Hello, &[]), Err(CallError::Refused(13)))
    });
    user.store(1001, Ordering::Relaxed);
    End::new(&path);
    a.post(Operation::Write { address: 1 << 20, rkey: b.key, immediate: None });
    assert_eq!(a.completion().status, Status::Success);
    assert!(!is_out(&a.client) && !is_out(&b.client));
}
