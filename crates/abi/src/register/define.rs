//! How a block module writes its table down.

pub(super) use super::Access::{ReadOnly as RO, ReadWrite as RW, ReadsDifferently as RD, WriteOnly as WO};
pub(super) use super::Width::{W8, W16, W32, W64};
pub(super) use super::{Block, Offset, Register};

/// Turns the lines of a data sheet, `NAME = offset, width, access, "meaning";`, into one constant of type [`Offset`]
/// each and a [`Block`] that lists them all. `NAME[count; stride]` stands for several equal registers.
macro_rules! registers {
    (
        block $block:literal, section $section:literal, size $size:literal;
        $($registers:tt)+
    ) => {
        registers! { block $block, reference concat!("docs/spec/nfb-card.md §", $section), size $size; $($registers)+ }
    };
    (
        block $block:literal, reference $reference:expr, size $size:literal;
        $($name:ident $([$count:literal; $stride:literal])? =
            $offset:literal, $width:ident, $access:ident, $meaning:literal;)+
    ) => {
        $(
            #[doc = concat!($meaning, ".")]
            pub const $name: Offset = Offset::new($offset);
        )+

        #[doc = concat!("The registers of the ", $block, " block (", $reference, ").")]
        pub static BLOCK: Block = Block {
            name: $block,
            reference: $reference,
            size: $size,
            registers: &[$(Register {
                name: stringify!($name),
                offset: $name,
                width: $width,
                access: $access,
                count: registers!(@or $($count,)? 1),
                stride: registers!(@or $($stride,)? $width.bytes()),
                meaning: $meaning,
            }),+],
        };
    };
    (@or $given:expr, $default:expr) => { $given };
    (@or $default:expr) => { $default };
}
pub(super) use registers;
