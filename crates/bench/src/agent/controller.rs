//! `ovs-ofctl` as a controller of an agent: what it does by itself, and what it has said, sent without waiting.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use millrace_tool::failure::Failure;
use millrace_tool::programs;
use tempfile::TempDir;

use crate::peers::process::{self, Process};
use crate::rig::Cores;

/// OpenFlow 1.3, and its messages that are needed here.
const VERSION: u8 = 4;
const HELLO: u8 = 0;
const ERROR: u8 = 1;
const ECHO: u8 = 2;
const FLOW_MOD: u8 = 14;
const BARRIER: u8 = 20;
/// Messages of the stream before a barrier.
const STRETCH: usize = 1000;
/// How long the agent may take for a barrier.
const PATIENCE: Duration = Duration::from_secs(60);

/// How a controller goes about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Way {
    Bundle,
    Stream,
    Each,
}

impl Way {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Way::Bundle => "bundle",
            Way::Stream => "stream",
            Way::Each => "each",
        }
    }
}

/// An agent, and what a controller says to it.
pub struct Controller {
    program: PathBuf,
    /// Where the agent is, as `ovs-ofctl` writes it, and as the system does.
    switch: String,
    port: u16,
    file: PathBuf,
    modifications: u64,
    /// The messages that `ovs-ofctl` makes of the file, each behind the other, with barriers.
    said: Vec<u8>,
    barriers: u64,
    stream: Option<TcpStream>,
    _agent: Process,
    _folder: TempDir,
}

impl Controller {
    /// Starts an agent for a card, and writes down what is to be done.
    pub fn start(cores: Cores, device: &str, flows: u32) -> Result<Self, Failure> {
        let program = process::find("ovs-ofctl", "openvswitch-common").map_err(Failure::Found)?;
        let file_failed = |source| Failure::File { doing: "cannot write", path: "a list of flows".into(), source };
        let folder = tempfile::Builder::new().prefix("millrace-bench-").tempdir().map_err(file_failed)?;
        let file = folder.path().join("flows");
        fs::write(&file, list(flows)).map_err(file_failed)?;
        let port = free_port().map_err(|why| Failure::Found(format!("no TCP port: {why}")))?;
        let millrace = programs::beside(programs::MILLRACE);
        let millrace = millrace.map_err(|source| Failure::File {
            doing: "cannot start",
            path: "millrace agent".into(),
            source,
        })?;
        // It ends with this thread; where it runs is its own matter.
        millrace_tool::cores::unpin();
        let agent = Process::start("agent", &millrace, folder.path(), |command| {
            command.args(["agent", "--device", device, "--listen", &format!("ptcp:{port}:127.0.0.1"), "--state"]);
            command.arg(folder.path().join("state")).arg("--control").arg(folder.path().join("control"));
        });
        cores.pin_application();
        let mut agent = agent.map_err(Failure::Found)?;
        let is_there = || TcpStream::connect(("127.0.0.1", port)).is_ok();
        agent.wait_until("its TCP port", is_there).map_err(Failure::Found)?;
        let switch = format!("tcp:127.0.0.1:{port}");
        let mut one = Self {
            program,
            switch,
            port,
            file,
            modifications: u64::from(flows) * 3,
            said: Vec::new(),
            barriers: 0,
            stream: None,
            _agent: agent,
            _folder: folder,
        };
        let switch = one.switch.clone();
        // Frames come back by it.
        let entry = "priority=65000,in_port=1,actions=set_queue:0,LOCAL";
        one.ask(&["add-flow", &switch, entry]).map_err(Failure::Found)?;
        one.record().map_err(Failure::Found)?;
        Ok(one)
    }

    /// All once; how many messages, and how many of them were refused.
    pub fn pass(&mut self, way: Way) -> Result<(u64, u64), String> {
        let file = self.file.display().to_string();
        let switch = self.switch.clone();
        let refused = match way {
            Way::Bundle => self.ask(&["--bundle", "add-flows", &switch, &file]).map(|()| 0)?,
            Way::Each => self.ask(&["add-flows", &switch, &file]).map(|()| 0)?,
            Way::Stream => self.play().map_err(|why| format!("the agent does not answer: {why}"))?,
        };
        Ok((self.modifications, refused))
    }

    fn ask(&self, words: &[&str]) -> Result<(), String> {
        let failed = |why: &dyn std::fmt::Display| format!("ovs-ofctl {}: {why}", words.join(" "));
        let output = Command::new(&self.program).args(["-O", "OpenFlow13"]).args(words).output();
        let output = output.map_err(|why| failed(&why))?;
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.success() && !said.contains("OFPT_ERROR") { Ok(()) } else { Err(failed(&said.trim())) }
    }

    /// Lets `ovs-ofctl` say everything to the agent, and listens.
    fn record(&mut self) -> Result<(), String> {
        let listener = TcpListener::bind("127.0.0.1:0").map_err(|why| why.to_string())?;
        let port = listener.local_addr().map_err(|why| why.to_string())?.port();
        let (agent, is_over) = (self.port, AtomicBool::new(false));
        let heard = thread::scope(|scope| {
            let is_over = &is_over;
            // It asks what there is by connections of their own.
            let between = scope.spawn(move || {
                let mut relays = Vec::new();
                for peer in listener.incoming() {
                    if is_over.load(Ordering::Acquire) {
                        break;
                    }
                    relays.push(scope.spawn(move || relay(peer?, TcpStream::connect(("127.0.0.1", agent))?)));
                }
                let heard = relays.into_iter().map(|relay| relay.join().unwrap_or_else(|_| Ok(Vec::new())));
                heard.collect::<std::io::Result<Vec<_>>>()
            });
            let done = self.ask(&["add-flows", &format!("tcp:127.0.0.1:{port}"), &self.file.display().to_string()]);
            // Pairs with the load above: one more connection, which is the last.
            is_over.store(true, Ordering::Release);
            let _ = TcpStream::connect(("127.0.0.1", port));
            let heard =
                between.join().map_err(|_| "the recorder panicked".to_owned())?.map_err(|why| why.to_string())?;
            done.map(|()| heard.concat())
        })?;
        if heard.len() as u64 != self.modifications {
            return Err(format!("ovs-ofctl has sent {} messages instead of {}", heard.len(), self.modifications));
        }
        for stretch in heard.chunks(STRETCH) {
            self.said.extend(stretch.iter().flatten());
            self.said.extend(message(BARRIER, self.barriers as u32, &[]));
            self.barriers += 1;
        }
        Ok(())
    }

    /// Says it again to the agent; how many errors came back.
    fn play(&mut self) -> std::io::Result<u64> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => {
                let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.write_all(&message(HELLO, 0, &[]))?;
                stream
            }
        };
        let mut reader = stream.try_clone()?;
        let barriers = self.barriers;
        let listener = thread::spawn(move || {
            let (mut done, mut errors) = (0, 0);
            while done < barriers {
                let (header, body) = next(&mut reader)?;
                match header[1] {
                    ERROR => errors += 1,
                    ECHO => reader.write_all(&answer(&header, ECHO + 1, &body))?,
                    kind => done += u64::from(kind == BARRIER + 1),
                }
            }
            Ok(errors)
        });
        stream.write_all(&self.said)?;
        let errors = listener.join().unwrap_or_else(|_| Err(std::io::Error::other("the listener panicked")));
        self.stream = Some(stream);
        errors
    }
}

/// Adds, modifies and deletes so many flows, each by itself.
fn list(flows: u32) -> String {
    let flow = |at: u32| {
        let [_, a, b, c] = at.to_be_bytes();
        format!("priority={},tcp,nw_dst=10.{a}.{b}.{c},tcp_dst=80", 1 + at % 50_000)
    };
    let add = (0..flows).map(|at| format!("add {},actions=drop\n", flow(at)));
    let modify = (0..flows).map(|at| format!("modify_strict {},actions=output:1\n", flow(at)));
    let delete = (0..flows).map(|at| format!("delete_strict {}\n", flow(at)));
    add.chain(modify).chain(delete).collect()
}

/// Stands between the two; the flow modifications that the controller has said.
fn relay(mut controller: TcpStream, mut switch: TcpStream) -> std::io::Result<Vec<Vec<u8>>> {
    let (mut from, mut to) = (switch.try_clone()?, controller.try_clone()?);
    // It ends where the switch does, which is when the controller has.
    let back = thread::spawn(move || std::io::copy(&mut from, &mut to));
    let mut heard = Vec::new();
    controller.set_nodelay(true)?;
    switch.set_nodelay(true)?;
    while let Ok((header, body)) = next(&mut controller) {
        let whole = [&header[..], &body].concat();
        switch.write_all(&whole)?;
        if header[1] == FLOW_MOD {
            heard.push(whole);
        }
    }
    switch.shutdown(std::net::Shutdown::Both)?;
    let _ = back.join();
    Ok(heard)
}

fn next(stream: &mut TcpStream) -> std::io::Result<([u8; 8], Vec<u8>)> {
    let mut header = [0; 8];
    stream.read_exact(&mut header)?;
    let len = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let mut body = vec![0; len.saturating_sub(header.len())];
    stream.read_exact(&mut body)?;
    Ok((header, body))
}

fn message(kind: u8, xid: u32, body: &[u8]) -> Vec<u8> {
    let len = (8 + body.len()) as u16;
    [&[VERSION, kind], &len.to_be_bytes()[..], &xid.to_be_bytes(), body].concat()
}

fn answer(header: &[u8; 8], kind: u8, body: &[u8]) -> Vec<u8> {
    let [.., a, b, c, d] = *header;
    message(kind, u32::from_be_bytes([a, b, c, d]), body)
}

fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
