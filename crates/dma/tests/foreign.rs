//! Memory of a peer that takes it away while it is in use.

use millrace_dma::{ForeignRegion, Ordering, RegionError, foreign_cuts};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

fn memfd(len: u64) -> rustix::fd::OwnedFd {
    let fd = memfd_create("peer", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, len).unwrap();
    fd
}

#[test]
fn a_file_that_shrinks_reads_as_zeros_and_says_so() {
    let fd = memfd(64 << 10);
    let region = ForeignRegion::map(&fd, 4096, 32 << 10).unwrap();
    let other = ForeignRegion::map(memfd(8192), 0, 8192).unwrap();
    let word = region.window().word64(16 << 10).unwrap();
    word.store(5, Ordering::Relaxed);
    other.window().word64(0).unwrap().store(6, Ordering::Relaxed);
    assert!(!region.was_cut());
    let before = foreign_cuts();
    ftruncate(&fd, 4096).unwrap();
    assert_eq!(word.load(Ordering::Relaxed), 0);
    word.store(7, Ordering::Relaxed);
    assert_eq!(word.load(Ordering::Relaxed), 7, "our own memory from now on");
    let mut bytes = [1; 64];
    assert_eq!(region.window().span(0, 64).unwrap().read_into(&mut bytes), 64);
    assert_eq!(bytes, [0; 64]);
    assert!(region.was_cut() && !other.was_cut());
    assert!(foreign_cuts() > before);
    assert_eq!(other.window().word64(0).unwrap().load(Ordering::Relaxed), 6);
    drop((region, word));
    let again = ForeignRegion::map(memfd(8192), 0, 8192).unwrap();
    assert!(!again.was_cut(), "a guard that is used again begins anew");
}

#[test]
fn what_lies_before_the_offset_takes_no_addresses() {
    // Of the 2^47 bytes that a process has; it takes no memory.
    const LEN: u64 = 1 << 46;
    let fd = memfd(LEN);
    let regions: Vec<_> =
        (1..=16_u64).map(|page| ForeignRegion::map(&fd, LEN - page * 4096 + 8, 4000).unwrap()).collect();
    for (number, region) in (0..).zip(&regions) {
        assert_eq!((region.mapped(), region.window().len()), (4096, 4000));
        region.window().word64(0).unwrap().store(number, Ordering::Relaxed);
    }
    let again = ForeignRegion::map(&fd, LEN - 16 * 4096, 16 * 4096).unwrap();
    for (number, region) in (0..).zip(&regions) {
        let place = (15 - number as usize) * 4096 + 8;
        assert_eq!(again.window().word64(place).unwrap().load(Ordering::Relaxed), number);
        assert_eq!(region.window().word64(0).unwrap().load(Ordering::Relaxed), number);
    }
}

#[test]
fn many_threads_may_meet_the_end_at_once() {
    for _ in 0..50 {
        let fd = memfd(1 << 20);
        let region = ForeignRegion::map(&fd, 0, 1 << 20).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let window = region.window().clone();
                scope.spawn(move || {
                    for page in 0..256 {
                        let word = window.word64((page * 7 + thread * 64) % 256 * 4096).unwrap();
                        word.store(word.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                    }
                });
            }
            ftruncate(&fd, 0).unwrap();
        });
        // Whether anybody came too late is a matter of chance; afterwards it is not.
        region.window().word64(0).unwrap().load(Ordering::Relaxed);
        assert!(region.was_cut());
    }
}

#[test]
fn what_cannot_be_guarded_is_refused() {
    let refused = |fd, offset, len| ForeignRegion::map(fd, offset, len).err().unwrap();
    let small = refused(memfd(8192), 4096, 4097);
    assert!(matches!(small, RegionError::TooSmall { has: 8192, needs: 8193 }), "{small}");
    assert!(matches!(refused(memfd(8192), u64::MAX, 4096), RegionError::Size(4096)));
    assert!(matches!(refused(memfd(8192), 0, 0), RegionError::Size(0)));
    assert!(matches!(refused(rustix::pipe::pipe().unwrap().0, 0, 1), RegionError::NotInMemory));
}

/// A bus error that is none of ours still ends the process: one of the test's own.
#[test]
fn any_other_bus_error_still_ends_the_process() {
    const ROLE: &str = "MILLRACE_TEST_BUS_ERROR";
    if std::env::var_os(ROLE).is_some() {
        let _ours = ForeignRegion::map(memfd(4096), 0, 4096).unwrap();
        // The standard library's handler, which is the one before ours, answers the first by removing itself; a real access
        // would then fault again.
        for _ in 0..100 {
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::BUS).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        std::process::exit(0);
    }
    let this = std::env::current_exe().unwrap();
    let test = "any_other_bus_error_still_ends_the_process";
    let status = Command::new(this).args(["--exact", test, "--nocapture"]).env(ROLE, "1").output().unwrap().status;
    assert_eq!(status.signal(), Some(7), "{status:?}");
}
