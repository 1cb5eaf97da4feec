//! A backend with several doors: what one says of its guests is of its own.

mod running;

use millrace_split::memory::MemoryDoor;
use millrace_split::{Access, Config, Door, Endpoint, Event, Limits, PAGE};
use running::{Running, SOON, until};
use rustix::fd::BorrowedFd;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// What a door was told, and what it is to say.
#[derive(Default)]
struct Said {
    /// Of programs that have come: where they are.
    came: Vec<u64>,
    left: Vec<u64>,
    went: Vec<u64>,
}

/// A door by memory that also says what the test wants, as one does whose guests have no socket.
struct Wanted(MemoryDoor, Arc<Mutex<Said>>);

impl Door for Wanted {
    fn fds(&mut self) -> Vec<BorrowedFd<'_>> {
        self.0.fds()
    }

    fn look(&mut self) -> Vec<Event> {
        let mut events = self.0.look();
        let mut said = self.1.lock().unwrap();
        for event in &events {
            if let Event::Came(arrived) = event {
                said.came.push(arrived.maps.place());
            }
        }
        events.extend(said.went.drain(..).map(Event::Went));
        events
    }

    fn leave(&mut self, place: u64) {
        self.1.lock().unwrap().left.push(place);
        self.0.leave(place);
    }
}

fn open(path: &Path) -> Endpoint {
    Endpoint::open(&Config { place: path.to_str().unwrap().to_owned(), depth: 64 }).unwrap()
}

#[test]
fn programs_of_two_sockets_have_addresses_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let second = folder.path().join("second.sock");
    let door: Box<dyn Door> = Box::new(MemoryDoor::at(second.clone(), 1).unwrap());
    let backend = Running::start_at(Limits::default(), None, vec![door]);
    let (one, other) = (backend.endpoint(), open(&second));
    assert_ne!(one.address(), other.address());
    let memory = other.allocate(PAGE, Access::ALL).unwrap();
    one.connect(other.address(), SOON).unwrap();
    drop((memory, other));
    assert_eq!(backend.end_away().all(), 0);
}

#[test]
fn where_two_doors_have_the_same_place_each_speaks_of_its_own_guest() {
    let folder = tempfile::tempdir().unwrap();
    let paths = ["a.sock", "b.sock"].map(|name| folder.path().join(name));
    let said: [Arc<Mutex<Said>>; 2] = Default::default();
    // The same number twice, and so the same places.
    let doors = paths.iter().zip(&said).map(|(path, said)| -> Box<dyn Door> {
        Box::new(Wanted(MemoryDoor::at(path.clone(), 1).unwrap(), said.clone()))
    });
    let backend = Running::start_at(Limits::default(), None, doors.collect());
    // Its place is that of the first one at the other door.
    let before = open(&paths[1]);
    let second = open(&paths[1]);
    drop(before);
    until("it has gone", || said[1].lock().unwrap().left.len() == 1);
    let first = open(&paths[0]);
    assert_eq!(said[0].lock().unwrap().came, said[1].lock().unwrap().left);
    assert!(said[0].lock().unwrap().left.is_empty(), "what another door's guest had was none of its own");
    let (address, gone) = (first.address(), said[0].lock().unwrap().came[0]);
    said[1].lock().unwrap().went.push(gone);
    // Somebody comes, so that the doors are looked at.
    drop(open(&paths[1]));
    until("it is said", || said[1].lock().unwrap().went.is_empty());
    assert!(first.status().is_ok() && second.status().is_ok(), "who is at the same place of another door goes on");
    said[0].lock().unwrap().went.push(gone);
    drop(open(&paths[1]));
    until("it has ended", || backend.left(address).is_some());
    assert!(second.status().is_ok());
}
