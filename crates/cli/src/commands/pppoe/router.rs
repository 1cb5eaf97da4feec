//! Tells the router of this network namespace which session there is, again and again: a thread, so that nobody waits for a router that does not answer.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use millrace_pppoe::Session;
use millrace_router::daemon::client::{Client, Error};
use millrace_router::daemon::protocol::{self, Request};
use millrace_tool::output::note;

/// How often the session is told: a router that was started later, or has lost it, has it then.
const AGAIN: Duration = Duration::from_secs(2);

/// The thread.
pub(super) struct Told {
    sessions: Option<Sender<Option<Session>>>,
    thread: Option<JoinHandle<()>>,
}

impl Told {
    /// Tells the router that listens at `socket` of sessions of `name`, which frames on `interface` carry.
    pub fn new(socket: &str, interface: String, name: String) -> Self {
        let (sessions, told) = channel::<Option<Session>>();
        let mut teller = Teller { socket: socket.to_owned(), interface, name, client: None, said: None };
        let thread = thread::spawn(move || {
            let mut session = None;
            loop {
                match told.recv_timeout(AGAIN) {
                    Ok(other) => {
                        session = other;
                        teller.tell(session.as_ref());
                    }
                    Err(RecvTimeoutError::Timeout) if session.is_some() => teller.tell(session.as_ref()),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        });
        Self { sessions: Some(sessions), thread: Some(thread) }
    }

    /// There is this session now, or none.
    pub fn session(&self, session: Option<&Session>) {
        if let Some(sessions) = &self.sessions {
            let _ = sessions.send(session.cloned());
        }
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        self.session(None);
        // What was sent is still told.
        self.sessions = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Teller {
    socket: String,
    interface: String,
    name: String,
    client: Option<Client>,
    /// What went wrong, which is not said again.
    said: Option<String>,
}

impl Teller {
    fn tell(&mut self, session: Option<&Session>) {
        let request = match session {
            Some(session) => Request::Session(protocol::Session {
                name: self.name.clone(),
                interface: self.interface.clone(),
                session: session.session,
                ac: session.ac.0,
                own: session.own.0,
            }),
            None => Request::NoSession(self.name.clone()),
        };
        match self.ask(request) {
            // Most hosts have none.
            Ok(()) | Err(Error::Nobody(_)) => self.said = None,
            Err(error) => {
                self.client = None;
                let error = error.to_string();
                if self.said.as_ref() != Some(&error) {
                    note(format!("the router is not told of the session: {error}"));
                }
                self.said = Some(error);
            }
        }
    }

    fn ask(&mut self, request: Request) -> Result<(), Error> {
        if let Some(mut client) = self.client.take() {
            // One that has ended meanwhile may have been followed by another.
            match client.ask(request.clone()) {
                Err(Error::Closed | Error::System(_)) => {}
                other => {
                    self.client = Some(client);
                    return other.map(drop);
                }
            }
        }
        let mut client = Client::connect(&self.socket)?;
        client.ask(request)?;
        self.client = Some(client);
        Ok(())
    }
}
