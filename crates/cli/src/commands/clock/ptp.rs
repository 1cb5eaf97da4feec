//! `millrace clock follow ptp`: a PTP ordinary clock over two queues of a card. The worker says when frames came and left; this
//! program only does what takes no time.

use super::follow::Teller;
use super::moment::host_time;
use clap::{Args, ValueEnum};
use millrace::{Clock, ClockState, Departure, Departures, Device, Leader, RxQueue, Ticks, Time, TxQueue};
use millrace_abi::clock::SCALED_PER_PPM;
use millrace_abi::header::RxMetadata;
use millrace_abi::register::map::Component;
use millrace_abi::register::tsu;
use millrace_ptp::{Delay, Engine, Instance, Led, Outgoing, Role, Sent, Settings, Transport};
use millrace_tool::failure::{Failure, While};
use millrace_tool::options::Shared;
use millrace_tool::output::note;
use millrace_tool::session::Session;
use millrace_tool::stop;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Frames that are looked at in one turn.
const TURN: usize = 32;
/// How long one sleep is at most: after it Ctrl-C is looked at.
const NAP: Duration = Duration::from_millis(50);
/// How long a frame may take to leave; of one that takes longer nobody asks any more when it left.
const LEAVING: Duration = Duration::from_millis(100);
/// Frames in a row of which nobody says when they left, before that is told.
const NO_STAMPS: u64 = 3;
/// How often others are told how the clock does, in ns: where nothing has been measured, and at the most.
const TELL: u64 = 200_000_000;
const TELL_AT_MOST: u64 = 10_000_000;

/// Options of `clock follow ptp`.
#[derive(Debug, Args)]
#[command(after_help = "\
An ordinary clock as in IEEE 1588-2019, over RX and TX queue 0 of the card or
those of --queue, which it has for itself. As slave it leads the card's clock; as
master others follow it. It takes the rights configure:clock and use of the
queues. With several RX queues, --steer has PTP messages come to its own.

A clock that nobody has set shows 1970: it gets the time of this host before PTP
begins (`millrace card --tsu` sets it from the start).

A card that is started with --poll stamps more exactly: its worker need not be
woken to see a frame. How to run ptp4l at the other end: docs/time.md.

Examples:
  millrace clock follow ptp
  millrace clock follow ptp --udp 10.0.0.2 --role slave --sync -3
  millrace clock follow ptp --role master --priority1 100 --queue 3 --steer")]
pub struct PtpArgs {
    /// Over UDP, from this IPv4 or IPv6 address [default: over Ethernet]
    #[arg(long, value_name = "ADDRESS")]
    udp: Option<IpAddr>,
    /// What this clock may be
    #[arg(long, value_name = "ROLE", default_value = "any")]
    role: RoleArg,
    /// PTP domain
    #[arg(long, value_name = "N", default_value = "0", value_parser = clap::value_parser!(u8).range(0..=127))]
    domain: u8,
    /// Which clock becomes master: the lowest number does
    #[arg(long, value_name = "N", default_value = "128")]
    priority1: u8,
    /// The same among clocks that are as good
    #[arg(long, value_name = "N", default_value = "128")]
    priority2: u8,
    /// Seconds between Sync messages, as a power of two: -3 is eight in a second
    #[arg(long, value_name = "LOG2", default_value = "0", allow_hyphen_values = true, value_parser = interval())]
    sync: i8,
    /// Seconds between Announce messages, as a power of two
    #[arg(long, value_name = "LOG2", default_value = "1", allow_hyphen_values = true, value_parser = interval())]
    announce: i8,
    /// Seconds between measurements of the path, as a power of two
    #[arg(long, value_name = "LOG2", default_value = "0", allow_hyphen_values = true, value_parser = interval())]
    delay: i8,
    /// Measure the path to the neighbour (P2P) and not to the master (E2E)
    #[arg(long)]
    p2p: bool,
    /// As master: no Follow_Up, each Sync says itself when it leaves, which is known beforehand less exactly
    #[arg(long)]
    one_step: bool,
    /// As master: the clock shows TAI, which is so many seconds ahead of UTC, and it says so
    #[arg(long, value_name = "SECONDS")]
    utc_offset: Option<i16>,
    /// Ethernet address of this clock [default: a local one, by process and queue]
    #[arg(long, value_name = "MAC", value_parser = mac)]
    mac: Option<[u8; 6]>,
    /// Add rules that bring PTP messages to the RX queue, for as long as this runs
    #[arg(long)]
    steer: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum RoleArg {
    /// Whatever comes of comparing the clocks that there are
    Any,
    /// It follows, or holds over
    Slave,
    /// It leads
    Master,
}

fn interval() -> clap::builder::RangedI64ValueParser<i8> {
    clap::value_parser!(i8).range(-7..=4)
}

fn mac(text: &str) -> Result<[u8; 6], String> {
    let wrong = || format!("{text:?} is no Ethernet address; expected one such as 02:00:00:00:00:01");
    let bytes: Vec<u8> =
        text.split(':').map(|byte| u8::from_str_radix(byte, 16).map_err(|_| wrong())).collect::<Result<_, _>>()?;
    let mac: [u8; 6] = bytes.try_into().map_err(|_| wrong())?;
    if mac[0] & 1 == 0 { Ok(mac) } else { Err(format!("{text} is an address of many, and not of one")) }
}

impl PtpArgs {
    fn settings(&self, queue: u32) -> Settings {
        let pid = std::process::id().to_be_bytes();
        // Local, and of nobody else on this host.
        let local = [0x02, pid[1], pid[2], pid[3], (queue >> 8) as u8, queue as u8];
        let transport = self.udp.map_or(Transport::Ethernet, |address| Transport::Udp { address });
        Settings {
            domain: self.domain,
            priority1: self.priority1,
            priority2: self.priority2,
            role: match self.role {
                RoleArg::Any => Role::Any,
                RoleArg::Slave => Role::Slave,
                RoleArg::Master => Role::Master,
            },
            delay: if self.p2p { Delay::PeerToPeer } else { Delay::EndToEnd },
            sync_log2: self.sync,
            announce_log2: self.announce,
            delay_log2: self.delay,
            one_step: self.one_step,
            utc_offset: self.utc_offset,
            seed: Ticks::now().get(),
            ..Settings::new(self.mac.unwrap_or(local), transport)
        }
    }

    fn rules(&self, queue: u32) -> Vec<String> {
        let filters: &[&str] = match self.udp {
            Some(IpAddr::V4(_)) => &["udp,tp_dst=319", "udp,tp_dst=320"],
            Some(IpAddr::V6(_)) => &["udp6,tp_dst=319", "udp6,tp_dst=320"],
            None => &["dl_type=0x88f7"],
        };
        filters.iter().map(|filter| format!("priority=60000,{filter},actions=queue:{queue}")).collect()
    }
}

/// The card's clock as PTP leads it.
#[derive(Clone)]
struct Card(Rc<Clock>);

impl Led for Card {
    fn now(&self) -> Time {
        // It cannot be read only when the card has ended, which the queues say.
        self.0.now().unwrap_or_default()
    }

    fn step(&mut self, ns: i64) -> bool {
        self.0.step(ns).is_ok()
    }

    fn set_frequency(&mut self, ppm: f64) -> bool {
        self.0.set_frequency_ppm(ppm).is_ok()
    }
}

/// Runs the command.
pub fn run(shared: &Shared, args: &PtpArgs) -> Result<(), Failure> {
    let session = Session::open_running(shared, "leading its clock is of no use to anybody")?;
    let &[queue] = shared.queues().indices() else {
        return Err(Failure::Usage("--queue: `clock follow ptp` takes one queue".to_owned()));
    };
    let doing = || "cannot lead the clock by PTP".to_owned();
    let clock = session.device.clock().doing(doing)?;
    let leader = clock.lead().doing(doing)?;
    let (rx, tx) = (session.rx(queue)?, session.tx(queue)?);
    let _stamps = Stamps::enable(&session.device, &clock).doing(doing)?;
    if args.steer {
        let flows = session.device.flows();
        let rules = args.rules(queue);
        let changes = rules.iter().filter_map(|rule| millrace::flow::FlowChange::of_line(rule));
        flows.transaction().changes(changes).commit().doing(|| "cannot steer PTP messages".to_owned())?;
    }
    let settings = args.settings(queue);
    let instance = Instance::new(&settings);
    // A clock that nobody has set shows hardly anything, and PTP does not reckon with times before 1970.
    if clock.now().map_err(millrace::Error::from).doing(doing)?.seconds < 86_400 {
        clock.set(host_time()).doing(doing)?;
    }
    let snapshot = clock.snapshot().map_err(millrace::Error::from).doing(doing)?;
    let ppm = snapshot.scaled_ppm as f64 / SCALED_PER_PPM as f64;
    let card = Card(Rc::new(clock));
    let engine = Engine::new(&instance, &settings, card, ppm, Ticks::now().get());
    let wire = Wire::new(rx, tx).doing(doing)?;
    Running {
        engine,
        wire,
        leader,
        teller: Teller::new(shared),
        told: None,
        master: None,
        flooded: false,
        doubted: false,
    }
    .run()
}

/// The time-stamp unit, enabled for as long as this lives.
struct Stamps<'d> {
    device: &'d Device,
    was_enabled: bool,
}

impl<'d> Stamps<'d> {
    fn enable(device: &'d Device, clock: &Clock) -> Result<Self, millrace::Error> {
        let was_enabled = clock.snapshot()?.stamps;
        device.write32(Component::Tsu.base().unwrap_or_default() + tsu::ENABLE.bytes(), 1)?;
        Ok(Self { device, was_enabled })
    }
}

impl Drop for Stamps<'_> {
    fn drop(&mut self) {
        if !self.was_enabled {
            // A card that is gone stamps nothing.
            let _ = self.device.write32(Component::Tsu.base().unwrap_or_default() + tsu::ENABLE.bytes(), 0);
        }
    }
}

/// The queues.
struct Wire {
    rx: RxQueue,
    tx: TxQueue,
    departures: Departures,
    posted: Posted,
    stamped: bool,
    unstamped: u64,
    has_dropped: bool,
}

/// Frames that were put into the queue, as far as it is known what became of them.
#[derive(Default)]
struct Posted {
    frames: u64,
    // Of those that the card has taken off the queue, how many it has dropped.
    dropped: u64,
}

/// What became of the frame that was put into the queue last.
#[derive(Debug, PartialEq)]
enum Gone {
    NotYet,
    /// It left, between these times.
    Left(u64, u64),
    /// It was dropped, or one right before it was: nobody knows which.
    Unknown,
}

impl Posted {
    fn look(&mut self, last: Departure) -> Gone {
        if last.taken < self.frames {
            return Gone::NotYet;
        }
        let dropped = last.taken.saturating_sub(last.frames);
        let is_more = core::mem::replace(&mut self.dropped, dropped) != dropped;
        if is_more { Gone::Unknown } else { Gone::Left(last.before_ns, last.after_ns) }
    }
}

impl Wire {
    fn new(rx: RxQueue, tx: TxQueue) -> Result<Self, millrace::Error> {
        let departures = tx.departures()?;
        Ok(Self { rx, tx, departures, posted: Posted::default(), stamped: false, unstamped: 0, has_dropped: false })
    }

    /// Sends a frame; when it left, if that matters and can be told.
    fn send(&mut self, frame: &[u8], matters: bool) -> Result<Option<Time>, millrace::Error> {
        let Some(mut burst) = self.tx.get(&[frame.len() as u16])? else { return Ok(None) };
        burst[0].copy_from_slice(frame);
        burst.send()?;
        self.posted.frames += 1;
        if !matters {
            return Ok(None);
        }
        let begin = Instant::now();
        while begin.elapsed() < LEAVING {
            match self.departures.last().map_or(Gone::NotYet, |last| self.posted.look(last)) {
                Gone::NotYet => std::thread::yield_now(),
                Gone::Left(before, after) => {
                    self.stamped = true;
                    let ns = before + after.saturating_sub(before) / 2;
                    return Ok(Some(Time::new((ns / 1_000_000_000) as u32, (ns % 1_000_000_000) as u32)));
                }
                Gone::Unknown => {
                    if !core::mem::replace(&mut self.has_dropped, true) {
                        note(
                            "the card drops frames of this queue (`millrace stats` says why): its class in the schedule of the port should be one of `always`",
                        );
                    }
                    return Ok(None);
                }
            }
        }
        // One that came too late on a busy machine is nothing to tell of.
        if self.unstamped == NO_STAMPS && !self.stamped {
            note(
                "the card does not say when frames leave: their port has to be plugged in, and no rule may meet sent frames",
            );
        }
        self.unstamped += 1;
        Ok(None)
    }
}

/// What others were told last.
struct Told {
    at: u64,
    state: ClockState,
    measurements: u64,
}

struct Running<'a> {
    engine: Engine<'a, Card>,
    wire: Wire,
    leader: Leader,
    teller: Teller,
    told: Option<Told>,
    master: Option<[u8; 8]>,
    flooded: bool,
    doubted: bool,
}

impl Running<'_> {
    fn run(mut self) -> Result<(), Failure> {
        let doing = || "PTP has ended".to_owned();
        while !stop::asked() {
            self.turn().doing(doing)?;
            self.tell()?;
            let left = self.engine.next().map_or(NAP, |at| Duration::from_nanos(at.saturating_sub(Ticks::now().get())));
            self.wire.rx.wait(left.min(NAP)).doing(doing)?;
        }
        self.engine.leave(Ticks::now().get());
        Ok(())
    }

    /// Does what is to be done, and takes what has come.
    fn turn(&mut self) -> Result<(), millrace::Error> {
        self.engine.tick(Ticks::now().get());
        self.send()?;
        let mut frames = Vec::new();
        for packet in self.wire.rx.get(TURN)?.iter() {
            // Frames that came before stamps were wanted have none.
            if let Some(stamp) = RxMetadata::decode(packet.header) {
                frames.push((Time::new(stamp.seconds, stamp.nanoseconds), packet.data.to_vec()));
            }
        }
        for (came, frame) in frames {
            self.engine.receive(Ticks::now().get(), &frame, came);
            self.send()?;
        }
        Ok(())
    }

    fn send(&mut self) -> Result<(), millrace::Error> {
        while let Some(Outgoing { frame, sent }) = self.engine.next_frame() {
            let left = self.wire.send(&frame, sent.is_some())?;
            if let (Some(sent), Some(left)) = (sent, left) {
                let sent: Sent = sent;
                self.engine.sent(Ticks::now().get(), sent, left);
            }
        }
        Ok(())
    }

    /// Tells others how the clock does.
    fn tell(&mut self) -> Result<(), Failure> {
        let now = Ticks::now().get();
        let status = self.engine.status(now);
        if status.master != self.master {
            self.master = status.master;
            if let Some(id) = status.master {
                let id: Vec<String> = id.iter().map(|byte| format!("{byte:02x}")).collect();
                note(format!("follows the clock {}", id.join(":")));
            }
        }
        if status.passed_over > 0 && !core::mem::replace(&mut self.flooded, true) {
            note("the master sends more Sync than a clock is led by (250 in a second): most of them are passed over");
        }
        if let Some(ns) = status.impossible_ns.filter(|_| !core::mem::replace(&mut self.doubted, true)) {
            note(format!(
                "the path to the master would be {ns} ns long: the time stamps of this end or of the other one are wrong, and lead nothing"
            ));
        }
        let measured = status.measurements != self.told.as_ref().map_or(0, |told| told.measurements);
        let is_news = self.told.as_ref().is_none_or(|told| {
            let passed = now.saturating_sub(told.at);
            passed >= TELL || (measured && passed >= TELL_AT_MOST) || told.state != status.report.state
        });
        if is_news {
            self.leader.report(status.report, measured).doing(|| "cannot say how the clock does".to_owned())?;
            self.told = Some(Told { at: now, state: status.report.state, measurements: status.measurements });
        }
        self.teller.tell(&status.report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_that_is_dropped_hides_no_later_one() {
        let mut posted = Posted::default();
        let said = |frames, taken| Departure { frames, taken, before_ns: 10 * frames, after_ns: 10 * frames + 2 };
        posted.frames = 1;
        assert_eq!((posted.look(said(0, 0)), posted.look(said(1, 1))), (Gone::NotYet, Gone::Left(10, 12)));
        posted.frames = 2;
        assert_eq!(posted.look(said(1, 1)), Gone::NotYet);
        assert_eq!(posted.look(said(1, 2)), Gone::Unknown, "dropped");
        posted.frames = 3;
        assert_eq!(posted.look(said(1, 2)), Gone::NotYet);
        assert_eq!(posted.look(said(2, 3)), Gone::Left(20, 22));
        // One of which nobody asked was dropped, the next one left.
        posted.frames = 5;
        assert_eq!(posted.look(said(3, 5)), Gone::Unknown);
        posted.frames = 6;
        assert_eq!(posted.look(said(4, 6)), Gone::Left(40, 42));
    }
}
