//! On which interfaces the program is, and how.

use super::layout::{TARGETS, device_flag as flag, global};
use super::link::{self, XdpLink};
use super::mirror::Change;
use super::{Engine, EngineError};
use libbpf_rs::{MapCore, MapFlags, Object, Program, TC_EGRESS, TC_INGRESS, TcAttachPoint, TcHook, TcHookBuilder};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::Relaxed;

/// How the program is attached to an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// As XDP, in the driver where it can, in front of Linux otherwise.
    Xdp,
    /// At the ingress of tc: for interfaces whose frames come as large segments, which XDP would break up.
    Tc,
    /// Not at all: the engine in user space has what comes by it ([`Engine::carrier`]). What leaves by it is judged.
    User,
}

/// What has been attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attached {
    /// How.
    pub how: How,
    /// Its slot in the program's maps.
    pub slot: u16,
}

/// The program on one interface.
pub(super) struct Attachment {
    how: How,
    pub(super) slot: u16,
    /// Whether the judge is at its egress.
    is_judged: bool,
    /// As XDP; dropped, it is not there any more. Filters of tc are removed by [`Engine::remove_filters`].
    link: Option<XdpLink>,
}

/// Numbers of the engine's own programs, by which others' are told from them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Numbers {
    xdp: u32,
    tc: u32,
    judge: u32,
}

impl Numbers {
    pub(super) fn of(object: &Object) -> Result<Self, EngineError> {
        let number = |name: &'static str| {
            let program = object.progs().find(|program| program.name() == name).ok_or(EngineError::Missing(name))?;
            Program::id_from_fd(program.as_fd()).map_err(EngineError::Load)
        };
        Ok(Self { xdp: number(link::PROGRAM)?, tc: number("router_tc")?, judge: number("router_judge")? })
    }

    /// Whether a program is one of them.
    pub(super) fn has(&self, program: u32) -> bool {
        [self.xdp, self.tc, self.judge].contains(&program)
    }
}

impl Attachment {
    /// The slot, if XDP can send frames there.
    pub(super) fn target(&self) -> Option<u16> {
        (self.how == How::Xdp).then_some(self.slot)
    }

    pub(super) fn is_xdp(&self) -> bool {
        self.how == How::Xdp
    }

    /// The flags that the maps have of it.
    pub(super) fn flags(&self) -> u32 {
        match self.how {
            How::Xdp | How::User => flag::ON,
            How::Tc => flag::ON | flag::TC,
        }
    }
}

/// By these the program's filters are known again after a crash: behind all others, so that what is judged at the egress is what leaves.
const PRIORITY: u32 = 49_151;
const HANDLE: u32 = 0x4d52;

impl Engine {
    /// Attaches the program to an interface: to what comes by it, in the way that is asked for, and to what leaves by it, where rules on
    /// trial are judged. What a dead process left there is replaced. The interface has to be told of with
    /// [`set_device`](Self::set_device), before or after.
    ///
    /// # Errors
    /// [`EngineError::Attach`], [`EngineError::Slots`], [`EngineError::Update`].
    pub fn attach(&self, ifindex: u32, how: How) -> Result<Attached, EngineError> {
        self.detach(ifindex)?;
        let attached = self.attach_afresh(ifindex, how);
        if attached.is_err() {
            // Not half of it.
            self.detach(ifindex)?;
            self.unpin(ifindex);
            self.remove_filters(ifindex);
        }
        attached
    }

    fn attach_afresh(&self, ifindex: u32, how: How) -> Result<Attached, EngineError> {
        let failed = |source| EngineError::Attach { ifindex, source };
        let slot = self.free_slot()?;
        self.zero_counters(slot)?;
        if how != How::Xdp {
            // What was left of XDP ends here.
            self.give_up(ifindex);
        }
        let left = self.adopted.lock().expect("no holder panics").remove(&ifindex);
        let link = match how {
            How::Xdp => {
                let link = self.attach_xdp(&self.program(link::PROGRAM)?, ifindex, left)?;
                let target =
                    self.maps.targets.update(&u32::from(slot).to_le_bytes(), &ifindex.to_le_bytes(), MapFlags::ANY);
                target.map_err(failed)?;
                Some(link)
            }
            How::Tc => {
                self.hook("router_tc", ifindex, TC_INGRESS).map_err(failed)?;
                None
            }
            How::User => None,
        };
        // Filters that a dead process has left, and that this one does not put its own in the place of.
        if how != How::Tc {
            self.remove_filter(ifindex, TC_INGRESS);
        }
        self.remove_filter(ifindex, TC_EGRESS);
        let attachment = Attachment { how, slot, is_judged: false, link };
        self.attached.lock().expect("no holder panics").insert(ifindex, attachment);
        let device = self.devices.lock().expect("no holder panics").get(&ifindex).copied();
        if let Some(device) = device {
            self.write_device(ifindex, &device)?;
        }
        let own = self.look_after_judges().into_iter().find(|(failed, _)| *failed == ifindex);
        own.map_or(Ok(()), |(_, error)| Err(error))?;
        self.bump(Change::Ruleset);
        Ok(Attached { how, slot })
    }

    /// What another interface had in this slot is not this one's.
    fn zero_counters(&self, slot: u16) -> Result<(), EngineError> {
        let key = u32::from(slot).to_le_bytes();
        let failed =
            |source| EngineError::Update { what: "an interface cannot be told to the router's program", source };
        self.maps.failed.update(&key, &[0; 4], MapFlags::ANY).map_err(failed)?;
        let none = vec![vec![0; 8]; libbpf_rs::num_possible_cpus().map_err(failed)?];
        self.maps.fast.update_percpu(&key, &none, MapFlags::ANY).map_err(failed)
    }

    /// Sends frames out of an interface again, after some were lost there: the other end of a pair that was down takes them when it is up.
    ///
    /// # Errors
    /// [`EngineError::Update`].
    pub fn trust_again(&self, ifindex: u32) -> Result<(), EngineError> {
        let failed =
            |source| EngineError::Update { what: "an interface cannot be told to the router's program", source };
        let slot = self.attached.lock().expect("no holder panics").get(&ifindex).map(|one| one.slot);
        let Some(key) = slot.map(|slot| u32::from(slot).to_le_bytes()) else { return Ok(()) };
        let lost = self.maps.failed.lookup(&key, MapFlags::ANY).map_err(failed)?;
        if lost.is_some_and(|lost| lost.iter().any(|byte| *byte != 0)) {
            self.maps.failed.update(&key, &[0; 4], MapFlags::ANY).map_err(failed)?;
            self.bump(Change::Ruleset);
        }
        Ok(())
    }

    /// Whether the engine's programs are not where it has put them at an interface: its link was ended or has another one's program, or its filters are not
    /// those that are said, by the numbers of their programs, for what comes in and for what goes out.
    pub fn has_lost(&self, ifindex: u32, filters: [u32; 2]) -> bool {
        let attached = self.attached.lock().expect("no holder panics");
        let Some(one) = attached.get(&ifindex) else { return false };
        one.link.as_ref().is_some_and(|link| !link.is_on(ifindex))
            || one.how == How::Tc && filters[0] != self.numbers.tc
            || one.is_judged && filters[1] != self.numbers.judge
    }

    /// Judges stand at the egress of all interfaces while rules are made, and of none while everything goes to Linux: they cost Linux more than
    /// the program at the ingress does.
    pub(super) fn look_after_judges(&self) -> Vec<(u32, EngineError)> {
        let is_on = [global::MODE, global::MODE6].iter().any(|mode| self.globals.word(*mode).load(Relaxed) != 0);
        let mut failed = Vec::new();
        for (ifindex, attachment) in self.attached.lock().expect("no holder panics").iter_mut() {
            if is_on && !attachment.is_judged {
                if let Err(source) = self.hook("router_judge", *ifindex, TC_EGRESS) {
                    // It may have gone just now. Without a judge no rule that leads out of it gets in force.
                    failed.push((*ifindex, EngineError::Attach { ifindex: *ifindex, source }));
                    continue;
                }
            } else if !is_on && attachment.is_judged {
                self.remove_own_filter(*ifindex, TC_EGRESS);
            }
            attachment.is_judged = is_on;
        }
        failed
    }

    /// Takes the program from an interface. Rules that lead out of it are refused from then on.
    ///
    /// # Errors
    /// [`EngineError::Update`].
    pub fn detach(&self, ifindex: u32) -> Result<(), EngineError> {
        let sent = self.fast_of(ifindex);
        let Some(attachment) = self.attached.lock().expect("no holder panics").remove(&ifindex) else { return Ok(()) };
        self.fast_before.fetch_add(sent, Relaxed);
        // First nothing is sent there any more, then the program goes.
        let device = self.devices.lock().expect("no holder panics").get(&ifindex).copied();
        if let Some(device) = device {
            self.write_device(ifindex, &device)?;
        }
        self.bump(Change::Ruleset);
        let _ = self.maps.targets.delete(&u32::from(attachment.slot).to_le_bytes());
        self.unpin(ifindex);
        // Another router's may have their place by now.
        self.remove_own_filter(ifindex, TC_INGRESS);
        self.remove_own_filter(ifindex, TC_EGRESS);
        Ok(())
    }

    /// Removes the engine's filters of tc from an interface: also those that a dead process has left where this one is not attached.
    pub fn remove_filters(&self, ifindex: u32) {
        self.remove_filter(ifindex, TC_INGRESS);
        self.remove_filter(ifindex, TC_EGRESS);
    }

    fn remove_filter(&self, ifindex: u32, point: TcAttachPoint) {
        // Often there is none.
        let _ = self.place_of_filter(ifindex, point).map(|mut hook| hook.detach());
    }

    fn remove_own_filter(&self, ifindex: u32, point: TcAttachPoint) {
        if let Some(mut hook) = self.place_of_filter(ifindex, point)
            && hook.query().is_ok_and(|program| self.numbers.has(program))
        {
            let _ = hook.detach();
        }
    }

    fn place_of_filter(&self, ifindex: u32, point: TcAttachPoint) -> Option<TcHook> {
        let program = self.program("router_tc").ok()?;
        let mut builder = TcHookBuilder::new(program.as_fd());
        builder.ifindex(ifindex as i32).handle(HANDLE).priority(PRIORITY);
        Some(builder.hook(point))
    }

    fn free_slot(&self) -> Result<u16, EngineError> {
        let attached = self.attached.lock().expect("no holder panics");
        let is_free = |slot: &u16| attached.values().all(|attachment| attachment.slot != *slot);
        (0..TARGETS as u16).find(is_free).ok_or(EngineError::Slots)
    }

    fn hook(&self, program: &'static str, ifindex: u32, point: TcAttachPoint) -> libbpf_rs::Result<()> {
        let program = self
            .object
            .progs()
            .find(|found| found.name() == program)
            .expect("the programs were found when they were loaded");
        let mut builder = TcHookBuilder::new(program.as_fd());
        builder.ifindex(ifindex as i32).replace(true).handle(HANDLE).priority(PRIORITY);
        let mut hook = builder.hook(point);
        hook.create()?;
        hook.attach().map(drop)
    }
}
