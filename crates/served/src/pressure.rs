//! Whether memory is short, as the system says: how long some of the card's threads have waited for it (pressure stall information).

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::pread;
use std::path::Path;
use std::time::Duration;

/// How long there was none for somebody.
pub(crate) struct Pressure(Option<OwnedFd>);

impl Pressure {
    /// Of the control group of this process, or else of the machine. Of what the system does not say nothing is known.
    pub fn new() -> Self {
        let group = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let group = group.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/").trim_matches('/').to_owned();
        let of_group = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
            .map(|root| Path::new(root).join(&group).join("memory.pressure"));
        let of_machine = Path::new("/proc/pressure/memory").to_owned();
        let mut files = of_group.into_iter().chain([of_machine]).map(|file| Self::at(&file));
        files.find(|found| found.0.is_some()).unwrap_or(Self(None))
    }

    pub fn at(file: &Path) -> Self {
        Self(open(file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok())
    }

    /// All together so far.
    pub fn total(&self) -> Duration {
        let mut text = [0; 256];
        let len = self.0.as_ref().and_then(|file| pread(file, &mut text, 0).ok()).unwrap_or(0);
        let text = core::str::from_utf8(&text[..len]).unwrap_or_default();
        let some = text.lines().find(|line| line.starts_with("some "));
        let total = some.and_then(|line| line.split_whitespace().find_map(|word| word.strip_prefix("total=")));
        Duration::from_micros(total.and_then(|total| total.parse().ok()).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_as_the_system_writes_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("memory.pressure");
        let text = |total: u32| {
            format!(
                "some avg10=0.12 avg60=1.00 avg300=0.00 total={total}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"
            )
        };
        std::fs::write(&file, text(1_234_567)).unwrap();
        let pressure = Pressure::at(&file);
        assert_eq!(pressure.total(), Duration::from_micros(1_234_567));
        std::fs::write(&file, text(2_000_000)).unwrap();
        assert_eq!(pressure.total(), Duration::from_secs(2), "as it is now");
        assert_eq!(Pressure::at(&folder.path().join("none")).total(), Duration::ZERO);
    }
}
