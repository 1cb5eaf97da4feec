//! What this process tells `millrace rdma` of itself: one JSON object in one record, bounded in size.

use crate::place::Running;
use millrace_rdma::number::Qpn;
use millrace_rdma::show;

/// All of it.
pub fn json(running: &mut Running) -> String {
    let pairs: Vec<Qpn> = running.engine.queue_pairs().map(|(qpn, _)| qpn).collect();
    let told = pairs.iter().take(show::MOST).filter_map(|qpn| Some((*qpn, running.engine.query_qp(*qpn).ok()?)));
    let told: Vec<_> = told.collect();
    let fields = show::Shown::of(told, pairs.len(), &mut running.engine.memory().regions).fields();
    format!("{{{fields},\"stats\":{}}}", crate::place::stats::json(running))
}
