//! One other process: rings for packets, and what is needed to wake it and to learn that it has ended.

use super::LocalError;
use crate::address::{Address, GIDS};
use crate::boundary::Kept;
use millrace_dma::{OtherProcess, Pages, Region, Seat};
use millrace_rdma::engine::Rings;
use millrace_rdma::local::{CHANNEL_LEN, Peer, Receiver, Sender, Side};
use millrace_rdma::number::Gid;
use millrace_rdma::transport::Origin;
use millrace_rdma::wire::{Format, Path};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::sync::Arc;

/// What a session consists of before it is one.
pub struct Parts {
    pub address: Address,
    pub link: Arc<Kept>,
    pub pid: Option<Pid>,
    pub directory: OwnedFd,
    pub channel: Region,
    pub side: Side,
    pub bell: OwnedFd,
    /// Taken before the other process learned where the own directory is.
    pub seat: Seat,
}

/// Memory for a channel.
pub fn channel() -> Result<Region, LocalError> {
    Region::allocate(CHANNEL_LEN, Pages::Ordinary).map_err(|error| LocalError::Peer(error.into()))
}

/// Another process.
pub struct Session {
    pub address: Address,
    pub gids: Vec<(Gid, Format)>,
    pub link: Arc<Kept>,
    pub pid: Option<Pid>,
    /// Readable when the process has ended. None: it cannot be seen from here.
    pub ended: Option<Arc<OwnedFd>>,
    pub bell: OwnedFd,
    pub ring: Rings,
    /// Which end of the channel this process is.
    pub side: Side,
    /// Among several sessions with that process: both ends send by the one with the highest rank ([`Sessions`](super::Sessions)).
    pub rank: (bool, u64),
    /// There are several with that process.
    pub is_one_of_many: bool,
    /// Among those that reach our memory: they are waited for as long as it is there.
    pub seat: Seat,
    /// Where it is among those whose memory we reach.
    pub peer: usize,
    /// Something was sent, and it was not looked whether the process sleeps.
    pub has_sent: bool,
    /// Since when it has had no room, in nanoseconds.
    pub full_since: Option<u64>,
    /// It has written what is no packet: nothing more is taken from it.
    pub is_broken: bool,
}

impl Session {
    /// From its parts. The peer is for whoever reaches memory.
    pub fn new(parts: Parts) -> Result<(Self, Peer), LocalError> {
        let Parts { address, link, pid, directory, channel, side, bell, seat } = parts;
        let window = channel.window();
        let memory = |error: millrace_dma::OutOfRange| LocalError::Peer(error.into());
        let (sender, receiver) =
            (Sender::new(window, side).map_err(memory)?, Receiver::new(window, side).map_err(memory)?);
        let ended = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()).map(Arc::new);
        let other = pid.and_then(|pid| OtherProcess::new(pid, link.clone()));
        let peer = Peer::new(directory, window, side, other)?;
        let gids = (0..GIDS).filter_map(|index| address.gid(index)).collect();
        let session = Self {
            address,
            gids,
            link,
            ended,
            bell,
            ring: Rings::new(sender, receiver),
            side,
            rank: (false, 0),
            is_one_of_many: false,
            seat,
            pid,
            peer: usize::MAX,
            has_sent: false,
            full_since: None,
            is_broken: false,
        };
        Ok((session, peer))
    }

    /// Which of its GIDs that is.
    pub fn index(&self, gid: &Gid, format: Format) -> Option<u8> {
        self.gids.iter().position(|own| own == &(*gid, format)).map(|index| index as u8)
    }

    /// Where a packet came from that went between these two of the GIDs. `None`: there are no such ones.
    #[inline]
    pub fn origin(theirs: &Address, ours: &Address, gids: (u8, u8)) -> Option<Origin> {
        let (destination, format) = theirs.gid(gids.0.into())?;
        let (source, own_format) = ours.gid(gids.1.into())?;
        let path = Path {
            format,
            source_mac: ours.mac,
            destination_mac: theirs.mac,
            source,
            destination,
            hop_limit: 64,
            traffic_class: 0,
            flow_label: 0,
            source_port: 0,
        };
        let origin = Origin { path, grh: [0; 40], congested: false, service_level: 0 };
        (format == own_format).then_some(origin)
    }
}
