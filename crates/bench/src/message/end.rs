//! Our ends: what both do, and the process of the one that does what it is told by messages. [`super::drive`] tells it.

use std::time::Duration;

use clap::Args;
use millrace_message::bell::Owner;
use millrace_message::channel::Taken;
use millrace_message::control::MOST_EAGER;
use millrace_message::endpoint::{Config, DoorbellReceiver, DoorbellSender, Ended, Endpoint, Peer, Scope};
use millrace_message::engine::{Limits, Outcome};
use millrace_message::{Request, Scheme, Tag};
use millrace_tool::cores;
use millrace_tool::failure::Failure;
use rustix::time::{ClockId, clock_gettime};

use super::optimisations::Optimisations;

/// Longer than anything takes.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Messages at once, as many as `bench/message/mpi.c` has. Of long ones it is one, in the same memory again and again, as the peers have it
/// (UCX's tag_bw, WRITEs of `millrace bench rdma`): with several it would be compared what fits into the caches.
pub const fn depth(size: usize) -> usize {
    if size >= 8 << 20 { 1 } else { 4 }
}
/// Bytes of a message of the message mode, and of one of the packets that it goes in.
const MAIL: usize = 4096;
const PACKET: usize = 1024;

pub const ORDER: Tag = Tag(1);
pub const READY: Tag = Tag(2);
pub const DATA: Tag = Tag(3);
pub const DONE: Tag = Tag(4);
const EXACT: u64 = u64::MAX;
pub const WORDS: usize = 32;

/// What the other end is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Send messages back, by the way that they are sent.
    Echo = 0,
    /// Take messages.
    Take = 1,
    /// Ring back.
    Bells = 2,
    /// Take messages in the message mode.
    Mail = 3,
}

/// Options of the hidden command.
#[derive(Debug, Args)]
pub struct EndArgs {
    /// Name of its endpoint
    name: String,
    /// Core that it runs on
    #[arg(long)]
    core: Option<usize>,
    #[command(flatten)]
    buffers: BufferArgs,
}

/// Buffers of both ends.
#[derive(Clone, Copy, Debug, Args)]
pub struct BufferArgs {
    /// Bytes of a buffer, 1024 to 1048576
    #[arg(long, value_name = "BYTES", default_value_t = Limits::default().mtu)]
    pub mtu: u32,
    /// Receive buffers of a pair, 1 to 64
    #[arg(long, value_name = "N", default_value_t = Limits::default().slots)]
    pub slots: u8,
    /// Optimisations of the source that are on: none, or some of 1, 2 and 3
    #[arg(long, value_name = "WHICH", default_value_t = Optimisations::ALL)]
    pub optimisations: Optimisations,
    /// Memory that is sent again becomes shared memory in place; large messages are always measured so
    #[arg(long)]
    pub adopt: bool,
}

impl BufferArgs {
    pub fn limits(self) -> Limits {
        let usual = Limits::default();
        let rmbs = usual.rmbs.max(self.slots.into());
        Limits { mtu: self.mtu, slots: self.slots, rmbs, ..usual }
    }

    pub fn config(self) -> Config {
        let adopt = self.adopt.then_some(Scope::Heap);
        self.optimisations.apply(Config { limits: self.limits(), adopt, ..Config::default() })
    }

    /// The same, with memory that becomes shared.
    pub fn adopting(self) -> Self {
        Self { adopt: true, ..self }
    }

    /// As words of the hidden command.
    pub fn words(self) -> Vec<String> {
        let Self { mtu, slots, optimisations, adopt } = self;
        let words = format!("--mtu {mtu} --slots {slots} --optimisations {optimisations}");
        words.split(' ').chain(adopt.then_some("--adopt")).map(str::to_owned).collect()
    }
}

/// A way as a number: all three, and the fastest.
pub const FASTEST: u64 = 3;

pub fn number_of(scheme: Option<Scheme>) -> u64 {
    scheme.map_or(FASTEST, |scheme| Scheme::ALL.iter().position(|one| *one == scheme).unwrap_or_default() as u64)
}

fn said(words: [u64; 4]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn heard(bytes: &[u8]) -> Result<[u64; 4], String> {
    let (words, _) = bytes.as_chunks::<8>();
    let words: [[u8; 8]; 4] = words.try_into().map_err(|_| "the other end says nonsense".to_owned())?;
    Ok(words.map(u64::from_le_bytes))
}

/// Time that this process has used of processors, in ns.
pub fn used() -> u64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    used.tv_sec as u64 * 1_000_000_000 + used.tv_nsec as u64
}

/// One end, and the other one.
pub struct Both {
    pub endpoint: Endpoint,
    pub peer: Peer,
}

impl Both {
    pub fn receive(&self, tag: Tag, buffer: Vec<u8>) -> Result<Request, String> {
        self.endpoint.receive(Some(self.peer), tag, EXACT, buffer).map_err(|error| error.to_string())
    }

    pub fn send(&self, tag: Tag, buffer: Vec<u8>, way: u64) -> Result<Request, String> {
        let sent = match Scheme::ALL.get(way as usize) {
            Some(scheme) => self.endpoint.send_by(self.peer, tag, buffer, *scheme),
            None => self.endpoint.send(self.peer, tag, buffer),
        };
        sent.map_err(|error| error.to_string())
    }

    pub fn wait(&self, request: Request) -> Result<Ended, String> {
        let ended = self.endpoint.wait(request, PATIENCE).ok_or("a message does not end")?;
        match ended.outcome {
            Outcome::Sent | Outcome::Received { .. } => Ok(ended),
            other => Err(format!("a message ended as {other:?}")),
        }
    }

    pub fn say(&self, tag: Tag, words: [u64; 4]) -> Result<(), String> {
        self.wait(self.send(tag, said(words), FASTEST)?).map(drop)
    }

    pub fn hear(&self, tag: Tag) -> Result<[u64; 4], String> {
        heard(&self.wait(self.receive(tag, vec![0; WORDS])?)?.buffer)
    }

    /// There and back, or back and there. Gives the buffer back.
    pub fn trip(&self, mut buffer: Vec<u8>, way: u64, is_first: bool) -> Result<Vec<u8>, String> {
        let is_short = buffer.len() <= MOST_EAGER && (way == 0 || way == FASTEST);
        let turns = if is_first { [true, false] } else { [false, true] };
        for sends in turns {
            match (sends, is_short) {
                (true, true) => {
                    while !self.endpoint.send_short(self.peer, DATA, &buffer) {
                        self.endpoint.progress();
                    }
                }
                (false, true) => self.await_short(&mut buffer)?,
                (true, false) => buffer = self.wait(self.send(DATA, buffer, way)?)?.buffer,
                (false, false) => buffer = self.wait(self.receive(DATA, buffer)?)?.buffer,
            }
        }
        Ok(buffer)
    }

    /// What rings the doorbells of the other end, and hears those of it.
    pub fn doorbells(&self) -> Result<Doorbells<'_>, String> {
        let (out, into) = (self.endpoint.doorbells_to(self.peer), self.endpoint.doorbells_from(self.peer));
        out.zip(into).map(|(out, into)| Doorbells { out, into }).ok_or_else(|| "the other end is gone".to_owned())
    }

    pub fn bell(&self, number: u16) -> Result<(), String> {
        while self.endpoint.ring(self.peer, number).ok_or("the other end is gone")?.is_err() {
            core::hint::spin_loop();
        }
        Ok(())
    }

    pub fn await_bell(&self) -> Result<(), String> {
        loop {
            match self.endpoint.bell(self.peer) {
                Ok(Some(_)) => return Ok(()),
                Ok(None) => core::hint::spin_loop(),
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// Sends bytes in the message mode: of fixed length each, and acknowledged before the next one.
    pub fn mail(&self, bytes: &[u8]) -> Result<(), String> {
        for mail in bytes.chunks(MAIL) {
            for packet in mail.chunks(PACKET) {
                while !self.endpoint.send_short(self.peer, DATA, packet) {
                    self.endpoint.progress();
                }
            }
            self.await_bell()?;
        }
        Ok(())
    }

    /// Takes what was sent so.
    fn take_mail(&self, bytes: &mut [u8]) -> Result<(), String> {
        for mail in bytes.chunks_mut(MAIL) {
            for packet in mail.chunks_mut(PACKET) {
                self.await_short(packet)?;
            }
            self.bell(0)?;
        }
        Ok(())
    }

    fn await_short(&self, to: &mut [u8]) -> Result<(), String> {
        loop {
            match self.endpoint.receive_short(self.peer, DATA, EXACT, to) {
                Ok(Some(Taken::Message { .. })) => return Ok(()),
                Ok(Some(other)) => return Err(format!("{other:?}")),
                Ok(None) => core::hint::spin_loop(),
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// Does what the other end orders, once.
    fn obey(&self) -> Result<(), String> {
        let [work, size, count, way] = self.hear(ORDER)?;
        let depth = depth(size as usize);
        let mut buffers: Vec<Vec<u8>> = (0..depth).map(|_| vec![1; size as usize]).collect();
        let (begin, moved) = (used(), self.endpoint.moved());
        match work {
            0 => {
                self.say(READY, [0; 4])?;
                let mut buffer = buffers.remove(0);
                for _ in 0..count {
                    buffer = self.trip(buffer, way, false)?;
                }
            }
            1 => {
                let mut posted: Vec<Request> =
                    buffers.into_iter().map(|buffer| self.receive(DATA, buffer)).collect::<Result<_, _>>()?;
                self.say(READY, [0; 4])?;
                for at in 0..count as usize {
                    let buffer = self.wait(posted[at % depth])?.buffer;
                    if at + depth < count as usize {
                        posted[at % depth] = self.receive(DATA, buffer)?;
                    }
                }
            }
            3 => {
                self.say(READY, [0; 4])?;
                let mut buffer = buffers.remove(0);
                (0..count).try_for_each(|_| self.take_mail(&mut buffer))?;
            }
            _ => {
                let mut bells = self.doorbells()?;
                self.say(READY, [0; 4])?;
                for at in 0..count {
                    bells.hear()?;
                    bells.ring(at as u16)?;
                }
            }
        }
        self.say(DONE, [used() - begin, self.endpoint.moved() - moved, 0, 0])
    }
}

/// Doorbells of both ends without the lock. Who looks makes a pause between two looks, as who looks at a bare cache line does: without one, looks
/// keep the line from who writes to it.
pub struct Doorbells<'e> {
    out: DoorbellSender<'e>,
    into: DoorbellReceiver<'e>,
}

impl Doorbells<'_> {
    pub fn ring(&mut self, number: u16) -> Result<(), String> {
        while self.out.ring(number).ok_or("the other end is gone")?.is_err() {
            core::hint::spin_loop();
        }
        Ok(())
    }

    pub fn hear(&mut self) -> Result<(), String> {
        loop {
            match self.into.take() {
                Ok(Some(_)) => return Ok(()),
                Ok(None) => core::hint::spin_loop(),
                Err(error) => return Err(error.to_string()),
            }
        }
    }
}

/// Runs the other end, until it is killed.
pub fn run(args: &EndArgs) -> Result<(), Failure> {
    if let Some(core) = args.core {
        // Who cannot be pinned was told so before.
        let _ = cores::pin(core);
    }
    let found = |error: String| Failure::Found(error);
    let config = Config { name: Some(args.name.clone()), ..args.buffers.config() };
    let endpoint = Endpoint::with(config).map_err(|error| found(error.to_string()))?;
    endpoint.claim(0..=u16::MAX, Owner(0)).map_err(|error| found(error.to_string()))?;
    let peer = endpoint.accept(PATIENCE).ok_or_else(|| found("nobody has called".to_owned()))?;
    let both = Both { endpoint, peer };
    loop {
        both.obey().map_err(found)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_are_numbers_of_the_same_list() {
        assert_eq!(Scheme::ALL.map(|scheme| number_of(Some(scheme))), [0, 1, 2]);
        assert_eq!(number_of(None), FASTEST);
        assert_eq!(heard(&said([1, 2, 3, 4])), Ok([1, 2, 3, 4]));
        assert!(heard(&[0; 31]).is_err());
    }
}
