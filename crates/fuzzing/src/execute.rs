//! Any actions on any bytes as a frame.

use arbitrary::{Result, Unstructured};
use millrace_flow::action::{Action, Reason, Vxlan, VxlanPort};
use millrace_flow::execute::{Emissions, Environment, Frame, HEADROOM, execute as run};
use millrace_flow::field::{Field, Wide};
use millrace_flow::rss::{Group, GroupSpec, MICROSOFT_KEY};
use millrace_flow::{Ingress, rule::MAX_ACTIONS};
use millrace_packet::parse::{Layers, MacAddress};
use std::net::IpAddr;
use std::sync::LazyLock;

static GROUP: LazyLock<Option<Group>> = LazyLock::new(|| {
    let spec = GroupSpec { inner: true, ..GroupSpec::spread(&MICROSOFT_KEY, 8, 8) };
    Group::new(&spec).ok()
});

/// Groups are there by even numbers, and meters admit most frames.
struct World(u32);

impl Environment for World {
    fn group(&self, group: u32) -> Option<&Group> {
        if group.is_multiple_of(2) { GROUP.as_ref() } else { None }
    }

    fn quic(&self, _: u32) -> Option<&millrace_flow::quic::Group> {
        None
    }

    fn now_ns(&self) -> u64 {
        0
    }

    fn admit(&mut self, meter: u32, _: usize) -> bool {
        !meter.is_multiple_of(8)
    }

    fn remark(&self, meter: u32) -> Option<u8> {
        meter.is_multiple_of(16).then_some(1)
    }

    fn random(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.0
    }

    fn neighbour(&mut self, address: IpAddr) -> Option<MacAddress> {
        (!address.is_loopback()).then_some(MacAddress([2, 0, 0, 0, 0, 1]))
    }

    fn own_mac(&mut self, _: IpAddr) -> Option<MacAddress> {
        Some(MacAddress([2, 0, 0, 0, 0, 2]))
    }
}

fn set_field(input: &mut Unstructured<'_>) -> Result<Action> {
    let field = *input.choose(Field::ALL)?;
    let mask = if input.arbitrary()? { field.full() } else { Wide(input.arbitrary()?).and(field.full()) };
    Ok(Action::SetField { field, value: Wide(input.arbitrary()?).and(mask), mask })
}

fn vxlan(input: &mut Unstructured<'_>) -> Result<Action> {
    let v6: bool = input.arbitrary()?;
    let address = |byte: u8| if v6 { IpAddr::from([byte; 16]) } else { IpAddr::from([byte; 4]) };
    let (src, dst) = (address(input.arbitrary()?), address(input.arbitrary()?));
    let outer = Vxlan {
        udp_dst: if input.ratio(1, 4)? { input.arbitrary()? } else { 4789 },
        udp_src: input.arbitrary()?,
        tos: input.arbitrary()?,
        dl_dst: input.arbitrary()?,
        checksum: input.arbitrary()?,
        ..Vxlan::new(input.int_in_range(0..=0xff_ffff)?, src, dst)
    };
    let outer = if input.ratio(1, 4)? { Vxlan { vni: None, ..outer } } else { outer };
    Ok(match input.arbitrary()? {
        Some(number) => Action::VxlanPort(Box::new(VxlanPort { number, output: input.arbitrary()?, outer })),
        None => Action::EncapVxlan(Box::new(outer)),
    })
}

fn action(input: &mut Unstructured<'_>) -> Result<Action> {
    Ok(match input.int_in_range(0..=21u8)? {
        0 => Action::Queue(input.arbitrary()?),
        1 => Action::Rss(input.arbitrary()?),
        2 => Action::Output(input.arbitrary()?),
        3 => Action::InPort,
        4 => Action::PushVlan(0x8100),
        5 => Action::PopVlan,
        6 => Action::PushPppoe(input.arbitrary()?),
        7 => Action::PopPppoe,
        8 => Action::DecTtl,
        9 => vxlan(input)?,
        10 => Action::DecapVxlan { port: input.arbitrary()? },
        11 => Action::Mirror(input.arbitrary()?),
        12 => Action::Sample { probability: input.arbitrary()?, port: 1 },
        13 => Action::Meter(input.arbitrary()?),
        14 => Action::Punt(Reason::Other(input.arbitrary()?)),
        15 => Action::Balance(input.arbitrary()?),
        _ => set_field(input)?,
    })
}

/// The actions that an input begins with; the rest of it is a frame.
fn actions(input: &mut Unstructured<'_>) -> Vec<Action> {
    let count = input.int_in_range(0..=12).unwrap_or(0);
    (0..count.min(MAX_ACTIONS)).map_while(|_| action(input).ok()).collect()
}

/// Does any actions to any frame; returns how many emissions came of it.
///
/// # Panics
/// Headers are said to be where there are none, or an emission has bytes that nobody has written.
pub fn execute(input: &[u8]) -> u64 {
    let mut input = Unstructured::new(input);
    let (actions, in_place) = (actions(&mut input), input.arbitrary().unwrap_or(false));
    let frame = input.take_rest();
    emissions(&actions, frame, in_place)
}

fn emissions(actions: &[Action], frame: &[u8], in_place: bool) -> u64 {
    let mut buffer = vec![0; HEADROOM + frame.len()];
    let ingress = Ingress { port: 1, ..Ingress::default() };
    let mut edited = if in_place {
        buffer[HEADROOM..].copy_from_slice(frame);
        Frame::in_place(&mut buffer, HEADROOM, frame.len(), ingress)
    } else {
        Frame::new(frame, &mut buffer, ingress)
    };
    let mut out = Emissions::new(6, 2048);
    let done = run(actions, &mut edited, &mut World(1), &mut out);
    assert!(edited.len() <= frame.len() + HEADROOM);
    let (layers, key) = (edited.layers(), edited.key());
    assert_eq!(layers, Layers::parse(edited.bytes()), "an edit has moved headers");
    assert_eq!(key, millrace_flow::Key::extract(edited.bytes(), &layers, edited.ingress()));
    let punted = done.is_err_and(|stop| stop.reason().is_some());
    assert!(!punted || !out.list().is_empty() || out.lost() > 0);
    for emission in out.list() {
        assert!(frame.is_empty() || !out.bytes(emission, &edited).is_empty());
    }
    out.list().len() as u64
}

#[cfg(test)]
mod tests {
    use crate::short_run;
    use arbitrary::Unstructured;

    /// A frame whose EtherType is that of IP, with UDP to the port of VXLAN, so that random actions find something.
    fn on_ip(bytes: &[u8]) -> u64 {
        let mut input = Unstructured::new(bytes);
        let actions = super::actions(&mut input);
        let mut frame = input.take_rest().to_vec();
        if frame.len() < 50 {
            return 0;
        }
        let len = frame.len() as u16;
        frame[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
        frame[16..18].copy_from_slice(&(len - 14).to_be_bytes());
        frame[20..24].copy_from_slice(&[0, 0, 64, 17]);
        frame[36..38].copy_from_slice(&4789u16.to_be_bytes());
        frame[38..42].copy_from_slice(&[(len - 34).to_be_bytes(), [0, 0]].concat());
        frame[42] |= 8;
        super::emissions(&actions, &frame, bytes[0] & 1 == 0)
    }

    #[test]
    fn short_run_of_execute() {
        short_run(super::execute, 20_000);
        let emitted = short_run(on_ip, 20_000);
        assert!(emitted > 10_000, "{emitted} emissions");
    }
}
