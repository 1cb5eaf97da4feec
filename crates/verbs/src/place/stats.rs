//! What happened, in numbers, for whoever asks by `stats=FILE`: one JSON object, written when the last context is closed.

use super::Running;
use millrace_rdma::show::counters;

/// One line of JSON: counters of the transport, of frames that were no packets for this end, of the port, and of bytes that were copied.
pub(super) fn json(running: &mut Running) -> String {
    let transport = counters(running.engine.counters().pairs());
    let (frames, port) = (counters(running.frames()), counters(running.port()));
    let copied = counters(running.copied());
    format!(
        "{{\"command\":\"verbs\",\"transport\":{transport},\"frames\":{frames},\"port\":{port},\"copied\":{copied}}}"
    )
}
