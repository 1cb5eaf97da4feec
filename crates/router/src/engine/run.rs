//! Running the programs on purpose (`BPF_PROG_TEST_RUN`): for the kernel's clock, and to have rules made ahead of their packets.

use super::layout::{Key, global};
use super::{Engine, EngineError};
use libbpf_rs::{ProgramInput, ProgramMut};
use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// What a program of XDP says about a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// `XDP_PASS` is 2, `XDP_REDIRECT` is 4.
    pub verdict: u32,
    /// The frame as the program leaves it.
    pub frame: Vec<u8>,
}

impl Engine {
    pub(super) fn program(&self, name: &'static str) -> Result<ProgramMut<'_>, EngineError> {
        self.object.progs_mut().find(|program| program.name() == name).ok_or(EngineError::Missing(name))
    }

    /// The kernel's jiffies.
    ///
    /// # Errors
    /// [`EngineError::Update`].
    pub fn jiffies(&self) -> Result<u32, EngineError> {
        self.run("router_clock", 0, &[0; 64])?;
        Ok(self.globals.word(global::JIFFIES).load(Relaxed))
    }

    /// Jiffies of a second.
    pub fn hz(&self) -> u32 {
        self.globals.word(global::HZ).load(Relaxed)
    }

    pub(super) fn jiffies_of(&self, time: Duration) -> u32 {
        let hz = u64::from(self.hz());
        u32::try_from(time.as_millis() as u64 * hz / 1000).unwrap_or(u32::MAX).max(1)
    }

    /// Runs a program of XDP on a frame that has come by interface `ifindex`; 0 is none.
    fn run(&self, name: &'static str, ifindex: u32, frame: &[u8]) -> Result<Outcome, EngineError> {
        let program = self.program(name)?;
        let mut out = vec![0; frame.len() + 64];
        // struct xdp_md: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex.
        let mut context = [0; 24];
        context[4..8].copy_from_slice(&(frame.len() as u32).to_le_bytes());
        context[12..16].copy_from_slice(&ifindex.to_le_bytes());
        let mut input = ProgramInput { data_in: Some(frame), data_out: Some(&mut out), ..ProgramInput::default() };
        if ifindex != 0 {
            input.context_in = Some(&mut context);
        }
        let failed = |source| EngineError::Update { what: "the router's program cannot be run", source };
        let output = program.test_run(input).map_err(failed)?;
        let (verdict, len) = (output.return_value, output.data.map_or(0, |data| data.len()));
        out.truncate(len);
        Ok(Outcome { verdict, frame: out })
    }

    /// What the program of XDP does with a frame that comes by an interface. The frame goes nowhere; rules are made as for any other.
    ///
    /// # Errors
    /// [`EngineError::Update`].
    pub fn try_frame(&self, ifindex: u32, frame: &[u8]) -> Result<Outcome, EngineError> {
        self.run("router_xdp", ifindex, frame)
    }

    /// Has rules made for flows whose packets have not come yet, as if one packet of each had come by `card`, addressed to `mac`. A rule that
    /// is made so is on trial; its first packets bring it in force.
    ///
    /// # Errors
    /// [`EngineError::Update`].
    pub fn compile<'a>(
        &self,
        card: u32,
        mac: [u8; 6],
        keys: impl IntoIterator<Item = &'a Key>,
    ) -> Result<usize, EngineError> {
        let mut count = 0;
        for key in keys {
            self.try_frame(card, &synthetic(mac, key))?;
            count += 1;
        }
        Ok(count)
    }
}

/// The shortest packet of a flow.
pub(super) fn synthetic(mac: [u8; 6], key: &Key) -> Vec<u8> {
    let mut frame = Vec::with_capacity(96);
    frame.extend_from_slice(&mac);
    frame.extend_from_slice(&[2, 0, 0, 0, 0, 1]);
    let l4 = l4(key);
    match (key.source, key.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            frame.extend_from_slice(&[
                8,
                0,
                0x45,
                key.dscp << 2,
                0,
                20 + l4.len() as u8,
                0,
                0,
                0x40,
                0,
                64,
                key.protocol,
                0,
                0,
            ]);
            frame.extend_from_slice(&source.octets());
            frame.extend_from_slice(&destination.octets());
            let sum = checksum(&frame[14..34]);
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        (source, destination) => {
            let octets = |address| match address {
                IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
                IpAddr::V6(v6) => v6.octets(),
            };
            frame.extend_from_slice(&[
                0x86,
                0xdd,
                0x60 | key.dscp >> 2,
                key.dscp << 6,
                0,
                0,
                0,
                l4.len() as u8,
                key.protocol,
                64,
            ]);
            frame.extend_from_slice(&octets(source));
            frame.extend_from_slice(&octets(destination));
        }
    }
    frame.extend_from_slice(&l4);
    frame.resize(frame.len().max(60), 0);
    frame
}

fn l4(key: &Key) -> Vec<u8> {
    let mut l4 = Vec::with_capacity(20);
    if matches!(key.protocol, 1 | 58) {
        l4.extend_from_slice(&key.destination_port.to_be_bytes());
        l4.extend_from_slice(&[0, 0]);
        l4.extend_from_slice(&key.source_port.to_be_bytes());
        l4.extend_from_slice(&[0, 0]);
        return l4;
    }
    l4.extend_from_slice(&key.source_port.to_be_bytes());
    l4.extend_from_slice(&key.destination_port.to_be_bytes());
    match key.protocol {
        6 => l4.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 0, 0, 0, 0, 0, 0]),
        _ => l4.extend_from_slice(&[0, 8, 0, 0]),
    }
    l4
}

fn checksum(header: &[u8]) -> u16 {
    let mut sum: u32 =
        header.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]))).sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
