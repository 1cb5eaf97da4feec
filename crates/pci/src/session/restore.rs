//! A machine that another card has had, from its words. Queues are held where they were until [`Session::go_on`]; until then nothing that the machine sees has
//! changed, and all of it can be dropped.

use super::Session;
use crate::handover::{SavedMachine, TakenFds, unhex};
use crate::interrupts::Interrupts;
use crate::session::Function;
use millrace_abi::control::PAGE_SIZE;
use millrace_abi::handover::SavedQueue;
use millrace_abi::pci;
use millrace_abi::queue::Engine;
use millrace_abi::register::map::Component;
use millrace_abi::register::medusa;
use millrace_card::Card;
use millrace_dma::{Protection, Region};
use std::sync::Arc;

impl Session {
    /// The machine that these words describe.
    pub fn restore(
        function: Arc<Function>,
        saved: &SavedMachine,
        fds: &mut TakenFds,
        has_keeper: bool,
    ) -> Result<Self, String> {
        let vectors = function.vectors();
        if saved.vectors.len() != vectors as usize {
            return Err("the function has other queues".to_owned());
        }
        let len = vectors as usize * PAGE_SIZE;
        let fd = Arc::new(fds.take(saved.doorbells)?);
        let doorbells = Region::map_guarded(fd.clone(), len, Protection::ReadWrite);
        let doorbells = doorbells.map_err(|error| format!("BAR 2 cannot be mapped: {error}"))?;
        let mut session = Self::over(function, (saved.pid, saved.uid), doorbells, fd);
        if has_keeper {
            session.keep();
        }
        session.introduced = saved.introduced;
        session.configuration.restore(&unhex(&saved.configuration)?);
        fill(&mut session.msix_table, &saved.msix_table)?;
        fill(&mut session.test_space, &saved.test_space)?;
        session.clock = saved.clock;
        let function = session.function.clone();
        session.memory.restore(&saved.memory, fds, &function.counting)?;
        session.interrupts = Interrupts::restore(&saved.vectors, saved.uid, fds)?;
        for queue in &saved.queues {
            let queue = if queue.is_noted { &session.as_noted(queue)? } else { queue };
            session.restore_queue(queue)?;
        }
        Ok(session)
    }

    /// A queue whose card was killed: with what stands in its control page.
    fn as_noted(&self, saved: &SavedQueue) -> Result<SavedQueue, String> {
        let here = self.function.share.all_queues().find(|(_, there)| Some(*there) == saved.queue);
        let (here, id) = here.ok_or("a queue that the function has not got")?;
        let page = self.doorbells.part(pci::doorbell(here) as usize, PAGE_SIZE).map_err(|error| error.to_string())?;
        let is_medusa = self.function.driver.card().engine(id) == Some(Engine::Medusa);
        let noted = Card::as_noted(saved, &page).filter(|_| is_medusa);
        noted.ok_or_else(|| format!("{id} cannot be gone on with: nobody has noted where its ring stands"))
    }

    fn restore_queue(&mut self, saved: &SavedQueue) -> Result<(), String> {
        let function = self.function.clone();
        let id = saved.queue.filter(|id| function.share.all_queues().any(|(_, there)| there == *id));
        let id = id.ok_or("a queue that the function has not got")?;
        let path = function.controllers.get(&id).ok_or("a queue without a controller")?;
        let card = function.driver.card();
        let failed = |what: &str| format!("{id} {what}");
        let client = self.client().map_err(|errno| failed(&format!("cannot be reached: {errno}")))?;
        client.lock(path, 1).map_err(|error| failed(&format!("cannot be had: {error}")))?;
        self.locked.insert(id);
        if !card.restore(id, saved) {
            return Err(failed("is in use here already, or its worker does not answer"));
        }
        if saved.place.is_none() {
            return Ok(());
        }
        let control = Component::Dma(id).base().ok_or("a queue without registers")?;
        let start = (saved.control | medusa::CONTROL_START).to_le_bytes();
        let started = self.client().and_then(|client| client.write(control, &start).map_err(|_| rustix::io::Errno::IO));
        started.map_err(|errno| failed(&format!("cannot be started: {errno}")))?;
        if !card.settle(id, saved) {
            let why = card.refusal(id).map_or("nobody says why".to_owned(), |why| why.to_string());
            return Err(failed(&format!("cannot go on: {why}")));
        }
        Ok(())
    }
}

/// Bytes of this length, from their digits.
fn fill(bytes: &mut [u8], digits: &str) -> Result<(), String> {
    let from = unhex(digits)?;
    if from.len() != bytes.len() {
        return Err("registers of another length".to_owned());
    }
    bytes.copy_from_slice(&from);
    Ok(())
}
