//! What happened, in numbers, for whoever asks by `stats=FILE`: one JSON object, written when the last context is closed.

use super::Running;
use std::fmt::Write;

/// One line of JSON: counters of the transport, of frames that were no packets for this end, of the port, and of bytes that were copied.
pub(super) fn json(running: &mut Running) -> String {
    let mut text = String::from("{\"command\":\"verbs\"");
    let mut add = |name: &str, pairs: &mut dyn Iterator<Item = (String, u64)>| {
        let fields: Vec<String> = pairs.map(|(name, value)| format!("\"{name}\":{value}")).collect();
        // Nothing that is written to a string fails.
        let _ = write!(text, ",\"{name}\":{{{}}}", fields.join(","));
    };
    let owned = |(name, value): (&'static str, u64)| (name.to_owned(), value);
    add("transport", &mut running.engine.counters().pairs().map(owned));
    add("frames", &mut running.frames().into_iter().map(owned));
    add("port", &mut running.port().into_iter());
    add("copied", &mut running.copied().into_iter().map(owned));
    text.push('}');
    text
}
