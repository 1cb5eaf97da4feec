use super::*;
use crate::name::CardOptions;
use crate::queue::QueueId;
use crate::register::map::{Component, MAX_PORTS, MAX_QUEUES, SECOND_BUS};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::process::Command;
use std::time::Instant;

fn card(ports: usize, rx: u32, tx: u32, engines: &str) -> CardDescription {
    let options = format!("embedded:rx={rx},tx={tx},engine={engines}");
    let Ok(crate::name::DeviceName::Embedded(mut options)) = options.parse() else { panic!("{options}") };
    options.ports = vec!["null".to_owned(); ports];
    CardDescription::new(&options)
}

/// Everything that a program can ask of a tree.
fn use_all_of(tree: &Tree<'_>) -> usize {
    let mut seen = tree.to_string().len();
    for node in tree.nodes() {
        seen += node.path().len() + node.depth() + node.children().count() + node.properties().count();
        for (name, value) in node.properties() {
            assert!(node.property(name).is_some());
            seen += value.len();
            seen += usize::from(node.u32(name).is_ok()) + usize::from(node.u64(name).is_ok());
            seen += usize::from(node.u32s(name).is_ok()) + usize::from(node.string(name).is_ok());
        }
        seen += usize::from(node.reg().is_ok()) + usize::from(node.is_compatible(compatible::BUS));
        assert!(tree.node(&node.path()).is_some());
    }
    for direction in [Direction::Rx, Direction::Tx] {
        seen += tree.queues(direction).map_or(0, |queues| queues.len());
    }
    seen + usize::from(tree.phandle(1).is_some()) + tree.compatible(compatible::MEDUSA_RX).count()
}

#[test]
fn the_tree_of_the_specification_is_built_node_by_node() {
    let blob = CardDescription { serial: 7, id: 3, build_time: 1_700_000_000, ..CardDescription::default() }.to_blob();
    let printed = Tree::parse(&blob.unwrap()).unwrap().to_string();
    let expected = include_str!("two_pairs.dts").replace("@VERSION@", env!("CARGO_PKG_VERSION"));
    assert_eq!(printed, expected, "\n{printed}");
}

fn follow<'tree>(tree: &'tree Tree<'tree>, node: Node<'tree>, property: &str) -> Node<'tree> {
    tree.phandle(node.u32(property).unwrap()).unwrap()
}

#[test]
fn every_port_leads_to_its_parts() {
    for ports in [1, 2, 4, MAX_PORTS] {
        let blob = card(ports as usize, 2, 2, "medusa").to_blob().unwrap();
        let tree = Tree::parse(&blob).unwrap();
        assert_eq!(tree.compatible(compatible::ETH).count(), ports as usize);
        for (port, eth) in (0..).zip(tree.compatible(compatible::ETH)) {
            let follow = |node, property| follow(&tree, node, property);
            let at = |node: Node<'_>| Component::at(node.reg().unwrap().0).unwrap();
            let (pmd, pcspma) = (follow(eth, "pmd"), follow(eth, "pcspma"));
            assert_eq!(at(follow(eth, "rxmac")), (Component::RxMac(port), 0));
            assert_eq!(at(follow(eth, "txmac")), (Component::TxMac(port), 0));
            assert_eq!(at(follow(pmd, "status-reg")), (Component::Pmd(port), 0));
            assert_eq!(at(follow(pmd, "control")), (Component::I2c(port), 0));
            assert_eq!(at(follow(pcspma, "control")), (Component::Pcs(port), 0));
            assert!(pmd.child("control-param").is_some() && pcspma.child("control-param").is_some());
            // Trap T17.
            assert!(follow(eth, "rxmac").u32("mtu").unwrap() >= 1518);
        }
    }
}

#[test]
fn a_queue_leads_to_its_controller_whatever_its_engine() {
    let blob = card(1, 6, 3, "(sze@rx1-2,tx0)").to_blob().unwrap();
    let tree = Tree::parse(&blob).unwrap();
    let count = |compatible| tree.compatible(compatible).count();
    assert_eq!((count(compatible::MEDUSA_RX), count(compatible::SZE_RX)), (4, 2));
    assert_eq!((count(compatible::MEDUSA_TX), count(compatible::SZE_TX)), (2, 1));
    let rx = tree.queues(Direction::Rx).unwrap();
    let engines: Vec<_> = rx.iter().map(|queue| queue.engine).collect();
    use Engine::{Medusa, Sze};
    assert_eq!(engines, [Medusa, Sze, Sze, Medusa, Medusa, Medusa]);
    assert_eq!(rx[2].queue, QueueId::rx(2));
    assert_eq!((rx[2].base, rx[2].size, rx[2].mmap_size), (0x0100_0100, 1 << 20, 1 << 20));
    let tx = tree.queues(Direction::Tx).unwrap();
    assert_eq!((tx.len(), tx[0].engine, tx[2].base, tx[2].size), (3, Sze, 0x0120_0100, 4 << 20));
    // Trap T12: every controller has a version, and Medusa's is below 3.
    for node in tree.compatible(compatible::MEDUSA_RX).chain(tree.compatible(compatible::SZE_TX)) {
        assert!(node.u32("version").unwrap() < 0x0003_0000);
    }
}

#[test]
fn a_dd_queue_leads_to_a_controller_of_our_own() {
    let blob = card(1, 2, 2, "(dd@rx1,tx0)").to_blob().unwrap();
    let tree = Tree::parse(&blob).unwrap();
    let controller = tree.compatible("millrace,dma_ctrl_dd_rx").next().unwrap();
    assert_eq!((controller.u32("version"), tree.compatible(compatible::DD_TX).count()), (Ok(0x0001_0000), 1));
    assert_eq!(tree.node("/drivers/ndp/rx_queues/rx1").unwrap().u32("protocol"), Ok(0x100));
    let queues = tree.queues(Direction::Rx).unwrap();
    assert_eq!((queues[0].engine, queues[1].engine, queues[1].size), (Engine::Medusa, Engine::Dd, 256 * 2048));
}

#[test]
fn a_calypte_tx_queue_leads_to_its_buffers_on_a_bus_of_their_own() {
    let blob = card(1, 2, 5, "(calypte@rx1,tx1-3)").to_blob().unwrap();
    let tree = Tree::parse(&blob).unwrap();
    assert_eq!(tree.compatible(compatible::BUS).count(), 2);
    let bus = tree.node("/firmware/mi_bus1").unwrap();
    assert_eq!((bus.string("resource"), bus.property("map-as-wc")), (Ok("PCI0,BAR2"), Some(&[][..])));
    assert_eq!(tree.node("/drivers/mi/PCI0,BAR2").unwrap().u64("mmap_size"), Ok(u64::from(bus.reg().unwrap().1)));
    let controllers: Vec<_> = tree.compatible(compatible::CALYPTE_TX).collect();
    assert_eq!((controllers.len(), tree.compatible(compatible::CALYPTE_RX).count()), (3, 1));
    for (index, ctrl) in (1..).zip(controllers) {
        let (data, headers) = (follow(&tree, ctrl, "data_buff"), follow(&tree, ctrl, "hdr_buff"));
        assert!(data.is_compatible("cesnet,dma_calypte_tx_data_buff") && data.parent() == Some(bus));
        assert!(headers.is_compatible("cesnet,dma_calypte_tx_hdr_buff") && headers.parent() == Some(bus));
        // Masks as software computes them, and addresses as those of a BAR of its own.
        let ((at, size), (headers_at, headers_size)) = (data.reg().unwrap(), headers.reg().unwrap());
        assert_eq!((size / 2 - 1, headers_size / 16 - 1), (0xffff, 0x7ff));
        assert_eq!(Component::at(SECOND_BUS + at), Some((Component::TxData(index), 0)));
        assert_eq!(Component::at(SECOND_BUS + headers_at), Some((Component::TxHeaders(index), 0)));
        // Trap T12.
        assert!((0x0002_0000..0x0003_0000).contains(&ctrl.u32("version").unwrap()));
    }
    let queues = tree.queues(Direction::Tx).unwrap();
    assert_eq!((queues[0].engine, queues[1].engine, queues[1].size), (Engine::Medusa, Engine::Calypte, 65536));
    assert_eq!(tree.node("/drivers/ndp/rx_queues/rx1").unwrap().u32("protocol"), Ok(3));
    let blob = card(1, 2, 2, "calypte@rx0-1").to_blob().unwrap();
    let tree = Tree::parse(&blob).unwrap();
    assert_eq!(tree.compatible(compatible::BUS).count(), 1, "receiving needs no buffers of the device");
    assert!(tree.node("/drivers/mi/PCI0,BAR2").is_none());
}

#[test]
fn all_phandles_differ_and_every_reference_has_a_target() {
    let blob = card(4, 9, 5, "sze@3,engine=calypte@4").to_blob().unwrap();
    let tree = Tree::parse(&blob).unwrap();
    let phandles: Vec<_> = tree.nodes().filter_map(|node| node.phandle()).collect();
    assert_eq!(phandles.iter().collect::<BTreeSet<_>>().len(), phandles.len());
    let mut references = 0;
    for node in tree.nodes() {
        for name in
            ["params", "ctrl", "data_buff", "hdr_buff", "status-reg", "control", "pmd", "pcspma", "rxmac", "txmac"]
        {
            if let Ok(phandle) = node.u32(name) {
                assert!(tree.phandle(phandle).is_some(), "{node:?} {name}");
                references += 1;
            }
        }
    }
    assert_eq!(references, 2 * (9 + 5) + 2 + 4 * 7);
}

#[test]
fn from_one_queue_to_as_many_as_fit() {
    for queues in [1, 2, 16, 100, 1000, MAX_QUEUES] {
        let description = card(1, queues, queues, "medusa");
        let start = Instant::now();
        let blob = description.to_blob().unwrap();
        let built = start.elapsed();
        let tree = Tree::parse(&blob).unwrap();
        let parsed = start.elapsed() - built;
        let listed = tree.queues(Direction::Tx).unwrap();
        let total = start.elapsed();
        println!("{queues} pairs: {} bytes, built {built:?}, parsed {parsed:?}, all {total:?}", blob.len());
        assert_eq!(listed.len(), queues as usize);
        assert_eq!(tree.queues(Direction::Rx).unwrap()[queues as usize - 1].queue, QueueId::rx(queues - 1));
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let too_many = |card: CardDescription| card.to_blob().unwrap_err().to_string();
    assert_eq!(too_many(card(33, 1, 1, "sze")), "33 ports; a card has room for 32");
    let mut description = card(1, 1, 1, "sze");
    description.rx_queues = vec![description.rx_queues[0]; 4097];
    assert_eq!(too_many(description), "4097 receive queues; a card has room for 4096");
    let unnamed = CardDescription { name: "a\0b".to_owned(), ..CardDescription::default() };
    assert!(matches!(unnamed.to_blob(), Err(BuildError::Write(_))));
    assert!(CardDescription::try_from(&CardOptions { rx_queues: 5000, ..CardOptions::default() }).is_err());
}

#[test]
fn a_wrong_question_names_the_node_and_the_property() {
    let blob = CardDescription::default().to_blob().unwrap();
    let tree = Tree::parse(&blob).unwrap();
    let tsu = tree.node("/firmware/mi_bus0/tsu").unwrap();
    assert_eq!(tsu.u32("width").unwrap_err().to_string(), "/firmware/mi_bus0/tsu has no property width");
    let error = tsu.u32("reg").unwrap_err().to_string();
    assert_eq!(error, "/firmware/mi_bus0/tsu: property reg holds 8 bytes that are not one 32-bit number");
    assert_eq!(tsu.parent().unwrap().reg(), Ok((0, 0x0400_0000)));
    assert_eq!(tsu.u32s("reg").unwrap(), [0x4000, 0x1000]);
    assert_eq!(tsu.string("compatible"), Ok("netcope,tsu"));
    for path in ["", "firmware", "/firmware/", "//", "/firmware/tsu", "/FIRMWARE"] {
        assert!(tree.node(path).is_none(), "{path}");
    }
}

#[test]
fn nodes_nested_without_end_are_refused() {
    let mut writer = vm_fdt::FdtWriter::new().unwrap();
    let mut open = vec![writer.begin_node("").unwrap()];
    open.extend((0..40).map(|_| writer.begin_node("deeper").unwrap()));
    while let Some(node) = open.pop() {
        writer.end_node(node).unwrap();
    }
    assert!(matches!(Tree::parse(&writer.finish().unwrap()), Err(TreeError::TooDeep)));
}

#[test]
fn a_very_deep_and_long_blob_is_refused_without_delay_or_overflow() {
    // A header, an empty reservation map and 200,000 nodes each inside the last, by hand since no writer makes them.
    let nodes = 200_000u32;
    let structure: Vec<u32> = core::iter::once([1, 0].to_vec())
        .chain((1..nodes).map(|_| [1, 0x6100_0000].to_vec()))
        .chain((0..nodes).map(|_| [2].to_vec()))
        .chain([vec![9]])
        .flatten()
        .collect();
    let (start, size) = (56, structure.len() as u32 * 4);
    let header = [0xd00d_feed, start + size, start, start + size, 40, 17, 16, 0, 0, size, 0, 0, 0, 0];
    let blob: Vec<u8> = header.iter().chain(&structure).flat_map(|word| word.to_be_bytes()).collect();
    assert!(matches!(Tree::parse(&blob), Err(TreeError::TooDeep)));
}

#[test]
fn dtc_reads_the_blob_and_compiles_what_is_printed() {
    if Command::new("dtc").arg("--version").output().is_err() {
        println!("skipped: dtc is not installed (Debian package device-tree-compiler)");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let dtc = |from: &str, to: &str, input: &[u8]| {
        let (source, result) = (folder.path().join("in"), folder.path().join("out"));
        std::fs::write(&source, input).unwrap();
        let run = Command::new("dtc").args(["-q", "-I", from, "-O", to, "-o"]).arg(&result).arg(&source).output();
        let run = run.unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        std::fs::read(result).unwrap()
    };
    for (ports, queues, engines) in [(1, 1, "sze"), (2, 2, "calypte"), (4, 100, "sze@rx0-49")] {
        let blob = card(ports, queues, queues, engines).to_blob().unwrap();
        let source = String::from_utf8(dtc("dtb", "dts", &blob)).unwrap();
        assert_eq!(source.matches("netcope,eth").count(), ports);
        assert!(source.contains("dma_ctrl_"));
        let tree = Tree::parse(&blob).unwrap();
        let compiled = dtc("dts", "dtb", tree.to_string().as_bytes());
        let again = Tree::parse(&compiled).unwrap();
        assert_eq!(tree.nodes().count(), again.nodes().count());
        for (ours, theirs) in tree.nodes().zip(again.nodes()) {
            assert_eq!(ours.path(), theirs.path());
            assert!(ours.properties().eq(theirs.properties()), "{}", ours.path());
        }
    }
}

proptest! {
    #[test]
    fn any_card_reads_back(ports in 1usize..5, rx in 1u32..40, tx in 1u32..40, other in 0u32..80, numa in proptest::option::of(0u32..4)) {
        let mut description = card(ports, rx, tx, "medusa");
        description.numa_node = numa;
        let queues = description.rx_queues.iter_mut().chain(&mut description.tx_queues);
        for (place, queue) in queues.enumerate().filter(|(place, _)| (*place as u32 * 7) % 80 < other) {
            queue.engine = [Engine::Sze, Engine::Calypte, Engine::Dd][place % 3];
        }
        let blob = description.to_blob().unwrap();
        let tree = Tree::parse(&blob).unwrap();
        for direction in [Direction::Rx, Direction::Tx] {
            let read = tree.queues(direction).unwrap();
            let same = |(entry, queue): (&QueueEntry, &QueueDescription)| {
                (entry.engine, entry.size, entry.mmap_size) == (queue.engine, queue.size, queue.mmap_size)
                    && Some(entry.base) == Component::Dma(entry.queue).base()
            };
            prop_assert_eq!(read.len(), description.queues(direction).len());
            prop_assert!(read.iter().zip(description.queues(direction)).all(same));
        }
    }

    #[test]
    fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = Tree::parse(&bytes).map(|tree| use_all_of(&tree));
    }

    #[test]
    fn no_damage_makes_the_reader_panic(
        words in proptest::collection::vec((any::<prop::sample::Index>(), prop_oneof![any::<u32>(), 0u32..64]), 0..6),
        bytes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        kept in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let mut blob = card(1, 2, 1, "sze@1,engine=calypte@0").to_blob().unwrap();
        for (place, word) in words {
            let at = place.index(blob.len() / 4) * 4;
            blob[at..at + 4].copy_from_slice(&word.to_be_bytes());
        }
        for (place, byte) in bytes {
            let at = place.index(blob.len());
            blob[at] = byte;
        }
        blob.truncate(kept.map_or(blob.len(), |kept| kept.index(blob.len())));
        let _ = Tree::parse(&blob).map(|tree| use_all_of(&tree));
    }
}
