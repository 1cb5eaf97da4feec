//! Tells a kernel that has ESP how far its associations are, as the router does, and looks whether it has understood: each is
//! taken over, used for some packets, reported, and listed again; then every other one is over, and has to be gone.
use std::collections::HashMap;

use millrace_ipsec::association::{Association, Mode, Parameters};
use millrace_ipsec::database::Change;
use millrace_ipsec::lifetime::End;
use millrace_ipsec::netlink::{self, Error};
use millrace_ipsec::selector::Selector;
use rustix::net::netlink::{SocketAddrNetlink, XFRM};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, recv, sendto, socket};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const ERROR: u16 = 2;
const DONE: u16 = 3;

fn main() -> Result<()> {
    let mut kernel = Kernel { socket: socket(AddressFamily::NETLINK, SocketType::RAW, Some(XFRM))?, sequence: 0 };
    let mut told = HashMap::new();
    for parameters in kernel.associations()? {
        let mut association = Association::new(parameters, now())?;
        for size in 0..10 {
            use_for(&mut association, 100 + size)?;
        }
        kernel.ask(|sequence| netlink::report(&association, sequence))?;
        told.insert(association.parameters().id, association);
    }
    let (mut agreed, mut over) = (0, Vec::new());
    for said in kernel.associations()? {
        let own = told.get(&said.id).ok_or("the kernel has another one now")?;
        let progress = own.progress();
        if (said.progress.sent, said.progress.received) != (progress.sent, progress.received)
            || said.progress.usage != progress.usage
        {
            return Err(format!("told {progress:?}, but the kernel has {:?}", said.progress).into());
        }
        agreed += 1;
        let end = if agreed % 2 == 0 { End::Hard } else { End::Soft };
        let message = netlink::expire(&said, end, 0).ok_or("there is an end")?;
        kernel.ask(|sequence| with_sequence(message, sequence))?;
        if end == End::Hard {
            over.push(said.id);
        }
    }
    let left = kernel.associations()?;
    if agreed == 0 || left.len() != agreed - over.len() || left.iter().any(|left| over.contains(&left.id)) {
        return Err(format!("{agreed} associations, of which {over:?} are over, but {} are left", left.len()).into());
    }
    println!("reported: {agreed} associations, {} of them over", over.len());
    Ok(())
}

fn now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Seals a packet that may be in it.
fn use_for(association: &mut Association, len: usize) -> Result<()> {
    let parameters = association.parameters();
    let ends = [parameters.source, parameters.id.destination];
    let mut packet = vec![0; len];
    let is_v4 = ends[0].is_ipv4() || (parameters.mode == Mode::Tunnel && parameters.selector == Selector::ALL);
    if is_v4 {
        packet[0] = 0x45;
        packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    } else {
        packet[0] = 0x60;
        packet[4..6].copy_from_slice(&(len as u16 - 40).to_be_bytes());
        packet[6] = 17;
    }
    let mut buffer = [&[0; 256], &packet[..], &[0; 256]].concat();
    association.seal(&mut buffer, 256..256 + len, now()).map_err(|refusal| refusal.name())?;
    Ok(())
}

fn with_sequence(mut message: Vec<u8>, sequence: u32) -> Vec<u8> {
    message[8..12].copy_from_slice(&sequence.to_ne_bytes());
    message
}

struct Kernel {
    socket: rustix::fd::OwnedFd,
    sequence: u32,
}

impl Kernel {
    /// Those that can be used here.
    fn associations(&mut self) -> Result<Vec<Parameters>> {
        let mut all = Vec::new();
        for (kind, body) in self.ask(netlink::list_associations)? {
            match netlink::read(kind, &body) {
                Ok(changes) => all.extend(changes.into_iter().filter_map(|change| match change {
                    Change::Associate(parameters) => Some(*parameters),
                    _ => None,
                })),
                Err(Error::Unsupported { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(all)
    }

    /// Asks, and takes the answers until the last.
    fn ask(&mut self, message: impl FnOnce(u32) -> Vec<u8>) -> Result<Vec<(u16, Vec<u8>)>> {
        self.sequence += 1;
        let kernel = SocketAddrNetlink::new(0, 0);
        sendto(&self.socket, &message(self.sequence), SendFlags::empty(), &kernel)?;
        let mut answers = Vec::new();
        let mut buffer = vec![0; 64 << 10];
        loop {
            let (len, _) = recv(&self.socket, &mut buffer[..], RecvFlags::empty())?;
            let mut rest = &buffer[..len];
            while let Some(header) = rest.first_chunk::<16>() {
                let len = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
                let kind = u16::from_ne_bytes([header[4], header[5]]);
                let body = rest.get(16..len).ok_or("a message is cut")?;
                match kind {
                    DONE => return Ok(answers),
                    ERROR if body[..4] == [0; 4] => return Ok(answers),
                    ERROR => {
                        return Err(format!("the kernel says {}", i32::from_ne_bytes(body[..4].try_into()?)).into());
                    }
                    _ => answers.push((kind, body.to_vec())),
                }
                rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
            }
        }
    }
}
