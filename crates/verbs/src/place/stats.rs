//! What happened, in numbers, for whoever asks by `stats=FILE`: one JSON object, written when the last context is closed.

use super::Running;
use millrace_rdma::show::counters;

/// One line of JSON: counters of the transport, of frames that were no packets for this end, of the port, and of bytes that were copied.
/// With the engine in a card, what the card has counted for all of its programs.
pub(super) fn json(running: &mut Running) -> String {
    if let Some(card) = &mut running.card {
        let place = card.place();
        let told = card.counters().map_or_else(String::new, |told| format!(",\"{place}\":{told}"));
        return format!("{{\"command\":\"verbs\",\"place\":\"{place}\"{told}}}");
    }
    let transport = counters(running.engine.counters().pairs());
    let (frames, port) = (counters(running.frames()), counters(running.port()));
    let copied = counters(running.copied());
    format!(
        "{{\"command\":\"verbs\",\"transport\":{transport},\"frames\":{frames},\"port\":{port},\"copied\":{copied}}}"
    )
}
