//! What outlives the process: attachments in a file system of BPF, from which the next process takes them over.

use super::attach::Attachment;
use super::link::{XdpLink, heartbeat_of};
use super::{Engine, EngineError};
use libbpf_rs::ProgramMut;
use rustix::fs::statfs;
use rustix::mount::{MountFlags, mount};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// That of a file system of BPF: `linux/magic.h`.
const BPF_FS_MAGIC: u64 = 0xcafe_4a11;

fn failed(path: &Path, source: impl Into<std::io::Error>) -> EngineError {
    EngineError::Pin { path: path.display().to_string(), source: source.into() }
}

/// The folder, made if it is not there. Where nothing of BPF is mounted at /sys/fs/bpf, that is done first, as systemd does it.
pub(super) fn folder(path: &Path) -> Result<PathBuf, EngineError> {
    let root = Path::new("/sys/fs/bpf");
    if path.starts_with(root) && !is_bpf(root) {
        mount("bpf", root, "bpf", MountFlags::empty(), Some(c"mode=0700")).map_err(|error| failed(root, error))?;
    }
    std::fs::create_dir_all(path).map_err(|error| failed(path, error))?;
    if !is_bpf(path) {
        return Err(failed(path, std::io::ErrorKind::Unsupported));
    }
    Ok(path.to_owned())
}

/// Whether what is pinned is seen by the first process of the system, too. In mounts of their own, as `ip netns exec` makes them, it goes with the last
/// process that sees it. What cannot be seen is taken for granted.
pub fn outlive_process() -> bool {
    // The folders themselves are there for who may trace that process only, and its list of mounts for everybody.
    let of = |process: &str| std::fs::read_to_string(format!("/proc/{process}/mountinfo")).ok();
    let (Some(own), Some(first)) = (of("self"), of("1")) else { return true };
    let own = bpf_device(&own);
    own.is_some() && own == bpf_device(&first)
}

/// A daemon that lives beats each second.
const LIVELY: Duration = Duration::from_secs(5);

/// The device of /sys/fs/bpf in a list of mounts (`man 5 proc`): of several the last is on top.
fn bpf_device(mounts: &str) -> Option<&str> {
    mounts.lines().rev().find_map(|line| {
        let mut fields = line.split(' ').skip(2);
        let device = fields.next()?;
        (fields.nth(1)? == "/sys/fs/bpf").then_some(device)
    })
}

fn is_bpf(path: &Path) -> bool {
    statfs(path).is_ok_and(|found| found.f_type as u64 == BPF_FS_MAGIC)
}

/// Where the attachment to an interface is kept.
fn place(folder: &Path, ifindex: u32) -> PathBuf {
    folder.join(format!("xdp-{ifindex}"))
}

impl Engine {
    /// The program on an interface as XDP: in the place of what a dead process has left there, or afresh. Kept for the next process, if this one
    /// keeps things.
    pub(super) fn attach_xdp(
        &self,
        program: &ProgramMut<'_>,
        ifindex: u32,
        left: Option<XdpLink>,
    ) -> Result<XdpLink, EngineError> {
        // One of them only: a second one of the same link would end it when it is dropped.
        let found = left.or_else(|| self.pin_of(ifindex).and_then(|path| XdpLink::open(&path).ok()));
        // Without an interface, its number is another one's now.
        let taken = found.filter(|link| link.replace(program).is_ok());
        let link = match taken {
            Some(link) => link,
            None => XdpLink::attach(program, ifindex).map_err(|source| EngineError::Attach { ifindex, source })?,
        };
        if let Some(path) = self.pin_of(ifindex) {
            let _ = std::fs::remove_file(&path);
            link.keep(&path)?;
        }
        Ok(link)
    }

    fn pin_of(&self, ifindex: u32) -> Option<PathBuf> {
        self.pins.as_ref().map(|folder| place(folder, ifindex))
    }

    /// Takes over the XDP program of number `program` on an interface, if it is an engine's, which a dead process has left there: [`attach`](Self::attach)
    /// puts this engine's own in its place, or ends it. Whether it is one. Nobody else may have the interface any more. What a process has kept where this
    /// one looks is found without any right; what it has kept elsewhere takes CAP_SYS_ADMIN.
    pub fn adopt(&self, ifindex: u32, program: u32) -> bool {
        let kept = self.pin_of(ifindex).filter(|path| XdpLink::program_at(path) == Some(program));
        let left = match kept {
            Some(path) => XdpLink::open(&path).ok(),
            None => XdpLink::of_engine(ifindex, program),
        };
        let Some(left) = left else { return false };
        self.adopted.lock().expect("no holder panics").insert(ifindex, left);
        true
    }

    /// Whether the engine that has program number `program` has a daemon that was alive within the last seconds.
    pub fn is_looked_after(&self, program: u32) -> bool {
        let (Some(beat), Ok(now)) = (heartbeat_of(program), self.jiffies()) else { return false };
        now.wrapping_sub(beat) < self.jiffies_of(LIVELY)
    }

    /// Detaches what a dead process has left on interfaces where this one has no XDP program. Called once all are attached.
    ///
    /// # Errors
    /// [`EngineError::Pin`].
    pub fn drop_leftovers(&self) -> Result<usize, EngineError> {
        let mut dropped = std::mem::take(&mut *self.adopted.lock().expect("no holder panics")).len();
        let Some(folder) = &self.pins else { return Ok(dropped) };
        let attached = self.attached.lock().expect("no holder panics");
        for entry in std::fs::read_dir(folder).map_err(|error| failed(folder, error))? {
            let name = entry.map_err(|error| failed(folder, error))?.file_name().to_string_lossy().into_owned();
            let ifindex = name.strip_prefix("xdp-").and_then(|number| number.parse().ok());
            if ifindex.is_some_and(|ifindex: u32| !attached.get(&ifindex).is_some_and(Attachment::is_xdp)) {
                let path = folder.join(&name);
                drop(XdpLink::open(&path));
                std::fs::remove_file(&path).map_err(|error| failed(folder, error))?;
                dropped += 1;
            }
        }
        Ok(dropped)
    }

    /// Removes the place of an attachment that ends with purpose.
    pub(super) fn unpin(&self, ifindex: u32) {
        if let Some(path) = self.pin_of(ifindex) {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Drop for Engine {
    /// Who ends in order leaves nothing behind. A process that is killed does not get here.
    fn drop(&mut self) {
        let attached: Vec<u32> = self.attached.lock().expect("no holder panics").keys().copied().collect();
        for ifindex in attached {
            self.unpin(ifindex);
            self.remove_filters(ifindex);
        }
        if let Some(folder) = &self.pins {
            // It stays if somebody has something else there.
            let _ = std::fs::remove_dir(folder);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_topmost_file_system_counts() {
        let mounts = "20 1 0:19 / /sys rw - sysfs sysfs rw\n21 20 0:30 / /sys/fs/bpf rw shared:5 - bpf bpf rw\n22 21 0:44 / /sys/fs/bpf rw - bpf bpf rw\n";
        assert_eq!(bpf_device(mounts), Some("0:44"));
        assert_eq!(bpf_device("20 1 0:19 / /sys rw - sysfs sysfs rw\n"), None);
    }
}
