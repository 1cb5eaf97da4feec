//! Security associations: what both ends have agreed on, and how far they are.
//!
//! As in Linux an association has no direction: it encrypts (`seal`) or decrypts (`open`), whichever is asked of it, and
//! only one of it is asked.

mod open;
mod progress;
mod seal;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

pub use open::{Arrival, Opened};
pub use progress::Progress;

use crate::algorithm::{Keys, Unsupported};
use crate::cipher::{Context, HEADER, Shape};
use crate::ip::{V4_LEN, V6_LEN};
use crate::lifetime::{End, Lifetime, Limits};
use crate::selector::{Mark, Selector};
use crate::traversal::UDP_LEN;
use crate::window::{MAX_WINDOW, Window};

/// What is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// What is behind the IP header.
    Transport,
    /// Whole IP packets, in new ones.
    Tunnel,
}

/// By what a packet's association is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Id {
    /// Where packets go.
    pub destination: IpAddr,
    /// Security parameters index.
    pub spi: u32,
}

/// The ports of ESP in UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Encapsulation {
    /// Of whoever sends.
    pub source_port: u16,
    /// Of whoever receives.
    pub destination_port: u16,
}

/// What the outer header of a tunnel has from the inner one, and the other way round (RFC 4301 §5.1.2, RFC 6040).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeaderRules {
    /// DSCP of the inner header into the outer one. Linux: unless `extra-flag dont-encap-dscp`.
    pub dscp_out: bool,
    /// DSCP of the outer header into the inner one. Linux: `flag decap-dscp`.
    pub dscp_in: bool,
    /// ECN both ways, in the normal mode of RFC 6040; otherwise no tunnel packet can say that there was congestion.
    /// Linux: unless `flag noecn`.
    pub ecn: bool,
    /// Do not fragment, as the inner header says; otherwise outer packets may be cut. Linux: unless `flag nopmtudisc`.
    pub df: bool,
}

impl Default for HeaderRules {
    fn default() -> Self {
        Self { dscp_out: true, dscp_in: false, ecn: true, df: true }
    }
}

/// What makes an association.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Destination and SPI.
    pub id: Id,
    /// Where packets come from.
    pub source: IpAddr,
    /// What is protected.
    pub mode: Mode,
    /// Algorithms and keys.
    pub keys: Keys,
    /// Number by which policies name it; 0 for none.
    pub reqid: u32,
    /// Whether sequence numbers have 64 bits (RFC 4303 §2.2.1).
    pub is_extended: bool,
    /// The anti-replay window in packets, at most 4,096; 0 for none.
    pub window: u32,
    /// Words of the kernel's bitmap, where that is a ring of its own (`XFRMA_REPLAY_ESN_VAL`): what it is told later has as many.
    pub kernel_words: Option<u32>,
    /// Ports, for ESP in UDP.
    pub encapsulation: Option<Encapsulation>,
    /// When it ends.
    pub limits: Limits,
    /// What may be in it.
    pub selector: Selector,
    /// Marks of packets that it is for.
    pub mark: Mark,
    /// Number of its XFRM interface; 0 for none.
    pub if_id: u32,
    /// What headers have from each other.
    pub headers: HeaderRules,
    /// Packets of a tunnel are filled up to this many bytes, against those who count them (RFC 4303 §2.7); 0 for none.
    pub fill_to: u16,
    /// How far it is already.
    pub progress: Progress,
}

impl Parameters {
    /// A tunnel of its own kind: extended numbers no, a window of 64, no limits, everything may be in it.
    pub fn tunnel(source: IpAddr, id: Id, keys: Keys) -> Self {
        Self {
            id,
            source,
            mode: Mode::Tunnel,
            keys,
            reqid: 0,
            is_extended: false,
            window: 64,
            kernel_words: None,
            encapsulation: None,
            limits: Limits::NONE,
            selector: Selector::ALL,
            mark: Mark::default(),
            if_id: 0,
            headers: HeaderRules::default(),
            fill_to: 0,
            progress: Progress::default(),
        }
    }

    fn check(&self) -> Result<(), Unsupported> {
        // 1 to 255 are reserved, 0 is for use within a host.
        if self.id.spi < 256 {
            return Err(Unsupported::Spi(self.id.spi));
        }
        if self.source.is_ipv4() != self.id.destination.is_ipv4() {
            return Err(Unsupported::Family);
        }
        match self.window {
            0 if self.is_extended => Err(Unsupported::NoWindow),
            window if window > MAX_WINDOW => Err(Unsupported::Window(window)),
            _ => Ok(()),
        }
    }
}

/// Packets that were refused on the way in, as `ip -s xfrm state` shows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Left of the window.
    pub too_old: u64,
    /// Here before.
    pub replayed: u64,
    /// Wrong check value.
    pub integrity: u64,
}

/// A security association.
pub struct Association {
    parameters: Parameters,
    context: Context,
    /// The last sequence number that was sent.
    sent: u64,
    window: Window,
    lifetime: Lifetime,
    statistics: Statistics,
    /// The longest packet that its path takes.
    mtu: usize,
    /// An end that was reached and not yet told.
    untold: Option<End>,
    /// Where packets came from last, if not from where they should.
    moved: Option<(IpAddr, u16)>,
    told_moved: bool,
}

impl Association {
    /// An association, with its keys expanded. `now`: seconds since 1970.
    ///
    /// # Errors
    /// [`Unsupported`], by name.
    pub fn new(parameters: Parameters, now: u64) -> Result<Self, Unsupported> {
        parameters.check()?;
        let context = Context::new(&parameters.keys).map_err(|_| Unsupported::NoAlgorithm)?;
        let progress = &parameters.progress;
        let mut usage = progress.usage;
        if usage.added == 0 {
            usage.added = now;
        }
        Ok(Self {
            context,
            sent: progress.sent,
            window: progress.window(parameters.window, parameters.is_extended),
            lifetime: Lifetime::new(parameters.limits, usage),
            statistics: Statistics::default(),
            mtu: usize::from(u16::MAX),
            untold: None,
            moved: None,
            told_moved: false,
            parameters,
        })
    }

    /// What it was made of. Its progress is as it was then.
    pub const fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// How far it is now, to report to the kernel or to go on from.
    pub fn progress(&self) -> Progress {
        Progress::of(self.sent, &self.window, self.lifetime.usage)
    }

    /// Its lifetime.
    pub const fn lifetime(&self) -> &Lifetime {
        &self.lifetime
    }

    /// What was refused.
    pub const fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// The last sequence number that was sent.
    pub const fn sent(&self) -> u64 {
        self.sent
    }

    /// The highest sequence number that came.
    pub const fn received(&self) -> u64 {
        self.window.highest()
    }

    /// Tells how long packets on its path may be, outer header included.
    pub fn set_mtu(&mut self, mtu: usize) {
        self.mtu = mtu.min(usize::from(u16::MAX));
    }

    /// The longest packet that can go into it when its path takes `mtu`: what an ICMP message says to those who send
    /// longer ones. 0 when nothing fits.
    pub fn inner_mtu(&self) -> usize {
        let Shape { iv, block, check } = self.context.shape();
        let outside = self.outer_len() + HEADER + iv + check;
        // Of a transport packet the header stays outside.
        let header = if self.parameters.mode == Mode::Tunnel { 0 } else { self.ip_len() };
        match self.mtu.saturating_sub(outside) & !(block - 1) {
            0 => 0,
            text => header + text - 2,
        }
    }

    /// Bytes that have to be free before a packet that is sealed.
    pub fn headroom(&self) -> usize {
        let tunnel = if self.parameters.mode == Mode::Tunnel { self.ip_len() } else { 0 };
        let udp = if self.parameters.encapsulation.is_some() { UDP_LEN } else { 0 };
        tunnel + udp + HEADER + self.context.shape().iv
    }

    /// Bytes that have to be free behind a packet that is sealed, when it is not filled up.
    pub const fn tailroom(&self) -> usize {
        let shape = self.context.shape();
        shape.block + 1 + shape.check
    }

    /// Reports that its life is over for a reason that only time gives; to be called now and then.
    pub fn tick(&mut self, now: u64) {
        self.note_end(self.lifetime.end(now));
    }

    /// An end that was reached since the last call; each is told once.
    pub fn take_end(&mut self) -> Option<End> {
        self.untold.take()
    }

    /// Where genuine packets come from, address and port, if it is not where they should: a translator has moved its end
    /// (RFC 3948 §4). Told once for each place.
    pub fn take_move(&mut self) -> Option<(IpAddr, u16)> {
        if self.told_moved {
            return None;
        }
        self.told_moved = self.moved.is_some();
        self.moved
    }

    /// Whether there is something to be told.
    #[inline]
    pub(crate) const fn has_news(&self) -> bool {
        self.untold.is_some() || self.moved.is_some() && !self.told_moved
    }

    /// Takes over news of the same association: everything but what its packets are made of. Its own numbers go on, unless
    /// those that come with it are further. `false`: it is another one.
    pub(crate) fn renew(&mut self, news: &Parameters) -> bool {
        let own = &self.parameters;
        let is_same = (own.id, own.source, own.mode, own.is_extended, own.window, own.mark)
            == (news.id, news.source, news.mode, news.is_extended, news.window, news.mark)
            && own.keys == news.keys;
        if !is_same {
            return false;
        }
        self.sent = self.sent.max(news.progress.sent);
        if news.progress.received > self.window.highest() {
            self.window = news.progress.joined(&self.window);
        }
        let (usage, others) = (&mut self.lifetime.usage, news.progress.usage);
        usage.bytes = usage.bytes.max(others.bytes);
        usage.packets = usage.packets.max(others.packets);
        self.lifetime.limits = news.limits;
        if self.parameters.encapsulation != news.encapsulation {
            (self.moved, self.told_moved) = (None, false);
        }
        self.parameters = news.clone();
        true
    }

    fn note_end(&mut self, end: End) {
        if let Some(end) = self.lifetime.report(end) {
            self.untold = Some(end);
        }
    }

    /// Bytes of an IP header of its family.
    const fn ip_len(&self) -> usize {
        if self.parameters.source.is_ipv4() { V4_LEN } else { V6_LEN }
    }

    /// Bytes before ESP.
    const fn outer_len(&self) -> usize {
        self.ip_len() + if self.parameters.encapsulation.is_some() { UDP_LEN } else { 0 }
    }
}
