//! Starting a forwarder of any kind.

use millrace_tool::{cores, programs};

use super::forwarder::{Forwarder, Peer, TwoCores, Wiring};
use super::process::Process;
use super::rules::Numbers;
use super::{ovs, rules, testpmd};
use crate::rig::Cores;

/// Starts one and waits until its sockets can be connected to. Errors are sentences.
pub fn start(peer: Peer, wiring: Wiring, cores: Cores) -> Result<Forwarder, String> {
    let two = TwoCores::of(cores)?;
    // A child inherits the cores of the thread that starts it, and this thread is pinned.
    cores::unpin();
    let forwarder = match peer {
        Peer::Millrace => start_ours(wiring, two),
        Peer::OvsDpdk => ovs::start(wiring, two),
        Peer::Testpmd => testpmd::start(wiring, two),
    };
    cores.pin_application();
    forwarder
}

/// Our card with its ports connected, or with rules.
fn start_ours(wiring: Wiring, cores: TwoCores) -> Result<Forwarder, String> {
    let mut forwarder = Forwarder::new(wiring, None)?;
    let program = programs::beside(programs::MILLRACE).map_err(|why| format!("cannot find millrace: {why}"))?;
    let (folder, sockets) = (forwarder.folder().to_owned(), forwarder.sockets.clone());
    let lines = match wiring {
        Wiring::Through | Wiring::Back => None,
        Wiring::Ruled => Some(rules::through(Numbers::From0)),
        Wiring::Classified => Some(rules::classified(Numbers::From0)),
        Wiring::Vxlan => Some(rules::vxlan()),
    };
    let file = folder.join("rules");
    if let Some(lines) = &lines {
        rules::write(&file, lines)?;
    }
    let card = Process::start("millrace card", &program, &folder, |command| {
        command.args(["card", "--json", "--until-eof", "--poll", "--cpu", &cores.card.to_string(), "--listen"]);
        command.arg(folder.join("card.sock")).env_remove("MILLRACE_DEVICE");
        for socket in &sockets {
            command.arg("--port").arg(format!("vhost-user:{}", socket.display()));
        }
        match lines {
            Some(_) => command.arg("--rules").arg(&file),
            None => command.args(["--connect", if wiring == Wiring::Through { "0-1" } else { "0-0" }]),
        };
    })?;
    forwarder.add(card);
    forwarder.await_sockets()
}
