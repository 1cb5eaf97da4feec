//! What it costs to reach memory by a key, beside `memcpy`, and to register it, beside `mlock`.

use millrace_rdma::memory::{Asker, Limits, Memory, Regions, Source};
use millrace_rdma::number::Qpn;
use millrace_rdma::work::Access;
use std::hint::black_box;
use std::time::Instant;

/// The median of some runs, in nanoseconds for one of `count`.
fn median(count: usize, mut act: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..9)
        .map(|_| {
            let begin = Instant::now();
            (0..count).for_each(|_| act());
            begin.elapsed().as_nanos() as f64 / count as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    accesses()?;
    large_copies()?;
    registration()
}

fn own(bytes: &mut [u8]) -> Source {
    Source::Own { address: bytes.as_mut_ptr().expose_provenance() as u64, len: bytes.len() as u64 }
}

fn access() -> Access {
    Access::LOCAL_WRITE.with(Access::REMOTE_WRITE).with(Access::REMOTE_READ).with(Access::REMOTE_ATOMIC)
}

fn engine(limits: Limits) -> Result<(Regions, Asker), Box<dyn std::error::Error>> {
    let mut regions = Regions::new(limits)?;
    let domain = regions.allocate_domain()?;
    Ok((regions, Asker { domain, qpn: Qpn::new(2) }))
}

fn accesses() -> Result<(), Box<dyn std::error::Error>> {
    let (mut regions, asker) = engine(Limits::default())?;
    let mut memory = vec![0_u8; 1 << 20];
    let address = memory.as_mut_ptr().expose_provenance() as u64;
    let region = regions.register(asker.domain, own(&mut memory), None, access())?;
    println!("one region of 1 MiB, {:?}", region.way);
    for len in [8, 64, 4096] {
        let (from, mut to) = (vec![1_u8; len], vec![0_u8; len]);
        let plain = median(200_000, || black_box(&mut to).copy_from_slice(black_box(&from)));
        let write = median(200_000, || regions.write(asker, region.rkey, black_box(address), &from).unwrap());
        let read = median(200_000, || regions.read(asker, region.rkey, black_box(address), &mut to).unwrap());
        println!("{len:>5} bytes: memcpy {plain:6.1} ns, checked write {write:6.1} ns, checked read {read:6.1} ns");
    }
    let add = median(200_000, || assert!(regions.fetch_add(asker, region.rkey, black_box(address), 1).is_ok()));
    println!("fetch and add {add:.1} ns");
    Ok(())
}

fn large_copies() -> Result<(), Box<dyn std::error::Error>> {
    for (size, what) in [(1_usize << 20, "in cache"), (8 << 20, ""), (32 << 20, ""), (256 << 20, "out of cache")] {
        let mut memory = vec![1_u8; size];
        let from = vec![2_u8; size];
        let address = memory.as_mut_ptr().expose_provenance() as u64;
        let mut speeds = Vec::new();
        for around_from in [usize::MAX, 0] {
            let (mut regions, asker) = engine(Limits { around_from, ..Limits::default() })?;
            let region = regions.register(asker.domain, own(&mut memory), None, access())?;
            let time = median(1, || regions.write(asker, region.rkey, address, &from).unwrap());
            speeds.push(size as f64 / time);
        }
        let plain = size as f64 / median(1, || black_box(&mut memory).copy_from_slice(black_box(&from)));
        let mib = size >> 20;
        println!(
            "{mib:>4} MiB {what}: memcpy {plain:.1} GB/s, write {:.1}, around the caches {:.1}",
            speeds[0], speeds[1]
        );
    }
    Ok(())
}

fn registration() -> Result<(), Box<dyn std::error::Error>> {
    let (mut regions, asker) = engine(Limits::default())?;
    for len in [4096_usize, 1 << 20] {
        let mut firsts = Vec::new();
        for _ in 0..9 {
            // Of the system, so that nobody has watched it before.
            let mut fresh = vec![1_u8; len.max(40 << 20)];
            let begin = Instant::now();
            let region = regions.register(asker.domain, own(&mut fresh[..len]), None, access())?;
            firsts.push(begin.elapsed().as_nanos() as f64);
            regions.deregister(region.lkey)?;
        }
        firsts.sort_by(f64::total_cmp);
        let (mut memory, from) = (vec![1_u8; len], vec![2_u8; len]);
        let again = median(1000, || {
            let region = regions.register(asker.domain, own(&mut memory), None, access()).unwrap();
            regions.deregister(region.lkey).unwrap();
        });
        let copy = median(100, || black_box(&mut memory).copy_from_slice(black_box(&from)));
        let lock = median(100, || lock_and_unlock(&mut memory));
        println!(
            "{:>4} KiB: registered first {:.2} us, again (and given back) {:.2} us; mlock and munlock {:.2} us, memcpy {:.2} us",
            len >> 10,
            firsts[4] / 1e3,
            again / 1e3,
            lock / 1e3,
            copy / 1e3
        );
    }
    println!("keys do not come again for {:?} uses of a slot (regions, windows)", regions.key_lifetimes());
    println!("{:?}\n{:?}", regions.watched(), regions.counters());
    Ok(())
}

fn lock_and_unlock(memory: &mut [u8]) {
    // SAFETY: changes where the pages of our own memory may be, not what they hold.
    unsafe {
        libc::mlock(memory.as_ptr().cast(), memory.len());
        libc::munlock(memory.as_ptr().cast(), memory.len());
    }
}
