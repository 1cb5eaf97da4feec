//! `millrace receive`: received frames into a capture.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};

use clap::Args;
use millrace_port::pcap::{CaptureTime, Writer};
use millrace_tool::clock::Moment;
use millrace_tool::echo::cannot_receive;
use millrace_tool::failure::{Failure, While};
use millrace_tool::host::RxQueue;
use millrace_tool::idle::Idle;
use millrace_tool::lanes::{self, Lane, Tally};
use millrace_tool::meter::Meter;
use millrace_tool::options::Shared;
use millrace_tool::session::Session;
use millrace_tool::sharing::SharingArgs;
use millrace_tool::stop;

/// Options of `receive`.
#[derive(Debug, Args)]
#[command(after_help = "\
Writes --count frames per queue, or frames until Ctrl-C, with nanosecond
stamps of the time at which this program saw them. With several queues the
files are FILE.0, FILE.1 and so on.

Examples:
  millrace receive out.pcap --device unix:/tmp/card.sock
  millrace receive out.pcap --device embedded:port=generator --count 1000
  millrace receive out.pcap --share drop --queue 0-3")]
pub struct ReceiveArgs {
    /// Capture to write
    file: PathBuf,
    #[command(flatten)]
    sharing: SharingArgs,
}

/// Runs the command.
pub fn run(shared: &Shared, args: &ReceiveArgs) -> Result<(), Failure> {
    let session = Session::open_running(shared, "nothing ever comes")?;
    lanes::run("receive", shared, |queue, meter| lane(&session, shared, args, queue, meter)).map(drop)
}

fn lane(session: &Session<'_>, shared: &Shared, args: &ReceiveArgs, queue: u32, meter: &Meter) -> Lane {
    let mut start = Moment::now();
    let outcome = (|| {
        let several = shared.queues().indices().len() > 1;
        // In this order, so that whoever sees the file knows that nothing sent from now on is missed.
        let mut rx = session.rx_shared(queue, args.sharing)?;
        let mut writer = stop::at_once(|| Writer::create(file_of(&args.file, several.then_some(queue))))?;
        receive(&mut rx, &mut writer, shared, meter, &mut start)?;
        writer.flush()?;
        lanes::outcome(meter.frames(), shared.count)
    })();
    (Tally::of(meter, start), outcome)
}

/// `start` is put off until the first frame is there: how long others take to begin is no part of a rate.
fn receive(
    rx: &mut RxQueue,
    writer: &mut Writer<File>,
    shared: &Shared,
    meter: &Meter,
    start: &mut Moment,
) -> Result<(), Failure> {
    let (goal, most) = (shared.count.unwrap_or(u64::MAX), shared.burst_or(64));
    let mut idle = Idle::new(shared.poll);
    let mut got = 0;
    while got < goal && !stop::asked() {
        let burst = rx.get(most.min(usize::try_from(goal - got).unwrap_or(usize::MAX))).doing(cannot_receive)?;
        if burst.is_empty() {
            drop(burst);
            if idle.is_about_to_sleep() {
                // Whoever looks at the file while nothing comes sees everything that came.
                writer.flush()?;
            }
            idle.await_frame(rx)?;
            if got == 0 {
                *start = Moment::now();
            }
            continue;
        }
        // The frames of one burst were found at one moment.
        let time = CaptureTime::now();
        for packet in burst.iter() {
            writer.write(time, packet.data)?;
            meter.add(1, packet.data.len() as u64);
        }
        idle.busy();
        got += burst.len() as u64;
    }
    Ok(())
}

fn file_of(file: &Path, queue: Option<u32>) -> PathBuf {
    let mut name = OsString::from(file);
    if let Some(queue) = queue {
        name.push(format!(".{queue}"));
    }
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_queues_get_several_files() {
        assert_eq!(file_of(Path::new("a/b.pcap"), None), Path::new("a/b.pcap"));
        assert_eq!(file_of(Path::new("a/b.pcap"), Some(3)), Path::new("a/b.pcap.3"));
    }
}
