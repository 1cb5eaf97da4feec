//! XenStore for tests: the same protocol over sockets, and a tree that tests change.

use super::store::{Store, kind};
use rustix::fd::OwnedFd;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// A simulated XenStore; copies are the same one.
#[derive(Clone)]
pub struct Sim(Arc<(Mutex<Tree>, AtomicUsize, AtomicBool)>);

#[derive(Default)]
struct Tree {
    entries: BTreeMap<String, String>,
    domains: BTreeSet<u16>,
    /// What is watched, and by whom.
    watches: Vec<(String, Arc<Mutex<UnixStream>>)>,
}

fn message(kind: u32, payload: &[u8]) -> Vec<u8> {
    let head = [kind, 0, 0, payload.len() as u32];
    head.iter().flat_map(|word| word.to_ne_bytes()).chain(payload.iter().copied()).collect()
}

fn event(path: &str) -> Vec<u8> {
    message(kind::EVENT, format!("{path}\0millrace\0").as_bytes())
}

fn is_below(path: &str, root: &str) -> bool {
    path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl Tree {
    /// Those who watch that path.
    fn watchers(&self, path: &str) -> Vec<Arc<Mutex<UnixStream>>> {
        self.watches.iter().filter(|(root, _)| is_below(path, root)).map(|(_, to)| to.clone()).collect()
    }

    fn answer(&mut self, kind: u32, payload: &[u8], to: &Arc<Mutex<UnixStream>>) -> (u32, Vec<u8>) {
        let text = String::from_utf8_lossy(payload).into_owned();
        let mut parts = text.split('\0');
        let path = parts.next().unwrap_or_default().to_owned();
        let found = match kind {
            kind::READ => self.entries.get(&path).map(|value| value.clone().into_bytes()),
            kind::WRITE => {
                self.entries.insert(path, parts.next().unwrap_or_default().to_owned());
                Some(b"OK\0".to_vec())
            }
            kind::REMOVE => {
                self.entries.retain(|entry, _| !is_below(entry, &path));
                Some(b"OK\0".to_vec())
            }
            kind::DIRECTORY => {
                let below = self.entries.keys().filter_map(|entry| entry.strip_prefix(&path)?.strip_prefix('/'));
                let names: BTreeSet<&str> = below.map(|rest| rest.split('/').next().unwrap_or(rest)).collect();
                (!names.is_empty()).then(|| names.iter().flat_map(|name| [name.as_bytes(), b"\0"].concat()).collect())
            }
            kind::WATCH => {
                self.watches.push((path, to.clone()));
                Some(b"OK\0".to_vec())
            }
            kind::IS_INTRODUCED => {
                let is_there = path.parse().is_ok_and(|domain| self.domains.contains(&domain));
                Some(if is_there { b"T\0".to_vec() } else { b"F\0".to_vec() })
            }
            other => panic!("a request of kind {other}"),
        };
        found.map_or((kind::ERROR, b"ENOENT\0".to_vec()), |payload| (kind, payload))
    }
}

impl Sim {
    pub fn start() -> Self {
        Self(Arc::default())
    }

    /// One more connection.
    pub fn connect(&self) -> Store {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (sim, mut from) = (self.clone(), ours.try_clone().unwrap());
        let to = Arc::new(Mutex::new(ours));
        std::thread::spawn(move || {
            let mut head = [0; 16];
            while from.read_exact(&mut head).is_ok() {
                let word = |at: usize| u32::from_ne_bytes(*head[at..].first_chunk().unwrap());
                let mut payload = vec![0; word(12) as usize];
                from.read_exact(&mut payload).unwrap();
                let (kind, answer) = sim.0.0.lock().unwrap().answer(word(0), &payload, &to);
                if to.lock().unwrap().write_all(&message(kind, &answer)).is_err() {
                    return;
                }
                if kind == kind::WATCH {
                    // One at once, as from XenStore itself.
                    let path = String::from_utf8_lossy(&payload).split('\0').next().unwrap().to_owned();
                    let _ = to.lock().unwrap().write_all(&event(&path));
                }
            }
        });
        Store::over(OwnedFd::from(theirs))
    }

    fn tell(&self, path: &str) {
        let watchers = self.0.0.lock().unwrap().watchers(path);
        for to in watchers {
            let _ = to.lock().unwrap().write_all(&event(path));
        }
    }

    /// An entry has that value from now on.
    pub fn set(&self, path: &str, value: &str) {
        self.0.0.lock().unwrap().entries.insert(path.to_owned(), value.to_owned());
        self.tell(path);
    }

    pub fn is_gone(&self, path: &str) -> bool {
        !self.0.0.lock().unwrap().entries.contains_key(path)
    }

    /// There is such a domain from now on.
    pub fn introduce(&self, domain: u16) {
        self.0.0.lock().unwrap().domains.insert(domain);
        self.set(&format!("/local/domain/{domain}/domid"), &domain.to_string());
        self.tell("@introduceDomain");
    }

    /// There is no such domain any more.
    pub fn release(&self, domain: u16) {
        let mut tree = self.0.0.lock().unwrap();
        tree.domains.remove(&domain);
        tree.entries.retain(|entry, _| !is_below(entry, &format!("/local/domain/{domain}")));
        drop(tree);
        self.tell("@releaseDomain");
    }

    /// That entry changes as fast as whoever watches it reads, until [`Sim::calm`].
    pub fn flood(&self, path: &str) -> JoinHandle<()> {
        let (sim, path) = (self.clone(), path.to_owned());
        std::thread::spawn(move || {
            let events = event(&path).repeat(16);
            while !sim.0.2.load(Ordering::Relaxed) {
                let watchers = sim.0.0.lock().unwrap().watchers(&path);
                if !watchers.iter().any(|to| to.lock().unwrap().write_all(&events).is_ok()) {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
            }
        })
    }

    /// Floods end.
    pub fn calm(&self) {
        self.0.2.store(true, Ordering::Relaxed);
    }

    pub fn count_meeting(&self) {
        self.0.1.fetch_add(1, Ordering::Relaxed);
    }

    pub fn meetings(&self) -> usize {
        self.0.1.load(Ordering::Relaxed)
    }
}
