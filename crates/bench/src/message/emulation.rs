//! TCP over an Ethernet interface that is made of two endpoints: the source's rionet. Two network namespaces with a tap interface each, whose
//! frames are messages; a program in each, of which one sends 16 MiB at a time and the other one takes them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU16;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use millrace_message::endpoint::{Config, Endpoint};
use millrace_port::spec::{InterfaceName, InterfaceSpec};
use millrace_port::tap::TapPort;
use millrace_tool::clock::Moment;
use millrace_tool::cores;
use millrace_tool::ethernet::carry;
use millrace_tool::failure::Failure;
use millrace_tool::output::put;

use super::LARGE;
use super::end::PATIENCE;
use crate::ends::field;
use crate::peers::namespace::Namespace;
use crate::peers::process::{Process, run};
use crate::rig::Cores;

/// Where who takes listens.
const ADDRESS: &str = "10.77.14.2:7714";

/// Options of the hidden command that is one end of the cable.
#[derive(Debug, Args)]
pub struct CableArgs {
    /// Name of the endpoint
    name: String,
    /// Tap interface
    interface: InterfaceName,
    /// Core that it runs on
    #[arg(long)]
    core: Option<usize>,
    /// Call the other end
    #[arg(long)]
    call: bool,
}

/// Options of the hidden command that uses the interface.
#[derive(Debug, Args)]
pub struct TcpArgs {
    /// Where who takes listens
    address: SocketAddr,
    /// Core that it runs on
    #[arg(long)]
    core: Option<usize>,
    /// Send for so long
    #[arg(long)]
    seconds: Option<f64>,
}

/// Whoever cannot be pinned was told so before.
fn pin(core: Option<usize>) {
    if let Some(core) = core {
        let _ = cores::pin(core);
    }
}

/// Is one end of the cable, until it is killed or the other one is gone.
pub fn cable(args: &CableArgs) -> Result<(), Failure> {
    pin(args.core);
    let failed = |error: &dyn std::fmt::Display| Failure::Found(error.to_string());
    let spec = InterfaceSpec { name: args.interface.clone(), queues: NonZeroU16::MIN };
    let taps = TapPort::open(&spec).map_err(|error| failed(&error))?;
    let name = (!args.call).then(|| args.name.clone());
    let endpoint = Endpoint::of_buffers(Config { name, ..Config::default() }).map_err(|error| failed(&error))?;
    let peer = if args.call {
        endpoint.connect(&args.name, PATIENCE).map_err(|error| failed(&error))?
    } else {
        endpoint.accept(PATIENCE).ok_or_else(|| failed(&"nobody has called"))?
    };
    for mut tap in taps {
        carry(&endpoint, peer, &mut tap).map_err(|error| failed(&error))?;
    }
    Ok(())
}

/// Takes what comes by TCP, or sends for a while and prints GB/s.
pub fn tcp(args: &TcpArgs) -> Result<(), Failure> {
    pin(args.core);
    let Some(seconds) = args.seconds else {
        let listener = TcpListener::bind(args.address).map_err(Failure::Output)?;
        let (mut stream, _) = listener.accept().map_err(Failure::Output)?;
        return Ok(take(&mut stream)?);
    };
    let begin = Instant::now();
    let mut stream = loop {
        match TcpStream::connect_timeout(&args.address, PATIENCE) {
            Ok(stream) => break stream,
            Err(error) if begin.elapsed() > PATIENCE => return Err(Failure::Output(error)),
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    };
    let rate = send(&mut stream, seconds)?;
    Ok(put(&format!("{rate}\n"))?)
}

/// Takes messages until there are no more, each into the same memory, and says for each that it is there.
fn take(stream: &mut TcpStream) -> std::io::Result<()> {
    let mut message = vec![1; LARGE as usize];
    loop {
        match stream.read_exact(&mut message) {
            Ok(()) => stream.write_all(&[1])?,
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// How fast messages go of which two are on their way, so that nothing waits for what says that one is there.
fn send(stream: &mut TcpStream, seconds: f64) -> std::io::Result<f64> {
    let (message, mut told) = (vec![2; LARGE as usize], [0]);
    // The first one is what TCP needs to find out how fast it may be.
    for _ in 0..2 {
        stream.write_all(&message)?;
    }
    stream.read_exact(&mut told)?;
    let (start, mut count) = (Moment::now(), 0_u32);
    loop {
        let is_last = start.seconds() >= seconds && count > 0;
        if !is_last {
            stream.write_all(&message)?;
        }
        stream.read_exact(&mut told)?;
        count += 1;
        if is_last {
            return Ok(f64::from(count) * LARGE as f64 / start.seconds() / 1e9);
        }
    }
}

/// Sets all of it up and measures: in GB/s. Errors are sentences.
pub fn measure(cores: Cores, seconds: f64) -> Result<f64, String> {
    let program = std::env::current_exe().map_err(|why| format!("cannot find this program: {why}"))?;
    let folder = tempfile::Builder::new().prefix("millrace-bench-").tempdir();
    let folder = folder.map_err(|why| format!("cannot make a temporary folder: {why}"))?;
    let spaces = [Namespace::named("c")?, Namespace::named("d")?];
    let name = format!("bench-cable-{}", std::process::id());
    let on = [cores.card, cores.app].map(|core| core.map(|core| ["--core".to_owned(), core.to_string()]));
    let mut cables = Vec::new();
    for (at, space) in spaces.iter().enumerate() {
        let interface = format!("mrb{}{at}", std::process::id());
        let call: &[&str] = if at == 1 { &["--call"] } else { &[] };
        let mut cable = Process::start(["cable", "calling-cable"][at], &program, folder.path(), |command| {
            command.args(["message-cable", &name, &interface]).args(call).args(on[at].iter().flatten());
        })?;
        // The link of the interface stays with the program that has made it.
        let show = |command: &mut Command| {
            command.args(["link", "show", "dev", &interface]);
        };
        let is_there = || run(space.starter(), show).is_ok();
        cable.wait_until("its interface", is_there)?;
        space.take(&interface)?;
        space.ip(&["address", "add", ["10.77.14.2/24", "10.77.14.1/24"][at], "dev", &interface])?;
        space.ip(&["link", "set", &interface, "up"])?;
        cables.push(cable);
    }
    let inside = |at: usize, command: &mut Command, arguments: &[&str]| {
        command.args(spaces[at].prefix()).arg(&program).args(["message-tcp", ADDRESS]);
        command.args(arguments).args(on[at].iter().flatten());
    };
    let _taker = Process::start("taker", spaces[0].starter(), folder.path(), |command| inside(0, command, &[]))?;
    let mut sender = Command::new(spaces[1].starter());
    inside(1, &mut sender, &["--seconds", &seconds.to_string()]);
    let output = sender.stdin(Stdio::null()).output().map_err(|why| format!("cannot start it: {why}"))?;
    cables.iter_mut().try_for_each(Process::check)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("who sends ended with {}: {}", output.status, said.trim()));
    }
    field(String::from_utf8_lossy(&output.stdout).trim(), 0)
}
