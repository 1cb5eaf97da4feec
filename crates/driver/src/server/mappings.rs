//! Memory of programs that the card may reach.

use super::Server;
use super::reaper::Garbage;
use super::replies::{Answer, Enclosed, Refusal};
use millrace_abi::message::{ErrorCode, Reply};
use millrace_dma::{Access, Domain, Iova, Protection, Region};
use rustix::fd::OwnedFd;
use std::time::Duration;

impl Server {
    pub(super) fn map(
        &mut self,
        number: u64,
        len: u64,
        writable: bool,
        at: Option<u64>,
        fds: Vec<OwnedFd>,
    ) -> Result<Answer, Refusal> {
        let invalid = |text: &str| Refusal::new(ErrorCode::Invalid, text);
        let fd = fds.into_iter().next().ok_or_else(|| invalid("no fd of the memory came with the request"))?;
        let len = usize::try_from(len).map_err(|_| invalid("more memory than this machine can address"))?;
        let (protection, access) =
            if writable { (Protection::ReadWrite, Access::ReadWrite) } else { (Protection::Read, Access::Read) };
        let pid = self.clients.get(&number).map_or(0, |client| client.pid);
        if !self.may_grow(pid) {
            let text = "this process has too much mapped; map fewer and larger regions";
            return Err(Refusal::new(ErrorCode::System, text));
        }
        let charge = self.charge_mapping(number, len as u64, writable)?;
        let region = Region::map_guarded(fd, len, protection)?;
        let owner = self.clients.get(&number).is_some_and(|client| client.standing.is_owner());
        if !writable || !owner {
            // Nobody makes holes in it while a worker is there, who would wait for it; what the program has mapped
            // already it may go on writing. The owner's pools are mapped once more by ports that work on them.
            region.seal_future_writes()?;
        }
        // A port that works on a pool maps it once more; nothing else is mapped twice.
        let region = if writable { region } else { region.without_fd() };
        let Some(client) = self.clients.get_mut(&number) else { return Err(invalid("not connected")) };
        let mapped = client.domain.map(region.window().clone(), access, at.map(Iova::new));
        let iova = mapped.map_err(|error| Refusal::new(ErrorCode::Invalid, error))?.get();
        client.mapped.insert(iova, region);
        client.standing.mapped(iova, charge);
        Ok((Reply::Mapped { iova }, Enclosed::Nothing))
    }

    pub(super) fn unmap_for(&mut self, number: u64, iova: u64) -> Result<Answer, Refusal> {
        let unknown = || Refusal::new(ErrorCode::NotFound, format!("nothing of this program is mapped at {iova:#x}"));
        let Some(client) = self.clients.get_mut(&number) else { return Err(unknown()) };
        if !client.mapped.contains_key(&iova) {
            return Err(unknown());
        }
        let card = &self.card;
        let unmapped = client.domain.unmap(Iova::new(iova), Duration::from_secs(2), || card.pass_all());
        unmapped.map_err(|error| Refusal::new(ErrorCode::Busy, error))?;
        let (paid, asker, region) = (client.standing.unmapped(iova), client.asker, client.mapped.remove(&iova));
        if let Some(region) = region {
            self.reaper.take(asker, Garbage::Memory(region, paid));
        }
        Ok((Reply::Done, Enclosed::Nothing))
    }

    pub(super) fn unmap(&self, domain: &Domain, iova: u64) {
        if let Err(error) = domain.unmap(Iova::new(iova), Duration::from_secs(2), || self.card.pass_all()) {
            tracing::warn!(%error, "memory of a program stays mapped");
        }
    }
}
