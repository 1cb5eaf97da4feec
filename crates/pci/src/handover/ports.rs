//! What software has set of the MACs of a card, which machines and programs of the host have in common.

use millrace_abi::register::map::Component;
use millrace_abi::register::{Block, Way, rxmac, txmac};
use millrace_card::Card;
use std::collections::HashSet;
use std::ops::Range;

/// All ports of a card.
fn all(card: &Card) -> Range<u32> {
    0..card.options().ports.len() as u32
}

/// Addresses of all words of the MACs of some ports that can be read and written.
fn words(ports: Range<u32>) -> impl Iterator<Item = u32> {
    let blocks = ports.flat_map(|port| {
        let blocks: [(Component, &'static Block); 2] =
            [(Component::RxMac(port), &rxmac::BLOCK), (Component::TxMac(port), &txmac::BLOCK)];
        blocks.into_iter().filter_map(|(component, block)| Some((component.base()?, block)))
    });
    blocks.flat_map(|(base, block)| {
        let kept = block.registers.iter();
        let kept = kept.filter(|register| register.access.allows(Way::Read) && register.access.allows(Way::Write));
        kept.flat_map(move |register| {
            let all = (0..register.count).filter_map(|index| register.nth(index));
            all.flat_map(move |at| (0..register.width.bytes() / 4).map(move |word| at.at(base) + word * 4))
        })
    })
}

/// Addresses and values, of all ports.
pub(crate) fn save(card: &Card) -> Vec<(u32, u32)> {
    save_some(card, all(card))
}

/// The same of some.
pub(crate) fn save_some(card: &Card, ports: Range<u32>) -> Vec<(u32, u32)> {
    let read = |address| {
        let mut word = [0; 4];
        card.read(address, &mut word);
        (address, u32::from_le_bytes(word))
    };
    words(ports).map(read).collect()
}

/// As they were in another card; what is no such word is left alone.
pub(crate) fn restore(card: &Card, saved: &[(u32, u32)]) {
    restore_some(card, all(card), saved);
}

/// The same of some ports.
pub(crate) fn restore_some(card: &Card, ports: Range<u32>, saved: &[(u32, u32)]) {
    let known: HashSet<u32> = words(ports).collect();
    for (address, value) in saved.iter().filter(|(address, _)| known.contains(address)) {
        card.write(*address, &value.to_le_bytes());
    }
}
