//! The transport between two domains of Xen: pages granted by `gntalloc` and mapped by `gntdev`, event channels, and XenStore to find each
//! other. No kernel module of our own: all of it are devices that Linux has in `/dev/xen`.
//!
//! A program in a guest writes `data/millrace/NUMBER` in its domain's part of XenStore (which it may, by what `xl` sets up): the reference of
//! its control page, the port of its event channel, and the version. The backend watches for such entries, those of each domain by a connection of its own, and removes
//! them when it serves their programs no more. A program that ends has its kernel clear a byte of the control page and ring; one whose domain is destroyed is
//! known by XenStore. Pages of a domain that has gone stay readable while they are mapped, by Xen's own rules.

mod back;
mod front;
#[cfg(test)]
mod sim;
mod store;
#[allow(unsafe_code)]
mod sys;

pub use back::XenDoor;
pub use front::{XenGrants, XenLand, connect};

use crate::Error;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, open};

/// The domain of the backend.
const BACKEND: u16 = 0;
/// Where programs of a domain say that they are there, in its part of XenStore.
const PLACE: &str = "data/millrace";

/// A device of Xen.
fn device(name: &str, flags: OFlags) -> Result<OwnedFd, Error> {
    let path = format!("/dev/xen/{name}");
    let flags = OFlags::RDWR | OFlags::CLOEXEC | flags;
    // XenStore's device is in every kernel for Xen; the others are modules.
    let module = if name == "xenbus" { String::new() } else { format!(" with xen-{name} (modprobe)") };
    let hint = format!("cannot open {path}; this takes root, in a domain of Xen{module}");
    open(&path, flags, Mode::empty()).map_err(Error::system(hint))
}
