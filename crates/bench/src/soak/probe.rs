//! Control requests of somebody else while all that goes on.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use millrace_abi::name::DeviceName;
use millrace_driver::Client;
use millrace_tool::distribution::Distribution;
use millrace_tool::failure::Failure;

/// Between two requests.
const NAP: Duration = Duration::from_millis(10);
/// A card that does not answer for so long, in seconds, never will.
const STUCK: u64 = 60;

/// A thread that reads a register again and again.
pub struct Probe {
    state: Arc<State>,
}

struct State {
    begin: Instant,
    times: Mutex<Distribution>,
    /// Seconds after `begin` at which the card answered last.
    answered: AtomicU64,
    failed: Mutex<Option<String>>,
    stop: AtomicBool,
}

impl Probe {
    /// Connects, and begins.
    pub fn start(device: &str) -> Result<Self, Failure> {
        let path = match device.parse() {
            Ok(DeviceName::Unix(path)) => path,
            _ => PathBuf::from(device),
        };
        let client = Client::connect(&path).map_err(|error| Failure::Found(error.to_string()))?;
        let state = Arc::new(State {
            begin: Instant::now(),
            times: Mutex::new(Distribution::new()),
            answered: AtomicU64::new(0),
            failed: Mutex::new(None),
            stop: AtomicBool::new(false),
        });
        let of_thread = state.clone();
        // Not joined: where the card does not answer, this thread does not end before the card does.
        thread::spawn(move || of_thread.ask(&client));
        Ok(Self { state })
    }

    /// How long requests took so far.
    pub fn times(&self) -> Distribution {
        self.state.times.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What is wrong, if something is.
    pub fn trouble(&self) -> Option<String> {
        let failed = self.state.failed.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let silent = self.state.begin.elapsed().as_secs() - self.state.answered.load(Ordering::Relaxed);
        failed.or_else(|| (silent > STUCK).then(|| format!("the card has not answered for {silent} s")))
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::Relaxed);
    }
}

impl State {
    fn ask(&self, client: &Client) {
        while !self.stop.load(Ordering::Relaxed) {
            let start = Instant::now();
            if let Err(error) = client.read(0, &mut [0; 4]) {
                let text = format!("a request of somebody else failed: {error}");
                *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
                return;
            }
            let took = start.elapsed().as_nanos() as u64;
            self.times.lock().unwrap_or_else(PoisonError::into_inner).record(took);
            self.answered.store(self.begin.elapsed().as_secs(), Ordering::Relaxed);
            thread::sleep(NAP);
        }
    }
}
