//! Policies: which packets have to be protected, and how (RFC 4301 §4.4.1), as Linux has them.

use std::net::IpAddr;

use crate::association::{Association, Mode};
use crate::ip::protocol;
use crate::refusal::Refusal;
use crate::selector::{Flow, Mark, Selector};

/// For which packets a policy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Those for this host.
    In,
    /// Those that leave, forwarded ones among them.
    Out,
    /// Those that are forwarded, when they arrive.
    Forward,
}

/// What a policy says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Action {
    /// They may pass, protected as its templates say.
    #[default]
    Allow,
    /// They may not.
    Block,
}

/// An association that a policy asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Template {
    /// Where its packets come from; `None`: from anywhere, or from where the packet itself does.
    pub source: Option<IpAddr>,
    /// Where they go.
    pub destination: Option<IpAddr>,
    /// 50 for ESP; others are the kernel's.
    pub protocol: u8,
    /// Its SPI; 0 for any.
    pub spi: u32,
    /// Its number; 0 for any.
    pub reqid: u32,
    /// What it protects. `None`: a mode that is not here.
    pub mode: Option<Mode>,
    /// Whether packets without it are fine too.
    pub is_optional: bool,
}

impl Template {
    /// Whether a packet may have come by this association. In transport mode its addresses are the packet's.
    #[inline]
    pub fn accepts(&self, association: &Association) -> bool {
        let parameters = association.parameters();
        let is_from = |wanted: Option<IpAddr>, is: IpAddr| wanted.is_none_or(|wanted| wanted == is);
        self.protocol == protocol::ESP
            && (self.spi == 0 || self.spi == parameters.id.spi)
            && (self.reqid == 0 || self.reqid == parameters.reqid)
            && self.mode == Some(parameters.mode)
            && (parameters.mode == Mode::Transport
                || is_from(self.source, parameters.source) && is_from(self.destination, parameters.id.destination))
    }
}

/// A policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Which packets.
    pub selector: Selector,
    /// Those that come, go, or are forwarded.
    pub direction: Direction,
    /// Lower ones come first; of the same, older ones.
    pub priority: u32,
    /// The kernel's number; 0 for none.
    pub index: u32,
    /// What it says.
    pub action: Action,
    /// Marks of packets that it is for.
    pub mark: Mark,
    /// Number of its XFRM interface; 0 for none.
    pub if_id: u32,
    /// What packets have to be protected by.
    pub templates: Vec<Template>,
}

impl Policy {
    /// Whether it is for this packet.
    #[inline]
    pub fn is_for(&self, flow: &Flow) -> bool {
        self.if_id == flow.if_id && self.mark.has(flow.mark) && self.selector.has(flow)
    }

    /// The one association that it asks for.
    ///
    /// # Errors
    /// [`Refusal::Blocked`], [`Refusal::Bundle`].
    #[inline]
    pub fn wanted(&self) -> Result<Option<&Template>, Refusal> {
        if self.action == Action::Block {
            return Err(Refusal::Blocked);
        }
        match &self.templates[..] {
            [] => Ok(None),
            [one] if one.protocol == protocol::ESP && one.mode.is_some() => Ok(Some(one)),
            _ => Err(Refusal::Bundle),
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        (self.selector, self.mark, self.if_id) == (other.selector, other.mark, other.if_id)
    }
}

/// By what a policy is removed: its number, or what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyKey {
    /// For which packets.
    pub direction: Direction,
    /// The kernel's number; 0 for none, and then the rest counts.
    pub index: u32,
    /// Which packets.
    pub selector: Selector,
    /// Marks of packets.
    pub mark: Mark,
    /// Number of the XFRM interface.
    pub if_id: u32,
}

/// All policies, each direction in the order in which they are looked at.
#[derive(Clone, Debug, Default)]
pub struct Policies {
    lists: [Vec<(Policy, u64)>; 3],
    defaults: [Action; 3],
}

impl Policies {
    /// Adds a policy, or exchanges the one for the same packets. `round` is kept with it.
    pub fn insert(&mut self, policy: Policy, round: u64) {
        let list = &mut self.lists[policy.direction as usize];
        list.retain(|(other, _)| !policy.is_same(other));
        let at = list.partition_point(|(other, _)| other.priority <= policy.priority);
        list.insert(at, (policy, round));
    }

    /// Removes a policy; whether there was one.
    pub fn remove(&mut self, key: &PolicyKey) -> bool {
        let list = &mut self.lists[key.direction as usize];
        let before = list.len();
        list.retain(|(policy, _)| {
            let is_it = match key.index {
                0 => (policy.selector, policy.mark, policy.if_id) == (key.selector, key.mark, key.if_id),
                index => policy.index == index,
            };
            !is_it
        });
        list.len() < before
    }

    /// Removes all that are not of this round.
    pub fn keep(&mut self, round: u64) {
        for list in &mut self.lists {
            list.retain(|(_, of)| *of == round);
        }
    }

    /// Removes all.
    pub fn clear(&mut self) {
        self.lists = Default::default();
    }

    /// Sets what becomes of packets of which no policy speaks (`ip xfrm policy setdefault`).
    pub fn set_default(&mut self, direction: Direction, action: Action) {
        self.defaults[direction as usize] = action;
    }

    /// What becomes of packets of which no policy speaks.
    pub const fn default_of(&self, direction: Direction) -> Action {
        self.defaults[direction as usize]
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.lists.iter().map(Vec::len).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of them, in the order in which they are looked at.
    pub fn iter(&self) -> impl Iterator<Item = &Policy> {
        self.lists.iter().flatten().map(|(policy, _)| policy)
    }

    /// The policy for a packet. It takes as long as there are policies: to be asked once for each flow.
    #[inline]
    pub fn find(&self, direction: Direction, flow: &Flow) -> Option<&Policy> {
        self.lists[direction as usize].iter().map(|(policy, _)| policy).find(|policy| policy.is_for(flow))
    }

    /// The association that a packet that leaves needs, if any.
    ///
    /// # Errors
    /// [`Refusal::Blocked`], [`Refusal::NoPolicy`], [`Refusal::Bundle`].
    pub fn wanted(&self, flow: &Flow) -> Result<Option<&Template>, Refusal> {
        match self.find(Direction::Out, flow) {
            Some(policy) => policy.wanted(),
            None if self.defaults[Direction::Out as usize] == Action::Block => Err(Refusal::NoPolicy),
            None => Ok(None),
        }
    }

    /// Whether a packet may come in that came by this association, or in the clear.
    ///
    /// # Errors
    /// [`Refusal::NoPolicy`], [`Refusal::Blocked`], [`Refusal::Bundle`], [`Refusal::Clear`], [`Refusal::Template`].
    pub fn check(&self, direction: Direction, flow: &Flow, by: Option<&Association>) -> Result<(), Refusal> {
        let by_tunnel = by.filter(|by| by.parameters().mode == Mode::Tunnel);
        let Some(policy) = self.find(direction, flow) else {
            let is_refused = by_tunnel.is_some() || self.defaults[direction as usize] == Action::Block;
            return if is_refused { Err(Refusal::NoPolicy) } else { Ok(()) };
        };
        if policy.action == Action::Block {
            return Err(Refusal::Blocked);
        }
        let mut required = policy.templates.iter().filter(|template| !template.is_optional);
        match (required.next(), required.next(), by) {
            (_, Some(_), _) => Err(Refusal::Bundle),
            (Some(_), None, None) => Err(Refusal::Clear),
            (Some(template), None, Some(by)) if template.accepts(by) => Ok(()),
            (Some(_), None, Some(_)) => Err(Refusal::Template),
            (None, None, _) => match by_tunnel {
                Some(by) if !policy.templates.iter().any(|template| template.accepts(by)) => Err(Refusal::Template),
                _ => Ok(()),
            },
        }
    }
}
