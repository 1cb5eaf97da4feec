//! What instructions and actions of a controller are in the flow table.

use super::datapath::FlowKey;
use super::fields::{has_tag, is_of_tag, port_of, set};
use super::groups::{Groups, Spread};
use super::meters::Meters;
use super::tunnels::TunnelPort;
use crate::wire::action::Action as Asked;
use crate::wire::error::{Refusal, action as refused, instruction as instruction_refused};
use crate::wire::group::{Bucket, kind};
use crate::wire::instruction::Instruction;
use crate::wire::oxm::Oxm;
use crate::wire::port::number;
use millrace_flow::action::Reason;
use millrace_flow::execute::emits;
use millrace_flow::field::{Field, LOCAL, Wide};
use millrace_flow::rule::{MAX_ACTIONS, RuleError, RuleSpec};
use millrace_flow::{Action, Match};
use std::net::IpAddr;

/// Most actions of an entry, a packet or a bucket as they are asked for: some, such as the queue of a port, are none of the flow table. With it,
/// whatever is asked for fits the answer that tells of it.
pub(super) const MOST_ASKED: usize = 2 * MAX_ACTIONS;

/// What compiling has to know.
pub(super) struct World<'a> {
    pub groups: &'a Groups,
    pub meters: &'a Meters,
    /// How many tables.
    pub tables: u8,
    /// Ports of the datapath that there are, with those that are tunnels.
    pub ports: &'a [u32],
    pub tunnels: &'a [TunnelPort],
    /// Those of them with somebody at the other end.
    pub live: &'a [u32],
    /// Those where nothing goes out, because a controller has said so.
    pub closed: &'a [u32],
    /// Queues of the host.
    pub queues: u32,
    /// Whether each bucket of a group that fails over has to be possible, and not only the one that counts now.
    pub all_buckets: bool,
}

/// What an entry depends on, so that it is compiled again when that changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Use {
    Group(u32),
    Meter(u32),
    /// All ports, or the state of some.
    Ports,
    /// It sends packets to controllers.
    Controller,
    /// It may find the time to live of packets at its end.
    Expires,
}

/// What becomes of an entry.
#[derive(Debug, Default)]
pub(super) struct Compiled {
    pub actions: Vec<Action>,
    pub uses: Vec<Use>,
    /// How many bytes go to controllers, if any do.
    pub told: u16,
}

/// Actions that are being put together.
struct Line<'a> {
    world: &'a World<'a>,
    /// What packets match that get there; `None`: anything may be done to them.
    matching: Option<&'a Match>,
    reason: Reason,
    /// The queue at the port that comes next.
    queue: Option<u32>,
    tagged: bool,
    /// Where packets come in, if that is known.
    in_port: Option<u32>,
    /// The other end of tunnels that do not have one of their own.
    remote: Option<IpAddr>,
    done: Compiled,
    /// The frame is not what it is to be any more for what comes behind a group.
    spoilt: bool,
    /// How many actions more there would be if of each group that fails over the longest bucket counted.
    spare: usize,
}

/// The actions of an entry.
///
/// # Errors
/// What cannot be, by type and code.
pub(super) fn entry(key: &FlowKey, instructions: &[Instruction], world: &World<'_>) -> Result<Compiled, Refusal> {
    let reason = if key.is_miss() { Reason::NoMatch } else { Reason::Action };
    let mut line = Line {
        matching: Some(&key.matching),
        in_port: in_port(key),
        ..Line::new(world, reason, has_tag(&key.matching))
    };
    let parts = Parts::of(instructions)?;
    if parts.apply.len() + parts.write.len() > MOST_ASKED {
        return Err(refused::TOO_MANY);
    }
    if let Some(meter) = parts.meter {
        if !world.meters.has(meter) {
            return Err(crate::wire::error::meter_mod::UNKNOWN_METER);
        }
        line.uses(Use::Meter(meter));
        line.done.actions.push(Action::Meter(meter));
    }
    line.all(parts.apply)?;
    let set = action_set(parts.write)?;
    line.queue = None;
    line.all(&set)?;
    if let Some((metadata, mask)) = parts.metadata.filter(|(_, mask)| *mask != 0) {
        line.push(Action::SetField {
            field: Field::Metadata,
            value: Wide::new(metadata & mask),
            mask: Wide::new(mask),
        })?;
    }
    if let Some(table) = parts.goto {
        if table <= key.table || table >= world.tables {
            return Err(instruction_refused::BAD_TABLE_ID);
        }
        // A table finds the action set as the one before has left it; here it is always empty.
        if !parts.write.is_empty() {
            return Err(instruction_refused::UNSUP_INST);
        }
        line.push(Action::GotoTable(table))?;
    }
    line.send_last_itself();
    let mut compiled = line.done;
    if compiled.actions.is_empty() {
        compiled.actions.push(Action::Drop);
    }
    let rule = RuleSpec {
        table: key.table,
        priority: key.priority,
        matching: key.matching,
        actions: compiled.actions.clone(),
        ..RuleSpec::default()
    };
    rule.check().map_err(|wrong| refused_by(&wrong))?;
    Ok(compiled)
}

/// Where packets of an entry come in, if it says so.
fn in_port(key: &FlowKey) -> Option<u32> {
    let is_said = key.matching.mask().get(Field::InPort) == Field::InPort.full();
    is_said.then(|| key.matching.key().get(Field::InPort).0[0] as u32)
}

/// The actions of a packet from the controller, which may be anything.
///
/// # Errors
/// What cannot be.
pub(super) fn packet(actions: &[Asked], in_port: Option<u32>, world: &World<'_>) -> Result<Vec<Action>, Refusal> {
    if actions.len() > MOST_ASKED {
        return Err(refused::TOO_MANY);
    }
    let mut line = Line { in_port, ..Line::new(world, Reason::Action, true) };
    line.all(actions)?;
    Ok(line.done.actions)
}

/// Instructions by what they are. Each may be there once.
#[derive(Default)]
struct Parts<'a> {
    meter: Option<u32>,
    apply: &'a [Asked],
    write: &'a [Asked],
    metadata: Option<(u64, u64)>,
    goto: Option<u8>,
}

impl<'a> Parts<'a> {
    fn of(instructions: &'a [Instruction]) -> Result<Self, Refusal> {
        let mut parts = Self::default();
        for (at, instruction) in instructions.iter().enumerate() {
            let same = |other: &Instruction| std::mem::discriminant(other) == std::mem::discriminant(instruction);
            if instructions[..at].iter().any(same) {
                return Err(instruction_refused::UNSUP_INST);
            }
            match instruction {
                Instruction::GotoTable(table) => parts.goto = Some(*table),
                Instruction::WriteMetadata { metadata, mask } => parts.metadata = Some((*metadata, *mask)),
                Instruction::WriteActions(actions) => parts.write = actions,
                Instruction::ApplyActions(actions) => parts.apply = actions,
                // It is empty already.
                Instruction::ClearActions => {}
                Instruction::Meter(meter) => parts.meter = Some(*meter),
                Instruction::Experimenter { .. } => return Err(instruction_refused::BAD_EXPERIMENTER),
            }
        }
        Ok(parts)
    }
}

/// The order of an action set (section 5.10), whatever the order in which it was written; of each kind the last one counts.
fn action_set(written: &[Asked]) -> Result<Vec<Asked>, Refusal> {
    let rank = |action: &Asked| match action {
        Asked::CopyTtlIn => 0,
        Asked::PopVlan | Asked::PopMpls(_) | Asked::PopPbb => 1,
        Asked::PushMpls(_) => 2,
        Asked::PushPbb(_) => 3,
        Asked::PushVlan(_) => 4,
        Asked::CopyTtlOut => 5,
        Asked::DecNwTtl | Asked::DecMplsTtl => 6,
        Asked::SetField(_) | Asked::SetNwTtl(_) | Asked::SetMplsTtl(_) => 7,
        Asked::SetQueue(_) => 8,
        Asked::Group(_) => 9,
        Asked::Output { .. } | Asked::Experimenter { .. } => 10,
    };
    let same = |one: &Asked, other: &Asked| match (one, other) {
        (Asked::SetField(one), Asked::SetField(other)) => (one.class, one.field) == (other.class, other.field),
        (one, other) => std::mem::discriminant(one) == std::mem::discriminant(other),
    };
    let mut set: Vec<Asked> = Vec::new();
    for action in written {
        set.retain(|other| !same(other, action));
        set.push(action.clone());
    }
    set.sort_by_key(rank);
    let has_group = set.iter().any(|action| matches!(action, Asked::Group(_)));
    // With a group, the output is left out (section 5.10).
    set.retain(|action| !has_group || !matches!(action, Asked::Output { .. }));
    // Who gets a packet comes last; without, nobody does, and nothing has to be done to it.
    let someone = set.iter().any(|action| matches!(action, Asked::Group(_) | Asked::Output { .. }));
    Ok(if someone { set } else { Vec::new() })
}

impl<'a> Line<'a> {
    fn new(world: &'a World<'a>, reason: Reason, tagged: bool) -> Self {
        let done = Compiled::default();
        Self {
            world,
            matching: None,
            reason,
            queue: None,
            tagged,
            in_port: None,
            remote: None,
            done,
            spoilt: false,
            spare: 0,
        }
    }

    fn all(&mut self, actions: &[Asked]) -> Result<(), Refusal> {
        actions.iter().try_for_each(|action| self.one(action))
    }

    fn push(&mut self, action: Action) -> Result<(), Refusal> {
        if self.spoilt {
            return Err(refused::UNSUPPORTED_ORDER);
        }
        // A group has many actions, and can be named many times: they are counted before there are too many.
        if self.done.actions.len() + self.spare >= MAX_ACTIONS {
            return Err(refused::TOO_MANY);
        }
        self.done.actions.push(action);
        Ok(())
    }

    fn uses(&mut self, of: Use) {
        if !self.done.uses.contains(&of) {
            self.done.uses.push(of);
        }
    }

    fn one(&mut self, action: &Asked) -> Result<(), Refusal> {
        match action {
            Asked::Output { port, max_len } => {
                if *port == number::CONTROLLER {
                    self.done.told = self.done.told.max(*max_len);
                }
                self.output(*port)
            }
            Asked::SetQueue(queue) => {
                if *queue >= self.world.queues {
                    return Err(refused::BAD_QUEUE);
                }
                self.queue = Some(*queue);
                Ok(())
            }
            Asked::Group(group) => self.group(*group),
            Asked::SetField(field) if field.is_tunnel_target() => self.aim(field),
            Asked::SetField(field) => {
                let action = set(field)?;
                if matches!(action, Action::SetField { field, .. } if is_of_tag(field)) && !self.tagged {
                    return Err(refused::MATCH_INCONSISTENT);
                }
                self.push(action)
            }
            Asked::SetNwTtl(ttl) => {
                let (field, value) = (Field::NwTtl, Wide::new((*ttl).into()));
                self.push(Action::SetField { field, value, mask: field.full() })
            }
            Asked::SetMplsTtl(ttl) => {
                let (field, value) = (Field::MplsTtl, Wide::new((*ttl).into()));
                self.push(Action::SetField { field, value, mask: field.full() })
            }
            Asked::DecNwTtl => {
                self.uses(Use::Expires);
                self.push(Action::DecTtl)
            }
            Asked::PushVlan(kind) => {
                if !matches!(kind, 0x8100 | 0x88a8) {
                    return Err(refused::BAD_ARGUMENT);
                }
                self.tagged = true;
                self.push(Action::PushVlan(*kind))
            }
            Asked::PopVlan => {
                if !std::mem::replace(&mut self.tagged, false) {
                    return Err(refused::MATCH_INCONSISTENT);
                }
                self.push(Action::PopVlan)
            }
            Asked::Experimenter { .. } => Err(refused::BAD_EXPERIMENTER),
            Asked::CopyTtlOut
            | Asked::CopyTtlIn
            | Asked::DecMplsTtl
            | Asked::PushMpls(_)
            | Asked::PopMpls(_)
            | Asked::PushPbb(_)
            | Asked::PopPbb => Err(refused::BAD_TYPE),
        }
    }

    fn output(&mut self, port: u32) -> Result<(), Refusal> {
        let to = if port == number::IN_PORT { self.in_port } else { port_of(port) };
        if to.is_some_and(|to| self.world.closed.contains(&to)) {
            self.uses(Use::Ports);
            return Ok(());
        }
        match port {
            number::IN_PORT => {
                self.uses(Use::Ports);
                self.no_queue()?;
                match self.in_port.and_then(|port| self.tunnel(port)) {
                    Some(tunnel) => self.enter(tunnel, true),
                    None => self.push(Action::InPort),
                }
            }
            number::CONTROLLER => {
                self.uses(Use::Controller);
                self.push(Action::Punt(self.reason))
            }
            number::LOCAL => {
                self.uses(Use::Ports);
                let action = match self.queue {
                    Some(queue) => Action::Queue(u16::try_from(queue).map_err(|_| refused::BAD_QUEUE)?),
                    None => Action::Output(LOCAL),
                };
                self.push(action)
            }
            number::ALL | number::FLOOD => {
                self.uses(Use::Ports);
                self.no_queue()?;
                // Where a frame came in, `output` leaves it out. A tunnel that leads nowhere is no way.
                let open = self.world.ports.iter().filter(|port| !self.world.closed.contains(port));
                open.into_iter().try_for_each(|port| match self.tunnel(*port) {
                    Some(tunnel) if tunnel.remote.or(self.remote).is_none() => Ok(()),
                    Some(tunnel) => self.enter(tunnel, false),
                    None => self.push(Action::Output(*port)),
                })
            }
            _ => {
                let port = port_of(port).filter(|port| self.world.ports.contains(port)).ok_or(refused::BAD_OUT_PORT)?;
                self.uses(Use::Ports);
                self.no_queue()?;
                match self.tunnel(port) {
                    Some(tunnel) => self.enter(tunnel, false),
                    None => self.push(Action::Output(port)),
                }
            }
        }
    }

    /// Only the host has queues: whoever names one for another port is told that it has no effect there.
    fn no_queue(&self) -> Result<(), Refusal> {
        if self.queue.is_some() { Err(refused::BAD_QUEUE) } else { Ok(()) }
    }

    fn tunnel(&self, port: u32) -> Option<&'a TunnelPort> {
        self.world.tunnels.iter().find(|tunnel| tunnel.port == port)
    }

    /// Where tunnels lead from here on that do not say so themselves.
    fn aim(&mut self, field: &Oxm) -> Result<(), Refusal> {
        if self.world.tunnels.iter().all(|tunnel| tunnel.remote.is_some()) {
            return Err(refused::BAD_SET_TYPE);
        }
        let whole = field.mask.as_ref().is_none_or(|mask| mask.iter().all(|byte| *byte == 0xff));
        let address: [u8; 4] = field.value[..].try_into().map_err(|_| refused::BAD_SET_LEN)?;
        if !whole || address == [0; 4] {
            return Err(refused::BAD_SET_ARGUMENT);
        }
        self.remote = Some(address.into());
        Ok(())
    }

    fn enter(&mut self, tunnel: &TunnelPort, may_return: bool) -> Result<(), Refusal> {
        // What another table has set is not known here.
        let remote = tunnel.remote.or(self.remote).ok_or(refused::UNSUPPORTED_ORDER)?;
        if remote.is_ipv4() != tunnel.local.is_ipv4() {
            return Err(refused::BAD_OUT_PORT);
        }
        self.push(tunnel.send(remote, may_return))
    }

    /// Where nothing is to be done behind a tunnel, the frame itself goes there, and no copy.
    fn send_last_itself(&mut self) {
        let Some(Action::VxlanPort(port)) = self.done.actions.last() else { return };
        let Some(in_port) = self.in_port.filter(|in_port| *in_port != port.number) else { return };
        let out = if in_port == port.output { Action::InPort } else { Action::Output(port.output) };
        let last = [Action::EncapVxlan(Box::new(port.outer.clone())), out];
        self.done.actions.pop();
        self.done.actions.extend(last);
    }

    /// What buckets do is done to the frame as it was before the group. A bucket that changes it is done last, and nothing comes behind it.
    fn group(&mut self, number: u32) -> Result<(), Refusal> {
        let group = self.world.groups.get(number).ok_or(refused::BAD_OUT_GROUP)?;
        self.uses(Use::Group(number));
        if let Some(Spread::Queues(_)) = group.spread {
            return self.push(Action::Rss(number));
        }
        self.uses(Use::Ports);
        if let Some(Spread::Ports { alive, .. }) = &group.spread {
            return if alive.contains(&true) { self.push(Action::Balance(number)) } else { Ok(()) };
        }
        let mut parts = Vec::new();
        for bucket in group.active(self.world.live) {
            let part = self.bucket(bucket)?;
            self.done.told = self.done.told.max(part.told);
            part.uses.iter().for_each(|of| self.uses(*of));
            parts.extend(part.into_part());
        }
        parts.sort_by_key(|part| part.changes);
        let pushed: usize = parts.iter().map(|part| part.actions.len()).sum();
        for part in parts {
            part.actions.into_iter().try_for_each(|action| self.push(action))?;
            self.spoilt |= part.changes;
        }
        match group.desc.kind {
            kind::FAST_FAILOVER if self.world.all_buckets => self.others(&group.desc.buckets, pushed),
            _ => Ok(()),
        }
    }

    /// What a bucket does, by itself.
    fn bucket(&self, bucket: &Bucket) -> Result<Compiled, Refusal> {
        let new = Line::new(self.world, self.reason, self.tagged);
        let mut part = Line { in_port: self.in_port, remote: self.remote, ..new };
        part.all(&bucket.actions)?;
        Ok(part.done)
    }

    /// Any bucket of a group that fails over may count one day, and nobody is there then who could be told that it cannot be: what is put together is
    /// to be possible with each, `pushed` being the length of the one that counts now. One that changes the frame is behind all others and the last, so
    /// whether its changes can be does not depend on what other groups choose.
    fn others(&mut self, buckets: &[Bucket], pushed: usize) -> Result<(), Refusal> {
        let before = self.done.actions.len() - pushed;
        let mut longest = pushed;
        for bucket in buckets {
            let Some(part) = self.bucket(bucket)?.into_part() else { continue };
            longest = longest.max(part.actions.len());
            if part.changes {
                self.spoilt = true;
                self.check([&self.done.actions[..before], &part.actions].concat())?;
            }
        }
        self.spare += longest - pushed;
        let len = self.done.actions.len() + self.spare;
        if len > MAX_ACTIONS { Err(refused::TOO_MANY) } else { Ok(()) }
    }

    /// Whether these actions can be done to packets of the entry.
    fn check(&self, actions: Vec<Action>) -> Result<(), Refusal> {
        let Some(matching) = self.matching.copied() else { return Ok(()) };
        let rule = RuleSpec { matching, actions, ..RuleSpec::default() };
        rule.check().map_err(|wrong| refused_by(&wrong))
    }
}

/// What a bucket adds to an entry.
struct Part {
    actions: Vec<Action>,
    /// It changes the frame.
    changes: bool,
}

impl Compiled {
    /// As a part of a group: without anybody who gets the frame, nothing has to be done to it.
    fn into_part(self) -> Option<Part> {
        let changes = !self.actions.iter().all(emits);
        self.actions.iter().any(emits).then_some(Part { actions: self.actions, changes })
    }
}

fn refused_by(wrong: &RuleError) -> Refusal {
    match wrong {
        RuleError::NoTable(_) => crate::wire::error::flow_mod::BAD_TABLE_ID,
        RuleError::Backward { .. } => instruction_refused::BAD_TABLE_ID,
        RuleError::TooManyActions(_) => refused::TOO_MANY,
        RuleError::NotSettable(_) => refused::BAD_SET_TYPE,
        RuleError::SetValue(_) => refused::BAD_SET_ARGUMENT,
        RuleError::Needs { .. } => refused::MATCH_INCONSISTENT,
        RuleError::AfterGoto | RuleError::DropNotAlone | RuleError::NoAction => refused::UNSUPPORTED_ORDER,
        RuleError::Range { .. } => refused::BAD_ARGUMENT,
        RuleError::Meaningless | RuleError::Match(_) => crate::wire::error::matching::BAD_PREREQ,
    }
}
