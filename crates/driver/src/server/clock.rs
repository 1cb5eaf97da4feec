//! The card's clock: who reads it gets its page, who steers it has the right to, and one at a time leads it.

use super::Server;
use super::replies::{Answer, Enclosed, Refusal};
use crate::locks::Owner;
use millrace_abi::clock::ClockRequest;
use millrace_abi::message::{ErrorCode, Reply};

impl Server {
    /// Does what a program wants of the clock that has the right to it.
    pub(super) fn order_clock(&mut self, number: u64, request: ClockRequest) -> Result<Answer, Refusal> {
        let invalid = |error| Refusal::new(ErrorCode::Invalid, error);
        match request {
            ClockRequest::Page => return self.clock_page(),
            ClockRequest::Steer(steering) => {
                self.is_ours_to_lead(number)?;
                self.card.steer_clock(steering).map_err(invalid)?;
            }
            ClockRequest::Lead => {
                self.is_ours_to_lead(number)?;
                self.clock_leader = Some(number);
            }
            ClockRequest::Report { report, measured } => {
                if self.clock_leader != Some(number) {
                    return Err(Refusal::new(ErrorCode::Invalid, "this program does not lead the clock"));
                }
                self.card.report_clock(report, measured);
            }
            ClockRequest::Release => self.leave_clock(number),
            ClockRequest::Bend { scaled_ppm } => self.card.bend_clock(scaled_ppm).map_err(invalid)?,
        }
        Ok((Reply::Done, Enclosed::Nothing))
    }

    fn clock_page(&self) -> Result<Answer, Refusal> {
        let page = self.card.clock_page().ok_or_else(|| Refusal::new(ErrorCode::System, "the clock has no page"))?;
        let fd = rustix::io::fcntl_dupfd_cloexec(page, 0).map_err(|_| Refusal::no_fds())?;
        Ok((Reply::ClockPage, Enclosed::Fd(fd)))
    }

    pub(super) fn is_ours_to_lead(&self, number: u64) -> Result<(), Refusal> {
        match self.clock_leader {
            Some(leader) if leader != number => {
                let pid = self.pid_of(Owner::Client(leader));
                let text = format!("process {pid} leads the clock (`millrace clock show`); end it first");
                Err(Refusal::new(ErrorCode::Busy, text))
            }
            _ => Ok(()),
        }
    }

    /// A connection leads the clock no longer, if it did: the clock goes on by itself.
    pub(super) fn leave_clock(&mut self, number: u64) {
        if self.clock_leader == Some(number) {
            self.clock_leader = None;
            self.card.release_clock();
        }
    }
}
