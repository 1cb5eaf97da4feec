//! Controllers: what each is to the switch, and what it wants to hear (section 6.3).

use super::bundles::Bundles;
use super::{Outgoing, Switch};
use crate::wire::Message;
use crate::wire::error::{Refusal, role_request};
use crate::wire::hello::Hello;
use crate::wire::multipart::Question;
use crate::wire::switch::{Role, Wants, role};

/// A controller that is connected.
#[derive(Debug)]
pub(super) struct Controller {
    pub greeted: bool,
    role: u32,
    wants: Wants,
    pub bundles: Bundles,
}

impl Controller {
    pub fn is_slave(&self) -> bool {
        self.role == role::SLAVE
    }
}

/// Whether slaves may not send it.
pub(super) fn is_for_masters(message: &Message) -> bool {
    match message {
        Message::MultipartRequest(_, Question::TableFeatures(tables)) => !tables.is_empty(),
        Message::FlowMod(_)
        | Message::GroupMod(_)
        | Message::MeterMod(_)
        | Message::PortMod(_)
        | Message::TableMod(_)
        | Message::PacketOut(_)
        | Message::BundleControl(_)
        | Message::BundleAdd(_)
        | Message::SetConfig(_) => true,
        _ => false,
    }
}

impl Switch {
    /// Somebody has connected; he is greeted.
    pub fn connected(&mut self, controller: u64) {
        let new =
            Controller { greeted: false, role: role::EQUAL, wants: Wants::default(), bundles: Bundles::default() };
        self.controllers.insert(controller, new);
        self.say(controller, 1, Message::Hello(Hello::own()));
    }

    /// He has gone. What he has begun and not ended is forgotten; entries stay.
    pub fn disconnected(&mut self, controller: u64) {
        self.controllers.remove(&controller);
        self.outgoing.retain(|outgoing| outgoing.controller != controller);
    }

    /// Whether a controller has said hello, and which role it has: `other`, `master` or `slave`.
    pub fn role_name(&self, controller: u64) -> Option<&'static str> {
        let known = self.controllers.get(&controller).filter(|known| known.greeted)?;
        Some(match known.role {
            role::MASTER => "master",
            role::SLAVE => "slave",
            _ => "equal",
        })
    }

    pub(super) fn role(&mut self, controller: u64, wanted: Role) -> Result<Message, Refusal> {
        if wanted.role > role::SLAVE {
            return Err(role_request::BAD_ROLE);
        }
        if matches!(wanted.role, role::MASTER | role::SLAVE) {
            // Generations go round (section 6.3.7).
            if self.generation.is_some_and(|known| (wanted.generation.wrapping_sub(known) as i64) < 0) {
                return Err(role_request::STALE);
            }
            self.generation = Some(wanted.generation);
        }
        if wanted.role == role::MASTER {
            for other in self.controllers.values_mut().filter(|other| other.role == role::MASTER) {
                other.role = role::SLAVE;
            }
        }
        let Some(known) = self.controllers.get_mut(&controller) else { return Err(role_request::BAD_ROLE) };
        if wanted.role != role::NOCHANGE {
            known.role = wanted.role;
        }
        let generation = self.generation.unwrap_or(u64::MAX);
        Ok(Message::RoleReply(Role { role: known.role, generation }))
    }

    pub(super) fn wants(&self, controller: u64) -> Wants {
        self.controllers.get(&controller).map_or_else(Wants::default, |known| known.wants)
    }

    pub(super) fn set_wants(&mut self, controller: u64, wants: Wants) {
        if let Some(known) = self.controllers.get_mut(&controller) {
            known.wants = wants;
        }
    }

    /// Whether anybody wants messages of this kind and reason.
    pub(super) fn listeners(&self, which: fn(&Wants) -> [u32; 2], reason: u8) -> Vec<u64> {
        let wants = |known: &Controller| which(&known.wants)[usize::from(known.is_slave())] >> reason & 1 == 1;
        let all = self.controllers.iter().filter(|(_, known)| known.greeted && wants(known));
        all.map(|(number, _)| *number).collect()
    }

    /// Tells all who want to know.
    pub(super) fn tell(&mut self, message: Message, which: fn(&Wants) -> [u32; 2], reason: u8) {
        for controller in self.listeners(which, reason) {
            self.outgoing.push(Outgoing { controller, xid: 0, message: message.clone() });
        }
    }
}
