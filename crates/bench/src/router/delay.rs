//! How long a flow still goes by Linux once it could be fast: from the answer that makes conntrack call it established to its first packet
//! without Linux, while many flows begin.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::io::ErrorKind;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use millrace_tool::cores;
use rustix::net::sockopt;

use super::inline::take_core;
use super::lab::{Ends, Lab};
use super::path::{Path, Router};
use super::place::{enter, inside};
use super::work::{SERVICE, SINK, SOURCE, Work};

/// Flows that begin in a second, and how many.
const PER_SECOND: u64 = 2_000;
const FLOWS: u64 = 4_000;
/// When packets of a flow are sent, in microseconds after its answer: as fast as they go, and then more and more rarely.
const PLAN: [u64; 20] = [0, 0, 0, 0, 0, 0, 20, 40, 60, 80, 100, 150, 200, 300, 500, 1_000, 2_000, 3_000, 5_000, 10_000];
/// Bytes that wait for the sink, which may not have its core for some time: all packets of all flows.
const ROOM: usize = FLOWS as usize * (PLAN.len() + 1) * 1024;
/// Until the last packets have arrived and the router has told of its rules; and how long answers are waited for.
const REST: Duration = Duration::from_millis(300);

/// How long flows were slow, in microseconds.
pub struct Delays(Vec<f64>);

/// A flow: its port, and when its packets were sent, from the answer on.
struct Flow {
    port: u16,
    sent: Vec<f64>,
}

impl Delays {
    /// Measures them in a lab of its own; the source works on one core, the sink on the other.
    pub fn measure(path: Path, cores: &[usize]) -> Result<Self, String> {
        let lab = Lab::new(Work::Snat, 1, Ends::Hosts)?;
        let router = Router::start(&lab, path)?;
        let ended = AtomicBool::new(false);
        let flows = thread::scope(|scope| {
            let sink = scope.spawn(|| answer(&lab, cores.get(1).copied(), &ended));
            let flows = inside(&lab.source, || {
                if let Some(core) = cores.first() {
                    cores::pin(*core)?;
                }
                // Who waits for a core between two packets measures that.
                take_core()?;
                send()
            });
            // Relaxed: nothing but the word itself is read there.
            ended.store(true, Ordering::Relaxed);
            sink.join().map_err(|_| "the sink has panicked".to_owned())??;
            flows
        })?;
        thread::sleep(REST);
        let rules = router.ask(&lab, &["rules", "--limit", "10000000"])?;
        let source = SOURCE.to_string();
        // Packets that went by the rule of a source port.
        let carried: HashMap<u64, u64> = rules
            .iter()
            .filter(|rule| rule["source"][0] == source.as_str())
            .filter_map(|rule| Some((rule["source"][1].as_u64()?, rule["packets"].as_u64()?)))
            .collect();
        let mut delays: Vec<f64> =
            flows.iter().map(|flow| flow.slow(carried.get(&flow.port.into()).copied())).collect();
        delays.sort_by(f64::total_cmp);
        Ok(Self(delays))
    }

    /// Such a share of flows was slow for no longer, in milliseconds.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let at = ((self.0.len() as f64 * share).ceil() as usize).clamp(1, self.0.len().max(1)) - 1;
        self.0.get(at).map(|us| us * 1e-3)
    }
}

impl Flow {
    /// How long its packets went by Linux, if so many did not. One that never became fast counts as long as it was looked at.
    fn slow(&self, fast: Option<u64>) -> f64 {
        let slow = self.sent.len().saturating_sub(fast.unwrap_or(0) as usize);
        let first = self.sent.first().copied().unwrap_or(0.0);
        self.sent.get(slow).or(self.sent.last()).map_or(0.0, |at| at - first)
    }
}

/// The sink: one answer to the first packet of each flow, which is the only one that asks for it.
fn answer(lab: &Lab, core: Option<usize>, ended: &AtomicBool) -> Result<(), String> {
    let cannot = |why: std::io::Error| format!("the sink cannot answer: {why}");
    if let Some(core) = core {
        cores::pin(core)?;
    }
    enter(&lab.sink)?;
    take_core()?;
    let socket = UdpSocket::bind((SINK, SERVICE)).map_err(cannot)?;
    socket.set_read_timeout(Some(Duration::from_millis(20))).map_err(cannot)?;
    sockopt::set_socket_recv_buffer_size_force(&socket, ROOM).map_err(|why| cannot(why.into()))?;
    let mut data = [0; 64];
    // Relaxed: the end of the measurement, sooner or later.
    while !ended.load(Ordering::Relaxed) {
        match socket.recv_from(&mut data) {
            Ok((_, from)) if data[0] == ASKS => drop(socket.send_to(&data[..22], from).map_err(cannot)?),
            Ok(_) => {}
            Err(why) if matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(why) => return Err(cannot(why)),
        }
    }
    Ok(())
}

/// The first byte of a packet that is answered, and of others.
const ASKS: u8 = 1;
const TELLS: u8 = 2;

/// Begins flows at their times, and sends what is due once they are answered.
fn send() -> Result<Vec<Flow>, String> {
    let cannot = |why: std::io::Error| format!("the source cannot send: {why}");
    let start = Instant::now();
    let now = || start.elapsed().as_secs_f64() * 1e6;
    let (mut flows, mut sockets, mut due, mut asked) =
        (Vec::<Flow>::new(), Vec::<UdpSocket>::new(), BinaryHeap::new(), VecDeque::new());
    let mut last = start;
    while (flows.len() as u64) < FLOWS || !due.is_empty() || (!asked.is_empty() && last.elapsed() < REST) {
        let number = flows.len();
        if (number as u64) < FLOWS && now() >= (number as u64 * 1_000_000 / PER_SECOND) as f64 {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).map_err(cannot)?;
            socket.connect((SINK, SERVICE)).map_err(cannot)?;
            socket.set_nonblocking(true).map_err(cannot)?;
            let port = socket.local_addr().map_err(cannot)?.port();
            socket.send(&[ASKS; 22]).map_err(cannot)?;
            flows.push(Flow { port, sent: Vec::with_capacity(PLAN.len()) });
            sockets.push(socket);
            asked.push_back(number);
            last = Instant::now();
        }
        // Answers come in order, or nearly.
        if let Some(first) = asked.pop_front() {
            match sockets[first].recv(&mut [0; 64]) {
                Ok(_) => due.push(Reverse((now() as u64, first, 0))),
                Err(_) => asked.push_back(first),
            }
        }
        let Some(Reverse((at, number, step))) = due.peek().copied() else { continue };
        if now() < at as f64 {
            continue;
        }
        due.pop();
        let flow = &mut flows[number];
        flow.sent.push(now());
        sockets[number].send(&[TELLS; 22]).map_err(cannot)?;
        if let Some(after) = PLAN.get(step + 1) {
            due.push(Reverse((flow.sent[0] as u64 + after, number, step + 1)));
        }
    }
    flows.retain(|flow| !flow.sent.is_empty());
    match flows.len() as u64 == FLOWS {
        true => Ok(flows),
        false => Err(format!("of {FLOWS} flows {} were answered", flows.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_milliseconds() {
        let delays = Delays((1..=100).map(f64::from).collect());
        assert_eq!(delays.quantile(0.5), Some(0.05));
        assert_eq!(delays.quantile(0.99), Some(0.099));
        assert_eq!(Delays(Vec::new()).quantile(0.5), None);
    }

    #[test]
    fn a_flow_is_slow_until_its_first_fast_packet() {
        let flow = Flow { port: 1, sent: vec![10.0, 15.0, 20.0, 60.0] };
        assert_eq!(flow.slow(Some(4)), 0.0);
        assert_eq!(flow.slow(Some(2)), 10.0);
        assert_eq!(flow.slow(Some(0)), 50.0);
        assert_eq!(flow.slow(None), 50.0);
    }
}
