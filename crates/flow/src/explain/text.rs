//! Explanations for people.

use super::{Explanation, Step};
use crate::action::Class;
use std::fmt;

impl fmt::Display for Explanation {
    /// ```text
    /// version 7: in_port=1 dl_type=0x800 nw_proto=6 ...
    ///   table 0: table=0,priority=10,ip,actions=goto_table:1
    ///     not table=0,priority=20,tcp,tcp_dst=80,actions=drop: tcp_dst is 443, not 80
    ///   table 1: nothing matches
    ///   drop
    /// ```
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "version {}:", self.version)?;
        for (name, value) in &self.frame {
            write!(f, " {name}={value}")?;
        }
        writeln!(f)?;
        for step in &self.steps {
            step.fmt(f)?;
        }
        for hashed in &self.hashes {
            let over = if hashed.inner { "inner headers" } else { "headers" };
            let (action, what) = if hashed.is_port { ("balance", "port") } else { ("rss", "queue") };
            let (group, chosen) = (hashed.group, hashed.queue);
            match hashed.hash {
                Some(hash) => writeln!(f, "  {action}:{group} hash {hash:#010x} over {over}, {what} {chosen}")?,
                None => writeln!(f, "  {action}:{group} nothing to hash, {what} {chosen}")?,
            }
        }
        for steered in &self.steered {
            let queue = steered.queue.map_or("nobody".to_owned(), |queue| format!("queue {queue}"));
            writeln!(f, "  quic:{} {queue}: {}", steered.group, steered.why)?;
        }
        match (self.class, self.again) {
            // It is not decided yet.
            (Class::Drop, Some(_)) => f.write_str("  nobody so far")?,
            (class, _) => write!(f, "  {}", class.name())?,
        }
        if self.normal {
            write!(f, " as without rules")?;
        }
        for (at, action) in self.actions.iter().enumerate() {
            write!(f, "{}{action}", if at == 0 { ": " } else { "," })?;
        }
        match self.again {
            Some(table) => writeln!(f, ", then with its new headers on to table {table}"),
            None => writeln!(f),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  table {}: {}", self.table, self.rule.as_deref().unwrap_or("nothing matches"))?;
        for passed in &self.better {
            writeln!(f, "    not {}: {} is {}, not {}", passed.rule, passed.field, passed.has, passed.wants)?;
        }
        if self.omitted > 0 {
            writeln!(f, "    nor {} more with a higher rank", self.omitted)?;
        }
        Ok(())
    }
}
