//! What programs see of our objects: the structures of `infiniband/verbs.h` (rdma-core 44), byte by byte. Programs read and write
//! them, and call what pointers in them lead to, without asking this library; so not one offset may differ.
//!
//! No code, only layouts: `device`, `objects` and `attributes`, `work`, and the tables of functions of queue pairs and completion
//! queues in `extended`. Names of types are those of the header without the prefix.

mod attributes;
mod device;
mod extended;
mod objects;
mod work;

pub(crate) use attributes::*;
pub(crate) use device::*;
pub(crate) use extended::*;
pub(crate) use objects::*;
pub(crate) use work::*;

/// Offsets, checked when this is compiled.
macro_rules! layout {
    ($type:ident: $size:literal { $($field:ident: $at:literal),* $(,)? }) => {
        const _: () = {
            assert!(size_of::<$type>() == $size, concat!("size of ", stringify!($type)));
            $(assert!(core::mem::offset_of!($type, $field) == $at, concat!(stringify!($type), ".", stringify!($field)));)*
        };
    };
}
pub(crate) use layout;
