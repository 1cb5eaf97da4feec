//! What part of a card a function has, and where the function's registers are on the card.
//!
//! A function counts its queues and ports from 0, as if it were a card of its own, and its registers lie where those of such
//! a card would. Function `k` of `n` has the `k`-th `n`-th of the queues of each direction, and the ports that those are of.
//!
//! It may write the registers of its queues, the test space, and those of ports that no other function has; of the time-stamp
//! unit it may ask for times. Everything else it may only read.

use millrace_abi::name::CardOptions;
use millrace_abi::queue::{Direction, Engine, QueueId};
use millrace_abi::register::map::{Component, SPACE};
use millrace_abi::register::tsu;
use std::ops::Range;

/// Why a card cannot be divided so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShareError {
    /// No function.
    #[error("a card has one function at least")]
    None,
    /// More functions than queues.
    #[error(
        "{functions} functions, and {queues} queues in a direction: each function needs one of each at least; see --queues"
    )]
    TooFewQueues {
        /// How many functions were asked for.
        functions: u32,
        /// How many queues there are in the direction that has fewer.
        queues: u32,
    },
    /// More queues than interrupts.
    #[error("{0} queues of a function in a direction: {most} at most, which is how many interrupts there are for", most = millrace_abi::pci::MOST_QUEUES)]
    TooManyQueues(u32),
    /// BAR 2 is that of doorbells.
    #[error(
        "TX queues of Calypte have buffers on the card, for which a PCI function has no room; choose another --engine"
    )]
    Calypte,
}

/// The queues and ports of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub rx: Range<u32>,
    pub tx: Range<u32>,
    pub ports: Range<u32>,
    /// Those of its ports that no other function has.
    pub own_ports: Range<u32>,
}

/// A part of an access: a stretch of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Where it begins in the access, and its length.
    pub at: usize,
    pub len: usize,
    pub place: Place,
}

/// What lies there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Nothing: reads as 0.
    Nothing,
    /// The function's own test space, from this byte on.
    TestSpace(usize),
    /// The DMA controller of a queue of the card, from this byte on of its block.
    Queue { queue: QueueId, address: u32, offset: u32 },
    /// Other registers of the card; whether the function may write them.
    Registers { address: u32, writable: bool },
    /// The time-stamp unit: this register of it.
    Clock { address: u32, offset: u32 },
}

impl Share {
    /// What function `index` of `functions` has.
    pub fn of(options: &CardOptions, functions: u32, index: u32) -> Result<Self, ShareError> {
        let (rx, tx) = (options.rx_queues, options.tx_queues);
        if functions == 0 {
            return Err(ShareError::None);
        }
        if rx.min(tx) < functions {
            return Err(ShareError::TooFewQueues { functions, queues: rx.min(tx) });
        }
        let part = |count: u32, index: u32| {
            let first = |index: u32| (u64::from(index) * u64::from(count) / u64::from(functions)) as u32;
            first(index)..first(index + 1)
        };
        let most = (0..functions).map(|index| part(rx, index).len().max(part(tx, index).len()) as u32).max();
        if let Some(most) = most.filter(|&most| most > millrace_abi::pci::MOST_QUEUES) {
            return Err(ShareError::TooManyQueues(most));
        }
        if (0..tx).any(|index| options.engine_of(QueueId::tx(index)) == Engine::Calypte) {
            return Err(ShareError::Calypte);
        }
        // As libnfb reckons it: queue q is of port q x ports / queues.
        let ports = options.ports.len() as u32;
        let port_of = |queue: u32, queues: u32| (u64::from(queue) * u64::from(ports) / u64::from(queues)) as u32;
        let ports_of = |index: u32| {
            let (rx_part, tx_part) = (part(rx, index), part(tx, index));
            let first = port_of(rx_part.start, rx).min(port_of(tx_part.start, tx));
            let last = port_of(rx_part.end - 1, rx).max(port_of(tx_part.end - 1, tx));
            first..(last + 1).min(ports)
        };
        let ports_here = ports_of(index);
        let is_shared = |port: &u32| (0..functions).any(|other| other != index && ports_of(other).contains(port));
        // Neighbours share at the edges, so that what is left is one stretch.
        let own: Vec<u32> = ports_here.clone().filter(|port| !is_shared(port)).collect();
        let own_ports = own.first().map_or(0..0, |&first| first..first + own.len() as u32);
        Ok(Self { rx: part(rx, index), tx: part(tx, index), ports: ports_here, own_ports })
    }

    /// The queues of a direction, on the card.
    pub fn queues(&self, direction: Direction) -> &Range<u32> {
        match direction {
            Direction::Rx => &self.rx,
            Direction::Tx => &self.tx,
        }
    }

    /// All of its queues, as the function counts them and as the card does.
    pub fn all_queues(&self) -> impl Iterator<Item = (QueueId, QueueId)> {
        [Direction::Rx, Direction::Tx].into_iter().flat_map(move |direction| {
            (0..)
                .zip(self.queues(direction).clone())
                .map(move |(here, there)| (QueueId { direction, index: here }, QueueId { direction, index: there }))
        })
    }

    /// The parts of an access to the function's registers, in order. Their lengths add up to that of the access.
    pub fn pieces(&self, address: u32, len: usize) -> impl Iterator<Item = Piece> {
        let mut at = 0;
        core::iter::from_fn(move || {
            let here = u32::try_from(at).ok().and_then(|at| address.checked_add(at)).unwrap_or(SPACE);
            let rest = len.checked_sub(at).filter(|&rest| rest > 0)?;
            let (place, room) = self.place(here);
            let piece = Piece { at, len: rest.min(room), place };
            at += piece.len;
            Some(piece)
        })
    }

    /// What lies at an address of the function, and for how many bytes.
    fn place(&self, address: u32) -> (Place, usize) {
        let to_word = 4 - address as usize % 4;
        if address >= SPACE {
            return (Place::Nothing, usize::MAX);
        }
        let Some((component, offset)) = Component::at(address) else { return (Place::Nothing, to_word) };
        let room = (component.size() - offset) as usize;
        let port = |port: u32, of: fn(u32) -> Component| {
            let there = self.ports.start + port;
            let base = Some(there).filter(|there| self.ports.contains(there)).and_then(|there| of(there).base());
            base.map_or(Place::Nothing, |base| Place::Registers {
                address: base + offset,
                writable: self.own_ports.contains(&there),
            })
        };
        let place = match component {
            Component::TestSpace => Place::TestSpace(offset as usize),
            Component::Tsu => return (Place::Clock { address, offset }, to_word),
            Component::I2c(index) => port(index, Component::I2c),
            Component::Pmd(index) => port(index, Component::Pmd),
            Component::TxMac(index) => port(index, Component::TxMac),
            Component::RxMac(index) => port(index, Component::RxMac),
            Component::Pcs(index) => port(index, Component::Pcs),
            Component::Dma(queue) => self.queue(queue).map_or(Place::Nothing, |queue| {
                let base = Component::Dma(queue).base().unwrap_or(0);
                Place::Queue { queue, address: base + offset, offset }
            }),
            // Behind SPACE.
            Component::TxData(_) | Component::TxHeaders(_) => Place::Nothing,
        };
        (place, room)
    }

    /// A queue of the function as the card counts it.
    fn queue(&self, here: QueueId) -> Option<QueueId> {
        let queues = self.queues(here.direction);
        let index = queues.start.checked_add(here.index).filter(|index| queues.contains(index))?;
        Some(QueueId { direction: here.direction, index })
    }
}

/// The command that a write to the time-stamp unit is, if it is one.
pub(crate) fn command(offset: u32, word: &[u8]) -> Option<u32> {
    word.try_into().map(u32::from_le_bytes).ok().filter(|_| offset == tsu::COMMAND.bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_abi::register::medusa;

    fn options(text: &str) -> CardOptions {
        let Ok(millrace_abi::name::DeviceName::Embedded(options)) = format!("embedded:{text}").parse() else {
            panic!("{text}")
        };
        options
    }

    fn shares(text: &str, functions: u32) -> Vec<Share> {
        (0..functions).map(|index| Share::of(&options(text), functions, index).unwrap()).collect()
    }

    #[test]
    fn every_queue_belongs_to_one_function() {
        let shares = shares("rx=7,tx=3,port=null,port=null", 3);
        assert_eq!(shares.iter().flat_map(|share| share.rx.clone()).collect::<Vec<_>>(), (0..7).collect::<Vec<_>>());
        assert_eq!(shares.iter().map(|share| share.tx.clone()).collect::<Vec<_>>(), [0..1, 1..2, 2..3]);
        assert_eq!(shares[1].all_queues().next(), Some((QueueId::rx(0), QueueId::rx(2))));
        assert_eq!(Share::of(&options("rx=7,tx=2"), 3, 0), Err(ShareError::TooFewQueues { functions: 3, queues: 2 }));
        assert_eq!(Share::of(&options("queues=2,engine=calypte"), 1, 0), Err(ShareError::Calypte));
    }

    #[test]
    fn ports_that_two_functions_have_are_for_reading() {
        let two = shares("queues=4,port=null,port=null", 2);
        assert_eq!([&two[0].ports, &two[1].ports, &two[1].own_ports], [&(0..1), &(1..2), &(1..2)]);
        let one_port = shares("queues=4", 2);
        assert_eq!([&one_port[0].ports, &one_port[1].ports, &one_port[0].own_ports], [&(0..1), &(0..1), &(0..0)]);
        let mac = Component::RxMac(0).base().unwrap();
        let place = |share: &Share| share.pieces(mac + 0x20, 4).next().unwrap().place;
        assert_eq!(place(&two[1]), Place::Registers { address: mac + 0x2000 + 0x20, writable: true });
        assert_eq!(place(&one_port[1]), Place::Registers { address: mac + 0x20, writable: false });
    }

    #[test]
    fn registers_of_queues_move_and_those_of_others_are_nowhere() {
        let share = &shares("queues=4", 2)[1];
        let base = |queue| Component::Dma(queue).base().unwrap();
        let sdp = medusa::SDP.bytes();
        let pieces: Vec<Piece> = share.pieces(base(QueueId::tx(1)) + sdp, 8).collect();
        let there = Place::Queue { queue: QueueId::tx(3), address: base(QueueId::tx(3)) + sdp, offset: sdp };
        assert_eq!(pieces, [Piece { at: 0, len: 8, place: there }], "both pointers stay together");
        assert_eq!(share.pieces(base(QueueId::tx(2)), 8).next().unwrap().place, Place::Nothing);
        // From the end of one block into the next.
        let pieces: Vec<Piece> = share.pieces(base(QueueId::rx(1)) + 0x7c, 8).collect();
        assert_eq!((pieces.len(), pieces[0].len, pieces[1].len), (2, 4, 4));
        assert_eq!(pieces[1].place, Place::Nothing);
    }

    #[test]
    fn every_access_ends_wherever_it_begins() {
        let share = &shares("queues=4", 1)[0];
        for address in [0, 1, 0xff, 0x3010, 0x4001, SPACE - 1, SPACE, u32::MAX - 1, u32::MAX] {
            for len in [0, 1, 3, 8, 4096, 65536] {
                let pieces: Vec<Piece> = share.pieces(address, len).collect();
                assert_eq!(pieces.iter().map(|piece| piece.len).sum::<usize>(), len, "{address:#x} {len}");
                assert!(pieces.iter().all(|piece| piece.len > 0));
            }
        }
    }

    #[test]
    fn a_command_is_a_whole_word_at_its_place() {
        assert_eq!(command(tsu::COMMAND.bytes(), &5u32.to_le_bytes()), Some(5));
        assert_eq!(
            (command(0x00, &[5, 0, 0, 0]), command(0x14, &[1, 0, 0, 0]), command(0x0c, &[5, 0])),
            (None, None, None)
        );
    }
}
