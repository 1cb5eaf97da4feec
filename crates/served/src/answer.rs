//! Answers to requests of programs.

use crate::wire::{Bytes, Register, Request, Reregister, Words, write_pair, write_query};
use millrace_dma::{Region, Window};
use millrace_rdma::engine::{Error, Leftover};
use millrace_rdma::served::{Number, ServeError, Service};
use rustix::fd::OwnedFd;

/// What one answer is: words, a descriptor, and what is not needed any more.
pub struct Answer {
    /// What it says.
    pub words: Words,
    /// The file of a ring.
    pub fd: Option<OwnedFd>,
    /// To be dropped, which may take long.
    pub remains: Option<Leftover>,
}

impl From<Words> for Answer {
    fn from(words: Words) -> Self {
        Self { words, fd: None, remains: None }
    }
}

/// Does what is asked for.
///
/// # Errors
/// [`ServeError`]; also for what only the owner of the thread can answer: greetings, addresses, services.
pub fn answer(service: &mut Service, of: Number, request: Request, fds: &[OwnedFd]) -> Result<Answer, ServeError> {
    let number = |number: u32| Ok(Words::answer(&[number.into()]).into());
    let done = |()| Words::answer(&[]).into();
    let left = |left| Answer { remains: Some(left), ..Words::answer(&[]).into() };
    match request {
        // Answered before.
        Request::Hello | Request::Resolve(..) | Request::Show(_) | Request::Offer(_) => Err(ServeError::Gone),
        Request::Withdraw(offered) => {
            service.withdraw(of, offered);
            Ok(done(()))
        }
        Request::CreateDomain => number(service.create_domain(of)?.0),
        Request::DestroyDomain(domain) => service.destroy_domain(of, domain).map(done),
        Request::Register(asked) => {
            let Register { domain, access, bytes } = asked;
            service.may_register(of, bytes.len, fds.len())?;
            let memory = (map(&bytes, fds)?, fds.len());
            let made = service.register_window(of, domain, memory, Some(bytes.base), access)?;
            Ok(Words::answer(&[made.lkey.value().into(), made.rkey.value().into()]).into())
        }
        Request::Reregister(Reregister { key, domain, access, bytes }) => {
            let bytes = match bytes {
                Some(bytes) => {
                    service.may_register(of, bytes.len, fds.len())?;
                    Some(((map(&bytes, fds)?, fds.len()), bytes.base))
                }
                None => None,
            };
            let (made, remains) = service.reregister(of, key, bytes, domain, access)?;
            let words = Words::answer(&[made.lkey.value().into(), made.rkey.value().into()]);
            Ok(Answer { remains: Some(remains), ..words.into() })
        }
        Request::Deregister(key) => service.deregister(of, key).map(left),
        Request::CreateWindow(domain, kind) => number(service.create_window(of, domain, kind)?.value()),
        Request::NextWindowKey(key) => number(service.next_window_key(of, key)?.value()),
        Request::ForgetWindowKey(key) => service.forget_window_key(of, key).map(done),
        Request::DestroyWindow(key) => service.destroy_window(of, key).map(done),
        Request::CreateQueue(depth) => {
            let (queue, fd) = service.create_queue(of, depth, copy_of)?;
            Ok(Answer { fd: Some(fd), ..Words::answer(&[queue.into()]).into() })
        }
        Request::ResizeQueue(queue, depth) => {
            let (fd, left) = service.resize_queue(of, queue, depth, copy_of)?;
            Ok(Answer { fd: Some(fd), remains: Some(left), ..Words::answer(&[]).into() })
        }
        Request::DestroyQueue(queue) => service.destroy_queue(of, queue).map(left),
        Request::CreateShared(domain, depth, pieces) => number(service.create_shared(of, domain, depth, pieces)?),
        Request::SetLimit(shared, limit) => service.set_shared_limit(of, shared, limit).map(done),
        Request::DestroyShared(shared) => service.destroy_shared(of, shared).map(left),
        Request::CreatePair(init) => {
            let (qpn, granted) = service.create_pair(of, &init)?;
            let first_id = if init.general { service.first_id(of) } else { None };
            Ok(write_pair(first_id, qpn, &granted).into())
        }
        Request::ModifyPair(qpn, told) => number(service.modify_pair(of, qpn, &told)? as u32),
        Request::QueryPair(qpn) => {
            let query = service.query_pair(of, qpn)?;
            Ok(write_query(&query.attributes, query.draining).into())
        }
        Request::DestroyPair(qpn) => service.destroy_pair(of, qpn).map(left),
    }
}

/// A descriptor for the program. Without one, the card has too few.
fn copy_of(memory: &Region) -> Result<OwnedFd, ServeError> {
    let fd = memory.fd().and_then(|fd| fd.try_clone_to_owned().ok());
    fd.ok_or(ServeError::Quota { what: "descriptors", limit: 0 })
}

/// Maps parts of a program's files. Only files that cannot shrink are, and they are guarded against holes: none can be one
/// that keeps this thread waiting for a disk, which has no seals.
fn map(asked: &Bytes, fds: &[OwnedFd]) -> Result<Window, ServeError> {
    const PAGE: u64 = 4096;
    let outside = || ServeError::Engine(Error::Range("file of the region"));
    let parts = asked.parts.list();
    if u64::from(asked.skip) >= PAGE || parts.len() != fds.len() {
        return Err(outside());
    }
    let whole = asked.len.checked_add(asked.skip.into()).and_then(|len| len.checked_next_multiple_of(PAGE));
    let whole = whole.and_then(|len| usize::try_from(len).ok()).filter(|_| asked.len > 0).ok_or_else(outside)?;
    let parts = fds.iter().zip(parts).map(|(fd, (offset, len))| Some((fd, *offset, usize::try_from(*len).ok()?)));
    let parts = parts.collect::<Option<Vec<_>>>().ok_or_else(outside)?;
    if parts.iter().try_fold(0_usize, |all, (_, _, len)| all.checked_add(*len)) != Some(whole) {
        return Err(outside());
    }
    Ok(Region::map_parts(&parts)?.part(asked.skip as usize, asked.len as usize)?)
}
