//! The engine without the daemon, in a router whose kernel need not have 8021q or PPP: interfaces of another kind have the addresses and the
//! routes of those that it lacks, and the engine is told what they lie on. Linux cannot show what it does with such frames, so rules are put
//! in force without a trial. What is measured is the same program in the kernel.

use millrace_router::engine::layout::device_flag as flag;
use millrace_router::engine::{Device, Engine, How, Mode, State, Upper, UpperKind};

use super::inline::{Inline, Wire, index};
use super::lab::{LEFT, Lab, RIGHT};
use super::place::inside;
use super::work::{LEFT_MAC, RIGHT_MAC, SESSION, SINK_MAC, Traffic, VLAN_IN, VLAN_OUT, Work};

/// Ethernet type of a VLAN's tag.
const TAG: u16 = 0x8100;

/// The engine in a lab, which knows the interfaces that the work takes. The error is a sentence.
pub fn engine(lab: &Lab, work: Work) -> Result<Engine, String> {
    let failed = |why| format!("the router's program: {why}");
    inside(&lab.router, || {
        let engine = Engine::load(&millrace_router::engine::Config::default()).map_err(failed)?;
        let [left, right] = [(LEFT, LEFT_MAC), (RIGHT, RIGHT_MAC)].map(|(name, mac)| {
            let number = index(name)?;
            engine.set_device(number, &device(0, mac)).map_err(failed)?;
            engine.attach(number, How::Xdp).map_err(failed)?;
            Ok::<_, String>(number)
        });
        let (left, right) = (left?, right?);
        if work == Work::Vlan {
            let inner = Device { vlan: (TAG, VLAN_IN), ..device(left, LEFT_MAC) };
            let kind = UpperKind::Vlan(TAG, VLAN_IN);
            let number = lab.stand_in(LEFT, "lan")?;
            engine.set_upper(&Upper { lower: left, kind }, number).map_err(failed)?;
            engine.set_device(number, &Device { flags: inner.flags | flag::VLAN, ..inner }).map_err(failed)?;
        }
        if work.is_encapsulated() {
            let outer = device(right, RIGHT_MAC);
            let outer = match work {
                Work::Vlan => Device { flags: outer.flags | flag::VLAN, vlan: (TAG, VLAN_OUT), ..outer },
                _ => Device { flags: outer.flags | flag::PPPOE, session: SESSION, peer: SINK_MAC, ..outer },
            };
            engine.set_device(lab.stand_in(RIGHT, "wan")?, &outer).map_err(failed)?;
        }
        engine.set_mode(Mode::Route);
        Ok(engine)
    })
}

fn device(lower: u32, mac: [u8; 6]) -> Device {
    Device { flags: flag::UP | flag::FORWARD4, lower, mtu: 1500, mac, ..Device::default() }
}

/// Lets every flow make its rule, and puts it in force.
pub fn begin(engine: &Engine, inline: &mut Inline, traffic: Traffic) -> Result<(), String> {
    // These are Linux's, which forwards what has neither tag nor session, and knows no way for the others.
    inline.run(traffic, Wire::Routed, traffic.flows)?;
    engine.rules().filter(|rule| rule.state == State::Trial).for_each(|rule| {
        engine.trust(&rule);
    });
    let made = engine.rules().filter(|rule| rule.state == State::Active).count();
    match made as u64 == u64::from(traffic.flows) {
        true => Ok(()),
        false => Err(format!("of {} flows {made} have a rule", traffic.flows)),
    }
}

/// Packets that went by rules.
pub fn fast(engine: &Engine) -> Result<u64, String> {
    let fast = engine.fast().map_err(|why| format!("the router's program: {why}"))?;
    Ok(fast.iter().map(|(_, packets)| packets).sum())
}
