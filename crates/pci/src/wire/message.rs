//! Messages of vfio-user 0.0, field by field. All integers are little-endian, and every message begins with a [`Header`].

/// Size of a header.
pub(crate) const HEADER: usize = 16;
/// Most bytes that one access to a region moves, either way: what this server says when versions are agreed on.
pub(crate) const MOST_DATA: usize = 1 << 16;
/// Most bytes of a message behind its header: a write of [`MOST_DATA`] bytes.
pub(crate) const MOST_BODY: usize = 16 + MOST_DATA;
/// Most descriptors that come with one message, as this server says.
pub(crate) const MOST_FDS: usize = 16;

/// Regions that a PCI device has: six BARs, the ROM, configuration space, VGA.
pub(crate) const REGIONS: u32 = 9;
/// The region of configuration space.
pub(crate) const CONFIGURATION: u32 = 7;
/// Kinds of interrupts that a PCI device has: INTx, MSI, MSI-X, errors, requests.
pub(crate) const INTERRUPTS: u32 = 5;
/// The kind MSI-X.
pub(crate) const MSIX: u32 = 2;

/// `VFIO_DEVICE_FLAGS_RESET | VFIO_DEVICE_FLAGS_PCI`.
pub(crate) const DEVICE_FLAGS: u32 = 1 << 0 | 1 << 1;
/// `VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE`.
pub(crate) const REGION_ACCESS: u32 = 1 << 0 | 1 << 1;
/// `VFIO_REGION_INFO_FLAG_MMAP | VFIO_REGION_INFO_FLAG_CAPS`.
pub(crate) const REGION_MAPPED: u32 = 1 << 2 | 1 << 3;
/// `VFIO_REGION_INFO_CAP_SPARSE_MMAP`.
const SPARSE: u16 = 1;
/// `struct vfio_region_info`.
pub(crate) const REGION_INFO: usize = 32;
/// `VFIO_IRQ_INFO_EVENTFD | VFIO_IRQ_INFO_MASKABLE`.
pub(crate) const INTERRUPT_FLAGS: u32 = 1 << 0 | 1 << 1;

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Version,
    DmaMap,
    DmaUnmap,
    DeviceInfo,
    RegionInfo,
    InterruptInfo,
    SetInterrupts,
    RegionRead,
    RegionWrite,
    Reset,
}

impl Command {
    /// The command of a number; `None`: there is none, or it is not for this server.
    pub fn of(number: u16) -> Option<Self> {
        Some(match number {
            1 => Self::Version,
            2 => Self::DmaMap,
            3 => Self::DmaUnmap,
            4 => Self::DeviceInfo,
            5 => Self::RegionInfo,
            7 => Self::InterruptInfo,
            8 => Self::SetInterrupts,
            9 => Self::RegionRead,
            10 => Self::RegionWrite,
            13 => Self::Reset,
            _ => return None,
        })
    }
}

/// What every message begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub id: u16,
    pub command: u16,
    /// Of the whole message, in bytes.
    pub size: u32,
    pub flags: u32,
    /// Of an answer that refuses: a number of the system.
    pub error: u32,
}

const TYPE: u32 = 0xf;
const REPLY: u32 = 1;
const NO_REPLY: u32 = 1 << 4;
const ERROR: u32 = 1 << 5;

impl Header {
    pub fn decode(bytes: &[u8; HEADER]) -> Self {
        let mut fields = Fields(bytes);
        let (id, command) = (fields.u16().unwrap_or(0), fields.u16().unwrap_or(0));
        let mut next = || fields.u32().unwrap_or(0);
        Self { id, command, size: next(), flags: next(), error: next() }
    }

    /// Of a message that asks for something, whose answer nobody has to tell from others.
    pub fn command(command: u16) -> Self {
        Self { id: 0, command, size: HEADER as u32, flags: 0, error: 0 }
    }

    /// The message that begins with this and goes on with that.
    pub fn message(&self, body: &[u8]) -> Vec<u8> {
        self.bytes(self.flags, self.error, body)
    }

    /// Bytes behind the header; `None`: no message has this size.
    pub fn body(&self) -> Option<usize> {
        (self.size as usize).checked_sub(HEADER).filter(|&body| body <= MOST_BODY)
    }

    /// Whether it is a command, and no reply: this server has asked for nothing.
    pub fn is_command(&self) -> bool {
        self.flags & TYPE == 0
    }

    /// Whether nobody waits for an answer.
    pub fn is_posted(&self) -> bool {
        self.flags & NO_REPLY != 0
    }

    /// A reply with this behind its header.
    pub fn reply(&self, body: &[u8]) -> Vec<u8> {
        self.bytes(REPLY, 0, body)
    }

    /// The reply that says what went wrong, as a number of the system.
    pub fn refusal(&self, errno: u32) -> Vec<u8> {
        self.bytes(REPLY | ERROR, errno, &[])
    }

    fn bytes(&self, flags: u32, errno: u32, body: &[u8]) -> Vec<u8> {
        let mut all = Vec::with_capacity(HEADER + body.len());
        all.extend(self.id.to_le_bytes());
        all.extend(self.command.to_le_bytes());
        all.extend(((HEADER + body.len()) as u32).to_le_bytes());
        all.extend(flags.to_le_bytes());
        all.extend(errno.to_le_bytes());
        all.extend(body);
        all
    }
}

/// Integers from the front of some bytes; each is `None` when there are too few.
pub(crate) struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.bytes().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_le_bytes)
    }
}

/// An access to a region: where, and how many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    pub region: u32,
    pub offset: u64,
    pub count: u32,
}

impl Access {
    /// The access that a message asks for, and the bytes behind.
    pub fn decode(body: &[u8]) -> Option<(Self, &[u8])> {
        let mut fields = Fields(body);
        let (offset, region, count) = (fields.u64()?, fields.u32()?, fields.u32()?);
        Some((Self { region, offset, count }, fields.0))
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.offset.to_le_bytes().to_vec();
        bytes.extend(self.region.to_le_bytes());
        bytes.extend(self.count.to_le_bytes());
        bytes
    }
}

/// `struct vfio_region_info`, and the part of it that can be mapped, if there is one: bytes from the front. `room` is what the
/// caller has for both; without enough it is told how much they take. Says whether the whole answer is there.
pub(crate) fn region_info(index: u32, size: u64, mapped: Option<u64>, room: u32) -> (Vec<u8>, bool) {
    let capability: Vec<u8> = mapped.map_or_else(Vec::new, |len| {
        let mut bytes = SPARSE.to_le_bytes().to_vec();
        bytes.extend(1u16.to_le_bytes());
        bytes.extend([0; 4]);
        // One area.
        bytes.extend(1u32.to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(0u64.to_le_bytes());
        bytes.extend(len.to_le_bytes());
        bytes
    });
    let needed = (REGION_INFO + capability.len()) as u32;
    let whole = room >= needed;
    let access = if size == 0 { 0 } else { REGION_ACCESS };
    let flags = access | if mapped.is_some() { REGION_MAPPED } else { 0 };
    let mut bytes = Vec::with_capacity(needed as usize);
    bytes.extend(needed.to_le_bytes());
    bytes.extend(flags.to_le_bytes());
    bytes.extend(index.to_le_bytes());
    // Also where the part is left out: QEMU takes nothing else from a region that has one.
    bytes.extend(if mapped.is_some() { REGION_INFO as u32 } else { 0 }.to_le_bytes());
    bytes.extend(size.to_le_bytes());
    bytes.extend(0u64.to_le_bytes());
    if whole {
        bytes.extend(capability);
    }
    (bytes, whole)
}

/// What `SET_IRQS` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SetInterrupts<'a> {
    pub index: u32,
    pub start: u32,
    pub count: u32,
    pub data: Data<'a>,
    pub action: Action,
}

/// What says of which interrupts something is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Data<'a> {
    /// Of all in the range.
    All,
    /// Of those whose byte is not 0.
    Flags(&'a [u8]),
    /// They get eventfds, which came with the message.
    Events,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Mask,
    Unmask,
    Trigger,
}

impl<'a> SetInterrupts<'a> {
    pub fn decode(body: &'a [u8]) -> Option<Self> {
        let mut fields = Fields(body);
        let (_argsz, flags) = (fields.u32()?, fields.u32()?);
        let (index, start, count) = (fields.u32()?, fields.u32()?, fields.u32()?);
        let data = match flags & 0b111 {
            1 => Data::All,
            2 => Data::Flags(fields.0.get(..count as usize)?),
            4 => Data::Events,
            _ => return None,
        };
        let action = match flags & !0b111 {
            0x08 => Action::Mask,
            0x10 => Action::Unmask,
            0x20 => Action::Trigger,
            _ => return None,
        };
        Some(Self { index, start, count, data, action })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_says_how_long_its_message_is_and_lies_about_nothing() {
        let of = |size: u32, flags: u32| {
            let mut bytes = [0; HEADER];
            bytes[..4].copy_from_slice(&[7, 0, 9, 0]);
            bytes[4..8].copy_from_slice(&size.to_le_bytes());
            bytes[8..12].copy_from_slice(&flags.to_le_bytes());
            Header::decode(&bytes)
        };
        assert_eq!(of(16, 0).body(), Some(0));
        assert_eq!(of((HEADER + MOST_BODY) as u32, 0).body(), Some(MOST_BODY));
        for size in [0, 15, (HEADER + MOST_BODY) as u32 + 1, u32::MAX] {
            assert_eq!(of(size, 0).body(), None, "{size}");
        }
        assert!(of(16, 0x10).is_posted() && of(16, 0x10).is_command() && !of(16, 1).is_command());
        assert_eq!(of(16, 0).reply(&[1, 2]), [7, 0, 9, 0, 18, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(of(16, 0).refusal(22)[8..], [0x21, 0, 0, 0, 22, 0, 0, 0]);
    }

    #[test]
    fn a_region_that_can_be_mapped_says_where_if_there_is_room_to() {
        let (short, whole) = region_info(2, 8192, Some(4096), 32);
        assert_eq!((short.len(), whole), (32, false));
        assert_eq!((short[0], short[4], short[12]), (64, 15, 32));
        let (long, whole) = region_info(2, 8192, Some(4096), 64);
        assert_eq!((long.len(), whole, long[12]), (64, true, 32));
        assert_eq!(long[56..], 4096u64.to_le_bytes());
        let (none, whole) = region_info(1, 0, None, 32);
        assert_eq!((none.len(), whole, none[0], none[4]), (32, true, 32, 0));
    }

    #[test]
    fn interrupts_are_set_as_the_flags_say_and_in_no_other_way() {
        let message = |flags: u32, count: u32, data: &[u8]| {
            let mut body = Vec::new();
            for field in [20, flags, MSIX, 3, count] {
                body.extend(field.to_le_bytes());
            }
            body.extend(data);
            body
        };
        let body = message(0x22, 2, &[1, 0]);
        let set = SetInterrupts::decode(&body).unwrap();
        assert_eq!((set.data, set.action, set.start, set.count), (Data::Flags(&[1, 0]), Action::Trigger, 3, 2));
        assert!(SetInterrupts::decode(&message(0x22, u32::MAX, &[1])).is_none(), "more flags than there are bytes");
        for flags in [0, 1, 0x20, 0x23, 0x39, 0x41, u32::MAX] {
            assert!(SetInterrupts::decode(&message(flags, 0, &[])).is_none(), "{flags:#x}");
        }
        assert!(SetInterrupts::decode(&body[..19]).is_none());
    }
}
