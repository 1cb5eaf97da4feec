//! What messages ask for.

use super::Session;
use super::tell::Changes;
use crate::counters::count;
use crate::keeper::Shared;
use crate::memory::{MOST_PIECES, Map, Memory, Unmap};
use crate::wire::message::{
    Access, Command, DEVICE_FLAGS, Fields, INTERRUPT_FLAGS, INTERRUPTS, MOST_DATA, MOST_FDS, REGIONS, SetInterrupts,
    region_info,
};
use crate::wire::stream::Message;
use millrace_abi::control::PAGE_SIZE;
use millrace_abi::pci;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::sync::Arc;

/// What goes back.
pub struct Answer {
    pub bytes: Vec<u8>,
    /// What goes with it.
    pub fds: Vec<Shared>,
}

/// Most bytes of what a client says about itself.
const MOST_WORDS: usize = 4096;

impl Session {
    /// Carries out what a message asks for. `None`: nobody waits for an answer.
    pub fn carry_out(&mut self, message: Message) -> Option<Answer> {
        let Message { header, body, mut fds } = message;
        count(&self.function.counting.messages);
        let answer = self.answer(header.command, &body, &mut fds);
        // Whatever it did not ask to be kept.
        self.closer.close_all(fds);
        match answer {
            Ok(_) if header.is_posted() => None,
            Ok((body, fd)) => {
                Some(Answer { bytes: header.reply(&body), fds: fd.into_iter().map(Shared::File).collect() })
            }
            Err(errno) => {
                count(&self.function.counting.refused_messages);
                let refusal = || Answer { bytes: header.refusal(errno.raw_os_error() as u32), fds: Vec::new() };
                (!header.is_posted()).then(refusal)
            }
        }
    }

    /// What is left of `fds` nobody has taken.
    fn answer(
        &mut self,
        command: u16,
        body: &[u8],
        fds: &mut Vec<OwnedFd>,
    ) -> Result<(Vec<u8>, Option<Arc<OwnedFd>>), Errno> {
        let command = Command::of(command).ok_or(Errno::OPNOTSUPP)?;
        if self.introduced == (command == Command::Version) {
            return Err(Errno::INVAL);
        }
        let takes_fds = matches!(command, Command::DmaMap | Command::SetInterrupts);
        if !fds.is_empty() && !takes_fds {
            return Err(Errno::INVAL);
        }
        let bytes = match command {
            Command::Version => self.agree(body)?,
            Command::DeviceInfo => numbers(&[16, DEVICE_FLAGS, REGIONS, INTERRUPTS]),
            Command::RegionInfo => return self.tell_of_region(body),
            Command::InterruptInfo => self.tell_of_interrupts(body)?,
            Command::SetInterrupts => {
                let set = SetInterrupts::decode(body).ok_or(Errno::INVAL)?;
                self.changes.vectors = true;
                self.interrupts.set(set, fds, &self.function.counting)?;
                Vec::new()
            }
            Command::RegionRead => {
                let (access, _) = Access::decode(body).ok_or(Errno::INVAL)?;
                let bytes = self.read_region(access)?;
                let mut all = access.encode();
                all.extend(bytes);
                all
            }
            Command::RegionWrite => {
                let (access, bytes) = Access::decode(body).ok_or(Errno::INVAL)?;
                self.write_region(access, bytes)?;
                access.encode()
            }
            Command::DmaMap => {
                let map = Map::decode(body).ok_or(Errno::INVAL)?;
                if fds.len() > 1 {
                    return Err(Errno::INVAL);
                }
                self.changes.memory = true;
                // The mapping keeps the file.
                self.memory.map(map, fds.first().map(AsFd::as_fd), &self.function.counting)?;
                Vec::new()
            }
            Command::DmaUnmap => self.unmap(body)?,
            Command::Reset => {
                self.reset();
                Vec::new()
            }
        };
        Ok((bytes, None))
    }

    /// Versions: this server speaks 0.0, and any other 0.x is an extension of that.
    fn agree(&mut self, body: &[u8]) -> Result<Vec<u8>, Errno> {
        let mut fields = Fields(body);
        let (major, _minor) = (fields.u16().ok_or(Errno::INVAL)?, fields.u16().ok_or(Errno::INVAL)?);
        let words = fields.0.strip_suffix(&[0]).unwrap_or(fields.0);
        let is_sound =
            words.is_empty() || words.len() <= MOST_WORDS && serde_json::from_slice::<serde_json::Value>(words).is_ok();
        if major != 0 || !is_sound {
            return Err(Errno::INVAL);
        }
        self.introduced = true;
        self.changes = Changes::ALL;
        let said = serde_json::json!({ "capabilities": {
            "max_msg_fds": MOST_FDS, "max_data_xfer_size": MOST_DATA, "pgsizes": PAGE_SIZE, "max_dma_maps": MOST_PIECES,
        }});
        let mut bytes = vec![0; 4];
        bytes.extend(said.to_string().bytes());
        bytes.push(0);
        Ok(bytes)
    }

    fn tell_of_region(&self, body: &[u8]) -> Result<(Vec<u8>, Option<Arc<OwnedFd>>), Errno> {
        let mut fields = Fields(body);
        let (room, _flags, index) = (fields.u32(), fields.u32(), fields.u32());
        let index = index.filter(|&index| index < REGIONS).ok_or(Errno::INVAL)?;
        let mapped = (index == pci::DOORBELLS_BAR).then(|| self.doorbells.len() as u64);
        let (bytes, is_whole) = region_info(index, self.region_size(index), mapped, room.unwrap_or(0));
        let fd = (is_whole && mapped.is_some()).then(|| self.doorbells_fd.clone());
        Ok((bytes, fd))
    }

    fn tell_of_interrupts(&self, body: &[u8]) -> Result<Vec<u8>, Errno> {
        let mut fields = Fields(body);
        let (_argsz, _flags, index) = (fields.u32(), fields.u32(), fields.u32());
        let index = index.filter(|&index| index < INTERRUPTS).ok_or(Errno::INVAL)?;
        let vectors = self.interrupts.count(index);
        Ok(numbers(&[16, if vectors > 0 { INTERRUPT_FLAGS } else { 0 }, index, vectors]))
    }

    fn unmap(&mut self, body: &[u8]) -> Result<Vec<u8>, Errno> {
        let unmap = Unmap::decode(body).ok_or(Errno::INVAL)?;
        let function = self.function.clone();
        self.changes.memory = true;
        // Away from `self`, whose queues are to be stopped meanwhile.
        let nobodys = Memory::new(function.books.clone());
        let mut memory = core::mem::replace(&mut self.memory, nobodys);
        let nudge = || function.driver.card().pass_all();
        let stop = || {
            self.halt();
            Ok(())
        };
        let done = memory.unmap(unmap, stop, nudge, &function.counting);
        self.memory = memory;
        done?;
        // What came, as it came.
        Ok(body.get(..24).unwrap_or_default().to_vec())
    }
}

fn numbers(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}
