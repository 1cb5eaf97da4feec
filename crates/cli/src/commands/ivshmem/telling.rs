//! What happens to a server, told as it happens. Whoever may call causes lines, and whoever reads them may be slow, or gone, or have a full disk: so a thread of
//! its own writes them, only so many in a time are written, and an error ends the telling and not the server.

use super::serve::tell;
use millrace_ivshmem::Change;
use millrace_tool::failure::Failure;
use millrace_tool::output::{Output, note};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Lines in each period; more are left out, and counted.
const LIMIT: u64 = 200;
const PERIOD: Duration = Duration::from_secs(10);
/// Changes that wait to be told.
const MOST_WAITING: usize = 256;
/// How long the end waits for what is still to be told.
const LAST: Duration = Duration::from_secs(1);

pub struct Telling {
    to: SyncSender<(Change, u64)>,
    thread: Option<JoinHandle<()>>,
    since: Instant,
    said: u64,
    left_out: u64,
}

impl Telling {
    /// Begins. Without a thread nothing is told.
    pub fn begin(output: Output) -> Self {
        let (to, changes) = sync_channel(MOST_WAITING);
        let run = move || write(output, &changes);
        let thread = std::thread::Builder::new().name("millrace-tell".to_owned()).spawn(run).ok();
        Self { to, thread, since: Instant::now(), said: 0, left_out: 0 }
    }

    /// Has something told, if there is room for it.
    pub fn add(&mut self, change: Change) {
        if self.since.elapsed() >= PERIOD {
            (self.since, self.said) = (Instant::now(), 0);
        }
        let has_room = self.said < LIMIT;
        let sent = has_room && self.to.try_send((change, self.left_out)).is_ok();
        if sent {
            (self.said, self.left_out) = (self.said + 1, 0);
        } else {
            self.left_out += 1;
        }
    }
}

impl Telling {
    /// Waits a while until all is told that was to be.
    ///
    /// # Errors
    /// Nobody reads it, and would read nothing else: whoever writes there waits.
    pub fn end(self) -> Result<(), Failure> {
        let Self { to, thread, left_out, .. } = self;
        drop(to);
        let begin = Instant::now();
        while thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            if begin.elapsed() >= LAST {
                return Err(Failure::Found("nobody reads what this command writes".to_owned()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        if left_out > 0 {
            note(format!("the last {left_out} changes were not told: too many, or nobody read"));
        }
        Ok(())
    }
}

fn write(output: Output, changes: &Receiver<(Change, u64)>) {
    for (change, left_out) in changes {
        if left_out > 0 {
            note(format!("{left_out} changes before the next one were not told: too many, or nobody reads"));
        }
        if let Err(failure) = tell(output, &change) {
            return note(format!("nothing is told any more: {failure}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_cut_off_and_counted() {
        let (to, told) = sync_channel(2 * LIMIT as usize);
        let mut telling = Telling { to, thread: None, since: Instant::now(), said: 0, left_out: 0 };
        (0..LIMIT + 5).for_each(|_| telling.add(Change::Full));
        assert_eq!((told.try_iter().count() as u64, telling.left_out), (LIMIT, 5));
        telling.since = Instant::now().checked_sub(PERIOD).unwrap();
        telling.add(Change::Full);
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [(Change::Full, 5)]);
        // Nobody listens any more: that ends nothing.
        drop(told);
        telling.add(Change::Full);
        assert_eq!(telling.left_out, 1);
    }

    #[test]
    fn who_does_not_read_keeps_no_server() {
        let (to, _told) = sync_channel(1);
        let (go_on, stopped) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || _ = stopped.recv());
        let telling = Telling { to, thread: Some(thread), since: Instant::now(), said: 0, left_out: 0 };
        assert!(telling.end().is_err());
        drop(go_on);
    }
}
