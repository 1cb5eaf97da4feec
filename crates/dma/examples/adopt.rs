//! What it costs to adopt memory, and what it brings: stores of another process beside `process_vm_writev`.

use millrace_dma::{Adopter, Piece, Scope};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::hint::black_box;
use std::time::Instant;

const COPIED: usize = 1 << 20;

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Memory of the program, written once.
fn map(len: usize) -> Result<*mut c_void, Box<dyn std::error::Error>> {
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: fresh addresses, filled to their end.
    unsafe {
        let at = mmap_anonymous(core::ptr::null_mut(), len, rights, MapFlags::PRIVATE)?;
        at.cast::<u8>().write_bytes(1, len);
        Ok(at)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let adopter = Adopter::of_process()?;
    for len in [4096, 1 << 20, 64 << 20] {
        let (mut first, mut again, mut copy) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..9 {
            let at = map(len)?;
            let address = at.expose_provenance() as u64;
            let begin = Instant::now();
            assert_eq!(adopter.adopt(address, len as u64, Scope::Heap)?.shared(), len as u64);
            first.push(begin.elapsed().as_nanos() as f64);
            let begin = Instant::now();
            (0..1000).for_each(|_| drop(black_box(adopter.adopt(address, len as u64, Scope::Heap))));
            again.push(begin.elapsed().as_nanos() as f64 / 1e3);
            // SAFETY: made above.
            let bytes = unsafe { core::slice::from_raw_parts(at.cast::<u8>(), len) };
            let mut to = vec![1; len];
            let begin = Instant::now();
            to.copy_from_slice(bytes);
            copy.push(begin.elapsed().as_nanos() as f64);
            black_box(to);
            // SAFETY: as above; not used any more.
            unsafe { munmap(at, len)? };
        }
        let (first, again, copy) = (median(first), median(again), median(copy));
        let kib = len >> 10;
        println!(
            "{kib:>6} KiB: adopted first in {:.1} us, known again in {again:.0} ns; memcpy {:.1} us",
            first / 1e3,
            copy / 1e3
        );
    }
    let at = map(COPIED)?;
    let adoption = adopter.adopt(at.expose_provenance() as u64, COPIED as u64, Scope::Mappings)?;
    in_child(|| other_process(&adoption.pieces[0]))?;
    println!("{:?}", adopter.counters());
    Ok(())
}

/// What another process does with the file that it was given: it stores, and beside it asks the system to.
fn other_process(piece: &Piece) -> Result<(), Box<dyn std::error::Error>> {
    let parent = rustix::process::getppid().ok_or("no parent")?;
    let from = vec![2_u8; COPIED];
    let file = rustix::io::fcntl_dupfd_cloexec(piece.file.fd(), 3)?;
    let theirs = mapped(&file, piece)?;
    let stores = median((0..200).map(|_| timed(|| theirs.copy_from_slice(black_box(&from)))).collect());
    let local = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: COPIED };
    let at = core::ptr::with_exposed_provenance_mut(piece.first as usize);
    let remote = libc::iovec { iov_base: at, iov_len: COPIED };
    let write = || {
        // SAFETY: one vector each; the system checks the addresses of the other process.
        let moved = unsafe { libc::process_vm_writev(parent.as_raw_pid(), &local, 1, &remote, 1, 0) };
        assert_eq!(moved, COPIED as isize);
    };
    let system = median((0..200).map(|_| timed(write)).collect());
    let speed = |time: f64| COPIED as f64 / time;
    println!(
        "1 MiB into another process: stores {:.1} GB/s, process_vm_writev {:.1} GB/s: {:.1} times",
        speed(stores),
        speed(system),
        system / stores
    );
    Ok(())
}

fn timed(act: impl FnOnce()) -> f64 {
    let begin = Instant::now();
    act();
    begin.elapsed().as_nanos() as f64
}

fn mapped(file: &rustix::fd::OwnedFd, piece: &Piece) -> Result<&'static mut [u8], Box<dyn std::error::Error>> {
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: fresh addresses, of a file that cannot shrink; the owner of the memory only looks on.
    unsafe {
        let at = rustix::mm::mmap(core::ptr::null_mut(), COPIED, rights, MapFlags::SHARED, file, piece.offset)?;
        Ok(core::slice::from_raw_parts_mut(at.cast(), COPIED))
    }
}

/// Runs something in a child, and waits for it.
fn in_child(act: impl FnOnce() -> Result<(), Box<dyn std::error::Error>>) -> Result<(), Box<dyn std::error::Error>> {
    // SAFETY: the threads of this program wait for requests and events, and hold no lock of the library.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let outcome = act().map_err(|error| eprintln!("{error}"));
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(outcome.is_err())) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    unsafe { libc::waitpid(child, &mut status, 0) };
    if status == 0 { Ok(()) } else { Err("the child failed".into()) }
}
