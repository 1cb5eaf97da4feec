//! How a PTP clock is to be.

use crate::transport::Transport;
use statime::config::{
    AcceptAnyMaster, ClockIdentity, DelayMechanism, InstanceConfig, PortConfig, PtpMinorVersion, SdoId,
    TimePropertiesDS, TimeSource,
};
use statime::time::Interval;

/// Which parts a clock may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// What comes of comparing the clocks that there are.
    #[default]
    Any,
    /// It never leads others.
    Slave,
    /// It never follows.
    Master,
}

/// How the length of the path is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delay {
    /// To the master and back (E2E).
    #[default]
    EndToEnd,
    /// To the neighbour and back (P2P).
    PeerToPeer,
}

/// All that can be said of a PTP clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Address of the port; the identity of the clock is made of it.
    pub mac: [u8; 6],
    /// How messages travel.
    pub transport: Transport,
    /// 0 to 127.
    pub domain: u8,
    /// Which clock is the best: the lower the better.
    pub priority1: u8,
    /// The same, of clocks that are as good otherwise.
    pub priority2: u8,
    /// Which parts it may have.
    pub role: Role,
    /// How the path is measured.
    pub delay: Delay,
    /// Seconds between two Sync as a power of two: -3 is eight in a second.
    pub sync_log2: i8,
    /// The same for Announce.
    pub announce_log2: i8,
    /// The same for Delay_Req or Pdelay_Req.
    pub delay_log2: i8,
    /// A Sync says itself when it left, as well as can be told beforehand; there is no Follow_Up.
    pub one_step: bool,
    /// Seconds that TAI is ahead of UTC: the clock shows TAI, and says so to others. `None`: it shows any time.
    pub utc_offset: Option<i16>,
    /// What numbers of chance begin with: timers of several clocks are not to go off together.
    pub seed: u64,
}

/// Announces that may be missing before a master counts as lost: as few as the standard allows for all profiles.
const ANNOUNCES: u8 = 3;

impl Settings {
    /// An ordinary clock as everybody begins with.
    pub const fn new(mac: [u8; 6], transport: Transport) -> Self {
        Self {
            mac,
            transport,
            domain: 0,
            priority1: 128,
            priority2: 128,
            role: Role::Any,
            delay: Delay::EndToEnd,
            sync_log2: 0,
            announce_log2: 1,
            delay_log2: 0,
            one_step: false,
            utc_offset: None,
            seed: 0,
        }
    }

    pub(crate) fn instance(&self) -> InstanceConfig {
        InstanceConfig {
            clock_identity: ClockIdentity::from_mac_address(self.mac),
            // Any master is better than one that never leads: statime compares them all the same.
            priority_1: if self.role == Role::Slave { u8::MAX } else { self.priority1 },
            priority_2: if self.role == Role::Slave { u8::MAX } else { self.priority2 },
            domain_number: self.domain,
            sdo_id: SdoId::default(),
            slave_only: self.role == Role::Slave,
            path_trace: false,
        }
    }

    pub(crate) fn time_properties(&self) -> TimePropertiesDS {
        let source = TimeSource::InternalOscillator;
        match self.utc_offset {
            Some(offset) => TimePropertiesDS::new_ptp_time(
                Some(offset),
                statime::config::LeapIndicator::NoLeap,
                false,
                false,
                source,
            ),
            None => TimePropertiesDS::new_arbitrary_time(false, false, source),
        }
    }

    pub(crate) fn port(&self) -> PortConfig<AcceptAnyMaster> {
        let interval = Interval::from_log_2(self.delay_log2);
        PortConfig {
            acceptable_master_list: AcceptAnyMaster,
            delay_mechanism: match self.delay {
                Delay::EndToEnd => DelayMechanism::E2E { interval },
                Delay::PeerToPeer => DelayMechanism::P2P { interval },
            },
            announce_interval: Interval::from_log_2(self.announce_log2),
            announce_receipt_timeout: ANNOUNCES,
            sync_interval: Interval::from_log_2(self.sync_log2),
            master_only: self.role == Role::Master,
            delay_asymmetry: statime::time::Duration::ZERO,
            // linuxptp before 4 takes no other.
            minor_ptp_version: PtpMinorVersion::Zero,
        }
    }
}
