//! What outlives the process: attachments in a file system of BPF, from which the next process takes them over.

use super::attach::Attachment;
use super::{Engine, EngineError};
use libbpf_rs::{Link, ProgramMut};
use rustix::fs::statfs;
use rustix::mount::{MountFlags, mount};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

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
/// process that sees it.
pub fn outlive_process() -> bool {
    let of = |root: &str| std::fs::metadata(format!("{root}/sys/fs/bpf")).ok().map(|found| found.dev());
    of("").is_some() && of("") == of("/proc/1/root")
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
    pub(super) fn attach_xdp(&self, program: &ProgramMut<'_>, ifindex: u32) -> libbpf_rs::Result<Link> {
        let Some(folder) = &self.pins else { return program.attach_xdp(ifindex as i32) };
        let path = place(folder, ifindex);
        if let Ok(mut link) = Link::open(&path) {
            if link.update_prog(program).is_ok() {
                return Ok(link);
            }
            // Its interface is gone, and the number is another one's now.
            let _ = std::fs::remove_file(&path);
        }
        let mut link = program.attach_xdp(ifindex as i32)?;
        link.pin(&path)?;
        Ok(link)
    }

    /// The number of the XDP program that a dead process has left on an interface, and whose place this one takes.
    pub fn left_xdp(&self, ifindex: u32) -> Option<u32> {
        let folder = self.pins.as_ref()?;
        Link::open(place(folder, ifindex)).ok()?.info().ok().map(|link| link.prog_id)
    }

    /// Detaches what a dead process has left on interfaces where this one has no XDP program. Called once all are attached.
    ///
    /// # Errors
    /// [`EngineError::Pin`].
    pub fn drop_leftovers(&self) -> Result<usize, EngineError> {
        let Some(folder) = &self.pins else { return Ok(0) };
        let attached = self.attached.lock().expect("no holder panics");
        let mut dropped = 0;
        for entry in std::fs::read_dir(folder).map_err(|error| failed(folder, error))? {
            let name = entry.map_err(|error| failed(folder, error))?.file_name().to_string_lossy().into_owned();
            let ifindex = name.strip_prefix("xdp-").and_then(|number| number.parse().ok());
            if ifindex.is_some_and(|ifindex: u32| !attached.get(&ifindex).is_some_and(Attachment::is_xdp)) {
                std::fs::remove_file(folder.join(&name)).map_err(|error| failed(folder, error))?;
                dropped += 1;
            }
        }
        Ok(dropped)
    }

    /// Removes the place of an attachment that ends with purpose.
    pub(super) fn unpin(&self, ifindex: u32) {
        if let Some(folder) = &self.pins {
            let _ = std::fs::remove_file(place(folder, ifindex));
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
    }
}
