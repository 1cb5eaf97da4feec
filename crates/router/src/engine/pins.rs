//! What outlives the process: attachments in a file system of BPF, from which the next process takes them over.

use super::attach::Attachment;
use super::link::{Beat, Where, XdpLink, heartbeat_of};
use super::{Engine, EngineError};
use libbpf_rs::ProgramMut;
use rustix::fs::statfs;
use rustix::mount::{MountFlags, mount};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// That of a file system of BPF: `linux/magic.h`.
const BPF_FS_MAGIC: u64 = 0xcafe_4a11;

/// Where engines keep things, as this process sees it, and as the first process of the system does: `ip netns exec` makes one for its command alone.
const ROOTS: [&str; 2] = ["/sys/fs/bpf", "/proc/1/root/sys/fs/bpf"];

/// What the names of folders begin with, usually.
const USUAL: &str = "millrace-router";

/// What the names of attachments begin with; the number of the interface follows.
const PLACE: &str = "xdp-";

/// What programs at an interface say of the daemons that they belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signs {
    /// One has beaten within the last seconds.
    Alive,
    /// There is a program of which this process may not see more: that takes CAP_SYS_ADMIN.
    Hidden,
    /// None of a daemon that lives.
    None,
}

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
    folder.join(format!("{PLACE}{ifindex}"))
}

/// The interface of what is kept by that name.
fn interface_of(name: &OsStr) -> Option<u32> {
    name.to_str()?.strip_prefix(PLACE)?.parse().ok()
}

/// Folders of engines: of one network namespace, or of all; those that this process sees, and those that the first process of the system sees, if this one
/// may look there.
fn folders_of(namespace: Option<u64>) -> Vec<PathBuf> {
    /// Files that are looked at in a folder.
    const MOST: usize = 4096;
    let is_one = |path: &PathBuf| {
        let of = path.file_name().and_then(OsStr::to_str).and_then(|name| name.rsplit_once('-'));
        of.and_then(|(_, of)| of.parse().ok()).is_some_and(|of: u64| namespace.is_none_or(|wanted| of == wanted))
    };
    let all = ROOTS.iter().filter_map(|root| std::fs::read_dir(root).ok()).flat_map(|entries| entries.take(MOST));
    all.filter_map(|entry| Some(entry.ok()?.path())).filter(is_one).filter(|path| is_trusted(path)).collect()
}

/// Whether nobody but root and this user can have put something into a folder.
fn is_trusted(folder: &Path) -> bool {
    const OTHERS_WRITE: u32 = 0o022;
    let is_ours = |user: u32| user == 0 || user == rustix::process::geteuid().as_raw();
    let found = std::fs::symlink_metadata(folder);
    found.is_ok_and(|found| found.is_dir() && is_ours(found.uid()) && found.mode() & OTHERS_WRITE == 0)
}

/// Removes what is kept though its interface is gone, of whatever engine: that is of no use to anybody, and holds memory.
fn sweep() {
    for folder in folders_of(None) {
        let is_usual = folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with(USUAL));
        let kept = kept_in(&folder);
        for path in kept.iter().map(|ifindex| place(&folder, *ifindex)) {
            if Where::kept_at(&path).is_some_and(|at| at.ifindex == 0) {
                let _ = std::fs::remove_file(&path);
            }
        }
        if is_usual || !kept.is_empty() {
            // It stays if there is more in it.
            let _ = std::fs::remove_dir(&folder);
        }
    }
}

/// The interfaces of which something is kept in a folder.
fn kept_in(folder: &Path) -> Vec<u32> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().take(super::layout::TARGETS as usize);
    entries.filter_map(|entry| interface_of(&entry.ok()?.file_name())).collect()
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
        let kept = || self.places_of(ifindex).into_iter().find(|path| is_on(path, ifindex));
        let found = left.or_else(|| kept().and_then(|path| XdpLink::open(&path).ok()));
        // Without an interface, its number is another one's now.
        let taken = found.and_then(|mut link| link.replace(program).is_ok().then_some(link));
        let link = match taken {
            Some(link) => link,
            None => XdpLink::attach(program, ifindex).map_err(|source| EngineError::Attach { ifindex, source })?,
        };
        self.unpin_everywhere(ifindex);
        if let Some(own) = &self.pins {
            // Another engine may have swept it away while it was empty.
            link.keep(&place(&folder(own)?, ifindex))?;
        }
        Ok(link)
    }

    /// Where something of an interface may be kept: in this one's folder first, and then in those of others of the same network namespace.
    fn places_of(&self, ifindex: u32) -> Vec<PathBuf> {
        let others = self.namespace.map(|namespace| folders_of(Some(namespace))).unwrap_or_default();
        self.pins.iter().chain(&others).map(|folder| place(folder, ifindex)).collect()
    }

    /// Takes over the XDP program of number `program` on an interface, if it is an engine's, which a dead process has left there: [`attach`](Self::attach)
    /// puts this engine's own in its place, or ends it. Whether it is one. Nobody else may have the interface any more. What a process has kept where this
    /// one looks is found without any right; what it has kept elsewhere takes CAP_SYS_ADMIN.
    pub fn adopt(&self, ifindex: u32, program: u32) -> bool {
        let wanted = Some(Where { ifindex, program });
        let kept = self.places_of(ifindex).into_iter().find(|path| Where::kept_at(path) == wanted);
        let left = match kept {
            Some(path) => XdpLink::open(&path).ok(),
            None => XdpLink::of_engine(ifindex, program),
        };
        let Some(left) = left else { return false };
        self.adopted.lock().expect("no holder panics").insert(ifindex, left);
        true
    }

    /// What programs of others at an interface, by their numbers, say of the daemons that they belong to, which live if they have beaten `within` that time.
    pub fn signs_of_life(&self, programs: &[u32], within: Duration) -> Signs {
        let Ok(now) = self.jiffies() else { return Signs::Hidden };
        let within = self.jiffies_of(within);
        let mut signs = Signs::None;
        for program in programs.iter().filter(|program| **program != 0 && !self.numbers.has(**program)) {
            match heartbeat_of(*program) {
                Beat::At(beat) if is_recent(beat, now, within) => return Signs::Alive,
                Beat::At(_) | Beat::NoEngine => {}
                Beat::Hidden => signs = Signs::Hidden,
            }
        }
        signs
    }

    /// Interfaces of which something was left, by this engine's predecessors or by others of its network namespace that may live, and which are not this one's.
    pub fn left_behind(&self) -> BTreeSet<u32> {
        let others = self.namespace.map(|namespace| folders_of(Some(namespace))).unwrap_or_default();
        let mut all: BTreeSet<u32> = self.pins.iter().chain(&others).flat_map(|folder| kept_in(folder)).collect();
        all.extend(self.adopted.lock().expect("no holder panics").keys());
        let attached = self.attached.lock().expect("no holder panics");
        all.retain(|ifindex| !attached.get(ifindex).is_some_and(Attachment::is_xdp));
        all
    }

    /// Ends what a dead process has left of XDP at an interface that is not this engine's; whether there was something. Nobody else may have the interface.
    pub fn give_up(&self, ifindex: u32) -> bool {
        let attached = self.attached.lock().expect("no holder panics");
        if attached.get(&ifindex).is_some_and(Attachment::is_xdp) {
            return false;
        }
        let mut was_there = self.adopted.lock().expect("no holder panics").remove(&ifindex).is_some();
        for path in self.places_of(ifindex).into_iter().filter(|path| path.exists()) {
            // Dropped, it ends.
            was_there |= is_on(&path, ifindex) && XdpLink::open(&path).is_ok();
        }
        drop(attached);
        self.unpin_everywhere(ifindex);
        was_there
    }

    /// Removes the place of an attachment that ends with purpose.
    pub(super) fn unpin(&self, ifindex: u32) {
        if let Some(folder) = &self.pins {
            let _ = std::fs::remove_file(place(folder, ifindex));
        }
    }

    /// Removes all that is kept of an interface, and folders of others that are empty then. Nobody else may have the interface.
    fn unpin_everywhere(&self, ifindex: u32) {
        for path in self.places_of(ifindex) {
            let folder = path.parent().filter(|folder| self.pins.as_deref() != Some(*folder));
            if std::fs::remove_file(&path).is_ok() {
                // It stays if there is more in it.
                let _ = folder.map(std::fs::remove_dir);
            }
        }
    }

    /// Removes what is of no use to anybody.
    pub(super) fn sweep(&self) {
        if self.namespace.is_some() {
            sweep();
        }
    }

    /// Takes the program from all interfaces.
    pub fn detach_all(&self) {
        let attached: Vec<u32> = self.attached.lock().expect("no holder panics").keys().copied().collect();
        for ifindex in attached {
            if let Err(error) = self.detach(ifindex) {
                tracing::warn!("{error}");
            }
        }
        self.adopted.lock().expect("no holder panics").clear();
    }
}

/// Whether a daemon has beaten within so many jiffies before `now`, or since, for as long as finding its beat may take: it was read after that. Of weeks ago is
/// neither.
fn is_recent(beat: u32, now: u32, within: u32) -> bool {
    now.wrapping_sub(beat).wrapping_add(within) < within.saturating_mul(2)
}

/// Whether the link that is kept at that place has a program on an interface.
fn is_on(path: &Path, ifindex: u32) -> bool {
    Where::kept_at(path).is_some_and(|at| at.ifindex == ifindex)
}

impl Drop for Engine {
    /// Who ends in order leaves nothing behind. A process that is killed does not get here.
    fn drop(&mut self) {
        self.detach_all();
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
    fn a_heartbeat_that_is_younger_than_the_clock_that_was_read_is_one() {
        for now in [1000, 3, 0, u32::MAX] {
            let is_recent = |since: i32| is_recent(now.wrapping_sub_signed(since), now, 500);
            assert!(is_recent(0) && is_recent(499) && is_recent(-1) && is_recent(-100));
            assert!(!is_recent(500) && !is_recent(i32::MAX) && !is_recent(i32::MIN) && !is_recent(i32::MIN + 1000));
        }
    }

    #[test]
    fn folders_into_which_others_may_write_are_not_looked_at() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let place = std::env::temp_dir().join(format!("millrace-trusted-{}", std::process::id()));
        let (folder, link) = (place.join("folder"), place.join("link"));
        std::fs::create_dir_all(&folder).unwrap();
        symlink(&folder, &link).unwrap();
        let with = |mode: u32| {
            std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(mode)).unwrap();
            is_trusted(&folder)
        };
        assert!(with(0o700) && with(0o755) && !with(0o777) && !with(0o720) && with(0o755));
        assert!(!is_trusted(&link) && !is_trusted(&place.join("nothing")));
        std::fs::remove_dir_all(&place).unwrap();
    }

    #[test]
    fn the_topmost_file_system_counts() {
        let mounts = "20 1 0:19 / /sys rw - sysfs sysfs rw\n21 20 0:30 / /sys/fs/bpf rw shared:5 - bpf bpf rw\n22 21 0:44 / /sys/fs/bpf rw - bpf bpf rw\n";
        assert_eq!(bpf_device(mounts), Some("0:44"));
        assert_eq!(bpf_device("20 1 0:19 / /sys rw - sysfs sysfs rw\n"), None);
    }
}
