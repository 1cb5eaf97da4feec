//! The other end of a Linux that has ESP: pings it through every association, by frames in datagrams of a Unix socket, which
//! is what QEMU makes of a guest's network. Linux has to understand what this encrypts, and this what Linux encrypts.
//!
//!     esp_peer OWN_SOCKET GUEST_SOCKET GUEST_MAC ENTRIES STATES
//!
//! ENTRIES has associations and policies in the words of `ip xfrm`, directions as seen from here. When it says `exchanged`, it
//! waits for STATES, what `ip -s xfrm state` prints in the guest then, and compares: numbers, bytes, packets, what was refused.

use std::collections::HashMap;
use std::io::{Error, ErrorKind};
use std::net::IpAddr;
use std::ops::Range;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use millrace_ipsec::association::Mode;
use millrace_ipsec::database::{Change, Database};
use millrace_ipsec::ip::Header;
use millrace_ipsec::policy::Direction;
use millrace_ipsec::refusal::Refusal;
use millrace_ipsec::selector::Flow;
use millrace_ipsec::text;
use millrace_packet::checksum::Sum;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const ROOM: usize = 256;
const ETHERNET: usize = 14;
const OWN_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const SIZES: [usize; 8] = [0, 1, 2, 3, 13, 64, 500, 1200];
/// An emulated machine on a busy one.
const PATIENCE: Duration = Duration::from_secs(20);
/// DSCP EF, and a packet that could be marked.
const CLASS: u8 = 0xba;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().collect();
    let [_, own, guest, mac, entries, states] = &words[..] else { return Err("see the head of the source".into()) };
    let mut database = Database::new();
    for change in text::parse(&std::fs::read_to_string(entries)?, |_| None)? {
        database.apply(change, now())?;
    }
    let mut peer = Peer { database, wire: Wire::open(own, guest, mac)?, refused: HashMap::new() };
    let pairs = peer.pairs();
    for (source, destination) in &pairs {
        peer.exchange(*source, *destination)?;
    }
    println!("exchanged: {} pairs of addresses, {} packets each", pairs.len(), SIZES.len());
    let compared = peer.compare(&wait_for(Path::new(states))?)?;
    println!("compared: {compared} associations");
    Ok(())
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn wait_for(file: &Path) -> Result<String> {
    let start = Instant::now();
    while !file.exists() {
        if start.elapsed() > 3 * PATIENCE {
            return Err("nobody says what the guest's associations are".into());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(std::fs::read_to_string(file)?)
}

struct Wire {
    socket: UnixDatagram,
    guest: String,
    guest_mac: [u8; 6],
}

impl Wire {
    fn open(own: &str, guest: &str, mac: &str) -> Result<Self> {
        let socket = UnixDatagram::bind(own)?;
        socket.set_read_timeout(Some(Duration::from_millis(100)))?;
        let bytes: Vec<u8> =
            mac.split(':').map(|byte| u8::from_str_radix(byte, 16)).collect::<std::result::Result<_, _>>()?;
        let guest_mac = bytes.try_into().map_err(|_| "an Ethernet address has six bytes")?;
        Ok(Self { socket, guest: guest.into(), guest_mac })
    }

    fn send(&self, packet: &[u8]) -> Result<()> {
        let kind = if packet[0] >> 4 == 4 { [0x08, 0x00] } else { [0x86, 0xdd] };
        self.socket.send_to(&[&self.guest_mac[..], &OWN_MAC, &kind, packet].concat(), &self.guest)?;
        Ok(())
    }

    /// The next IP packet, in a buffer with room before it.
    fn receive(&self, until: Instant) -> Result<Option<(Vec<u8>, Range<usize>)>> {
        let mut buffer = vec![0; ROOM + 2048];
        while Instant::now() < until {
            let len = match self.socket.recv(&mut buffer[ROOM - ETHERNET..]) {
                Ok(len) => len,
                Err(error) if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error.kind()) => continue,
                Err(error) => return Err(error.into()),
            };
            let is_ip = [[0x08, 0x00], [0x86, 0xdd]].iter().any(|kind| buffer[ROOM - 2..ROOM] == *kind);
            if len > ETHERNET && is_ip {
                return Ok(Some((buffer, ROOM..ROOM + len - ETHERNET)));
            }
        }
        Ok(None)
    }
}

struct Peer {
    database: Database,
    wire: Wire,
    /// By SPI, how often the guest has been sent what it has to refuse: once again, and changed.
    refused: HashMap<u32, (u64, u64)>,
}

impl Peer {
    /// Where packets of each policy come from and go.
    fn pairs(&self) -> Vec<(IpAddr, IpAddr)> {
        let out = self.database.policies().iter().filter(|policy| policy.direction == Direction::Out);
        out.filter_map(|policy| Some((policy.selector.source?.address, policy.selector.destination?.address))).collect()
    }

    fn exchange(&mut self, source: IpAddr, destination: IpAddr) -> Result<()> {
        let what = format!("{source} to {destination}");
        let mut last = None;
        for (number, size) in SIZES.into_iter().enumerate() {
            let ping = ping(source, destination, number as u16, size);
            let wire = self.seal(&ping)?;
            self.wire.send(&wire.1)?;
            let reply = self.reply(&ping, &what)?;
            last = Some((wire, reply));
        }
        let ((spi, mut wire), (mut reply, place)) = last.ok_or("no size")?;
        // Once again, and changed: Linux counts both. What Linux has sent is refused here the second time.
        self.wire.send(&wire)?;
        *wire.last_mut().ok_or("no bytes")? ^= 0x40;
        self.send_changed(&mut wire)?;
        // In UDP over IPv6, that one's checksum is wrong already.
        let is_seen = !(wire[0] >> 4 == 6 && wire[6] == 17);
        self.refused.insert(spi, (1, u64::from(is_seen)));
        match self.database.open(&mut reply, place, 0, now()) {
            Err(Refusal::Replayed) => Ok(()),
            other => Err(format!("{what}: a reply comes once again, and that is {other:?}").into()),
        }
    }

    /// Sends it with a number that has not come yet, so that it is its check value that is wrong.
    fn send_changed(&mut self, wire: &mut [u8]) -> Result<()> {
        let header = Header::parse(wire).map_err(|refusal| refusal.name())?;
        let esp = if header.protocol == 17 { header.len + 8 } else { header.len };
        let low = u32::from_be_bytes(wire[esp + 4..esp + 8].try_into()?);
        wire[esp + 4..esp + 8].copy_from_slice(&low.wrapping_add(1).to_be_bytes());
        self.wire.send(wire)
    }

    /// The packet as it goes to the guest, and its SPI.
    fn seal(&mut self, packet: &[u8]) -> Result<(u32, Vec<u8>)> {
        let flow = Flow::of(packet).map_err(|refusal| refusal.name())?;
        let handle = self.database.find_leaving(&flow, now()).map_err(|refusal| refusal.name())?;
        let handle = handle.ok_or("no policy wants it protected")?;
        let spi = self.database.association(handle).ok_or("it is gone")?.parameters().id.spi;
        let mut buffer = [&[0; ROOM], packet, &[0; ROOM]].concat();
        let place = self.database.seal(handle, &mut buffer, ROOM..ROOM + packet.len(), now());
        let place = place.map_err(|refusal| refusal.name())?;
        Ok((spi, buffer[place].to_vec()))
    }

    /// Waits for the reply to `ping`, which has to come as policies want; returns how it came.
    fn reply(&mut self, ping: &[u8], what: &str) -> Result<(Vec<u8>, Range<usize>)> {
        let until = Instant::now() + PATIENCE;
        while let Some((mut buffer, place)) = self.wire.receive(until)? {
            let as_it_came = buffer.clone();
            let outer = Header::parse(&buffer[place.clone()]).map_err(|refusal| refusal.name())?;
            let opened = self.database.open(&mut buffer, place.clone(), 0, now());
            let Some((opened, by)) = opened.map_err(|refusal| format!("{what}: {}", refusal.name()))? else { continue };
            let checked = self.database.check(Direction::In, &opened.flow, Some(by));
            checked.map_err(|refusal| format!("{what}: {}", refusal.name()))?;
            let reply = &buffer[opened.packet];
            let inner = Header::parse(reply).map_err(|refusal| refusal.name())?;
            let mode = self.database.association(by).ok_or("it is gone")?.parameters().mode;
            if mode == Mode::Tunnel && outer.class != inner.class {
                return Err(format!("{what}: class {:#x} outside, {:#x} inside", outer.class, inner.class).into());
            }
            is_reply(reply, &inner, ping).map_err(|why| format!("{what}: {why}"))?;
            return Ok((as_it_came, place));
        }
        Err(Error::new(ErrorKind::TimedOut, format!("{what}: no reply to {} bytes", ping.len())).into())
    }

    /// Compares with what the guest says; how many associations.
    fn compare(&self, said: &str) -> Result<usize> {
        let mut guests = HashMap::new();
        for change in text::parse(said, |_| None)? {
            if let Change::Associate(parameters) = change {
                guests.insert(parameters.id.spi, parameters);
            }
        }
        for own in self.database.associations() {
            let (spi, progress) = (own.parameters().id.spi, own.progress());
            let guest = guests.get(&spi).ok_or_else(|| format!("the guest has no SPI {spi:#x}"))?;
            let theirs = &guest.progress;
            // What is sent here is received there.
            let numbers = (progress.sent.max(progress.received), theirs.sent.max(theirs.received));
            let used = (progress.usage.bytes, progress.usage.packets);
            let used_there = (theirs.usage.bytes, theirs.usage.packets);
            if numbers.0 != numbers.1 || used != used_there {
                return Err(format!("SPI {spi:#x}: {numbers:x?} sent, {used:?} used here, {used_there:?} there").into());
            }
            let (again, changed) = self.refused.get(&spi).copied().unwrap_or_default();
            let wanted = format!("replay {again} failed {changed}");
            let counted = statistics(said, spi).ok_or_else(|| format!("SPI {spi:#x} has no statistics"))?;
            if !counted.ends_with(&wanted) {
                return Err(format!("SPI {spi:#x}: {counted}, but it should be {wanted}").into());
            }
        }
        Ok(self.database.associations().count())
    }
}

/// The line of an association's statistics.
fn statistics(said: &str, spi: u32) -> Option<&str> {
    let (_, behind) = said.split_once(&format!("spi {spi:#010x}"))?;
    let (_, behind) = behind.split_once("stats:\n")?;
    Some(behind.lines().next()?.trim())
}

/// An echo request.
fn ping(source: IpAddr, destination: IpAddr, number: u16, size: usize) -> Vec<u8> {
    let text: Vec<u8> = (0..size).map(|at| at as u8).collect();
    let kind = if source.is_ipv4() { 8 } else { 128 };
    let mut icmp = [&[kind, 0, 0, 0, 0x12, 0x34], &number.to_be_bytes()[..], &text].concat();
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let sum = Sum::of(&icmp).checksum();
            icmp[2..4].copy_from_slice(&sum.to_be_bytes());
            let len = ((20 + icmp.len()) as u16).to_be_bytes();
            let mut header = [&[0x45, CLASS], &len[..], &[0, 0, 0, 0, 64, 1, 0, 0]].concat();
            header.extend(source.octets().iter().chain(&destination.octets()));
            let sum = Sum::of(&header).checksum();
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            [header, icmp].concat()
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let pseudo =
                Sum::of(&source.octets()).plus(Sum::of(&destination.octets())).with(58).with(icmp.len() as u32);
            let sum = pseudo.plus(Sum::of(&icmp)).checksum();
            icmp[2..4].copy_from_slice(&sum.to_be_bytes());
            let mut header = (6u32 << 28 | u32::from(CLASS) << 20).to_be_bytes().to_vec();
            header.extend((icmp.len() as u16).to_be_bytes());
            header.extend([58, 64]);
            header.extend(source.octets().iter().chain(&destination.octets()));
            [header, icmp].concat()
        }
        _ => Vec::new(),
    }
}

/// Whether `reply` is the answer to `ping`: addresses exchanged, and everything behind the type as it was.
fn is_reply(reply: &[u8], inner: &Header, ping: &[u8]) -> Result<()> {
    let asked = Header::parse(ping).map_err(|refusal| refusal.name())?;
    let is_from = (inner.source, inner.destination) == (asked.destination, asked.source);
    let (answer, question) = (&reply[inner.len..], &ping[asked.len..]);
    let is_answer = answer[0] == if inner.source.is_ipv4() { 0 } else { 129 };
    if is_from && is_answer && answer[4..] == question[4..] {
        return Ok(());
    }
    Err(format!("that is no reply: {reply:02x?}").into())
}
