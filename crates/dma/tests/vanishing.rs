//! Memory of the program that is not there any more when it is accessed.

use millrace_dma::{Pages, Place, PlaceError, Region, Vanished};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};
use std::ffi::c_void;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

const LEN: usize = 4 << 12;

fn map() -> *mut c_void {
    // SAFETY: fresh addresses.
    unsafe {
        mmap_anonymous(core::ptr::null_mut(), LEN, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE).unwrap()
    }
}

fn places(at: *mut c_void) -> [Place; 2] {
    let own = || Place::own(at.expose_provenance() as u64, LEN as u64, true).unwrap();
    [own(), own().by_system()]
}

#[test]
fn what_is_unmapped_is_refused() {
    let at = map();
    let [direct, system] = places(at);
    for place in [&direct, &system] {
        place.write(4090, b"hello, world", false).unwrap();
        let mut back = [0; 12];
        place.read(4090, &mut back).unwrap();
        assert_eq!(&back, b"hello, world");
    }
    assert_eq!(direct.fetch_add(8, 7), Ok(0));
    assert_eq!(system.fetch_add(8, 7), Err(Vanished), "no system call does that");
    // Only the pages in the middle: a copy from the front gets that far.
    // SAFETY: made above, and used by nobody else.
    unsafe { munmap(at.cast::<u8>().add(4096).cast(), 8192).unwrap() };
    for place in [&direct, &system] {
        for len in [1, 7, 8, 9, 33, 100, 300, 8000] {
            assert_eq!(place.write(4096 + 64, &vec![1; len], false), Err(Vanished), "{len}");
            assert_eq!(place.read(4096 + 64, &mut vec![0; len]), Err(Vanished), "{len}");
        }
        assert_eq!(place.write(64, &[1; 8192], true), Err(Vanished), "around the caches");
        assert_eq!(place.write(12288, &[1; 4096], false), Ok(()), "what is still there");
    }
    assert_eq!(direct.fetch_add(4096, 1), Err(Vanished));
    assert_eq!(direct.compare_swap(8192, 0, 1), Err(Vanished));
    let hole = Place::own(at.expose_provenance() as u64, LEN as u64, true);
    assert!(matches!(hole, Err(PlaceError::NotMapped { .. })), "a hole in the middle");
    // SAFETY: what is left of it.
    unsafe { munmap(at, LEN).unwrap() };
}

#[test]
fn rights_that_are_taken_away_are_missed() {
    let at = map();
    for place in &places(at) {
        place.write(0, &[7; 64], false).unwrap();
        // SAFETY: made above, and used by nobody else.
        let protect = |flags| unsafe { mprotect(at, LEN, flags).unwrap() };
        protect(MprotectFlags::READ);
        assert_eq!(place.write(0, &[8; 64], false), Err(Vanished));
        let mut back = [0; 64];
        assert_eq!(place.read(0, &mut back), Ok(()));
        assert_eq!(back, [7; 64]);
        let own = |writable| Place::own(at.expose_provenance() as u64, 64, writable);
        assert!(own(true).is_err() && own(false).is_ok());
        protect(MprotectFlags::empty());
        assert_eq!(place.read(0, &mut back), Err(Vanished));
        assert!(own(false).is_err());
        protect(MprotectFlags::READ | MprotectFlags::WRITE);
        assert_eq!(place.read(0, &mut back), Ok(()));
    }
    // SAFETY: as above.
    unsafe { munmap(at, LEN).unwrap() };
}

#[test]
fn a_file_that_shrinks_is_no_bus_error() {
    let fd = rustix::fs::memfd_create("shrinks", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, LEN as u64).unwrap();
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: fresh addresses.
    let at = unsafe { mmap(core::ptr::null_mut(), LEN, rights, MapFlags::SHARED, &fd, 0).unwrap() };
    let [direct, system] = places(at);
    rustix::fs::ftruncate(&fd, 4096).unwrap();
    for place in [&direct, &system] {
        assert_eq!(place.write(8192, &[1; 64], false), Err(Vanished));
        assert_eq!(place.write(0, &[1; 4096], false), Ok(()));
    }
    // SAFETY: made above, and used by nobody else.
    unsafe { munmap(at, LEN).unwrap() };
}

/// A fault of the program's own stays one, although our handler stands first.
#[test]
fn other_faults_end_the_program() {
    const CHILD: &str = "MILLRACE_TEST_FAULTS";
    if std::env::var_os(CHILD).is_some() {
        let region = Region::allocate(4096, Pages::Ordinary).unwrap();
        assert!(Place::own(region.window().slice(0, 1).unwrap().as_ptr().addr() as u64, 64, true).is_ok());
        // SAFETY: it is not; this is what the test is about.
        let _ = unsafe { core::ptr::without_provenance::<u8>(8).read_volatile() };
        unreachable!("address 8 could be read");
    }
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "other_faults_end_the_program"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    assert_eq!(child.status.signal(), Some(libc::SIGSEGV), "{child:?}");
}
