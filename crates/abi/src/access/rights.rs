//! What a connection may do.

use crate::queue::{Direction, QueueId};
use crate::register::map::Component;
use core::fmt;

/// The rights that there are, as they are written.
pub const WORDS: &str = "use:QUEUES (such as use:rx0-3,tx0 or use:all), registers:read, registers:write, \
                         registers:COMPONENT:write (such as registers:rxmac0:write), configure:ports, \
                         configure:workers, configure:rules, configure:clock, capture, rdma, admin";

/// What of a card can be configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Configure {
    /// What is behind the ports.
    Ports,
    /// Which worker serves which queues.
    Workers,
    /// Which frames go to which queues.
    Rules,
    /// The clock: the registers of the time-stamp unit.
    Clock,
}

/// Some consecutive queues of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Queues {
    pub direction: Direction,
    pub first: u32,
    pub last: u32,
}

impl Queues {
    fn contain(self, queue: QueueId) -> bool {
        queue.direction == self.direction && (self.first..=self.last).contains(&queue.index)
    }
}

/// One right, as it is granted or missing. Written as in a grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Right {
    /// To open a queue, and to write the registers of a free one.
    Use(QueueId),
    /// To read registers.
    ReadRegisters,
    /// To write all registers but those of queues.
    WriteRegisters,
    /// To write the registers of one component.
    WriteComponent(Component),
    /// To change how the card is configured.
    Configure(Configure),
    /// To see frames of others, as rules decide on them.
    Capture,
    /// To have the RDMA engine in the card move bytes.
    Rdma,
    /// Everything.
    Admin,
}

/// All rights of one connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    pub(super) admin: bool,
    pub(super) queues: Vec<Queues>,
    pub(super) read: bool,
    pub(super) write: bool,
    // As granted: `rxmac` stands for those of all ports.
    pub(super) components: Vec<String>,
    pub(super) configure: Vec<Configure>,
    pub(super) capture: bool,
    pub(super) rdma: bool,
}

impl Rights {
    /// All that there are.
    pub fn all() -> Self {
        Self { admin: true, ..Self::default() }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether this right is among them. Who may use a queue may read registers: every driver does.
    pub fn has(&self, right: &Right) -> bool {
        self.admin
            || match right {
                Right::Use(queue) => self.queues.iter().any(|queues| queues.contain(*queue)),
                Right::ReadRegisters => self.read || self.write || !self.queues.is_empty(),
                Right::WriteRegisters => self.write,
                Right::WriteComponent(component) => {
                    self.write || self.components.iter().any(|word| names(word, *component)) || {
                        *component == Component::Tsu && self.configure.contains(&Configure::Clock)
                    }
                }
                Right::Configure(what) => self.configure.contains(what),
                Right::Capture => self.capture,
                Right::Rdma => self.rdma,
                Right::Admin => false,
            }
    }

    /// Adds what another grant gives.
    pub(super) fn add(&mut self, more: &Rights) {
        self.admin |= more.admin;
        self.read |= more.read;
        self.write |= more.write;
        self.capture |= more.capture;
        self.rdma |= more.rdma;
        self.queues.extend(&more.queues);
        self.components.extend_from_slice(&more.components);
        self.configure.extend(&more.configure);
    }
}

/// Whether a word of a grant, such as `rxmac` or `rxmac0`, means the component.
pub(super) fn names(word: &str, component: Component) -> bool {
    let name = component.to_string();
    word == name || word == name.trim_end_matches(|letter: char| letter.is_ascii_digit())
}

impl fmt::Display for Configure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Configure::Ports => "ports",
            Configure::Workers => "workers",
            Configure::Rules => "rules",
            Configure::Clock => "clock",
        })
    }
}

impl fmt::Display for Queues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", QueueId { direction: self.direction, index: self.first })?;
        if self.last > self.first { write!(f, "-{}", self.last) } else { Ok(()) }
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Right::Use(queue) => write!(f, "use:{queue}"),
            Right::ReadRegisters => f.write_str("registers:read"),
            Right::WriteRegisters => f.write_str("registers:write"),
            Right::WriteComponent(component) => write!(f, "registers:{component}:write"),
            Right::Configure(what) => write!(f, "configure:{what}"),
            Right::Capture => f.write_str("capture"),
            Right::Rdma => f.write_str("rdma"),
            Right::Admin => f.write_str("admin"),
        }
    }
}

impl fmt::Display for Rights {
    /// As in a grant; `none` where there are none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.admin {
            return f.write_str("admin");
        }
        let mut words = Vec::new();
        if !self.queues.is_empty() {
            let queues: Vec<String> = self.queues.iter().map(ToString::to_string).collect();
            words.push(format!("use:{}", queues.join(",")));
        }
        words.extend(self.read.then(|| Right::ReadRegisters.to_string()));
        words.extend(self.write.then(|| Right::WriteRegisters.to_string()));
        words.extend(self.components.iter().map(|component| format!("registers:{component}:write")));
        words.extend(self.configure.iter().map(|what| Right::Configure(*what).to_string()));
        words.extend(self.capture.then(|| Right::Capture.to_string()));
        words.extend(self.rdma.then(|| Right::Rdma.to_string()));
        if words.is_empty() { f.write_str("none") } else { f.write_str(&words.join("+")) }
    }
}
