//! One open of a device.

use crate::errno;
use millrace::visible::LockInfo;
use millrace::{Device, Error};
use millrace_abi::name::DeviceName;
use millrace_abi::register::map::SECOND_BUS;
use std::collections::BTreeSet;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A device as one `nfb_open` sees it. Its locks and queues are its own; the card behind it is not.
pub struct Open {
    pub device: Device,
    pub tree: Vec<u8>,
    /// Every queue is opened as with the user-space flag, which programs such as DPDK's driver cannot give.
    pub direct: bool,
    // Components of which it was said who has locked them.
    named: Mutex<BTreeSet<String>>,
}

impl Open {
    /// Opens the device with this name, which `direct:` may precede. The empty name is the default of all Millrace
    /// programs.
    pub fn new(name: &str) -> Result<Self, Error> {
        let (direct, name) = name.strip_prefix("direct:").map_or((false, name), |name| (true, name));
        let name = match name {
            "" => DeviceName::from_environment()?.to_string(),
            _ => name.to_owned(),
        };
        let (device, tree) = while_waiting(&name, || {
            let device = Device::open_shared(&name)?;
            let tree = device.device_tree()?;
            Ok::<_, Error>((device, tree))
        })?;
        Ok(Self { device, tree, direct, named: Mutex::default() })
    }

    /// Locks features of a component until they are unlocked or the device is closed: 1 when they are ours, 0 when
    /// somebody (or we) have them, a negative errno when it cannot be (§1.5).
    pub fn lock(&self, component: &str, features: u32) -> i32 {
        match self.device.try_lock(component, features.into()) {
            Ok(true) => 1,
            Ok(false) => self.conflict(component, features),
            Err(error) => -errno::of(&error),
        }
    }

    /// Somebody has the lock. Most give it back at once; who does not is named, once for each component.
    #[cold]
    fn conflict(&self, component: &str, features: u32) -> i32 {
        if !self.named.lock().unwrap_or_else(PoisonError::into_inner).insert(component.to_owned()) {
            return 0;
        }
        std::thread::sleep(MOMENT);
        if self.device.try_lock(component, features.into()).is_ok_and(|locked| locked) {
            self.named.lock().unwrap_or_else(PoisonError::into_inner).remove(component);
            return 1;
        }
        // Another open of this very program needs no name: it cannot be waited for by whoever reads this, or ended.
        let theirs = |lock: &LockInfo| {
            lock.component == component && lock.bits & u64::from(features) != 0 && lock.pid != std::process::id()
        };
        if let Some(held) = self.device.locks().ok().and_then(|locks| locks.into_iter().find(theirs)) {
            eprintln!(
                "libnfb-ext-millrace: {component} is locked by process {}: wait until it has done, or end it; `millrace locks` \
                 shows all locks and takes them away",
                held.pid
            );
        }
        0
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

/// What programs hold a lock for that read a few registers under it.
const MOMENT: Duration = Duration::from_millis(20);

/// How long a card may take to answer before it is said what is waited for.
const PATIENCE: Duration = Duration::from_secs(3);

/// Does what may wait for a card, and says so if it takes long. A card in this process is no other program that could hang.
fn while_waiting<T>(name: &str, opening: impl FnOnce() -> T) -> T {
    if !name.starts_with("unix:") {
        return opening();
    }
    let (done, waits) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let watch = move || {
            if waits.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                eprintln!("libnfb-ext-millrace: {name}: waiting for the card to answer");
            }
        };
        // Without the thread nothing is lost but the line.
        let _ = std::thread::Builder::new().stack_size(64 * 1024).spawn_scoped(scope, watch);
        let opened = opening();
        drop(done);
        opened
    })
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
