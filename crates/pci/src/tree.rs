//! The device tree of a function, as its driver reads it from configuration space: compressed by xz, in words.

use crate::share::Share;
use millrace_abi::name::CardOptions;
use millrace_abi::pci::TREE_LARGEST;
use millrace_abi::queue::Direction;
use millrace_abi::tree::{BuildError, CardDescription};
use std::io::Write;
use std::ops::Range;

/// Why there is no device tree for a function.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// It could not be written.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// It could not be compressed.
    #[error("the device tree cannot be compressed: {0}")]
    Compress(#[from] std::io::Error),
    /// No driver would read it.
    #[error(
        "the compressed device tree has {0} bytes, and drivers read {TREE_LARGEST} at most: give the card fewer queues or more functions"
    )]
    TooLarge(usize),
}

/// The tree of a function, compressed.
pub(crate) fn compressed(options: &CardOptions, share: &Share, card_id: u32) -> Result<Vec<u8>, TreeError> {
    let bytes = compress(&description(options, share, card_id).to_blob()?)?;
    if bytes.len() > TREE_LARGEST { Err(TreeError::TooLarge(bytes.len())) } else { Ok(bytes) }
}

/// A card that has what the function has.
fn description(options: &CardOptions, share: &Share, card_id: u32) -> CardDescription {
    let whole = CardDescription::new(options);
    let part = |direction: Direction, range: &Range<u32>| {
        whole.queues(direction).get(range.start as usize..range.end as usize).unwrap_or_default().to_vec()
    };
    CardDescription {
        id: card_id,
        function: true,
        ports: whole.ports.get(share.ports.start as usize..share.ports.end as usize).unwrap_or_default().to_vec(),
        rx_queues: part(Direction::Rx, &share.rx),
        tx_queues: part(Direction::Tx, &share.tx),
        ..whole.clone()
    }
}

/// As the kernel's decoder wants it: CRC32, and a dictionary no larger than the tree.
fn compress(blob: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut options = lzma_rust2::XzOptions::with_preset(6);
    options.set_check_sum_type(lzma_rust2::CheckType::Crc32);
    options.lzma_options.dict_size = (blob.len() as u32).next_power_of_two().max(lzma_rust2::DICT_SIZE_MIN);
    let mut writer = lzma_rust2::XzWriter::new(Vec::new(), options)?;
    writer.write_all(blob)?;
    writer.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_abi::pci;
    use millrace_abi::tree::Tree;
    use std::process::{Command, Stdio};

    /// By the program that everybody has; `None` where it is not there.
    fn unpacked(bytes: &[u8]) -> Option<Vec<u8>> {
        let mut child = Command::new("xz").arg("-dc").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
        let mut to = child.stdin.take()?;
        let bytes = bytes.to_vec();
        let writer = std::thread::spawn(move || to.write_all(&bytes));
        let output = child.wait_with_output().ok()?;
        writer.join().unwrap().unwrap();
        assert!(output.status.success());
        Some(output.stdout)
    }

    #[test]
    fn a_function_is_described_as_a_card_of_its_own() {
        let options = CardOptions { rx_queues: 4, tx_queues: 4, ..CardOptions::default() };
        let share = Share::of(&options, 2, 1).unwrap();
        let bytes = compressed(&options, &share, 7).unwrap();
        assert_eq!(bytes.len() % 4, 0, "drivers read words");
        assert_eq!(bytes[7], 1, "CRC32");
        let Some(blob) = unpacked(&bytes) else { return println!("skipped: there is no xz") };
        let tree = Tree::parse(&blob).unwrap();
        assert_eq!(tree.queues(Direction::Rx).unwrap().len(), 2);
        let second = tree.compatible("netcope,dma_ctrl_ndp_tx").nth(1).unwrap();
        assert_eq!(second.reg().unwrap(), (0x0120_0080, 0x80));
        assert_eq!(second.u32(pci::DOORBELL_PROPERTY), Ok(0x3000));
        assert_eq!(second.u32(pci::VECTOR_PROPERTY), Ok(3));
        assert_eq!(tree.node("/system/device").unwrap().u32("card-id"), Ok(7));
    }

    #[test]
    fn a_function_with_all_the_queues_that_it_can_have_can_be_described() {
        let options = CardOptions { rx_queues: 1024, tx_queues: 1024, ..CardOptions::default() };
        let share = Share::of(&options, 1, 0).unwrap();
        assert!(compressed(&options, &share, 0).unwrap().len() <= TREE_LARGEST);
    }
}
