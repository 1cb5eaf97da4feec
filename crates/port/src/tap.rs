//! `tap:NAME`: a wire to the Linux network stack.
//!
//! What Linux sends to interface `NAME` comes in here, what the card sends Linux receives. The interface lives as long as
//! the port, unless it was there before (`ip tuntap add`), and needs no more than `ip address add` to be used. It is a
//! live wire: a frame for which the card has no room is dropped and counted as [`DropReason::NoRoom`].
//!
//! A tap moves one frame per system call; Linux has no call that moves several.

mod sys;

use crate::{Accept, DropReason, MAX_FRAME_LEN, Port, PortCounters, Sink, Taken, null::check_len, spec::TapName};
use millrace_dma::Span;
use rustix::{
    fs::OFlags,
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, socket_with},
};
use std::{
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd},
    os::unix::fs::OpenOptionsExt,
    sync::Arc,
};

const TUN: &str = "/dev/net/tun";

/// Why there is no tap interface.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// The kernel or the container has no tap interfaces.
    #[error(
        "tap:{0} needs {TUN}, which is missing; load it with `modprobe tun`, or give it to the container \
         (`--device {TUN}`)"
    )]
    NoDevice(TapName),
    /// Not allowed.
    #[error(
        "tap:{0} needs root or CAP_NET_ADMIN; try sudo, or have root make the interface for you: `ip tuntap add {0} mode tap user $USER`, `ip link set {0} up`"
    )]
    NotPermitted(TapName),
    /// Somebody else has it.
    #[error("tap:{0} is in use by another program; stop that program or choose another name")]
    Busy(TapName),
    /// An interface of another kind has this name.
    #[error("there is an interface {0} and it is no tap interface; choose another name (`ip link` lists those taken)")]
    OtherKind(TapName),
    /// Anything else.
    #[error("cannot {step} tap:{name}: {source}; `dmesg` may say more")]
    System {
        /// What failed.
        step: &'static str,
        /// The interface.
        name: TapName,
        /// What the system said.
        source: io::Error,
    },
}

impl TapError {
    fn from_errno(errno: Errno, step: &'static str, name: &TapName) -> Self {
        let name = name.clone();
        match errno {
            Errno::NOENT | Errno::NODEV | Errno::NXIO if step == "open" => Self::NoDevice(name),
            Errno::PERM | Errno::ACCESS => Self::NotPermitted(name),
            Errno::BUSY => Self::Busy(name),
            Errno::INVAL if step == "create" => Self::OtherKind(name),
            _ => Self::System { step, name, source: errno.into() },
        }
    }
}

/// One tap interface.
pub struct TapPort {
    tun: File,
    name: TapName,
    /// One byte longer than a frame, so that a longer one shows.
    scratch: Box<[u8; MAX_FRAME_LEN + 1]>,
    /// Errors that are no news any more are not logged.
    warned: bool,
    /// Somebody has deleted the interface; nothing can come any more.
    gone: bool,
    counters: Arc<PortCounters>,
}

impl TapPort {
    /// Makes the interface, or takes one over that is there and that nobody uses, and brings it up.
    ///
    /// # Errors
    /// [`TapError`].
    pub fn open(name: &TapName) -> Result<Self, TapError> {
        let failed = |step| {
            move |error: io::Error| match Errno::from_io_error(&error) {
                Some(errno) => TapError::from_errno(errno, step, name),
                None => TapError::System { step, name: name.clone(), source: error },
            }
        };
        let tun = File::options()
            .read(true)
            .write(true)
            .custom_flags(OFlags::NONBLOCK.bits() as i32)
            .open(TUN)
            .map_err(failed("open"))?;
        sys::attach(&tun, name).map_err(|errno| TapError::from_errno(errno, "create", name))?;
        socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
            .and_then(|socket| sys::bring_up(socket, name))
            .map_err(|errno| TapError::from_errno(errno, "bring up", name))?;
        Ok(Self {
            tun,
            name: name.clone(),
            scratch: Box::new([0; MAX_FRAME_LEN + 1]),
            warned: false,
            gone: false,
            counters: Arc::default(),
        })
    }

    fn drop_tx(&self, reason: DropReason) -> Taken {
        self.counters.count_tx_drops(reason, 1);
        Taken::Dropped(reason)
    }

    #[cold]
    fn warn(&mut self, what: &str, error: Errno) {
        if !self.warned {
            self.warned = true;
            tracing::warn!("tap:{}: {what}: {error}; further errors are only counted", self.name);
        }
    }
}

impl Port for TapPort {
    fn transmit(&mut self, frame: Span<'_>) -> Taken {
        if let Err(reason) = check_len(frame.len()) {
            return self.drop_tx(reason);
        }
        let len = frame.read_into(&mut self.scratch[..]);
        loop {
            match rustix::io::write(&self.tun, &self.scratch[..len]) {
                // A tap takes a frame as a whole or not at all.
                Ok(_) => {
                    self.counters.count_tx(1, len as u64);
                    return Taken::Yes;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Taken::Full,
                // What Linux says of an interface that somebody has set down.
                Err(errno @ Errno::IO) => {
                    self.warn("the interface is down", errno);
                    return self.drop_tx(DropReason::LinkDown);
                }
                Err(errno) => {
                    self.warn("cannot send", errno);
                    return self.drop_tx(DropReason::WriteFailed);
                }
            }
        }
    }

    fn receive(&mut self, budget: usize, sink: &mut dyn Sink) -> usize {
        let mut taken = 0;
        if self.gone {
            return 0;
        }
        for _ in 0..budget {
            let len = match rustix::io::read(&self.tun, &mut self.scratch[..]) {
                Ok(len) => len,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => continue,
                Err(errno) => {
                    self.warn("cannot receive any more", errno);
                    self.gone = true;
                    self.counters.count_rx_drops(DropReason::ReadFailed, 1);
                    break;
                }
            };
            if let Err(reason) = check_len(len) {
                self.counters.count_rx_drops(reason, 1);
                continue;
            }
            match sink.take(Span::from_slice(&self.scratch[..len])) {
                Accept::Taken => {
                    self.counters.count_rx(1, len as u64);
                    taken += 1;
                }
                Accept::Full => {
                    self.counters.count_rx_drops(DropReason::NoRoom, 1);
                    // What else has come waits in the interface's own queue; perhaps there is room next time.
                    break;
                }
            }
        }
        taken
    }

    fn can_wait(&self) -> bool {
        false
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        // Of an interface that is gone the descriptor is "readable" for ever.
        (!self.gone).then(|| self.tun.as_fd())
    }

    fn counters(&self) -> &Arc<PortCounters> {
        &self.counters
    }
}

#[cfg(test)]
mod tests;
