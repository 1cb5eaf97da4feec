//! The cage of a port (`docs/spec/nfb-card.md` §2.3): an I2C master, and the memory of the QSFP28 module that sits in it.

use millrace_abi::register::transceiver::i2c as r;
use std::sync::{Mutex, PoisonError};

/// I2C address of a module with the read bit clear (SFF-8636 §6).
const MODULE: u8 = 0xa0;

pub(crate) struct Cage(Mutex<Master>);

/// An I2C master and the one device on its bus. A command is carried out when it is written.
struct Master {
    module: Module,
    control: u32,
    // Of COMMAND and STATUS, bits 15:8.
    to_send: u8,
    received: u8,
    status: u8,
    transfer: Transfer,
}

/// What goes on on the bus.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Transfer {
    None,
    /// Somebody was addressed who is not there.
    Nobody,
    /// The module is to take bytes; the first is the address of a register.
    Write {
        first: bool,
    },
    /// The module is to give bytes.
    Read,
}

impl Cage {
    pub fn new(serial: u32, port: usize) -> Self {
        let module = Module::new(serial, port);
        let transfer = Transfer::None;
        Self(Mutex::new(Master { module, control: 0, to_send: 0, received: 0, status: 0, transfer }))
    }

    pub fn read32(&self, offset: u32) -> u32 {
        let master = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match offset {
            0 => master.control,
            4 => u32::from(master.received) << 8 | u32::from(master.status),
            _ => 0,
        }
    }

    /// Writes the bytes that are there, from `offset` on. Not as words: of the two bytes at 4 and 5 a program may write
    /// one alone, and only that at 4 is a command.
    pub fn write(&self, offset: u32, from: &[u8]) {
        let mut master = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut command = None;
        for (at, &byte) in (offset..).zip(from) {
            match at {
                0..4 => {
                    let (keep, new) = (!(0xff << (8 * at)), u32::from(byte) << (8 * at));
                    master.control = (master.control & keep | new) & r::CONTROL_BITS;
                }
                4 => command = Some(byte),
                5 => master.to_send = byte,
                _ => {}
            }
        }
        if let Some(command) = command {
            master.obey(command);
        }
    }
}

impl Master {
    fn obey(&mut self, command: u8) {
        let has = |bit| command & bit != 0;
        if has(r::COMMAND_ACKNOWLEDGE) {
            self.status &= !r::STATUS_DONE;
        }
        if !has(r::COMMAND_WRITE) && !has(r::COMMAND_READ) {
            if has(r::COMMAND_STOP) {
                self.stop();
            }
            return;
        }
        let on = self.control & r::CONTROL_ENABLE != 0;
        let acknowledged = match has(r::COMMAND_WRITE) {
            _ if !on => false,
            true => self.send(has(r::COMMAND_START)),
            false => self.receive(),
        };
        let no_ack = if acknowledged { 0 } else { r::STATUS_NO_ACK };
        let busy = if self.transfer == Transfer::None { 0 } else { r::STATUS_BUSY };
        self.status = no_ack | busy | r::STATUS_DONE;
        if has(r::COMMAND_STOP) {
            self.stop();
        }
    }

    fn stop(&mut self) {
        self.transfer = Transfer::None;
        self.status &= !r::STATUS_BUSY;
    }

    /// Sends a byte; whether somebody acknowledged it.
    fn send(&mut self, start: bool) -> bool {
        let byte = self.to_send;
        if start {
            self.transfer = match byte {
                MODULE => Transfer::Write { first: true },
                byte if byte == MODULE | 1 => Transfer::Read,
                _ => Transfer::Nobody,
            };
            return self.transfer != Transfer::Nobody;
        }
        let Transfer::Write { first } = self.transfer else { return false };
        if first {
            self.module.at = byte;
            self.transfer = Transfer::Write { first: false };
        } else {
            self.module.write(byte);
        }
        true
    }

    /// Receives a byte. It is the master who acknowledges it, so that only an empty bus is told as no acknowledgement.
    fn receive(&mut self) -> bool {
        let reads = self.transfer == Transfer::Read;
        // Nobody pulls the line down.
        self.received = if reads { self.module.read() } else { 0xff };
        reads
    }
}

/// The memory of a module, SFF-8636: the lower half and page 0, which is all there is.
struct Module {
    memory: [u8; 256],
    // Register that is read or written next.
    at: u8,
}

/// The only byte that software may write: transmitters off, one bit each.
const TX_DISABLE: u8 = 86;

impl Module {
    /// A 100GBASE-SR4 module, 40 °C warm and with 1 mW on every lane.
    fn new(serial: u32, port: usize) -> Self {
        let mut memory = [0; 256];
        let mut put = |at: usize, bytes: &[u8]| memory[at..at + bytes.len()].copy_from_slice(bytes);
        let text = |text: &str, len: usize| format!("{text:len$}").into_bytes();
        // Identifier QSFP28, revision 2.8 of SFF-8636, no other pages and data ready.
        put(0, &[0x11, 0x08, 0x04]);
        put(22, &[40, 0]); // 1/256 °C
        put(26, &33_000u16.to_be_bytes()); // 100 µV
        for lane in 0..4 {
            put(34 + 2 * lane, &10_000u16.to_be_bytes()); // received, 0.1 µW
            put(42 + 2 * lane, &3_000u16.to_be_bytes()); // bias, 2 µA
            put(50 + 2 * lane, &10_000u16.to_be_bytes()); // sent, 0.1 µW
        }
        // Identifier, power class 1, connector MPO 1x12, compliance: see byte 192.
        put(128, &[0x11, 0x00, 0x0c, 0x80]);
        put(139, &[0x05, 103]); // 64B/66B; 25.78 Gbit/s in 250 Mbit/s, as byte 222 has it too
        put(148, &text("Millrace", 16));
        put(168, &text("MR-SR4-100G", 16));
        put(184, &text("1", 2));
        put(186, &17_000u16.to_be_bytes()); // 850 nm in 1/20 nm
        put(188, &2_000u16.to_be_bytes()); // 10 nm in 1/200 nm
        put(190, &[70]); // °C
        put(192, &[0x02]); // 100GBASE-SR4
        put(196, &text(&format!("MR{serial:08}-{port:02}"), 16));
        put(212, &text("250101", 8));
        put(222, &[103]);
        let sum = |memory: &[u8]| memory.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
        memory[191] = sum(&memory[128..191]);
        memory[223] = sum(&memory[192..223]);
        Self { memory, at: 0 }
    }

    fn read(&mut self) -> u8 {
        let byte = self.memory[usize::from(self.at)];
        self.at = self.at.wrapping_add(1);
        byte
    }

    fn write(&mut self, byte: u8) {
        // Everything else cannot be written. The page (byte 127) stays 0: one that is not there is not selected.
        if self.at == TX_DISABLE {
            self.memory[usize::from(TX_DISABLE)] = byte & 0xf;
        }
        self.at = self.at.wrapping_add(1);
    }
}
