//! One open of a device.

use crate::errno;
use millrace::{Device, Error};
use millrace_abi::name::DeviceName;
use millrace_abi::register::map::SECOND_BUS;

/// A device as one `nfb_open` sees it. Its locks and queues are its own; the card behind it is not.
pub struct Open {
    pub device: Device,
    pub tree: Vec<u8>,
    /// Every queue is opened as with the user-space flag, which programs such as DPDK's driver cannot give.
    pub direct: bool,
}

impl Open {
    /// Opens the device with this name, which `direct:` may precede. The empty name is the default of all Millrace
    /// programs.
    pub fn new(name: &str) -> Result<Self, Error> {
        let (direct, name) = name.strip_prefix("direct:").map_or((false, name), |name| (true, name));
        let device = match name {
            "" => Device::open_shared(&DeviceName::from_environment()?.to_string())?,
            _ => Device::open_shared(name)?,
        };
        let tree = device.device_tree()?;
        Ok(Self { device, tree, direct })
    }

    /// Locks features of a component until they are unlocked or the device is closed: 1 when they are ours, 0 when
    /// somebody (or we) have them, a negative errno when it cannot be (§1.5).
    pub fn lock(&self, component: &str, features: u32) -> i32 {
        match self.device.try_lock(component, features.into()) {
            Ok(locked) => i32::from(locked),
            Err(error) => -errno::of(&error),
        }
    }

    /// Gives features back that [`Open::lock`] locked together; anything else is ignored, as libnfb cannot be told.
    pub fn unlock(&self, component: &str, features: u32) {
        let _ = self.device.unlock(component, features.into());
    }

    /// The bus at a node of the device tree: what is added to its addresses. `None` if there is no such node.
    pub fn bus_base(&self, node: i32) -> Option<u32> {
        match node_name(&self.tree, node)? {
            "mi_bus0" => Some(0),
            "mi_bus1" => Some(SECOND_BUS),
            _ => None,
        }
    }
}

/// Name of the node at an offset into the structure block, as libfdt counts it.
fn node_name(tree: &[u8], node: i32) -> Option<&str> {
    const BEGIN_NODE: u32 = 1;
    let word = |at: usize| Some(u32::from_be_bytes(tree.get(at..at + 4)?.try_into().ok()?));
    // Offset 8 of the header of a flattened device tree is `off_dt_struct` (Devicetree Specification 0.4, §5.2).
    let at = (word(8)? as usize).checked_add(usize::try_from(node).ok()?)?;
    if word(at)? != BEGIN_NODE {
        return None;
    }
    let name = tree.get(at + 4..)?;
    let end = name.iter().position(|&byte| byte == 0)?;
    core::str::from_utf8(&name[..end]).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bus_is_found_by_its_node_and_nothing_else_is_a_bus() {
        let open = Open::new("embedded:").unwrap();
        let buses: Vec<i32> = (0..open.tree.len() as i32).filter(|&at| open.bus_base(at).is_some()).collect();
        assert_eq!(buses.len(), 1, "{buses:?}");
        let calypte = Open::new("embedded:engine=calypte").unwrap();
        let bases: Vec<u32> = (0..calypte.tree.len() as i32).filter_map(|at| calypte.bus_base(at)).collect();
        assert_eq!(bases, [0, SECOND_BUS]);
        assert_eq!(node_name(&open.tree, 0), Some(""), "the root");
        for node in [-1, i32::MIN, i32::MAX, 1, 2, open.tree.len() as i32] {
            assert_eq!(open.bus_base(node), None, "{node}");
        }
        assert_eq!(node_name(&[], 0), None);
    }
}
