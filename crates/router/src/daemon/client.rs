//! Asking the router of this network namespace.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, recv, send, socket_with};

use super::control::{self, address};
use super::peer;
use super::protocol::{Answer, Asked, Filter, LONGEST, Request, RuleInfo, VERSION};

/// How long the daemon may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why it did not work.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody listens.
    #[error(
        "no router runs in this network namespace (nobody listens at @{0}); `millrace router start --interfaces NAMES` starts one"
    )]
    Nobody(String),
    /// Somebody who is not trusted does.
    #[error("user {uid} listens at @{name}, who is neither root nor you: it is not asked")]
    Stranger {
        /// The name.
        name: String,
        /// Whose it is.
        uid: u32,
    },
    /// The name is none.
    #[error(transparent)]
    Name(#[from] control::Error),
    /// The system refused.
    #[error("the router cannot be asked: {0}")]
    System(#[from] Errno),
    /// The router has ended meanwhile, or has let this go.
    #[error("the router has closed the connection")]
    Closed,
    /// It does not answer.
    #[error("the router has not answered for {} s", PATIENCE.as_secs())]
    Silent,
    /// It says something else than it was asked.
    #[error("the router answers in another language: it is of another version than this command")]
    Strange,
    /// It said no.
    #[error("{0}")]
    Refused(String),
}

/// A connection to a router.
#[derive(Debug)]
pub struct Client {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl Client {
    /// Connects to the router that listens at the abstract name.
    ///
    /// # Errors
    /// When there is none, or one that is not trusted.
    pub fn connect(name: &str) -> Result<Self, Error> {
        let address = address(name)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let end = Instant::now() + PATIENCE;
        loop {
            match connect(&socket, &address) {
                Err(Errno::CONNREFUSED) => return Err(Error::Nobody(name.to_owned())),
                // Many wait already, and there is nothing to poll for.
                Err(Errno::AGAIN) if Instant::now() < end => std::thread::sleep(Duration::from_millis(5)),
                Err(Errno::AGAIN) => return Err(Error::Silent),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
                Ok(()) => break,
            }
        }
        let uid = peer::of(&socket)?.user;
        if uid != 0 && uid != rustix::process::geteuid().as_raw() {
            return Err(Error::Stranger { name: name.to_owned(), uid });
        }
        Ok(Self { socket, buffer: vec![0; LONGEST] })
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// What the router says, or that it says nothing.
    pub fn ask(&mut self, request: Request) -> Result<Answer, Error> {
        let asked = Asked { version: VERSION, request };
        let bytes = postcard::to_stdvec(&asked).map_err(|_| Error::Strange)?;
        self.wait(PollFlags::OUT)?;
        match send(&self.socket, &bytes, SendFlags::NOSIGNAL) {
            // It may have said why before it hung up.
            Ok(_) | Err(Errno::PIPE | Errno::CONNRESET) => {}
            Err(error) => return Err(error.into()),
        }
        self.wait(PollFlags::IN)?;
        let mut said = recv(&self.socket, &mut self.buffer[..], RecvFlags::empty());
        if said.is_err_and(|error| error == Errno::CONNRESET) {
            // The router has not read the question. That is told once, and then what it has sent.
            said = recv(&self.socket, &mut self.buffer[..], RecvFlags::empty());
        }
        let length = match said {
            Ok((_, 0)) | Err(Errno::CONNRESET) => return Err(Error::Closed),
            other => other?.1,
        };
        match postcard::from_bytes(&self.buffer[..length]).map_err(|_| Error::Strange)? {
            Answer::Refused(why) => Err(Error::Refused(why)),
            answer => Ok(answer),
        }
    }

    /// Every rule that fits, one page after the other, until `each` says `false`.
    ///
    /// # Errors
    /// What the router says.
    pub fn rules(&mut self, filter: &Filter, mut each: impl FnMut(RuleInfo) -> bool) -> Result<(), Error> {
        let mut from = Some(0);
        while let Some(place) = from {
            match self.ask(Request::Rules { from: place, filter: filter.clone() })? {
                Answer::Rules { rules, next } => {
                    if !rules.into_iter().all(&mut each) {
                        return Ok(());
                    }
                    from = next.filter(|next| *next > place);
                }
                _ => return Err(Error::Strange),
            }
        }
        Ok(())
    }

    fn wait(&self, what: PollFlags) -> Result<(), Error> {
        let patience = Timespec::try_from(PATIENCE).unwrap_or_default();
        loop {
            match poll(&mut [PollFd::new(&self.socket, what)], Some(&patience)) {
                Ok(0) => return Err(Error::Silent),
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::control::Control;
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Runs `with` while a daemon answers at a name of its own.
    fn served(name: &str, with: impl FnOnce()) -> u64 {
        let (mut control, over) = (Control::listen(name, None).unwrap(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let daemon = scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let mut fds: Vec<_> = control.poll_fds().collect();
                    let _ = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 20_000_000 }));
                    control.turn(|request| match request {
                        Request::Status => Answer::Status(Box::default()),
                        Request::Rules { from, .. } => {
                            Answer::Rules { rules: Vec::new(), next: (from < 5).then_some(from + 1) }
                        }
                        _ => Answer::Done,
                    });
                }
                control.turned_away
            });
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(with));
            over.store(true, Ordering::Relaxed);
            let turned_away = daemon.join().unwrap();
            done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            turned_away
        })
    }

    fn raw(name: &str) -> OwnedFd {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        connect(&socket, &address(name).unwrap()).unwrap();
        socket
    }

    #[test]
    fn questions_are_answered_and_a_name_is_one_routers() {
        let name = format!("millrace-test-a-{}", std::process::id());
        served(&name, || {
            let mut client = Client::connect(&name).unwrap();
            assert!(matches!(client.ask(Request::Status), Ok(Answer::Status(_))));
            assert!(matches!(client.ask(Request::Stop), Ok(Answer::Done)));
            client.rules(&Filter::default(), |_| true).unwrap();
            let taken = Control::listen(&name, None).unwrap_err().to_string();
            assert!(taken.contains(&format!("process {}", std::process::id())), "{taken}");
        });
        assert!(matches!(Client::connect(&name), Err(Error::Nobody(_))));
        assert!(matches!(Client::connect(""), Err(Error::Name(_))));
    }

    #[test]
    fn who_is_refused_before_the_question_hears_why() {
        use rustix::net::{accept, bind, listen};
        let name = format!("millrace-test-c-{}", std::process::id());
        let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        bind(&listener, &address(&name).unwrap()).unwrap();
        listen(&listener, 2).unwrap();
        let refusal = postcard::to_stdvec(&Answer::Refused("not you".to_owned())).unwrap();
        let heard = |client: &mut Client| client.ask(Request::Status).unwrap_err().to_string();
        // Closed before the question is sent.
        let mut early = Client::connect(&name).unwrap();
        send(accept(&listener).unwrap(), &refusal, SendFlags::NOSIGNAL).unwrap();
        assert_eq!(heard(&mut early), "not you");
        // Closed when it is there and has not been read.
        let mut late = Client::connect(&name).unwrap();
        let end = accept(&listener).unwrap();
        let asked = postcard::to_stdvec(&Asked { version: VERSION, request: Request::Status }).unwrap();
        send(&late.socket, &asked, SendFlags::NOSIGNAL).unwrap();
        send(&end, &refusal, SendFlags::NOSIGNAL).unwrap();
        drop(end);
        assert_eq!(heard(&mut late), "not you");
    }

    #[test]
    fn hostile_clients_stall_nobody() {
        let name = format!("millrace-test-b-{}", std::process::id());
        let turned_away = served(&name, || {
            // Nonsense, too much, an old version.
            let nonsense = raw(&name);
            send(&nonsense, &[255; 64], SendFlags::NOSIGNAL).unwrap();
            let long = raw(&name);
            send(&long, &vec![7; LONGEST + 1], SendFlags::NOSIGNAL).unwrap();
            let old = raw(&name);
            let asked = Asked { version: VERSION + 1, request: Request::Status };
            send(&old, &postcard::to_stdvec(&asked).unwrap(), SendFlags::NOSIGNAL).unwrap();
            // One that asks and never reads, until it is let go.
            let deaf = raw(&name);
            let status = postcard::to_stdvec(&Asked { version: VERSION, request: Request::Status }).unwrap();
            let asked = (0..100_000).take_while(|_| send(&deaf, &status, SendFlags::NOSIGNAL).is_ok()).count();
            assert!(asked < 100_000, "it was never let go");
            // Many that say nothing.
            let silent: Vec<_> = (0..100).map(|_| raw(&name)).collect();
            let begin = std::time::Instant::now();
            assert!(matches!(Client::connect(&name).unwrap().ask(Request::Status), Ok(Answer::Status(_))));
            assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
            drop(silent);
            let mut said = [0; 256];
            let (_, length) = recv(&old, &mut said, RecvFlags::empty()).unwrap();
            let Answer::Refused(why) = postcard::from_bytes(&said[..length]).unwrap() else { panic!("taken") };
            assert!(why.contains("version"), "{why}");
        });
        assert!(turned_away >= 3, "{turned_away}");
    }
}
