//! How a card is built: the flags of `millrace card`, and the options of an embedded card.

use super::engines::{self, EngineRule, Selection, parse_range};
use super::words::OPTIONS;
use super::{OptionError, number::NUMBERS, text};
use crate::queue::{Direction, Engine, QueueId};
use crate::register::{calypte, map::MAX_PORTS};
use core::fmt;
use serde::{Deserialize, Serialize};

/// Everything that is decided when a card is built. Plain data; [`CardOptions::validate`] says whether it makes sense.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct CardOptions {
    /// Receive queues, up to [`MAX_QUEUES`](crate::register::map::MAX_QUEUES).
    pub rx_queues: u32,
    /// Transmit queues, likewise.
    pub tx_queues: u32,
    /// Which engine serves which queues; the last rule that speaks of a queue counts, and without one it is Medusa.
    pub engines: Vec<EngineRule>,
    /// Buffers of a Medusa queue, a power of two; also the entries of its descriptor and header rings.
    pub buffers: u32,
    /// Size of each of these buffers, in bytes.
    pub buffer_size: u32,
    /// Size of the ring of an SZE queue, in bytes, a power of two.
    pub sze_ring: u32,
    /// Blocks of 128 bytes of a Calypte receive queue, a power of two; also the entries of its header ring.
    pub calypte_blocks: u32,
    /// Descriptors of a DD queue, a power of two; also its buffers of `buffer_size` bytes.
    pub dd_descriptors: u32,
    /// Ports, in the grammar `kind:argument[,key=value...]`.
    pub ports: Vec<String>,
    /// Which ports are connected inside the card: what comes in at one goes out at the other. A port may be connected with
    /// itself.
    pub connections: Vec<(u32, u32)>,
    /// Worker threads; 0: one for each queue pair, but not more than there are cores.
    pub workers: u32,
    /// Queues whose worker serves no others.
    pub priority: Vec<Selection>,
    /// Cores to pin the workers to, in turn; none: not pinned.
    pub cpus: Vec<u32>,
    /// Workers never sleep.
    pub poll: bool,
    /// How long a worker spins before it sleeps, in microseconds.
    pub spin_us: u32,
    /// Shortest frame on the data path, in bytes without FCS; shorter ones are padded by software.
    pub frame_min: u32,
    /// Longest frame on the data path, in bytes without FCS; longer ones are dropped.
    pub frame_max: u32,
    /// A receive queue without room drops the frame, even where the source could be held back.
    pub discard: bool,
    /// The card's clock starts with the time of day and enabled, so that received frames carry
    /// [time stamps](crate::header); otherwise software starts it.
    pub tsu: bool,
}

impl Default for CardOptions {
    /// Two queue pairs on Medusa with 2048 buffers of 2048 bytes, and what is sent comes back.
    fn default() -> Self {
        Self {
            rx_queues: 2,
            tx_queues: 2,
            engines: Vec::new(),
            buffers: 2048,
            buffer_size: 2048,
            sze_ring: 1 << 20,
            calypte_blocks: 2048,
            dd_descriptors: 256,
            ports: vec!["loopback".to_owned()],
            connections: Vec::new(),
            workers: 0,
            priority: Vec::new(),
            cpus: Vec::new(),
            poll: false,
            spin_us: 50,
            frame_min: 60,
            frame_max: 0x3fff,
            discard: false,
            tsu: false,
        }
    }
}

/// Highest number of a core, as `sched_setaffinity` takes it.
const MAX_CPU: u32 = 1023;
const CONNECT_EXPECTED: &str = "two ports such as 0-1, or the same twice";
const PRIORITY_EXPECTED: &str = "queues such as 0, 2-5, rx0, or a list such as (0,tx4-7)";
const CPU_EXPECTED: &str = "a core from 0 to 1023, a range such as 2-5 or a list such as (1,4-7)";

impl CardOptions {
    /// The engine that serves a queue.
    pub fn engine_of(&self, queue: QueueId) -> Engine {
        let rule = self.engines.iter().rev().find(|rule| rule.queues.contains(queue));
        rule.map_or(Engine::Medusa, |rule| rule.engine)
    }

    /// Whether a queue is of the priority class.
    pub fn is_priority(&self, queue: QueueId) -> bool {
        self.priority.iter().any(|queues| queues.contains(queue))
    }

    /// Bytes of packet memory that a queue needs: the SZE or Calypte ring, or the Medusa or DD buffers.
    pub fn packet_memory_of(&self, queue: QueueId) -> u64 {
        match self.engine_of(queue) {
            Engine::Sze => u64::from(self.sze_ring),
            Engine::Medusa => u64::from(self.buffers) * u64::from(self.buffer_size),
            Engine::Dd => u64::from(self.dd_descriptors) * u64::from(self.buffer_size),
            Engine::Calypte => match queue.direction {
                Direction::Rx => u64::from(self.calypte_blocks) * u64::from(calypte::RX_BLOCK),
                Direction::Tx => u64::from(calypte::TX_RING),
            },
        }
    }

    /// Sets one option by its word. `port`, `cpu` and `engine` add to what is there, the others replace it.
    ///
    /// # Errors
    /// The word is unknown, or the value does not fit it. Contradictions between options are found by
    /// [`CardOptions::validate`].
    pub fn set(&mut self, word: &str, value: Option<&str>) -> Result<(), OptionError> {
        let Some(help) = OPTIONS.iter().find(|option| option.word == word) else {
            return Err(OptionError::Unknown { word: word.to_owned() });
        };
        let word = help.word;
        match word {
            "poll" => return set_switch(word, value, &mut self.poll),
            "discard" => return set_switch(word, value, &mut self.discard),
            "tsu" => return set_switch(word, value, &mut self.tsu),
            _ => {}
        }
        let Some(value) = value.filter(|value| !value.is_empty()) else {
            return Err(OptionError::NoValue { word, expected: expected(word) });
        };
        match word {
            "queues" => {
                let [rx, tx, ..] = &NUMBERS;
                let rename = |_| OptionError::BadValue { word, value: value.to_owned(), expected: rx.expected() };
                rx.set(self, value).map_err(rename)?;
                tx.set(self, value).map_err(rename)
            }
            "engine" => {
                self.engines.extend(engines::parse_rules(value)?);
                Ok(())
            }
            "port" => {
                self.ports.push(value.to_owned());
                Ok(())
            }
            "connect" => {
                let bad =
                    || OptionError::BadValue { word, value: value.to_owned(), expected: CONNECT_EXPECTED.to_owned() };
                let pair =
                    value.split_once('-').and_then(|(one, other)| Some((one.parse().ok()?, other.parse().ok()?)));
                self.connections.push(pair.ok_or_else(bad)?);
                Ok(())
            }
            "priority" => {
                let bad =
                    || OptionError::BadValue { word, value: value.to_owned(), expected: PRIORITY_EXPECTED.to_owned() };
                for part in value.split(',') {
                    self.priority.push(Selection::parse(part).ok_or_else(bad)?);
                }
                Ok(())
            }
            "cpu" => {
                let bad = || OptionError::BadValue { word, value: value.to_owned(), expected: CPU_EXPECTED.to_owned() };
                for part in value.split(',') {
                    let (first, last) = parse_range(part).filter(|(_, last)| *last <= MAX_CPU).ok_or_else(bad)?;
                    self.cpus.extend(first..=last);
                }
                Ok(())
            }
            _ => NUMBERS.iter().find(|number| number.word == word).map_or(Ok(()), |number| number.set(self, value)),
        }
    }

    /// Whether a card can be built like this.
    ///
    /// # Errors
    /// The first value that is out of its range, or pair of values that do not go together.
    pub fn validate(&self) -> Result<(), OptionError> {
        NUMBERS.iter().try_for_each(|number| number.check(self))?;
        let conflict = |text| Err(OptionError::Conflict(text));
        if self.rx_queues == 0 && self.tx_queues == 0 {
            return conflict("a card without queues; give rx=N or tx=N or both".to_owned());
        }
        if self.frame_min > self.frame_max {
            return conflict(format!("frame-min={} is more than frame-max={}", self.frame_min, self.frame_max));
        }
        if self.frame_min > self.buffer_size {
            return conflict(format!("frame-min={} does not fit into buffer={}", self.frame_min, self.buffer_size));
        }
        if let Some(rule) = self.engines.iter().find(|rule| !rule.queues.fits(self.rx_queues, self.tx_queues)) {
            let (rx, tx) = (self.rx_queues, self.tx_queues);
            return conflict(format!("engine={rule} speaks of queues that a card with rx={rx} and tx={tx} has not"));
        }
        if self.ports.is_empty() || self.ports.len() > MAX_PORTS as usize {
            return conflict(format!("{} ports; accepted are 1 to {MAX_PORTS}", self.ports.len()));
        }
        if self.ports.iter().any(String::is_empty) {
            return Err(OptionError::NoValue { word: "port", expected: expected("port") });
        }
        if let Some((one, other)) =
            self.connections.iter().find(|(one, other)| one.max(other) >= &(self.ports.len() as u32))
        {
            let ports = match self.ports.len() as u32 - 1 {
                0 => "port 0, and no other; each `port` adds one".to_owned(),
                last => format!("ports 0 to {last}"),
            };
            return conflict(format!(
                "connect={one}-{other} speaks of a port that is not there: this card has {ports}"
            ));
        }
        if !self.priority.iter().all(|queues| queues.fits(self.rx_queues, self.tx_queues)) {
            let (rx, tx) = (self.rx_queues, self.tx_queues);
            return conflict(format!("priority speaks of queues that a card with rx={rx} and tx={tx} has not"));
        }
        if !self.priority.is_empty() && self.workers == 1 {
            return conflict(
                "a priority class has a worker of its own: workers=1 leaves none for the others".to_owned(),
            );
        }
        match self.cpus.iter().find(|cpu| **cpu > MAX_CPU) {
            Some(cpu) => {
                Err(OptionError::BadValue { word: "cpu", value: cpu.to_string(), expected: CPU_EXPECTED.to_owned() })
            }
            None => Ok(()),
        }
    }
}

fn set_switch(word: &'static str, value: Option<&str>, switch: &mut bool) -> Result<(), OptionError> {
    *switch = match value {
        None | Some("true" | "on") => true,
        Some("false" | "off") => false,
        Some(value) => {
            let expected = format!("{word} alone, {word}=on or {word}=off");
            return Err(OptionError::BadValue { word, value: value.to_owned(), expected });
        }
    };
    Ok(())
}

fn expected(word: &str) -> String {
    match word {
        "engine" => engines::EXPECTED.to_owned(),
        "port" => "kind:argument[,key=value...], such as loopback, null, tap:NAME or (pcap:FILE,speed=full)".to_owned(),
        "cpu" => CPU_EXPECTED.to_owned(),
        "connect" => CONNECT_EXPECTED.to_owned(),
        "priority" => PRIORITY_EXPECTED.to_owned(),
        "queues" => NUMBERS[0].expected(),
        _ => NUMBERS.iter().find(|number| number.word == word).map(|number| number.expected()).unwrap_or_default(),
    }
}

/// The options that differ from the default, as they are written in a device name; `{:#}` with `;` and `:` for `,` and `=`.
impl fmt::Display for CardOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let default = Self::default();
        let (separator, is) = if f.alternate() { (";", ':') } else { (",", '=') };
        let changed = NUMBERS.iter().filter(|number| (number.get)(self) != (number.get)(&default));
        let mut written: Vec<String> =
            changed.map(|number| format!("{}{is}{}", number.word, (number.get)(self))).collect();
        written.extend(self.engines.iter().map(|rule| format!("engine{is}{rule}")));
        if self.ports != default.ports {
            written.extend(self.ports.iter().map(|port| format!("port{is}{}", text::quoted(port, f.alternate()))));
        }
        written.extend(self.connections.iter().map(|(one, other)| format!("connect{is}{one}-{other}")));
        written.extend(self.priority.iter().map(|queues| format!("priority{is}{queues}")));
        written.extend(self.cpus.iter().map(|cpu| format!("cpu{is}{cpu}")));
        let switches = [("poll", self.poll), ("discard", self.discard), ("tsu", self.tsu)];
        written.extend(switches.iter().filter(|(_, on)| *on).map(|(word, _)| (*word).to_owned()));
        f.write_str(&written.join(separator))
    }
}
