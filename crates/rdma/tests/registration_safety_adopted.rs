//! The same faults of registration caches where registered memory becomes shared memory in place; and what others are
//! told of it.

use millrace_dma::{Adopter, Pages, Region, Scope};
use millrace_rdma::memory::{Asker, Limits, Memory, Regions, RegisterError, Source, Way};
use millrace_rdma::number::{Key, Qpn};
use millrace_rdma::work::Access;

#[path = "registration_safety.rs"]
mod adopted;

fn regions() -> Option<Regions> {
    Adopter::of_process().map_err(|error| println!("skipped: {error}")).ok()?;
    Some(Regions::new(Limits { adopt: Some(Scope::Heap), ..Limits::default() }).unwrap())
}

#[test]
fn others_are_told_the_pieces_of_a_region() {
    let Some(mut regions) = regions() else { return };
    let domain = regions.allocate_domain().unwrap();
    let memory = vec![7_u8; 1 << 20].leak();
    let (address, len) = (memory.as_mut_ptr().expose_provenance() as u64, memory.len() as u64);
    let access = Access::LOCAL_WRITE.with(Access::REMOTE_WRITE);
    let region = regions.register(domain, Source::Own { address, len }, None, access).unwrap();
    assert_eq!(region.way, Way::Adopted);
    let reached = regions.reached(region.lkey).unwrap();
    assert!(reached.error.is_none() && reached.left.is_empty(), "{reached:?}");
    assert!(reached.shared() > len - 8192);
    assert_eq!(regions.list()[0].shared, reached.shared());
    // What a request writes is in the file, where somebody else would see it.
    let piece = &reached.pieces[0];
    let asker = Asker { domain, qpn: Qpn::new(3) };
    regions.write(asker, region.rkey, piece.first + 100, b"to be seen").unwrap();
    let mut bytes = [0; 10];
    assert_eq!(rustix::io::pread(piece.file.fd(), &mut bytes, piece.offset + 100), Ok(10));
    assert_eq!(&bytes, b"to be seen");
    rustix::io::pwrite(piece.file.fd(), b"to be read", piece.offset + 100).unwrap();
    assert_eq!(&memory[(piece.first - address) as usize + 100..][..10], b"to be read");
    assert!(matches!(regions.reached(Key::new(1)), Err(RegisterError::Key(_))));
}

#[test]
fn regions_that_share_pages_live_side_by_side() {
    let Some(mut regions) = regions() else { return };
    let domain = regions.allocate_domain().unwrap();
    let memory = vec![7_u8; 20 * 4096].leak();
    let first = (memory.as_mut_ptr().expose_provenance() as u64).next_multiple_of(4096);
    let asker = Asker { domain, qpn: Qpn::new(3) };
    let mut keys = Vec::new();
    // The page that two share is whole in neither of the first two, and is watched when the third would adopt it.
    for (from, len) in [(100, 3 * 4096), (3 * 4096 + 100, 3 * 4096), (0, 8 * 4096), (100, 7 * 4096)] {
        let source = Source::Own { address: first + from, len };
        let region = regions.register(domain, source, None, adopted::all()).unwrap();
        assert_eq!(region.way, Way::Adopted);
        keys.push((region, first + from));
        for (number, (region, address)) in keys.iter().enumerate() {
            regions.write(asker, region.rkey, *address, &[number as u8; 12_000]).unwrap();
        }
    }
    assert!(regions.list().iter().all(|info| !info.gone));
    for (region, _) in keys {
        println!("{:?}", regions.reached(region.lkey).unwrap());
        regions.deregister(region.lkey).unwrap();
    }
}

#[test]
fn windows_of_shared_memory_have_pieces_too() {
    let Some(mut regions) = regions() else { return };
    let domain = regions.allocate_domain().unwrap();
    let shared = Region::allocate(1 << 20, Pages::Ordinary).unwrap();
    let source = Source::Window(shared.part(8192, 4096 * 4).unwrap());
    let region = regions.register(domain, source, None, Access::LOCAL_WRITE).unwrap();
    let reached = regions.reached(region.lkey).unwrap();
    assert_eq!((reached.way, reached.pieces.len(), reached.pieces[0].offset), (Way::Shared, 1, 8192));
    assert!(!reached.pieces[0].file.can_shrink());
}
