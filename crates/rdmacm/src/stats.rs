//! What happened to connections, in numbers, for whoever asks by `stats=FILE`: one JSON object in FILE.cm, written when the process ends. FILE
//! itself is that of our libibverbs.

use crate::boundary::say;
use millrace_rdma::cm::manager::Counters;

/// The file, if one is wanted.
fn file() -> Option<String> {
    let words = std::env::var("MILLRACE_VERBS").ok()?;
    let file = words.split_ascii_whitespace().find_map(|word| word.strip_prefix("stats="))?;
    Some(format!("{file}.cm"))
}

/// Writes them there: those of the manager, and of what came no further.
pub(crate) fn write(counters: &Counters, before: [(&'static str, u64); 3]) {
    let Some(file) = file() else { return };
    let text = json(counters, before);
    if let Err(error) = std::fs::write(&file, text) {
        say(format_args!("stats: {file}: {error}"));
    }
}

fn json(counters: &Counters, before: [(&'static str, u64); 3]) -> String {
    let pairs = counters.pairs().into_iter().chain(before);
    let fields: Vec<_> = pairs.map(|(name, value)| format!("\"{name}\":{value}")).collect();
    format!("{{\"command\":\"rdmacm\",\"connections\":{{{}}}}}\n", fields.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_there() {
        let text = json(
            &Counters { received: 3, ..Counters::default() },
            [("foreign", 1), ("unreachable", 2), ("elsewhere", 3)],
        );
        assert!(
            text.starts_with("{\"command\":\"rdmacm\",\"connections\":{\"received\":3,\"malformed_length\":0,"),
            "{text}"
        );
        assert!(text.ends_with("\"timed_out\":0,\"foreign\":1,\"unreachable\":2,\"elsewhere\":3}}\n"), "{text}");
    }
}
