//! What whoever looks is told of an engine and its memory, as JSON: `millrace rdma`.

use crate::memory::{Counters, Info, Limits, Regions, Way};
use crate::number::Qpn;
use crate::transport::Query;
use crate::work::Access;
use millrace_dma::WatchCounters;

/// Queue pairs, and regions, that are told of: with more, a record would not fit into a socket.
pub const MOST: usize = 128;
/// What opens a region from outside.
const REMOTE: [Access; 3] = [Access::REMOTE_WRITE, Access::REMOTE_READ, Access::REMOTE_ATOMIC];

/// What was there at one moment: of queue pairs and regions at most [`MOST`]. Text is made of it later, and elsewhere, because that takes longer.
pub struct Shown {
    told: Vec<(Qpn, Query)>,
    pairs: usize,
    regions: Vec<Info>,
    all_regions: usize,
    huge_regions: usize,
    limits: Limits,
    bytes: u64,
    counters: Counters,
    watched: WatchCounters,
}

impl Shown {
    /// Queue pairs, of which there are `pairs`, and regions, with the table behind keys.
    pub fn of(mut told: Vec<(Qpn, Query)>, pairs: usize, regions: &mut Regions) -> Self {
        told.truncate(MOST);
        Self {
            told,
            pairs,
            regions: regions.some(MOST),
            all_regions: regions.count(),
            huge_regions: regions.huge(),
            limits: regions.limits(),
            bytes: regions.bytes(),
            counters: regions.counters(),
            watched: regions.watched(),
        }
    }

    /// Fields of a JSON object.
    pub fn fields(&self) -> String {
        let told: Vec<String> = self.told.iter().map(|(qpn, query)| pair(*qpn, query)).collect();
        let regions: Vec<String> = self.regions.iter().map(region).collect();
        let iotlb = self.iotlb();
        format!(
            "\"qps\":[{}],\"qps_omitted\":{},\"regions\":[{}],\"regions_omitted\":{},\"iotlb\":{iotlb}",
            told.join(","),
            self.pairs.saturating_sub(MOST),
            regions.join(","),
            self.all_regions.saturating_sub(MOST),
        )
    }

    /// The table behind keys. It holds every region, so that nothing is ever evicted, and a miss is a wrong key.
    fn iotlb(&self) -> String {
        let Self { limits, counters, watched, bytes, all_regions: entries, huge_regions, .. } = self;
        let refused =
            counters.refused_bounds + counters.refused_permission + counters.refused_alignment + counters.refused_gone;
        let lookups = counters.hits + counters.refused_key + refused;
        format!(
            "{{\"entries\":{entries},\"quota_entries\":{},\"huge_entries\":{huge_regions},\"bytes\":{},\"quota_bytes\":{},\"lookups\":{lookups},\"hits\":{},\"misses\":{},\"evictions\":0,\"refused_bounds\":{},\
             \"refused_permission\":{},\"refused_alignment\":{},\"refused_gone\":{},\"taken_away\":{},\"lost\":{},\
             \"shootdowns\":{},\"shootdown_total_ns\":{},\"unmapped\":{},\"removed\":{},\"moved\":{}}}",
            limits.regions,
            bytes,
            limits.bytes,
            counters.hits,
            counters.refused_key,
            counters.refused_bounds,
            counters.refused_permission,
            counters.refused_alignment,
            counters.refused_gone,
            counters.gone,
            counters.lost,
            watched.rounds,
            watched.closed_ns,
            watched.unmapped,
            watched.removed,
            watched.moved,
        )
    }
}

/// An object of counters.
pub fn counters<N: AsRef<str>>(all: impl IntoIterator<Item = (N, u64)>) -> String {
    let fields: Vec<String> = all.into_iter().map(|(name, value)| format!("\"{}\":{value}", name.as_ref())).collect();
    format!("{{{}}}", fields.join(","))
}

fn pair(qpn: Qpn, query: &Query) -> String {
    let told = &query.attributes;
    let number = |number: Option<u32>| number.map_or("null".to_owned(), |number| number.to_string());
    let destination = told.path.map(|path| std::net::Ipv6Addr::from(path.destination.0).to_canonical());
    format!(
        "{{\"qp\":{},\"service\":\"{:?}\",\"state\":\"{:?}\",\"remote_qp\":{},\"destination\":{},\"send_psn\":{},\
         \"receive_psn\":{},\"mtu\":{},\"draining\":{}}}",
        qpn.value(),
        query.init.service,
        told.state.unwrap_or_default(),
        number(told.remote.map(Qpn::value)),
        destination.map_or("null".to_owned(), |gid| format!("\"{gid}\"")),
        number(told.send_psn.map(|psn| psn.value())),
        number(told.receive_psn.map(|psn| psn.value())),
        number(told.path_mtu.map(u32::from)),
        query.draining,
    )
}

/// The lkey and the rkey of a region are the same number: it is told only where it opens nothing from outside.
fn region(info: &Info) -> String {
    let is_open = REMOTE.into_iter().any(|right| info.access.allows(right));
    let key = if is_open { "null".to_owned() } else { format!("\"{:#010x}\"", info.key.value()) };
    let way = match info.way {
        Way::Shared => "shared",
        Way::Adopted => "adopted",
        Way::Watched if info.by_system => "watched, system calls",
        Way::Watched => "watched",
        Way::Unwatched if info.by_system => "unwatched, system calls",
        Way::Unwatched => "unwatched",
    };
    format!(
        "{{\"lkey\":{key},\"domain\":{},\"base\":{},\"bytes\":{},\"access\":{},\"way\":\"{way}\",\"shared_bytes\":{},\
         \"windows\":{},\"gone\":{}}}",
        info.domain.0, info.base, info.len, info.access.0, info.shared, info.windows, info.gone,
    )
}
