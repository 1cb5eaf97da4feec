//! What may be adopted of a range.

use super::Scope;
use super::error::Refusal;
use super::file::Identity;
use super::maps::{Kind, Mapped};
use super::threads::{ABOVE, Block};

/// Addresses that are treated alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) first: u64,
    pub(super) end: u64,
    pub(super) what: What,
}

/// How.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// May be adopted.
    Adopt,
    /// Is shared already, with the bytes of this file from this offset on.
    Shared(Identity, u64),
    /// Stays as it is.
    Leave(Refusal),
}

/// Most mappings that a process may have before nothing more is adopted, because each adoption adds some.
const MAPPINGS: usize = 60_000;
/// Parts of arenas of `malloc` begin at multiples of this, and are as long at most.
pub(super) const ARENA: u64 = 64 << 20;

/// Sorts the whole pages from `first` to `end`. `arena_of` says of an address where parts of arenas begin whether one does,
/// and where the first part of its arena is.
pub(super) fn sort(
    maps: &[Mapped],
    blocks: &[Block],
    first: u64,
    end: u64,
    page: u64,
    scope: Scope,
    arena_of: impl Fn(u64) -> Option<u64>,
) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut at = first;
    let begin = maps.partition_point(|mapped| mapped.end <= first);
    for mapped in maps[begin..].iter().take_while(|mapped| mapped.first < end) {
        let gap = mapped.first.max(at);
        push(&mut parts, at, gap, What::Leave(Refusal::NotMapped));
        at = mapped.end.min(end);
        let what = if maps.len() > MAPPINGS { What::Leave(Refusal::Mappings) } else { what_of(mapped, gap, scope) };
        push(&mut parts, gap, at, what);
    }
    push(&mut parts, at, end, What::Leave(Refusal::NotMapped));
    for start in (first & !(ARENA - 1)..end).step_by(ARENA as usize) {
        let is_writable = |mapped: &&Mapped| mapped.first <= start && start < mapped.end && mapped.writable;
        let mut mapped = maps.iter().filter(is_writable);
        let Some(arena) = mapped.next().and_then(|_| arena_of(start)) else { continue };
        parts = match scope {
            Scope::Mappings => leave(parts, start, start + ARENA, Refusal::Heap),
            Scope::Heap if arena == start => leave(parts, start, start + page, Refusal::Arena),
            Scope::Heap => parts,
        };
    }
    for block in blocks {
        let holds = |mapped: &&Mapped| mapped.first <= block.at && block.at < mapped.end;
        let start = maps.iter().find(holds).map_or(block.at, |mapped| mapped.first);
        let below = block.at.saturating_sub(block.below).max(start) & !(page - 1);
        parts = leave(parts, below, (block.at + ABOVE).next_multiple_of(page), Refusal::Thread);
    }
    parts
}

fn push(parts: &mut Vec<Part>, first: u64, end: u64, what: What) {
    if first < end {
        parts.push(Part { first, end, what });
    }
}

/// Addresses from `at` on of a mapping.
fn what_of(mapped: &Mapped, at: u64, scope: Scope) -> What {
    let refusal = match mapped.kind {
        Kind::Shared(identity, offset) => return What::Shared(identity, offset + (at - mapped.first)),
        Kind::Stack => Refusal::Stack,
        Kind::Special => Refusal::Special,
        Kind::HugePages => Refusal::HugePages,
        Kind::File => Refusal::File,
        _ if !mapped.writable => Refusal::ReadOnly,
        _ if mapped.executable => Refusal::Executable,
        Kind::Heap if scope == Scope::Mappings => Refusal::Heap,
        Kind::Anonymous | Kind::Heap => return What::Adopt,
    };
    What::Leave(refusal)
}

/// Takes what lies between two addresses out of what may be adopted.
pub(super) fn leave(parts: Vec<Part>, first: u64, end: u64, why: Refusal) -> Vec<Part> {
    let mut kept = Vec::with_capacity(parts.len() + 2);
    for part in parts {
        let (from, to) = (part.first.max(first), part.end.min(end));
        if part.what != What::Adopt || from >= to {
            kept.push(part);
            continue;
        }
        push(&mut kept, part.first, from, What::Adopt);
        push(&mut kept, from, to, What::Leave(why));
        push(&mut kept, to, part.end, What::Adopt);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    fn mapped(first: u64, end: u64, kind: Kind) -> Mapped {
        Mapped { first, end, writable: true, executable: false, kind }
    }

    fn told(parts: &[Part]) -> Vec<(u64, u64, What)> {
        parts.iter().map(|part| (part.first / PAGE, part.end / PAGE, part.what)).collect()
    }

    #[test]
    fn each_kind_has_its_reason() {
        let file = Identity { device: (0, 1), inode: 5 };
        let page = |first: u64, end: u64, kind| mapped(first * PAGE, end * PAGE, kind);
        let mut maps = vec![
            page(10, 20, Kind::Anonymous),
            page(20, 22, Kind::File),
            page(30, 34, Kind::Shared(file, 7 * PAGE)),
            page(34, 36, Kind::Anonymous),
            page(36, 37, Kind::Anonymous),
            page(40, 41, Kind::Stack),
        ];
        maps[3].writable = false;
        maps[4].executable = true;
        let parts = sort(&maps, &[], 12 * PAGE, 42 * PAGE, PAGE, Scope::Heap, |_| None);
        let left = What::Leave;
        assert_eq!(
            told(&parts),
            [
                (12, 20, What::Adopt),
                (20, 22, left(Refusal::File)),
                (22, 30, left(Refusal::NotMapped)),
                (30, 34, What::Shared(file, 7 * PAGE)),
                (34, 36, left(Refusal::ReadOnly)),
                (36, 37, left(Refusal::Executable)),
                (37, 40, left(Refusal::NotMapped)),
                (40, 41, left(Refusal::Stack)),
                (41, 42, left(Refusal::NotMapped)),
            ]
        );
        let inside = sort(&maps, &[], 31 * PAGE, 32 * PAGE, PAGE, Scope::Heap, |_| None);
        assert_eq!(told(&inside), [(31, 32, What::Shared(file, 8 * PAGE))]);
    }

    #[test]
    fn threads_and_arenas_are_cut_out() {
        let base = ARENA;
        let maps = [mapped(base, base + 100 * PAGE, Kind::Anonymous)];
        let blocks = [Block { at: base + 50 * PAGE + 8, below: 10 * PAGE }, Block { at: 1 << 40, below: PAGE }];
        let parts = sort(&maps, &blocks, base, base + 100 * PAGE, PAGE, Scope::Heap, Some);
        let parts: Vec<_> =
            parts.iter().map(|part| ((part.first - base) / PAGE, (part.end - base) / PAGE, part.what)).collect();
        assert_eq!(
            parts,
            [
                (0, 1, What::Leave(Refusal::Arena)),
                (1, 40, What::Adopt),
                (40, 51, What::Leave(Refusal::Thread)),
                (51, 100, What::Adopt),
            ]
        );
    }

    #[test]
    fn what_malloc_hands_out_stays_unless_it_is_asked_for() {
        // A mapping that two parts of one arena have run together with, and the heap.
        let (base, pages) = (3 * ARENA, ARENA / PAGE);
        let maps =
            [mapped(PAGE, 9 * PAGE, Kind::Heap), mapped(base - 5 * PAGE, base + 2 * ARENA + 5 * PAGE, Kind::Anonymous)];
        let arena_of = |at| (at < base + 2 * ARENA).then_some(base);
        let sorted = |first, scope| {
            let parts = sort(&maps, &[], first, base + 2 * ARENA + 4 * PAGE, PAGE, scope, arena_of);
            let mapped = parts.into_iter().filter(|part| part.what != What::Leave(Refusal::NotMapped));
            mapped.map(|part| (part.first / PAGE, part.end / PAGE, part.what)).collect::<Vec<_>>()
        };
        let (at, heap) = (base / PAGE, What::Leave(Refusal::Heap));
        let last = (at + 2 * pages, at + 2 * pages + 4, What::Adopt);
        let both =
            [(1, 9, heap), (at - 5, at, What::Adopt), (at, at + pages, heap), (at + pages, at + 2 * pages, heap), last];
        assert_eq!(sorted(PAGE, Scope::Mappings), both);
        assert_eq!(
            sorted(base + 7 * PAGE, Scope::Mappings)[0],
            (at + 7, at + pages, heap),
            "from the midst of an arena"
        );
        let head = (at, at + 1, What::Leave(Refusal::Arena));
        let all = [(1, 9, What::Adopt), (at - 5, at, What::Adopt), head, (at + 1, last.1, What::Adopt)];
        assert_eq!(sorted(PAGE, Scope::Heap), all);
    }

    #[test]
    fn a_range_is_never_lost_nor_doubled() {
        use proptest::prelude::*;
        let kinds = prop_oneof![Just(Kind::Anonymous), Just(Kind::File), Just(Kind::Stack)];
        let lines = proptest::collection::vec((0_u64..4, 1_u64..9, kinds), 0..20);
        let threads = proptest::collection::vec((0_u64..120, 0_u64..20), 0..4);
        let config = ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() };
        proptest!(config, |(lines in lines, threads in threads, first in 0_u64..60, len in 1_u64..60)| {
            let (mut maps, mut at) = (Vec::new(), 0);
            for (gap, len, kind) in lines {
                maps.push(mapped((at + gap) * PAGE, (at + gap + len) * PAGE, kind));
                at += gap + len;
            }
            let blocks: Vec<_> =
                threads.iter().map(|(at, below)| Block { at: at * PAGE + 99, below: below * PAGE }).collect();
            let (first, end) = (first * PAGE, (first + len) * PAGE);
            let parts = sort(&maps, &blocks, first, end, PAGE, Scope::Heap, |_| None);
            let mut at = first;
            for part in &parts {
                prop_assert_eq!(part.first, at);
                prop_assert!(part.end > part.first);
                at = part.end;
                if part.what == What::Adopt {
                    let mut mapped = maps.iter().filter(|mapped| mapped.kind == Kind::Anonymous);
                    prop_assert!(mapped.any(|mapped| mapped.first <= part.first && part.end <= mapped.end));
                    prop_assert!(blocks.iter().all(|block| block.at < part.first || block.at >= part.end));
                }
            }
            prop_assert_eq!(at, end);
        });
    }
}
