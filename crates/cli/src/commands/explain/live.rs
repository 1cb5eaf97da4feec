//! What rules do with the frames that a card gets just now: those that its workers copy for this command.

use millrace::Device;
use millrace::flow::{FlowHeard, FlowTap, FlowTapWants};
use millrace_flow::Ingress;
use millrace_tool::failure::{Failure, While};
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, note};
use millrace_tool::session::Session;
use millrace_tool::stop;
use std::time::Duration;

use super::explainer::Explainer;
use super::report::{Head, Report};
use super::{ExplainArgs, card};

/// How long one wait is at most: after it Ctrl-C is looked at.
pub const WAIT: Duration = Duration::from_millis(100);
/// Link type of Ethernet.
const ETHERNET: u32 = 1;

/// Runs the command with `--live`.
pub fn run(shared: &Shared, args: &ExplainArgs) -> Result<(), Failure> {
    let wants = match (&shared.queue, args.port) {
        (Some(_), Some(_)) => return Err(Failure::Usage("--live takes --port or --queue, not both".to_owned())),
        (Some(queues), None) => match queues.indices() {
            [queue] => FlowTapWants::Queue(*queue),
            _ => return Err(Failure::Usage("--live takes one --queue".to_owned())),
        },
        (None, Some(port)) => FlowTapWants::Port(port),
        (None, None) => FlowTapWants::All,
    };
    let session = Session::open_running(shared, "there are no frames to explain")?;
    let flows = session.device.flows();
    let doing = || "cannot listen to frames".to_owned();
    let tap = FlowTap { wants, snap: millrace::flow::MAX_EXPLAINED as u32, after: false, rate: args.rate };
    let mut listener = flows.tap(tap).doing(doing)?;
    say_what_is_heard(&session.device)?;
    let size = card::size(&session.device)?;
    let mut report = Report::new(Output::new(shared.json), !args.summary);
    let mut explainer: Option<(u64, Explainer)> = None;
    let (mut number, most, mut missed) = (0, shared.count.unwrap_or(u64::MAX), Missed::default());
    while number < most && !stop::asked() {
        let heard = listener.next(WAIT).doing(doing)?;
        missed.tell(shared, &heard)?;
        for frame in heard.frames {
            if number == most || stop::asked() {
                break;
            }
            number += 1;
            let head = Head { number, time_ns: frame.time_ns, len: frame.len as usize, link: ETHERNET };
            if explainer.as_ref().is_none_or(|(version, _)| *version != frame.version) {
                match card::tables_of(&flows, Some(frame.version), args.queues) {
                    Ok(writer) => {
                        explainer = Some((frame.version, Explainer::new(writer, 0, args.better).on_card(Some(size))))
                    }
                    Err(why) => {
                        report.skip(head, &format!("the rules of its time, version {}: {why}", frame.version))?;
                        continue;
                    }
                }
            }
            let Some((_, explainer)) = &mut explainer else { continue };
            let queue = u16::try_from(frame.queue).unwrap_or(u16::MAX);
            explainer.came_in(Ingress { port: frame.port, queue, ..Ingress::default() });
            let mut explained = explainer.explain(&frame.bytes, frame.time_ns);
            explained.card = Some(frame.sent);
            report.packet(head, &explained)?;
        }
    }
    report.summary(&explainer.map_or(Vec::new(), |(_, mut explainer)| explainer.rules()))?;
    if shared.count.is_some() && number < most { Err(Failure::Interrupted) } else { Ok(()) }
}

/// To people: that it has begun, and why nothing may come.
pub fn say_what_is_heard(device: &Device) -> Result<(), Failure> {
    let info = device.flows().info().doing(|| "cannot ask for rules".to_owned())?;
    if info.rules == 0 {
        note("the card has no rules: without them no frame is classified, and none is seen here");
    }
    note("listening; Ctrl-C ends it");
    Ok(())
}

/// Frames that were not heard, as JSON.
#[derive(serde::Serialize)]
struct Unheard {
    lost: u64,
    limited: u64,
}

/// What was told of frames that were not heard.
#[derive(Default)]
pub struct Missed {
    lost: u64,
    limited: u64,
}

impl Missed {
    /// Tells of those that have become more.
    pub fn tell(&mut self, shared: &Shared, heard: &FlowHeard) -> Result<(), Failure> {
        let (lost, limited) = (heard.lost - self.lost.min(heard.lost), heard.limited - self.limited.min(heard.limited));
        (self.lost, self.limited) = (heard.lost, heard.limited);
        if lost + limited == 0 {
            return Ok(());
        }
        let output = Output::new(shared.json);
        output.object(&Unheard { lost, limited })?;
        output.text(&format!("... not shown: {limited} frames beyond --rate, {lost} for which there was no room\n"))?;
        Ok(())
    }
}
