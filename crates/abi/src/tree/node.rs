//! One node of a device tree and its properties.

use super::Tree;
use super::reader::Entry;
use core::fmt;
use dtoolkit::Property as _;

/// A node of a [`Tree`].
#[derive(Clone, Copy)]
pub struct Node<'tree> {
    pub(super) tree: &'tree Tree<'tree>,
    pub(super) index: usize,
}

/// A property that is not there or not what was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PropertyError {
    /// The node has no such property.
    #[error("{path} has no property {property}")]
    Missing {
        /// Path of the node.
        path: String,
        /// Name of the property.
        property: String,
    },
    /// The property holds something else.
    #[error("{path}: property {property} holds {length} bytes that are not {expected}")]
    Shape {
        /// Path of the node.
        path: String,
        /// Name of the property.
        property: String,
        /// How many bytes it holds.
        length: usize,
        /// What was expected.
        expected: &'static str,
    },
}

impl<'tree> Node<'tree> {
    fn entry(&self) -> &'tree Entry<'tree> {
        &self.tree.entries[self.index]
    }

    /// Name without the path; empty for the root.
    pub fn name(&self) -> &'tree str {
        self.entry().name
    }

    /// Path from the root, such as `/firmware/mi_bus0/tsu`.
    pub fn path(&self) -> String {
        match self.parent() {
            None => "/".to_owned(),
            Some(parent) if parent.index == 0 => format!("/{}", self.name()),
            Some(parent) => format!("{}/{}", parent.path(), self.name()),
        }
    }

    /// Levels below the root.
    pub fn depth(&self) -> usize {
        self.entry().depth
    }

    /// The node above; `None` for the root.
    pub fn parent(&self) -> Option<Node<'tree>> {
        (self.index > 0).then(|| Node { tree: self.tree, index: self.entry().parent })
    }

    /// The nodes directly below, in the order of the blob.
    pub fn children(&self) -> impl Iterator<Item = Node<'tree>> + use<'tree> {
        let (tree, end) = (self.tree, self.entry().end);
        let mut next = self.index + 1;
        core::iter::from_fn(move || {
            let index = (next < end).then_some(next)?;
            next = tree.entries[index].end;
            Some(Node { tree, index })
        })
    }

    /// The node of that name directly below.
    pub fn child(&self, name: &str) -> Option<Node<'tree>> {
        self.children().find(|child| child.name() == name)
    }

    /// Names and raw values of the properties, in the order of the blob.
    pub fn properties(&self) -> impl Iterator<Item = (&'tree str, &'tree [u8])> + use<'tree> {
        let properties = &self.tree.properties[self.entry().properties.clone()];
        properties.iter().map(|property| (property.name(), property.value()))
    }

    /// The raw value of a property.
    pub fn property(&self, name: &str) -> Option<&'tree [u8]> {
        self.properties().find(|(found, _)| *found == name).map(|(_, value)| value)
    }

    /// Whether one of the strings in `compatible` is `name`.
    pub fn is_compatible(&self, name: &str) -> bool {
        let strings = self.property("compatible").and_then(|value| value.strip_suffix(b"\0"));
        strings.is_some_and(|strings| strings.split(|byte| *byte == 0).any(|string| string == name.as_bytes()))
    }

    /// The number by which other nodes point at this one.
    pub fn phandle(&self) -> Option<u32> {
        self.property("phandle")?.try_into().ok().map(u32::from_be_bytes)
    }

    /// A property of four bytes.
    ///
    /// # Errors
    /// There is none of that name, or it is not four bytes long.
    pub fn u32(&self, name: &str) -> Result<u32, PropertyError> {
        self.read(name, "one 32-bit number", |value| Some(u32::from_be_bytes(value.try_into().ok()?)))
    }

    /// A property of eight bytes.
    ///
    /// # Errors
    /// There is none of that name, or it is not eight bytes long.
    pub fn u64(&self, name: &str) -> Result<u64, PropertyError> {
        self.read(name, "one 64-bit number", |value| Some(u64::from_be_bytes(value.try_into().ok()?)))
    }

    /// A property that is a list of 32-bit numbers.
    ///
    /// # Errors
    /// There is none of that name, or its length is not a multiple of four.
    pub fn u32s(&self, name: &str) -> Result<Vec<u32>, PropertyError> {
        self.read(name, "32-bit numbers", |value| {
            let (cells, rest) = value.as_chunks();
            rest.is_empty().then(|| cells.iter().map(|cell| u32::from_be_bytes(*cell)).collect())
        })
    }

    /// A property that is one string.
    ///
    /// # Errors
    /// There is none of that name, or it is not one UTF-8 string with a zero behind it.
    pub fn string(&self, name: &str) -> Result<&'tree str, PropertyError> {
        self.read(name, "one string", |value| {
            core::ffi::CStr::from_bytes_with_nul(value).ok().and_then(|string| string.to_str().ok())
        })
    }

    /// Base and size of a component in bytes (§1.4: two 32-bit cells).
    ///
    /// # Errors
    /// The node has no `reg` of that form, so it is no component.
    pub fn reg(&self) -> Result<(u32, u32), PropertyError> {
        self.read("reg", "a base and a size of 32 bits each", |value| {
            let (base, size) = value.split_first_chunk()?;
            Some((u32::from_be_bytes(*base), u32::from_be_bytes(size.try_into().ok()?)))
        })
    }

    fn read<T>(
        &self,
        name: &str,
        expected: &'static str,
        decode: impl FnOnce(&'tree [u8]) -> Option<T>,
    ) -> Result<T, PropertyError> {
        let Some(value) = self.property(name) else {
            return Err(PropertyError::Missing { path: self.path(), property: name.to_owned() });
        };
        decode(value).ok_or_else(|| PropertyError::Shape {
            path: self.path(),
            property: name.to_owned(),
            length: value.len(),
            expected,
        })
    }
}

impl PartialEq for Node<'_> {
    fn eq(&self, other: &Self) -> bool {
        core::ptr::eq(self.tree, other.tree) && self.index == other.index
    }
}

impl Eq for Node<'_> {}

impl fmt::Debug for Node<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({})", self.path())
    }
}
