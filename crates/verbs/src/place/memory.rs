//! Memory of the program behind keys, for the engine: protection domains have one number there and another here.

use super::local::Shares;
use core::iter;
use millrace_rdma::local::{Connected, Far, Outcome, Peers};
use millrace_rdma::memory::{
    Asker, Binding, Kept, KeptTo, Limits, Memory, ProtectionDomain, Refused, Regions, RegisterError,
};
use millrace_rdma::number::Key;
use millrace_rdma::work::{Access, Data, Operation};

/// Regions, and which protection domain of theirs belongs to one of the engine.
pub(crate) struct Reach {
    pub regions: Regions,
    /// By number of the engine's.
    domains: Vec<Option<ProtectionDomain>>,
    /// Processes whose memory is reached without packets.
    pub peers: Peers,
    /// Parts of files that other processes may map.
    pub shares: Shares,
}

impl Reach {
    pub fn new(limits: Limits) -> Result<Self, RegisterError> {
        Ok(Self {
            regions: Regions::new(limits)?,
            domains: Vec::new(),
            peers: Peers::default(),
            shares: Shares::default(),
        })
    }

    /// Two domains belong together from now on.
    pub fn join(&mut self, engine: ProtectionDomain, ours: ProtectionDomain) {
        let at = engine.0 as usize;
        let missing = (at + 1).saturating_sub(self.domains.len());
        self.domains.extend(iter::repeat_n(None, missing));
        self.domains[at] = Some(ours);
    }

    /// The domain of the regions.
    pub fn domain(&self, engine: ProtectionDomain) -> Option<ProtectionDomain> {
        self.domains.get(engine.0 as usize).copied().flatten()
    }

    fn asker(&self, asker: Asker) -> Result<Asker, Refused> {
        Ok(Asker { domain: self.domain(asker.domain).ok_or(Refused::Key)?, ..asker })
    }
}

impl Memory for Reach {
    #[inline]
    fn gather(&mut self, asker: Asker, lkey: Key, address: u64, to: &mut [u8]) -> Result<(), Refused> {
        self.regions.gather(self.asker(asker)?, lkey, address, to)
    }

    #[inline]
    fn scatter(&mut self, asker: Asker, lkey: Key, address: u64, from: &[u8]) -> Result<(), Refused> {
        self.regions.scatter(self.asker(asker)?, lkey, address, from)
    }

    #[inline]
    fn allows(&mut self, asker: Asker, rkey: Key, address: u64, len: u64, wanted: Access) -> Result<(), Refused> {
        self.regions.allows(self.asker(asker)?, rkey, address, len, wanted)
    }

    #[inline]
    fn read(&mut self, asker: Asker, rkey: Key, address: u64, to: &mut [u8]) -> Result<(), Refused> {
        self.regions.read(self.asker(asker)?, rkey, address, to)
    }

    #[inline]
    fn write(&mut self, asker: Asker, rkey: Key, address: u64, from: &[u8]) -> Result<(), Refused> {
        self.regions.write(self.asker(asker)?, rkey, address, from)
    }

    fn compare_swap(&mut self, asker: Asker, rkey: Key, address: u64, compare: u64, swap: u64) -> Result<u64, Refused> {
        self.regions.compare_swap(self.asker(asker)?, rkey, address, compare, swap)
    }

    fn fetch_add(&mut self, asker: Asker, rkey: Key, address: u64, add: u64) -> Result<u64, Refused> {
        self.regions.fetch_add(self.asker(asker)?, rkey, address, add)
    }

    fn invalidate(&mut self, asker: Asker, key: Key, remote: bool) -> Result<(), Refused> {
        self.regions.invalidate(self.asker(asker)?, key, remote)
    }

    fn bind(&mut self, asker: Asker, window: Binding) -> Result<(), Refused> {
        self.regions.bind(self.asker(asker)?, window)
    }

    #[inline]
    fn reach(&mut self, far: &Far<'_>, operation: Operation, data: Data<'_>, len: u32) -> Outcome {
        let Ok(asker) = self.asker(far.asker) else { return Outcome::No };
        self.peers.reach(&mut self.regions, &Far { asker, ..*far }, operation, data, len)
    }

    fn keep(&mut self, far: &Far<'_>, rkey: Key, address: u64) -> Option<Kept> {
        let asker = self.asker(far.asker).ok()?;
        let kept = self.peers.keep(&Far { asker, ..*far }, rkey, address)?;
        Some(Kept { rkey, to: KeptTo::Peer(kept) })
    }

    #[inline(always)]
    fn write_again(&mut self, kept: &Kept, address: u64, bytes: &[u8]) -> bool {
        matches!(&kept.to, KeptTo::Peer(kept) if self.peers.write_again(kept, address, bytes))
    }

    fn may_reach(&mut self, far: &Far<'_>, operation: Operation, len: u32) -> bool {
        let Ok(asker) = self.asker(far.asker) else { return false };
        self.peers.may_reach(&Far { asker, ..*far }, operation, len)
    }

    fn show(&mut self, asker: Asker, connected: Option<&Connected<'_>>) {
        if let (Ok(asker), Some(directory)) = (self.asker(asker), self.regions.directory()) {
            directory.show(asker, connected);
        }
    }
}
