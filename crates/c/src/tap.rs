//! Frames on which rules decide, for C: one after the other.

use crate::failure::Failure;
use crate::types::{millrace_flow_frame, millrace_flow_sent, millrace_flow_tap_options, millrace_flow_tap_wants};
use core::time::Duration;
use host::flow::{FlowFrame, FlowSent, FlowTap, FlowTapWants, MAX_EXPLAINED, MAX_TAP_RATE};
use host::{Device, FlowListener};
use std::collections::VecDeque;

/// A tap, and the frames that it has brought.
pub struct Tap {
    listener: FlowListener,
    waiting: VecDeque<FlowFrame>,
    /// The one that C has.
    frame: Option<FlowFrame>,
    sent: Vec<millrace_flow_sent>,
    lost: u64,
    limited: u64,
}

impl Tap {
    pub fn new(device: &Device, options: &millrace_flow_tap_options) -> Result<Self, Failure> {
        let listener = device.flows().tap(wanted(options)?)?;
        let (waiting, sent) = Default::default();
        Ok(Self { listener, waiting, frame: None, sent, lost: 0, limited: 0 })
    }

    /// The next frame; what it leads to stays until the next call.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<millrace_flow_frame>, Failure> {
        if self.waiting.is_empty() {
            let heard = self.listener.next(timeout)?;
            (self.lost, self.limited) = (heard.lost, heard.limited);
            self.waiting = heard.frames.into();
        }
        self.frame = self.waiting.pop_front();
        let Some(frame) = &self.frame else { return Ok(None) };
        self.sent = frame.sent.iter().map(sent).collect();
        Ok(Some(millrace_flow_frame {
            time_ns: frame.time_ns,
            version: frame.version,
            port: frame.port,
            queue: frame.queue,
            data: frame.bytes.as_ptr(),
            data_len: frame.bytes.len() as u32,
            len: frame.len,
            rules: frame.rules.as_ptr(),
            sent: self.sent.as_ptr(),
            rule_count: frame.rules.len() as u32,
            sent_count: self.sent.len() as u32,
        }))
    }

    /// Frames so far for which there was no room, and frames beyond the rate.
    pub fn missed(&self) -> (u64, u64) {
        (self.lost, self.limited)
    }
}

fn sent(to: &FlowSent) -> millrace_flow_sent {
    let (kind, number) = match *to {
        FlowSent::Queue(queue) => (0, queue),
        FlowSent::Port(port) => (1, port),
        FlowSent::Host => (2, 0),
    };
    millrace_flow_sent { kind, number }
}

fn wanted(options: &millrace_flow_tap_options) -> Result<FlowTap, Failure> {
    const ALL: u32 = millrace_flow_tap_wants::MILLRACE_FLOW_TAP_ALL as u32;
    const PORT: u32 = millrace_flow_tap_wants::MILLRACE_FLOW_TAP_PORT as u32;
    const QUEUE: u32 = millrace_flow_tap_wants::MILLRACE_FLOW_TAP_QUEUE as u32;
    const RULE: u32 = millrace_flow_tap_wants::MILLRACE_FLOW_TAP_RULE as u32;
    const COOKIE: u32 = millrace_flow_tap_wants::MILLRACE_FLOW_TAP_COOKIE as u32;
    const EXPIRED: u32 = millrace_flow_tap_wants::MILLRACE_FLOW_TAP_EXPIRED as u32;
    let number = || u32::try_from(options.value).map_err(|_| Failure::invalid("value: a number of 32 bits is meant"));
    let wants = match options.wants {
        ALL => FlowTapWants::All,
        PORT => FlowTapWants::Port(number()?),
        QUEUE => FlowTapWants::Queue(number()?),
        RULE => FlowTapWants::Rule(options.value),
        EXPIRED => FlowTapWants::Expired,
        COOKIE => FlowTapWants::Cookie { cookie: options.value, mask: options.mask },
        other => return Err(Failure::invalid(format!("wants {other}: only MILLRACE_FLOW_TAP_... can be set"))),
    };
    let (snap, rate) = (options.snap, options.rate);
    Ok(FlowTap {
        wants,
        snap: if snap == 0 { MAX_EXPLAINED as u32 } else { snap },
        after: options.after != 0,
        rate: if rate == 0 { MAX_TAP_RATE } else { rate },
    })
}
