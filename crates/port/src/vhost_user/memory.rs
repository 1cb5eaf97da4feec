//! The memory of a driver, as it has described it.

use millrace_dma::{Access, Domain, ForeignRegion, Iova, MapError, RegionError, Window, foreign_cuts};
use std::{fs::File, sync::Arc};

/// Why memory was refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum MemoryError {
    #[error(transparent)]
    Region(#[from] RegionError),
    #[error(transparent)]
    Map(#[from] MapError),
    #[error("a region of {0} bytes is larger than an address space")]
    Size(u64),
    #[error("more than {MAX_REGIONS} regions")]
    TooMany,
}

/// Most regions at once: as many as QEMU may ask for.
pub(super) const MAX_REGIONS: usize = 509;

/// Where a region lies: in the addresses of the rings, and in those of the process that speaks vhost-user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub guest: u64,
    pub user: u64,
    pub len: u64,
    pub offset: u64,
}

struct Region {
    place: Place,
    memory: ForeignRegion,
}

/// All regions of a driver. A change makes a new one that shares what stays.
pub(super) struct GuestMemory {
    regions: Vec<Arc<Region>>,
    domain: Arc<Domain>,
    /// [`foreign_cuts`] when nothing had been cut yet.
    cuts: u64,
}

impl GuestMemory {
    pub fn map(places: impl IntoIterator<Item = (Place, File)>) -> Result<Self, MemoryError> {
        let mut regions = Vec::new();
        for (place, file) in places {
            regions.push(Arc::new(Region::map(place, &file)?));
        }
        Self::of(regions)
    }

    /// With one more. One that is there is replaced: QEMU before 8.0 adds every region once for each pair of queues.
    pub fn with(&self, place: Place, file: &File) -> Result<Self, MemoryError> {
        let mut regions = self.all_but(place);
        regions.push(Arc::new(Region::map(place, file)?));
        Self::of(regions)
    }

    /// With one less; and with all that there are if it is not there, for it is also removed as often.
    pub fn without(&self, place: Place) -> Result<Self, MemoryError> {
        Self::of(self.all_but(place))
    }

    fn all_but(&self, place: Place) -> Vec<Arc<Region>> {
        let same = |region: &Region| Place { offset: place.offset, ..region.place } == place;
        self.regions.iter().filter(|region| !same(region)).cloned().collect()
    }

    fn of(regions: Vec<Arc<Region>>) -> Result<Self, MemoryError> {
        if regions.len() > MAX_REGIONS {
            return Err(MemoryError::TooMany);
        }
        let cuts = foreign_cuts();
        let domain = Arc::new(Domain::new());
        for region in &regions {
            domain.map(region.memory.window().clone(), Access::ReadWrite, Some(Iova::new(region.place.guest)))?;
        }
        Ok(Self { regions, domain, cuts })
    }

    /// The addresses that stand in the rings.
    pub fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// What lies at an address of the other process.
    pub fn at_user(&self, address: u64, len: usize) -> Option<Window> {
        self.regions.iter().find_map(|region| {
            let offset = usize::try_from(address.checked_sub(region.place.user)?).ok()?;
            region.memory.window().part(offset, len).ok()
        })
    }

    /// Whether a part of it has been taken away. Costs one load as long as nobody's memory has been.
    #[inline(always)]
    pub fn was_cut(&self) -> bool {
        foreign_cuts() != self.cuts && self.find_cut()
    }

    #[cold]
    fn find_cut(&self) -> bool {
        self.regions.iter().any(|region| region.memory.was_cut())
    }
}

impl Region {
    fn map(place: Place, file: &File) -> Result<Self, MemoryError> {
        let len = usize::try_from(place.len).map_err(|_| MemoryError::Size(place.len))?;
        Ok(Self { place, memory: ForeignRegion::map(file, place.offset, len)? })
    }
}
