//! What software has set of the MACs of a card, which machines and programs of the host have in common.

use millrace_abi::register::map::Component;
use millrace_abi::register::{Block, Way, rxmac, txmac};
use millrace_card::Card;

/// Addresses of all words of the MACs that can be read and written.
fn words(card: &Card) -> impl Iterator<Item = u32> {
    let ports = 0..card.options().ports.len() as u32;
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

/// Addresses and values.
pub(crate) fn save(card: &Card) -> Vec<(u32, u32)> {
    let read = |address| {
        let mut word = [0; 4];
        card.read(address, &mut word);
        (address, u32::from_le_bytes(word))
    };
    words(card).map(read).collect()
}

/// As they were in another card; what is no such word is left alone.
pub(crate) fn restore(card: &Card, saved: &[(u32, u32)]) {
    let known: std::collections::HashSet<u32> = words(card).collect();
    for (address, value) in saved.iter().filter(|(address, _)| known.contains(address)) {
        card.write(*address, &value.to_le_bytes());
    }
}
