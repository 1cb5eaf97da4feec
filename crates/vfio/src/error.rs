//! Why a program cannot have a function.

use millrace_abi::pci::PciAddress;
use millrace_dma::RegionError;
use rustix::io::Errno;

/// Why a function cannot be had, or not be used.
#[derive(Debug, thiserror::Error)]
pub enum VfioError {
    /// Nothing is there.
    #[error("there is no PCI function at {0}; `ls /sys/bus/pci/devices` lists those of this machine")]
    Nothing(PciAddress),
    /// Something else is there.
    #[error("the PCI function at {0} is no card: vendor {1:#06x}, device {2:#06x}")]
    NoCard(PciAddress, u16, u16),
    /// Another driver has it, or none.
    #[error(
        "the PCI function at {address} is {}, not vfio-pci's; as root: `modprobe vfio-pci`, `echo vfio-pci \
         >/sys/bus/pci/devices/{address}/driver_override`, {}`echo {address} >/sys/bus/pci/drivers_probe`",
        owner(driver),
        unbinding(address, driver)
    )]
    NotBound {
        /// The function.
        address: PciAddress,
        /// Its driver.
        driver: Option<String>,
    },
    /// Without an IOMMU any program could reach all memory.
    #[error(
        "the machine has no IOMMU for the PCI function at {0}; start it with one (QEMU: `-device \
         intel-iommu,caching-mode=on,intremap=on` before the function)"
    )]
    NoIommu(PciAddress),
    /// Any program could then make any interrupt.
    #[error(
        "the IOMMU of this machine does not remap interrupts, without which vfio-pci gives the function at {0} to nobody; start the machine \
         with one that does (QEMU: `-device intel-iommu,caching-mode=on,intremap=on`), or as root: `echo Y \
         >/sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts`"
    )]
    NoRemapping(PciAddress),
    /// A function beside it has another driver.
    #[error("another device in the IOMMU group of {0} has a driver of its own; give all of the group to vfio-pci")]
    NotViable(PciAddress),
    /// Only one program has a function.
    #[error("another program has the PCI function at {0}; a function is for one program at a time")]
    Busy(PciAddress),
    /// The system does not let this program.
    #[error("permission denied on {path}: run as root, or have root give it to this user (`chown`)")]
    Denied {
        /// What could not be opened.
        path: String,
    },
    /// The function is not as this driver knows it.
    #[error("the PCI function at {0} has no {1}; is the card of another version?")]
    Unknown(PciAddress, &'static str),
    /// There is no device tree.
    #[error("the device tree of the PCI function cannot be read: {0}")]
    Tree(String),
    /// The card can only reach memory on huge pages.
    #[error(
        "{0} bytes of memory on huge pages are not to be had, which a PCI function needs; as root: `echo 32 \
         >/proc/sys/vm/nr_hugepages`"
    )]
    NoHugePages(usize),
    /// Memory could not be made or mapped.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The system refused.
    #[error("{what} failed: {source}{}", hint(*source))]
    System {
        /// What was asked for.
        what: &'static str,
        /// What the system said.
        source: Errno,
    },
}

fn owner(driver: &Option<String>) -> String {
    driver.as_ref().map_or("nobody's".to_owned(), |driver| format!("the driver {driver}'s"))
}

fn unbinding(address: &PciAddress, driver: &Option<String>) -> String {
    let unbind = |_| format!("`echo {address} >/sys/bus/pci/devices/{address}/driver/unbind`, ");
    driver.as_ref().map(unbind).unwrap_or_default()
}

fn hint(source: Errno) -> &'static str {
    if source == Errno::NOMEM { "; this program may lock too little memory (`ulimit -l`)" } else { "" }
}

impl VfioError {
    pub(crate) fn system(what: &'static str) -> impl FnOnce(Errno) -> Self {
        move |source| Self::System { what, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_to_be_done_is_said() {
        let address: PciAddress = "00:04.0".parse().unwrap();
        let text = VfioError::NotBound { address, driver: Some("nfb".to_owned()) }.to_string();
        assert!(text.contains("is the driver nfb's") && text.contains("0000:00:04.0/driver/unbind"), "{text}");
        let text = VfioError::NotBound { address, driver: None }.to_string();
        assert!(text.contains("nobody's") && !text.contains("unbind"), "{text}");
    }
}
