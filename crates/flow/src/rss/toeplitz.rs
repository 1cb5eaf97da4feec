//! The Toeplitz hash, as Microsoft's "RSS hashing functions" defines it for network cards.

/// Usual length of a key, in bytes.
pub const KEY_LEN: usize = 40;
/// Longest input in bytes: two IPv6 addresses, two ports, a protocol.
pub const MAX_INPUT: usize = 37;

/// The key of Microsoft's verification suite, which many cards start with.
pub const MICROSOFT_KEY: [u8; KEY_LEN] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b,
    0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac,
    0x01, 0xfa,
];

/// 32 bits of the key from bit `at` on. Behind its last bit the key begins again: 5-tuples of IPv6 reach there.
fn window(key: &[u8], at: usize) -> u32 {
    (0..32).fold(0, |window, bit| {
        let at = (at + bit) % (key.len() * 8);
        window << 1 | u32::from(key[at / 8] >> (7 - at % 8) & 1)
    })
}

/// The hash by its definition: for every bit of the input that is set, the window of the key at that bit.
pub fn definition(key: &[u8], input: &[u8]) -> u32 {
    let set = |at: &usize| input[at / 8] >> (7 - at % 8) & 1 == 1;
    (0..input.len() * 8).filter(set).fold(0, |hash, at| hash ^ window(key, at))
}

/// Bytes of the usual input: two IPv4 addresses and two ports.
const USUAL: usize = 12;

/// The hash of one key, four bits at a time: for each half byte of the input a table of 16. (With whole bytes the tables
/// of an IPv4 tuple alone would be 12 KB, a third of the first-level cache.)
///
/// Of the usual input the lower half of the hash, which chooses a queue, is found a whole byte at a time: 6 KB.
#[derive(Clone, Debug)]
pub struct Toeplitz {
    key: Box<[u8]>,
    tables: Box<[[u32; 16]; 2 * MAX_INPUT]>,
    halves: Box<[[u16; 256]; USUAL]>,
}

impl Toeplitz {
    /// For a key that is not empty.
    pub fn new(key: &[u8]) -> Self {
        let mut tables = Box::new([[0; 16]; 2 * MAX_INPUT]);
        for (at, table) in tables.iter_mut().enumerate() {
            let windows: [u32; 4] =
                std::array::from_fn(|bit| if key.is_empty() { 0 } else { window(key, 4 * at + bit) });
            for (value, entry) in table.iter_mut().enumerate() {
                *entry = (0..4).filter(|bit| value >> (3 - bit) & 1 == 1).fold(0, |hash, bit| hash ^ windows[bit]);
            }
        }
        let mut halves = Box::new([[0; 256]; USUAL]);
        for (at, half) in halves.iter_mut().enumerate() {
            for (value, entry) in half.iter_mut().enumerate() {
                *entry = (tables[2 * at][value >> 4] ^ tables[2 * at + 1][value & 15]) as u16;
            }
        }
        Self { key: key.into(), tables, halves }
    }

    /// The key.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The lower half of the hash of two IPv4 addresses and two ports, from registers: bytes would first be written to memory.
    #[inline(always)]
    pub(super) fn half_of_ipv4(&self, addresses: u64, ports: u32) -> u16 {
        let of_addresses =
            (0..8).fold(0, |hash, at| hash ^ self.halves[at][(addresses >> (56 - 8 * at)) as usize & 255]);
        (8..USUAL).fold(of_addresses, |hash, at| hash ^ self.halves[at][(ports >> (88 - 8 * at)) as usize & 255])
    }

    /// The hash of the first [`MAX_INPUT`] bytes of an input.
    pub fn hash(&self, input: &[u8]) -> u32 {
        let input = &input[..input.len().min(MAX_INPUT)];
        input.iter().fold(self.begin(), |partly, &byte| partly.with::<2>(byte.into())).hash
    }

    /// The hash of nothing yet. Words of a tuple are added from registers: an array of its bytes would be read before its
    /// writes have come to rest.
    #[inline(always)]
    pub(super) fn begin(&self) -> Partly<'_> {
        Partly { tables: &self.tables[..], hash: 0 }
    }
}

/// A hash of the first half bytes of an input, and the tables for the rest.
#[derive(Clone, Copy)]
pub(super) struct Partly<'t> {
    tables: &'t [[u32; 16]],
    pub hash: u32,
}

impl Partly<'_> {
    /// With the lowest `N` half bytes of `value` behind it, that of the highest first. What has no table does not count.
    #[inline(always)]
    pub fn with<const N: usize>(self, value: u64) -> Self {
        let Some((tables, rest)) = self.tables.split_first_chunk::<N>() else { return self };
        let hash = (0..N).fold(self.hash, |hash, at| hash ^ tables[at][(value >> (4 * (N - 1 - at))) as usize & 15]);
        Self { tables: rest, hash }
    }
}
