//! What programs ask for by their sockets.

use super::{AGAIN, REQUESTS, Worker};
use crate::answer::{Answer, answer};
use crate::clients::{Client, Waiting, account_of, greet};
use crate::network::{Network, Outside};
use crate::record;
use crate::wire::{MOST_PARTS, Request, Welcome, Words, write_mac};
use millrace_callers::Caller;
use millrace_rdma::number::Gid;
use millrace_rdma::served::{Number, ServeError};
use millrace_rdma::show;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use std::sync::atomic::Ordering;
use std::time::Instant;

impl Worker {
    /// Takes one request of a program, and answers it, when what it has posted before is taken. An error: it is to be hung up on.
    pub(super) fn serve(&mut self, at: usize) -> Result<(), Errno> {
        if !record::has_room(&self.listener) {
            self.scarce = Some(Instant::now() + AGAIN);
            return Ok(());
        }
        let client = &mut self.clients[at];
        let Some((words, fds)) = record::receive_any(&client.socket)? else { return Ok(()) };
        let request = words.ok().and_then(Request::read).filter(|_| fds.len() <= MOST_PARTS);
        let number = client.met.as_ref().map(|met| met.number);
        match (request, number) {
            (Some(Request::Show(which)), _) => {
                client.close(fds);
                self.show(at, which)
            }
            (Some(Request::Hello), None) => {
                client.close(fds);
                self.greet(at)
            }
            (Some(request), Some(number)) if request != Request::Hello => {
                if let Some(position) = self.service.position_of_work(number) {
                    client.waiting = Some(Waiting { request, fds, position });
                    self.waiting += 1;
                    return Ok(());
                }
                self.answer(at, number, (request, fds))
            }
            _ => {
                client.close(fds);
                Err(Errno::BADMSG)
            }
        }
    }

    /// Requests before which all is taken.
    pub(super) fn serve_waiting(&mut self) {
        let (began, before) = (Instant::now(), self.waiting);
        for at in self.in_turn() {
            if began.elapsed() > REQUESTS {
                break;
            }
            if let Some((position, number)) = self.waits(at)
                && self.service.has_taken(number, position)
            {
                self.waiting -= 1;
                self.answer_waiting(at, number);
            }
        }
        // Memory that is mapped meanwhile is nobody's whom the engine waits for.
        if self.waiting < before {
            self.service.restart_watch();
        }
    }

    /// All clients, from the one whose request is first on.
    fn in_turn(&self) -> impl Iterator<Item = usize> + use<> {
        let (first, count) = (self.first, self.clients.len());
        (0..count).map(move |step| (first + step) % count)
    }

    /// Up to where all is to be taken before a request of that client.
    fn waits(&self, at: usize) -> Option<(u64, Number)> {
        let Client { waiting, met, .. } = &self.clients[at];
        Some((waiting.as_ref()?.position, met.as_ref()?.number))
    }

    fn answer_waiting(&mut self, at: usize, number: Number) {
        let Some(Waiting { request, fds, .. }) = self.clients[at].waiting.take() else { return };
        self.clients[at].is_over |= self.answer(at, number, (request, fds)).is_err();
    }

    /// Does what is asked for. EAGAIN: there is no room, and there may be some when what its user has given up of that is closed.
    fn answer(&mut self, at: usize, number: Number, (request, fds): (Request, Vec<OwnedFd>)) -> Result<(), Errno> {
        let answered = match request {
            Request::Resolve(gid, asks) => self.resolve(at, gid, asks).map(Answer::from),
            Request::Offer(offered) => {
                let now = self.now();
                self.service.offer(now, number, offered).map(|()| Words::answer(&[]).into())
            }
            Request::DestroyPair(qpn) => {
                let now = self.now();
                self.service.say_farewell(now, number, qpn, &mut Outside(self.network.as_mut()));
                answer(&mut self.service, number, request, &fds)
            }
            _ => answer(&mut self.service, number, request, &fds),
        };
        let client = &mut self.clients[at];
        client.close(fds);
        match answered {
            Ok(Answer { words, fd, remains }) => {
                if let Some(remains) = remains {
                    client.closer.close(remains);
                }
                record::send(&client.socket, &words, fd.as_ref().map(AsFd::as_fd).as_slice())
            }
            Err(error) => {
                let is_owed = matches!(error, ServeError::Crowded { what } if self.service.is_owed(number, what));
                let errno = if is_owed { Errno::AGAIN.raw_os_error() } else { error.errno() };
                record::send(&client.socket, &Words::refusal(errno), &[])
            }
        }
    }

    /// Who has an address; `asks` if it is not known.
    fn resolve(&mut self, at: usize, gid: Gid, asks: bool) -> Result<Words, ServeError> {
        if self.address.gids.contains(&gid) {
            return Ok(write_mac(Some(self.address.mac)));
        }
        let now = self.now();
        let network = self.network.as_mut().ok_or(ServeError::NoHosts(Errno::NETUNREACH.raw_os_error()))?;
        network.resolve(now, gid, asks, &mut self.clients[at].asked).map(write_mac)
    }

    /// Says what the card, or a program, is doing: of bounded length. Of a program the text is made by another thread, which has a look of a
    /// moment for it.
    fn show(&mut self, at: usize, which: u32) -> Result<(), Errno> {
        let socket = self.clients[at].socket.clone();
        let Some(number) = which.checked_sub(1) else {
            let told = self.show_card();
            return record::send_bytes(socket, told.as_bytes(), &[]);
        };
        // Addresses, numbers and rights of a program are its user's, and the card's.
        let asker = self.clients[at].caller;
        let may = |caller: Caller| !asker.is_limited || caller.uid == asker.uid;
        let met =
            |client: &Client| Some((client.caller.pid, client.met.as_ref()?.number)).filter(|_| may(client.caller));
        let found = self.clients.iter().filter_map(met).nth(number as usize);
        let Some((pid, shown)) = found.and_then(|(pid, number)| Some((pid, self.service.show(number)?))) else {
            return record::send(&socket, &Words::refusal(Errno::NOENT.raw_os_error()), &[]);
        };
        // Whoever asks has an answer before he asks again. Acquire pairs with the Release below.
        let client = &mut self.clients[at];
        let is_asking = client.is_asking.clone();
        if is_asking.swap(true, Ordering::Acquire) {
            return Err(Errno::BUSY);
        }
        // Should he have hung up by then, his own thread closes the socket, with what lies in it; he has his place until then, so that
        // there are no more questions than places.
        let place = client.closer.place().ok_or(Errno::NOMEM)?;
        self.scribe.run(1, move || {
            let told = format!("{{\"pid\":{pid},{}}}", shown.fields());
            // Before it is sent: he may ask when he has it.
            is_asking.store(false, Ordering::Release);
            if record::send_bytes(&socket, told.as_bytes(), &[]).is_err() {
                // The card finds that, and hangs up.
                let _ = shutdown(&socket, Shutdown::Both);
            }
            place.close(socket);
        });
        Ok(())
    }

    fn show_card(&mut self) -> String {
        let turned_away = ("turned_away", self.turned_away);
        let [transport, served, general] = self.service.show_counters([turned_away]);
        let frames = show::counters(self.network.iter().flat_map(Network::counters));
        let port = show::counters(self.network.iter().flat_map(Network::port));
        format!(
            "{{\"pid\":{},\"stats\":{{\"transport\":{transport},\"served\":{served},\"connections\":{general},\"frames\":{frames},\"port\":{port}}}}}",
            std::process::id()
        )
    }

    fn greet(&mut self, at: usize) -> Result<(), Errno> {
        let number = match self.service.enter(account_of(&self.clients[at].caller)) {
            Ok(number) => number,
            Err(error) => return record::send(&self.clients[at].socket, &Words::refusal(error.errno()), &[]),
        };
        let welcome = Welcome { mac: self.address.mac, gid: self.address.gids[0], mtu: self.mtu };
        let userfaultfd = self.userfaultfd.as_ref();
        let greeted = greet(&self.service, &self.clients[at], &welcome, number, userfaultfd);
        match greeted {
            Ok(met) => {
                self.clients[at].met = Some(met);
                Ok(())
            }
            Err(error) => {
                let now = self.now();
                let left = self.service.leave(now, number);
                self.clients[at].closer.close(left);
                Err(error)
            }
        }
    }
}
