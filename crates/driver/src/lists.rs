//! Lists that a card gives in parts. Who asks need not trust it: they end, and do not grow without bound.

use crate::client::{Client, ClientError};
use crate::talk::{self, CHANGE_TIMEOUT};
use millrace_abi::message::{MAX_LISTED, Reply, Request};
use millrace_abi::visible::{ClientInfo, LockInfo, UserUse};
use std::time::Instant;

/// Most entries of a list: more than any card has connections, and a message each.
const MOST_ENTRIES: usize = 1 << 17;

impl Client {
    /// Who is connected, by number.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn clients(&self) -> Result<Vec<ClientInfo>, ClientError> {
        let request = |all: &[ClientInfo]| Request::Clients { after: all.last().map_or(0, |client| client.id) };
        let entries = |reply| if let Reply::Clients(more) = reply { Some(more) } else { None };
        self.list(request, entries, |one, next| one.id < next.id)
    }

    /// Who holds which lock, by path.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn locks(&self) -> Result<Vec<LockInfo>, ClientError> {
        let request = |all: &[LockInfo]| Request::Locks { skip: all.len() as u32 };
        let entries = |reply| if let Reply::Locks(more) = reply { Some(more) } else { None };
        // They have no numbers, and come and go between two requests: they may come in any order.
        self.list(request, entries, |_, _| true)
    }

    /// What users have of what is limited, by user.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn usage(&self) -> Result<Vec<UserUse>, ClientError> {
        let request = |all: &[UserUse]| Request::Use { after: all.last().map(|user| user.uid) };
        let entries = |reply| if let Reply::Use(more) = reply { Some(more) } else { None };
        self.list(request, entries, |one, next| one.uid < next.uid)
    }

    /// Asks until there is no more; each entry has to follow the one before it.
    fn list<T>(
        &self,
        request: impl Fn(&[T]) -> Request,
        entries: impl Fn(Reply) -> Option<Vec<T>>,
        follows: impl Fn(&T, &T) -> bool,
    ) -> Result<Vec<T>, ClientError> {
        let begin = Instant::now();
        let mut all: Vec<T> = Vec::new();
        loop {
            let more = entries(self.ask(&request(&all), &[])?.0).ok_or(ClientError::Unexpected)?;
            let (is_last, seen) = (more.len() < MAX_LISTED, all.len().saturating_sub(1));
            all.extend(more);
            if !all[seen..].is_sorted_by(&follows) {
                return Err(ClientError::Nonsense("a list that does not go on where it was"));
            }
            if all.len() > MOST_ENTRIES {
                return Err(ClientError::Nonsense("a list without end"));
            }
            if is_last {
                return Ok(all);
            }
            // One that answers slowly must not keep us, Ctrl-C or not.
            talk::check(begin, CHANGE_TIMEOUT).map_err(|error| self.in_words(error))?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{self, WireError};
    use millrace_abi::access::Amounts;
    use millrace_abi::message::{ErrorCode, VERSION};
    use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, socketpair};

    /// A client of a card that says hello, and then what `answer` says.
    fn client_of(answer: impl Fn(Request) -> Reply + Send + 'static) -> Client {
        let (ours, cards) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        std::thread::spawn(move || {
            let mut buffer = codec::buffer();
            loop {
                let reply = match codec::receive(&cards, &mut buffer, RecvFlags::empty()) {
                    Ok((Request::Hello { .. }, _)) => Reply::Hello {
                        version: VERSION,
                        pid: 1,
                        rx_queues: 1,
                        tx_queues: 1,
                        frame_min: 60,
                        frame_max: 90,
                    },
                    Ok((request, _)) => answer(request),
                    Err(WireError::Closed) => return,
                    Err(error) => panic!("{error}"),
                };
                if codec::send(&cards, &reply, &[]).is_err() {
                    return;
                }
            }
        });
        Client::introduce(ours, "a liar".to_owned(), None).unwrap()
    }

    fn user(uid: u32) -> UserUse {
        UserUse { uid, user: String::new(), used: Amounts::default(), limits: Amounts::default() }
    }

    fn nonsense<T: std::fmt::Debug>(result: Result<T, ClientError>) -> String {
        match result {
            Err(error @ ClientError::Nonsense(_)) => error.to_string(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn lists_come_in_parts_and_have_an_end() {
        let honest = client_of(|request| match request {
            Request::Use { after } => {
                let first = after.map_or(0, |after| after + 1);
                Reply::Use((first..100).take(MAX_LISTED).map(user).collect())
            }
            _ => Reply::Done,
        });
        assert_eq!(
            honest.usage().unwrap().iter().map(|user| user.uid).collect::<Vec<_>>(),
            (0..100).collect::<Vec<_>>()
        );
        assert!(matches!(honest.locks(), Err(ClientError::Unexpected)));
    }

    #[test]
    fn a_list_without_end_is_nonsense() {
        let liar = client_of(|request| match request {
            Request::Use { .. } => Reply::Use((0..MAX_LISTED as u32).map(user).collect()),
            _ => {
                let lock = LockInfo { component: "/x".to_owned(), bits: 1, pid: 1, client: None, queue: None };
                Reply::Locks(vec![lock; MAX_LISTED])
            }
        });
        assert!(nonsense(liar.usage()).contains("does not go on"));
        assert!(nonsense(liar.locks()).contains("without end"));
    }

    #[test]
    fn files_are_as_large_as_they_can_be() {
        let liar = client_of(|request| match request {
            Request::DeviceTree => Reply::DeviceTree { len: (64 << 20) + 1 },
            _ => Reply::StatsFile { len: 1 << 40 },
        });
        assert!(nonsense(liar.device_tree()).contains("too large"));
        assert!(nonsense(liar.stats()).contains("too large"));
    }

    #[test]
    fn texts_of_a_card_are_cut_and_cannot_command_a_terminal() {
        let liar =
            client_of(|_| Reply::Error { code: ErrorCode::Busy, text: format!("\u{1b}[2J\n{}", "é".repeat(20_000)) });
        let text = liar.usage().unwrap_err().to_string();
        assert!(text.starts_with(r"\u{1b}[2J\né") && text.len() < 4096, "{text}");
        assert!(!text.contains(char::is_control));
    }
}
