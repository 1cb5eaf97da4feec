//! Reading a flattened device tree.

use super::{Node, PropertyError, dma_compatible};
use crate::queue::{Direction, Engine, QueueId};
use core::fmt;
use dtoolkit::Node as _;
use dtoolkit::fdt::{Fdt, FdtNode, FdtProperty};

/// Deepest nesting that is read. A card needs six levels; without a limit a hostile blob could exhaust the stack.
const MAX_DEPTH: usize = 32;

/// Why a blob is not a device tree that can be used.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// Not a blob of version 17, cut off, or damaged.
    #[error("not a flattened device tree of version 17, or a damaged one: {0}")]
    Malformed(#[from] dtoolkit::error::FdtParseError),
    /// Nodes nested deeper than any card needs.
    #[error("nodes are nested deeper than {MAX_DEPTH} levels; this is not the device tree of a card")]
    TooDeep,
    /// A property that software relies on is missing or has the wrong shape.
    #[error(transparent)]
    Property(#[from] PropertyError),
    /// The driver's node of a queue points at something that is no DMA controller.
    #[error("{path} points at no DMA controller of an engine known here")]
    NoController {
        /// Path of the queue's node.
        path: String,
    },
}

/// A device tree, checked and indexed; borrows the blob. Nodes keep the order of the blob, which numbers the parts of
/// a card (§2.1 "Index").
#[derive(Debug)]
pub struct Tree<'blob> {
    fdt: Fdt<'blob>,
    pub(super) entries: Vec<Entry<'blob>>,
    pub(super) properties: Vec<FdtProperty<'blob>>,
}

/// One node. Descendants follow it directly, up to `end`.
#[derive(Debug)]
pub(super) struct Entry<'blob> {
    pub name: &'blob str,
    pub depth: usize,
    pub parent: usize,
    /// Index behind the last descendant.
    pub end: usize,
    /// Its range of `Tree::properties`.
    pub properties: core::ops::Range<usize>,
}

/// A queue as the tree describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueEntry {
    /// Which queue.
    pub queue: QueueId,
    /// Path of the node of its DMA controller: what is locked while the queue runs (§1.5).
    pub controller: String,
    /// Protocol of its DMA controller.
    pub engine: Engine,
    /// Address of the controller on the bus, in bytes.
    pub base: u32,
    /// Packet memory, in bytes.
    pub size: u64,
    /// What an application maps, in bytes; 0: the queue cannot be opened.
    pub mmap_size: u64,
}

impl<'blob> Tree<'blob> {
    /// Checks the blob and indexes its nodes. The blob must end where its header says.
    ///
    /// # Errors
    /// The blob is none, is cut off or damaged, or nests nodes too deeply.
    pub fn parse(blob: &'blob [u8]) -> Result<Self, TreeError> {
        let fdt = Fdt::new(blob)?;
        let mut tree = Tree { fdt, entries: Vec::new(), properties: Vec::new() };
        tree.index(fdt.root(), 0, 0)?;
        Ok(tree)
    }

    fn index(&mut self, node: FdtNode<'blob>, parent: usize, depth: usize) -> Result<(), TreeError> {
        if depth >= MAX_DEPTH {
            return Err(TreeError::TooDeep);
        }
        let first = self.properties.len();
        self.properties.extend(node.properties());
        let properties = first..self.properties.len();
        let here = self.entries.len();
        self.entries.push(Entry { name: node.name(), depth, parent, end: 0, properties });
        for child in node.children() {
            self.index(child, here, depth + 1)?;
        }
        self.entries[here].end = self.entries.len();
        Ok(())
    }

    /// The root.
    pub fn root(&self) -> Node<'_> {
        Node { tree: self, index: 0 }
    }

    /// All nodes in the order of the blob, the root first.
    pub fn nodes(&self) -> impl Iterator<Item = Node<'_>> {
        (0..self.entries.len()).map(|index| Node { tree: self, index })
    }

    /// The node at a path such as `/drivers/ndp`; `/` is the root.
    pub fn node(&self, path: &str) -> Option<Node<'_>> {
        let names = path.strip_prefix('/')?;
        if names.is_empty() {
            return Some(self.root());
        }
        names.split('/').try_fold(self.root(), |node, name| node.child(name))
    }

    /// The nodes that are compatible with `name`, in the order of the blob: the n-th is the n-th such part.
    pub fn compatible(&self, name: &str) -> impl Iterator<Item = Node<'_>> {
        self.nodes().filter(move |node| node.is_compatible(name))
    }

    /// The node that others point at with this number.
    pub fn phandle(&self, phandle: u32) -> Option<Node<'_>> {
        self.nodes().find(|node| node.phandle() == Some(phandle))
    }

    /// The queues of one direction by index, each with the engine and the address of its DMA controller, as
    /// `/drivers/ndp` lists them.
    ///
    /// # Errors
    /// A queue lacks a property, or points at no DMA controller of that direction.
    pub fn queues(&self, direction: Direction) -> Result<Vec<QueueEntry>, TreeError> {
        let controllers = self.controllers(direction);
        let list = match direction {
            Direction::Rx => self.node("/drivers/ndp/rx_queues"),
            Direction::Tx => self.node("/drivers/ndp/tx_queues"),
        };
        let mut queues = Vec::new();
        for node in list.iter().flat_map(Node::children) {
            let queue = QueueId { direction, index: queues.len() as u32 };
            let ctrl = node.u32("ctrl")?;
            let found = controllers.binary_search_by_key(&ctrl, |(phandle, ..)| *phandle);
            let Ok((_, engine, controller)) = found.map(|at| controllers[at]) else {
                return Err(TreeError::NoController { path: node.path() });
            };
            let (base, _) = controller.reg()?;
            let (size, mmap_size) = (node.u64("size")?, node.u64("mmap_size")?);
            queues.push(QueueEntry { queue, controller: controller.path(), engine, base, size, mmap_size });
        }
        Ok(queues)
    }

    /// The DMA controllers of one direction with a phandle, sorted by it.
    fn controllers(&self, direction: Direction) -> Vec<(u32, Engine, Node<'_>)> {
        let with_engine = |node: Node<'_>| {
            Engine::ALL.into_iter().find(|&engine| node.is_compatible(dma_compatible(engine, direction)))
        };
        let mut controllers: Vec<_> =
            self.nodes().filter_map(|node| Some((node.phandle()?, with_engine(node)?, node))).collect();
        controllers.sort_by_key(|(phandle, ..)| *phandle);
        controllers
    }
}

/// The tree in the syntax of a device-tree source file.
impl fmt::Display for Tree<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The printer recurses, which is safe because the depth was checked.
        self.fdt.fmt(f)
    }
}
