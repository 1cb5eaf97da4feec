//! What `pktgen` prints: a row per queue, and one for all.

use millrace_packet::structured::Findings;
use millrace_tool::distribution::Distribution;
use millrace_tool::failure::Failure;
use millrace_tool::lanes::{findings_cells, latency_cells};
use millrace_tool::output::{Output, Row};
use millrace_tool::traffic::{QueueResult, Received, Results, Sent};

/// What all queues came to.
pub struct Total {
    /// What they sent.
    pub sent: Sent,
    received: Received,
    receives: bool,
}

impl Total {
    /// Fails unless every frame came back once, whole and in order.
    pub fn judge(&self) -> Result<(), Failure> {
        let found = &self.received.findings;
        if !self.receives || found.is_clean() {
            return Ok(());
        }
        if self.received.frames == 0 {
            return Err(Failure::Found(format!(
                "none of {} frames came back; with --no-receive none is expected",
                self.sent.frames
            )));
        }
        Err(Failure::Found(format!(
            "{} lost, {} corrupt, {} reordered, {} duplicated; `millrace stats` shows where frames were dropped",
            found.lost,
            found.corrupt,
            found.reordered,
            found.duplicates + found.strays
        )))
    }
}

/// Prints all rows.
pub fn print(json: bool, flows: u64, receives: bool, results: &Results) -> Result<Total, Failure> {
    let mut total = Total { sent: Sent::default(), received: Received::default(), receives };
    let mut rows = Vec::with_capacity(results.queues.len() + 1);
    for (queue, came) in results.queues.iter().zip(&results.came) {
        let QueueResult { queue: index, sent, received, latency } = queue;
        let mut received = received.clone();
        received.findings.lost = missing(sent, *came, &received.findings);
        total.sent.frames += sent.frames;
        total.sent.bytes += sent.bytes;
        total.received.add(&received);
        let line = Line { queue: index.to_string(), flows, sent: *sent, received, results, receives };
        rows.push(line.row(latency.as_ref()));
    }
    // Of all queues: a frame may come back at another queue than its own.
    total.received.findings.lost = missing(&total.sent, results.came.iter().sum(), &total.received.findings);
    if rows.len() > 1 {
        let Total { sent, ref received, .. } = total;
        let flows = flows * rows.len() as u64;
        let line = Line { queue: "all".to_owned(), flows, sent, received: received.clone(), results, receives };
        rows.push(line.row(results.latency.as_ref()));
    }
    Output::new(json).rows("pktgen", &rows)?;
    Ok(total)
}

/// How many frames of those sent did not come, neither whole nor damaged.
fn missing(sent: &Sent, came: u64, found: &Findings) -> u64 {
    sent.frames.saturating_sub(came + found.corrupt)
}

struct Line<'a> {
    queue: String,
    flows: u64,
    sent: Sent,
    received: Received,
    results: &'a Results,
    receives: bool,
}

impl Line<'_> {
    fn row(&self, latency: Option<&Distribution>) -> Row {
        let Self { sent, received, results, .. } = self;
        let rate = |amount: u64, seconds: f64| if seconds > 0.0 { amount as f64 / seconds } else { 0.0 };
        let row = Row::new()
            .tag("command", "pktgen")
            .text("queue", &self.queue)
            .count("flows", self.flows)
            .count("sent", sent.frames)
            .count("sent_bytes", sent.bytes)
            .number("seconds", results.sending, 6)
            .number("tx_mpps", rate(sent.frames, results.sending) * 1e-6, 3)
            .number("tx_gbps", rate(sent.bytes * 8, results.sending) * 1e-9, 3);
        if !self.receives {
            return row;
        }
        let row = row
            .count("received", received.frames)
            .count("received_bytes", received.bytes)
            .number("rx_mpps", rate(received.frames, results.receiving) * 1e-6, 3)
            .number("rx_gbps", rate(received.bytes * 8, results.receiving) * 1e-9, 3);
        let row = findings_cells(row, &received.findings).count("other", received.other);
        match (latency, &results.latency) {
            (Some(latency), _) => latency_cells(row, latency),
            // Measured, but not for each of so many queues.
            (None, Some(_)) => latency_cells(row, &Distribution::new()),
            (None, None) => row,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(index: u32, sent: u64, in_order: u64, corrupt: u64) -> QueueResult {
        let findings = Findings { in_order, corrupt, ..Findings::default() };
        let received = Received { frames: in_order + corrupt, findings, ..Received::default() };
        QueueResult { queue: index, sent: Sent { frames: sent, bytes: sent * 64 }, received, latency: None }
    }

    #[test]
    fn a_frame_that_comes_back_at_another_queue_is_not_lost() {
        // Everything comes back at queue 0: 10 frames of its own, one damaged, 18 of the 20 of queue 1.
        let queues = vec![queue(0, 10, 27, 1), queue(1, 20, 0, 0)];
        let results = Results { queues, came: vec![9, 18], sending: 1.0, receiving: 2.0, ..Results::default() };
        let total = print(true, 1, true, &results).unwrap();
        assert_eq!((total.sent.frames, total.received.frames, total.received.findings.lost), (30, 28, 2));
        assert!(matches!(total.judge(), Err(Failure::Found(text)) if text.starts_with("2 lost, 1 corrupt")));
    }

    #[test]
    fn nothing_back_is_an_error_unless_nothing_was_expected() {
        let results = Results { queues: vec![queue(0, 10, 0, 0)], came: vec![0], ..Results::default() };
        assert!(matches!(print(true, 1, true, &results).unwrap().judge(), Err(Failure::Found(_))));
        assert!(print(true, 1, false, &results).unwrap().judge().is_ok());
    }
}
