//! Any sequence of registrations, windows and accesses, against a model that is as simple as can be: lists that are searched.

use millrace_dma::Region;
use millrace_rdma::memory::{
    Asker, Binding, Change, Limits, Memory, ProtectionDomain, Refused, Regions, RegisterError,
};
use millrace_rdma::memory::{Source, WindowType};
use millrace_rdma::number::{Key, Qpn};
use millrace_rdma::work::Access;
use proptest::prelude::*;
use proptest::strategy::ValueTree;

/// Bytes of each of the two memories that there are.
const BYTES: usize = 4096;
/// Regions and windows at a time: few, so that slots are used again.
const SLOTS: usize = 4;

#[derive(Clone, Debug)]
enum Step {
    Register { memory: usize, from: usize, len: usize, base: Option<u64>, access: u32, domain: usize },
    Deregister(usize),
    Reregister { which: usize, access: Option<u32>, domain: Option<usize>, bytes: Option<(usize, usize)> },
    Allocate { two: bool, domain: usize },
    Bind { window: usize, region: usize, from: u64, len: u64, access: u32, asker: (usize, u32), tag: u8 },
    Free(usize),
    Invalidate { which: usize, asker: (usize, u32), remote: bool },
    Access { which: usize, kind: u8, from: u64, len: usize, asker: (usize, u32) },
}

fn step() -> impl Strategy<Value = Step> {
    let asker = || (0..2_usize, 1..3_u32);
    // Mostly everything is allowed, so that much succeeds.
    let access = || prop_oneof![4 => Just(31_u32), 4 => 0..64_u32, 1 => Just(64)];
    let base = prop_oneof![Just(None), Just(Some(u64::MAX - 3000)), Just(Some(0x1000)), any::<u64>().prop_map(Some)];
    let offset = || prop_oneof![6 => 0..5000_u64, 1 => any::<u64>()];
    let (register, rest) = ((0..2_usize, 0..BYTES, 0..BYTES, base, access(), 0..2_usize), 0..64_usize);
    prop_oneof![
        4 => register.prop_map(|(memory, from, len, base, access, domain)| {
            Step::Register { memory, from, len: len.min(BYTES - from), base, access, domain }
        }),
        2 => rest.clone().prop_map(Step::Deregister),
        2 => (rest.clone(), prop::option::of(access()), prop::option::of(0..2_usize),
              prop::option::of((0..BYTES / 2, 0..BYTES / 2)))
            .prop_map(|(which, access, domain, bytes)| Step::Reregister { which, access, domain, bytes }),
        2 => (any::<bool>(), 0..2_usize).prop_map(|(two, domain)| Step::Allocate { two, domain }),
        4 => (rest.clone(), rest.clone(), offset(), 0..3000_u64, 0..48_u32, asker(), any::<u8>()).prop_map(
            |(window, region, from, len, access, asker, tag)| {
                Step::Bind { window, region, from, len, access, asker, tag }
            }
        ),
        1 => rest.clone().prop_map(Step::Free),
        1 => (rest.clone(), asker(), any::<bool>())
            .prop_map(|(which, asker, remote)| Step::Invalidate { which, asker, remote }),
        12 => (rest, 0..6_u8, offset(), 0..2000_usize, asker())
            .prop_map(|(which, kind, from, len, asker)| Step::Access { which, kind, from, len, asker }),
    ]
}

/// What a key opens, as the model knows it.
#[derive(Clone, Debug)]
struct Open {
    key: Key,
    memory: usize,
    from: usize,
    len: usize,
    base: u64,
    access: u32,
    domain: usize,
    /// `None`: a region. `Some(None)`: for every queue pair.
    window: Option<Option<u32>>,
    /// The region's key, of a window.
    of: Option<Key>,
}

#[derive(Clone, Debug)]
struct Window {
    key: Key,
    two: bool,
    domain: usize,
    bound: bool,
}

struct World {
    regions: Regions,
    domains: Vec<ProtectionDomain>,
    memories: [Region; 2],
    bytes: [Vec<u8>; 2],
    opens: Vec<Open>,
    windows: Vec<Window>,
    /// Every key there ever was.
    keys: Vec<Key>,
}

const WRITES: u32 = 2 | 8;

impl World {
    fn new() -> Self {
        let limits = Limits { regions: SLOTS, windows: SLOTS, around_from: 500, ..Limits::default() };
        let mut regions = Regions::new(limits).unwrap();
        let domains = (0..2).map(|_| regions.allocate_domain().unwrap()).collect();
        let memories = [Region::heap(BYTES), Region::heap(BYTES)];
        let bytes = [vec![0; BYTES], vec![0; BYTES]];
        Self { regions, domains, memories, bytes, opens: Vec::new(), windows: Vec::new(), keys: vec![Key::new(0)] }
    }

    fn asker(&self, asker: (usize, u32)) -> Asker {
        Asker { domain: self.domains[asker.0], qpn: Qpn::new(asker.1) }
    }

    fn part(&self, memory: usize, from: usize, len: usize) -> millrace_dma::Window {
        self.memories[memory].window().part(from, len).unwrap()
    }

    fn regions_open(&self) -> usize {
        self.opens.iter().filter(|open| open.window.is_none()).count()
    }

    fn is_bound(&self, region: Key) -> bool {
        self.opens.iter().any(|open| open.of == Some(region))
    }

    fn close(&mut self, key: Key) {
        self.opens.retain(|open| open.key != key);
        self.windows.iter_mut().filter(|window| window.key == key).for_each(|window| window.bound = false);
    }

    fn natural_base(&self, memory: usize, from: usize, access: u32) -> u64 {
        if access & 32 != 0 { 0 } else { self.memories[memory].window().span(from, 0).unwrap().as_ptr().addr() as u64 }
    }

    fn may_register(access: u32) -> bool {
        access < 64 && (access & WRITES == 0 || access & 1 != 0)
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Register { memory, from, len, base, access, domain } => {
                let at = base.unwrap_or(self.natural_base(memory, from, access));
                let source = Source::Window(self.part(memory, from, len));
                let outcome = self.regions.register(self.domains[domain], source, base, Access(access));
                let fits = at.checked_add(len as u64).is_some() && self.regions_open() < SLOTS;
                assert_eq!(outcome.is_ok(), fits && Self::may_register(access), "{outcome:?}");
                let Ok(region) = outcome else { return };
                assert!(!self.opens.iter().any(|open| open.key == region.lkey));
                let window = None;
                self.opens.push(Open {
                    key: region.lkey,
                    memory,
                    from,
                    len,
                    base: at,
                    access,
                    domain,
                    window,
                    of: None,
                });
                self.keys.push(region.lkey);
            }
            Step::Deregister(which) => {
                let key = self.keys[which % self.keys.len()];
                let known = self.opens.iter().any(|open| open.key == key && open.window.is_none());
                match self.regions.deregister(key) {
                    Ok(()) => assert!(known && !self.is_bound(key)),
                    Err(RegisterError::Busy(_)) => return assert!(known && self.is_bound(key)),
                    Err(_) => return assert!(!known),
                }
                self.close(key);
            }
            Step::Reregister { which, access, domain, bytes } => self.reregister(which, access, domain, bytes),
            Step::Allocate { two, domain } => {
                let kind = if two { WindowType::Two } else { WindowType::One };
                let outcome = self.regions.allocate_window(self.domains[domain], kind);
                assert_eq!(outcome.is_ok(), self.windows.len() < SLOTS);
                let Ok(key) = outcome else { return };
                self.windows.push(Window { key, two, domain, bound: false });
                self.keys.push(key);
            }
            Step::Bind { window, region, from, len, access, asker, tag } => {
                self.bind(window, region, from, len, access, asker, tag);
            }
            Step::Free(which) => {
                let key = self.keys[which % self.keys.len()];
                // The last byte of a key of type 2 is its owner's business: with any, it is the same window.
                let is_it = |window: &Window| window.key == key || window.two && window.key.value() ^ key.value() < 256;
                let known = self.windows.iter().find(|window| is_it(window)).cloned();
                assert_eq!(self.regions.free_window(key).is_ok(), known.is_some());
                let Some(known) = known else { return };
                self.close(known.key);
                self.windows.retain(|window| window.key != known.key);
            }
            Step::Invalidate { which, asker, remote } => {
                let key = self.keys[which % self.keys.len()];
                let closes = self.opens.iter().any(|open| {
                    let of = open.window.flatten();
                    open.key == key && open.domain == asker.0 && of.is_some_and(|qpn| !remote || qpn == asker.1)
                });
                assert_eq!(self.regions.invalidate(self.asker(asker), key, remote).is_ok(), closes);
                if closes {
                    self.close(key);
                }
            }
            Step::Access { which, kind, from, len, asker } => self.access(which, kind, from, len, asker),
        }
    }

    fn reregister(&mut self, which: usize, access: Option<u32>, domain: Option<usize>, bytes: Option<(usize, usize)>) {
        let key = self.keys[which % self.keys.len()];
        let old = self.opens.iter().find(|open| open.key == key && open.window.is_none()).cloned();
        let memory = old.as_ref().map_or(0, |old| old.memory);
        let translation = bytes.map(|(from, len)| (Source::Window(self.part(memory, from, len)), None));
        let change =
            Change { translation, domain: domain.map(|domain| self.domains[domain]), access: access.map(Access) };
        let outcome = self.regions.reregister(key, change);
        let access = access.or(old.as_ref().map(|old| old.access)).unwrap_or(0);
        assert_eq!(outcome.is_ok(), old.is_some() && !self.is_bound(key) && Self::may_register(access), "{outcome:?}");
        let (Ok(region), Some(old)) = (outcome, old) else { return };
        let (from, len) = bytes.unwrap_or((old.from, old.len));
        let base = if bytes.is_some() { self.natural_base(memory, from, access) } else { old.base };
        self.close(key);
        let domain = domain.unwrap_or(old.domain);
        self.opens.push(Open { key: region.lkey, from, len, base, access, domain, ..old });
        self.keys.push(region.lkey);
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one step")]
    fn bind(&mut self, window: usize, region: usize, from: u64, len: u64, access: u32, by: (usize, u32), tag: u8) {
        if self.windows.is_empty() {
            return;
        }
        let window = self.windows[window % self.windows.len()].clone();
        let region_key = self.keys[region % self.keys.len()];
        let region = self.opens.iter().find(|open| open.key == region_key).cloned();
        let address = region.as_ref().map_or(from, |region| region.base.wrapping_add(from));
        let rkey = Key::new(window.key.value() & !0xff | u32::from(tag));
        let binding = Binding { rkey, region: region_key, address, len, access: Access(access) };
        let domain = if window.two { by.0 } else { window.domain };
        let fits = region.as_ref().is_some_and(|region| {
            let inside = from.checked_add(len).is_some_and(|end| end <= region.len as u64);
            let rights = region.access & 16 != 0 && (access & WRITES == 0 || region.access & 1 != 0);
            let addresses = window.two || region.access & 32 == 0;
            region.window.is_none() && region.domain == domain && inside && rights && addresses && access & 17 == 0
        });
        let (done, expected) = if window.two {
            let fits = fits && window.domain == by.0 && !window.bound && len > 0;
            (self.regions.bind(self.asker(by), binding).map(|()| rkey).map_err(drop), fits)
        } else {
            let outcome = self.regions.bind_window(window.key, binding).map_err(drop);
            (outcome, (fits || len == 0) && access & 32 == 0)
        };
        assert_eq!(done.is_ok(), expected, "{window:?} {region:?} {binding:?}");
        let Ok(key) = done else { return };
        self.close(window.key);
        let place = self.windows.iter_mut().find(|other| other.key == window.key).unwrap();
        *place = Window { key, bound: len > 0, ..window };
        self.keys.push(key);
        let Some(region) = region.filter(|_| len > 0) else { return };
        let base = if access & 32 != 0 { 0 } else { address };
        let open_for = if window.two { Some(by.1) } else { None };
        self.opens.push(Open {
            key,
            from: region.from + from as usize,
            len: len as usize,
            base,
            access,
            domain,
            window: Some(open_for),
            of: Some(region.key),
            ..region
        });
    }

    /// What the model says about an access: where in which memory.
    fn expect(
        &self,
        key: Key,
        address: u64,
        len: usize,
        wanted: u32,
        local: bool,
        by: (usize, u32),
    ) -> Option<(usize, usize)> {
        let open = self.opens.iter().find(|open| open.key == key && open.domain == by.0)?;
        let opens = match open.window {
            None => true,
            Some(qpn) => !local && qpn.is_none_or(|qpn| qpn == by.1),
        };
        // As numbers that cannot wrap.
        let (first, last) = (u128::from(address), u128::from(address) + len as u128);
        let (base, end) = (u128::from(open.base), u128::from(open.base) + open.len as u128);
        let inside = first >= base && last <= end;
        let allowed = opens && inside && open.access & wanted == wanted;
        allowed.then(|| (open.memory, open.from + (first - base) as usize))
    }

    fn access(&mut self, which: usize, kind: u8, from: u64, len: usize, by: (usize, u32)) {
        let key = self.keys[which % self.keys.len()];
        let base = self.opens.iter().find(|open| open.key == key).map_or(0, |open| open.base);
        let (address, asker) = (base.wrapping_add(from), self.asker(by));
        let fresh: Vec<u8> = (0..len).map(|at| (at as u64 * 7 + from + which as u64) as u8).collect();
        match kind {
            0 | 1 => {
                let mut back = vec![0xee; len];
                let outcome = match kind {
                    0 => self.regions.gather(asker, key, address, &mut back),
                    _ => self.regions.read(asker, key, address, &mut back),
                };
                let wanted = if kind == 0 { 0 } else { 4 };
                let expected = self.expect(key, address, len, wanted, kind == 0, by);
                assert_eq!(outcome.is_ok(), expected.is_some() || len == 0, "{outcome:?}");
                match expected {
                    Some((memory, at)) => assert_eq!(back, &self.bytes[memory][at..at + len]),
                    None => assert!(back.iter().all(|byte| *byte == 0xee), "bytes came although it was refused"),
                }
            }
            2 | 3 => {
                let outcome = match kind {
                    2 => self.regions.scatter(asker, key, address, &fresh),
                    _ => self.regions.write(asker, key, address, &fresh),
                };
                let wanted = if kind == 2 { 1 } else { 2 };
                let expected = self.expect(key, address, len, wanted, kind == 2, by);
                assert_eq!(outcome.is_ok(), expected.is_some() || len == 0, "{outcome:?}");
                if let Some((memory, at)) = expected {
                    self.bytes[memory][at..at + len].copy_from_slice(&fresh);
                }
            }
            _ => self.atomic(key, kind == 4, address, by),
        }
    }

    fn atomic(&mut self, key: Key, add: bool, address: u64, by: (usize, u32)) {
        let expected = self.expect(key, address, 8, 8, false, by);
        // `Region::heap` begins at a page.
        let expected = expected.filter(|(_, at)| address.is_multiple_of(8) && at.is_multiple_of(8));
        let word = |bytes: &[u8]| u64::from_ne_bytes(*bytes.first_chunk().unwrap());
        let before = expected.map(|(memory, at)| word(&self.bytes[memory][at..]));
        let (asker, compare) = (self.asker(by), before.unwrap_or(0));
        let outcome = match add {
            true => self.regions.fetch_add(asker, key, address, address | 1),
            false => self.regions.compare_swap(asker, key, address, compare, !compare),
        };
        assert_eq!(outcome.ok(), before);
        if let (Some((memory, at)), Some(before)) = (expected, before) {
            let after = if add { before.wrapping_add(address | 1) } else { !before };
            self.bytes[memory][at..at + 8].copy_from_slice(&after.to_ne_bytes());
        }
    }

    /// Both memories hold what the model says, byte for byte.
    fn check(&self) {
        for (memory, bytes) in self.memories.iter().zip(&self.bytes) {
            assert!(memory.window().slice(0, BYTES).unwrap() == &bytes[..]);
        }
        assert_eq!(
            self.regions.bytes(),
            self.opens.iter().filter(|open| open.window.is_none()).map(|open| open.len as u64).sum()
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_does_what_the_model_says(steps in prop::collection::vec(step(), 1..120)) {
        let mut world = World::new();
        for step in steps {
            world.apply(step);
        }
        world.check();
    }
}

fn registered() -> (Regions, Region, Asker, Vec<Key>) {
    let mut regions = Regions::new(Limits::default()).unwrap();
    let domain = regions.allocate_domain().unwrap();
    let memory = Region::heap(BYTES);
    let access = Access(15);
    let register = |_| {
        let source = Source::Window(memory.window().clone());
        regions.register(domain, source, Some(0x10_0000), access).unwrap().rkey
    };
    let keys = (0..64).map(register).collect();
    (regions, memory, Asker { domain, qpn: Qpn::new(2) }, keys)
}

#[test]
fn keys_that_nobody_gave_reach_nothing() {
    let (mut regions, memory, asker, keys) = registered();
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let guesses = 300_000;
    for _ in 0..guesses {
        let key = Key::new(any::<u32>().new_tree(&mut runner).unwrap().current());
        if !keys.contains(&key) {
            assert_eq!(regions.write(asker, key, 0x10_0000, &[9; 64]), Err(Refused::Key));
        }
    }
    // Neighbours of keys that are known.
    for key in keys.iter().flat_map(|key| (0..32).map(|bit| Key::new(key.value() ^ 1 << bit))) {
        if !keys.contains(&key) {
            assert_eq!(regions.read(asker, key, 0x10_0000, &mut [9; 64]), Err(Refused::Key));
        }
    }
    assert!(memory.window().slice(0, BYTES).unwrap().iter().all(|byte| *byte == 0));
    assert!(regions.counters().refused_key > guesses - 64);
}

#[test]
fn addresses_that_wrap_are_refused() {
    let (mut regions, _memory, asker, keys) = registered();
    let (key, end) = (keys[0], 0x10_0000 + BYTES as u64);
    for (address, len) in
        [(u64::MAX, 1), (u64::MAX - 7, 8), (end, 1), (end - 7, 8), (0xf_ffff, 2), (0, 1), (0x10_0000 | 1 << 63, 8)]
    {
        assert_eq!(regions.write(asker, key, address, &vec![1; len]), Err(Refused::Bounds), "{address:#x} {len}");
        assert_eq!(regions.allows(asker, key, address, len as u64, Access::REMOTE_READ), Err(Refused::Bounds));
    }
    for len in [BYTES as u64 + 1, 1 << 32, u64::MAX, u64::MAX - 0x10_0000 + 1] {
        assert_eq!(regions.allows(asker, key, 0x10_0000, len, Access::REMOTE_READ), Err(Refused::Bounds));
    }
    assert_eq!(regions.fetch_add(asker, key, end - 8, 1), Ok(0));
    assert_eq!(regions.fetch_add(asker, key, end - 4, 1), Err(Refused::Bounds));
    assert_eq!(regions.fetch_add(asker, key, 0x10_0004, 1), Err(Refused::Alignment));
}

#[test]
fn nothing_needs_no_key() {
    let (mut regions, _memory, asker, keys) = registered();
    for key in [Key::new(0), Key::new(u32::MAX), keys[0]] {
        assert_eq!(regions.write(asker, key, u64::MAX, &[]), Ok(()));
        assert_eq!(regions.read(asker, key, u64::MAX, &mut []), Ok(()));
        assert_eq!(regions.allows(asker, key, u64::MAX, 0, Access::REMOTE_WRITE), Ok(()));
    }
}

#[test]
fn an_old_key_does_not_come_back() {
    let limits = Limits { regions: 1, windows: 1, ..Limits::default() };
    let mut regions = Regions::new(limits).unwrap();
    let domain = regions.allocate_domain().unwrap();
    let memory = Region::heap(64);
    let mut seen = std::collections::HashSet::new();
    for _ in 0..100_000 {
        let source = Source::Window(memory.window().clone());
        let region = regions.register(domain, source, Some(0), Access(1)).unwrap();
        assert!(seen.insert(region.lkey), "{:?} came again", region.lkey);
        regions.deregister(region.lkey).unwrap();
    }
    assert!(regions.key_lifetimes().0 > 100_000);
}

#[test]
fn limits_hold() {
    let limits = Limits { regions: 2, windows: 1, bytes: 100, domains: 1, ..Limits::default() };
    let mut regions = Regions::new(limits).unwrap();
    let domain = regions.allocate_domain().unwrap();
    assert!(matches!(regions.allocate_domain(), Err(RegisterError::Limit { limit: 1, .. })));
    let memory = Region::heap(64);
    let window = |len| Source::Window(memory.window().part(0, len).unwrap());
    let first = regions.register(domain, window(64), None, Access(1)).unwrap();
    assert!(matches!(
        regions.register(domain, window(37), None, Access(1)),
        Err(RegisterError::Limit { limit: 100, .. })
    ));
    regions.register(domain, window(36), None, Access(1)).unwrap();
    assert!(matches!(regions.register(domain, window(0), None, Access(1)), Err(RegisterError::Limit { limit: 2, .. })));
    assert!(matches!(regions.free_domain(domain), Err(RegisterError::Busy(2))));
    regions.deregister(first.lkey).unwrap();
    assert_eq!(regions.bytes(), 36);
    let gone = ProtectionDomain(77);
    assert!(matches!(regions.register(gone, window(1), None, Access(1)), Err(RegisterError::Domain(_))));
    assert!(matches!(regions.register(domain, window(1), None, Access(2)), Err(RegisterError::Access)));
    assert!(regions.register(domain, window(8), Some(u64::MAX - 8), Access(1)).is_ok());
    let read_only = Source::Window(memory.window().clone().read_only());
    assert!(Regions::new(Limits { regions: 65_000, windows: 65_000, ..limits }).is_err());
    let mut others = Regions::new(Limits::default()).unwrap();
    let domain = others.allocate_domain().unwrap();
    assert!(matches!(others.register(domain, read_only, None, Access(1)), Err(RegisterError::ReadOnly)));
}

#[test]
fn a_window_of_type_one_takes_each_key_once_and_in_order() {
    let mut regions = Regions::new(Limits::default()).unwrap();
    let domain = regions.allocate_domain().unwrap();
    let asker = Asker { domain, qpn: Qpn::new(1) };
    let memory = Region::heap(BYTES);
    let source = Source::Window(memory.window().clone());
    let region = regions.register(domain, source, Some(0), Access(1 | 2 | 16)).unwrap().lkey;
    let window = regions.allocate_window(domain, WindowType::One).unwrap();
    let binding = |rkey| Binding { rkey, region, address: 0, len: 8, access: Access::REMOTE_WRITE };
    let (first, second) = (regions.next_window_key(window).unwrap(), regions.next_window_key(window).unwrap());
    let bind = |regions: &mut Regions, key| regions.bind(asker, binding(key));
    assert_eq!(bind(&mut regions, window), Err(Refused::Key), "it was not given out for a binding");
    assert_eq!(bind(&mut regions, first), Ok(()));
    assert_eq!(bind(&mut regions, first), Err(Refused::Key));
    assert_eq!(bind(&mut regions, second), Ok(()));
    assert_eq!(bind(&mut regions, first), Err(Refused::Key), "it had a later one");
    let third = regions.next_window_key(second).unwrap();
    regions.forget_window_key(third);
    assert_eq!(bind(&mut regions, third), Err(Refused::Key), "it was not posted");
    // Who gives out keys and never binds costs nothing, and the last one still opens it.
    let last = (0..1000).map(|_| regions.next_window_key(second).unwrap()).last().unwrap();
    assert_eq!(bind(&mut regions, last), Ok(()));
    regions.free_window(last).unwrap();
}
