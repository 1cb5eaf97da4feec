//! A card in this process that others reach through a Unix socket: everything that touches `millrace-driver`,
//! `millrace-card` and `millrace-served` directly is here.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use millrace_abi::access::Right;
use millrace_abi::name::{CardOptions, MAX_PATH};
use millrace_card::Card;
pub use millrace_driver::SocketIdentity;
use millrace_driver::{Driver, Policy, peer_of};
use millrace_flow::language::RuleFile;
use millrace_hosted::{Server as Messages, Start as StartMessages};
use millrace_link::{Link, LinkError, Wanted};
use millrace_message::hosted;
use millrace_pci::{Functions, Kept, PciError};
use millrace_rdma::number::Gid;
use millrace_rdma::served::Quota;
use millrace_rdma::wire::Format;
use millrace_served::{Address, Caller, May, Server, Start, socket_of};
use millrace_tool::failure::Failure;
use millrace_tool::stop;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};

/// A card that listens until this is dropped.
pub struct Daemon {
    driver: Arc<Driver>,
}

impl Daemon {
    /// Builds the card with its rules and listens on `path`.
    pub fn start(path: &Path, options: &CardOptions, policy: Policy, rules: &RuleFile) -> Result<Self, Failure> {
        // The files of its ports may be pipes whose other end nobody opens.
        let card =
            stop::at_once(|| Card::with_rules(options, rules)).map_err(|error| Failure::Usage(error.to_string()))?;
        let driver = Driver::listen_for(card, path, policy).map_err(|error| Failure::Usage(error.to_string()))?;
        Ok(Self { driver: Arc::new(driver) })
    }

    /// The same of a card that takes over from another, and listens when it has.
    pub fn start_unheard(options: &CardOptions, policy: Policy, rules: &RuleFile) -> Result<Self, Failure> {
        let card =
            stop::at_once(|| Card::with_rules(options, rules)).map_err(|error| Failure::Usage(error.to_string()))?;
        let driver = Driver::unheard(card, policy).map_err(|error| Failure::Usage(error.to_string()))?;
        Ok(Self { driver: Arc::new(driver) })
    }

    /// The same of a card with a keeper, whose machines come before programs are heard.
    pub fn start_deaf(path: &Path, options: &CardOptions, policy: Policy, rules: &RuleFile) -> Result<Self, Failure> {
        let card =
            stop::at_once(|| Card::with_rules(options, rules)).map_err(|error| Failure::Usage(error.to_string()))?;
        let driver = Driver::listen_later(card, path, policy).map_err(|error| Failure::Usage(error.to_string()))?;
        Ok(Self { driver: Arc::new(driver) })
    }

    /// Hears programs from now on.
    pub fn hear(&self) -> Result<(), Failure> {
        self.driver.hear().map_err(|error| Failure::Usage(format!("programs cannot be heard: {error}")))
    }

    /// Listens in the place of the card from which this one has taken over. Machines have it by then, so that it goes on without as well.
    pub fn listen_on(&self, socket: OwnedFd, path: &Path) {
        if let Err(error) = self.driver.listen_on(socket, path) {
            millrace_tool::output::note(format!("programs cannot reach this card: {error}"));
        }
    }

    /// What it listens at, for the card after it.
    pub fn listener(&self) -> std::io::Result<Option<OwnedFd>> {
        self.driver.listener()
    }

    /// Another card listens there now.
    pub fn leave_socket(&self) {
        self.driver.leave_socket();
    }

    /// Which socket it listens on.
    pub fn socket(&self) -> Option<SocketIdentity> {
        self.driver.socket()
    }
}

/// The PCI functions of a card, which virtual machines reach by sockets of their own.
pub struct PciFunctions(Functions);

impl PciFunctions {
    /// Listens there.
    pub fn listen(options: &CardOptions, path: &Path, count: u32) -> Result<Self, Failure> {
        let functions = Functions::listen(options, path, count);
        functions.map(Self).map_err(|error| Failure::Usage(format!("--vfio-user: {error}")))
    }

    /// Asks the card that listens there for what it has, which it goes on with until [`PciFunctions::start`]; returns what it listens at for programs, too.
    pub fn take_over(
        options: &CardOptions,
        path: &Path,
        count: u32,
        listen: &Path,
    ) -> Result<(Self, Option<OwnedFd>), Failure> {
        let taken = Functions::take_over(options, path, count, Some(&known_everywhere(listen.to_owned())));
        let (functions, socket) = taken.map_err(|error| Failure::Usage(error.to_string()))?;
        Ok((Self(functions), socket))
    }

    /// Has the machines of a keeper, which listens there.
    pub fn kept(options: &CardOptions, path: &Path, count: u32, kept: Kept) -> Result<Self, Failure> {
        let functions = Functions::kept(options, path, count, kept);
        // A bug must not leave half a card: another one goes on with its machines.
        abort_on_panic();
        functions.map(Self).map_err(|error| Failure::Usage(format!("--vfio-user: {error}")))
    }

    /// What the card listens at for programs goes to the card that takes over from this one, too.
    pub fn listen_also(&mut self, path: &Path, socket: std::io::Result<Option<OwnedFd>>) -> Result<(), Failure> {
        let socket = socket.map_err(|error| Failure::Usage(format!("--vfio-user: {error}")))?;
        socket.into_iter().for_each(|socket| self.0.listens_also(&known_everywhere(path.to_owned()), socket));
        Ok(())
    }

    /// Whether another card has taken over.
    pub fn are_given(&self) -> bool {
        self.0.are_given()
    }

    /// Ends them. Whether another card has taken over by then.
    pub fn end(self) -> bool {
        self.0.end()
    }

    /// Which sockets they are.
    pub fn sockets(&self) -> impl Iterator<Item = (&Path, SocketIdentity)> {
        self.0.sockets().map(|(path, (device, inode))| (path, SocketIdentity { device, inode }))
    }

    /// Serves machines.
    pub fn start(&mut self, daemon: &Daemon) -> Result<(), Failure> {
        self.0.start(&daemon.driver).map_err(|error| {
            Failure::Usage(match error {
                PciError::TakeOver(error) => format!("--take-over: {error}"),
                error => format!("--vfio-user: {error}"),
            })
        })
    }

    /// Where they are, in order.
    pub fn paths(&self) -> Vec<String> {
        self.0.paths().map(|path| path.display().to_string()).collect()
    }
}

/// A thread that panics ends the process, when it has said why.
fn abort_on_panic() {
    let said = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |what| {
        said(what);
        std::process::abort();
    }));
}

/// Who all programs of a card are whose engine is in the card, if nothing else is said: an address for benchmarks (RFC 2544).
const RDMA_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 19, 255, 254));

/// What leads from the RDMA engine to other hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wire {
    /// The TX and the RX queue with that number, of the card itself.
    Queue(u32),
    /// A port of the engine's own.
    Port(String),
}

/// The RDMA engine of a card: where it works, and who its programs are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RdmaOptions {
    /// Its core; without one, any.
    pub core: Option<u32>,
    /// The IP address of its programs.
    pub address: Option<IpAddr>,
    /// What leads to other hosts; without it they reach each other.
    pub wire: Option<Wire>,
    /// Most bytes of payload of a packet; without it, what fits.
    pub mtu: Option<u16>,
}

impl RdmaOptions {
    /// The IP address of its programs.
    pub fn ip(&self) -> IpAddr {
        self.address.unwrap_or(RDMA_ADDRESS)
    }

    fn address(&self) -> Address {
        let ip = self.ip();
        let mac = Gid::mac_of_ip(ip);
        Address { mac, gids: [Gid::from_ip(ip), Gid::link_local(mac)] }
    }
}

/// The RDMA engine of a card, which programs reach by a socket of its own.
pub struct RdmaEngine {
    path: PathBuf,
    server: Server,
    link: Option<Link>,
    userfaultfd: Option<OwnedFd>,
}

impl RdmaEngine {
    /// Listens beside the card's socket, and opens the engine's own port if it is to have one.
    pub fn listen(card: &Path, options: &RdmaOptions) -> Result<Self, Failure> {
        let path = known_everywhere(socket_of(card));
        let ip = options.ip();
        if options.wire.is_some() && millrace_link::is_of_linux(ip) {
            millrace_tool::output::note(format!(
                "--rdma-ip: an interface of this host has the address {ip}, too. If it is on the wire of the engine, both answer for it: other hosts \
                 lose Linux's end, and answers go to the wrong one. Choose a free address of that network"
            ));
        }
        let failed = |error| Failure::Usage(format!("--rdma-cpu: no socket at {}: {error}", path.display()));
        let server = Server::listen(path.clone()).map_err(failed)?;
        let link = match &options.wire {
            Some(Wire::Port(port)) => {
                let wanted = Wanted { port: Some(port.clone()), ..Wanted::default() };
                Some(stop::at_once(|| Link::open(&wanted)).map_err(|error| wire_failed(&error))?)
            }
            _ => None,
        };
        // While the process has still the right; who runs a card without it has none to hand over.
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let userfaultfd = rustix::fs::open("/dev/userfaultfd", flags, Mode::empty()).ok();
        Ok(Self { path, server, link, userfaultfd })
    }

    /// Its socket, and which one that is.
    pub fn socket(&self) -> (&Path, SocketIdentity) {
        let (device, inode) = self.server.socket();
        (&self.path, SocketIdentity { device, inode })
    }

    /// Serves programs of those whom `policy` lets. The card listens at `card`.
    pub fn start(&mut self, card: &Path, options: &RdmaOptions, policy: Policy) -> Result<(), Failure> {
        if let Some(Wire::Queue(queue)) = options.wire {
            let card = Some(format!("unix:{}", card.display()));
            let wanted = Wanted { card, port: None, tx: Some(queue), rx: Some(queue) };
            self.link = Some(Link::open(&wanted).map_err(|error| wire_failed(&error))?);
        }
        let link = self.link.take();
        let mtu = mtu(options.mtu, link.as_ref())?;
        let cpu = options.core.map(|core| core as usize);
        let (may, userfaultfd) = (may(policy), self.userfaultfd.take());
        let start = Start { address: options.address(), quota: Quota::default(), cpu, link, mtu, may, userfaultfd };
        let started = self.server.start(start);
        started.map_err(|error| Failure::Usage(format!("--rdma-cpu: no thread for the engine: {error}")))
    }
}

/// The engine of messages of a card, which programs reach by a socket of its own.
pub struct MessageEngine {
    path: PathBuf,
    server: Messages,
}

impl MessageEngine {
    /// Listens beside the card's socket.
    pub fn listen(card: &Path) -> Result<Self, Failure> {
        let path = known_everywhere(hosted::socket_of(card));
        let failed = |error| Failure::Usage(format!("--message-cpu: no socket at {}: {error}", path.display()));
        let server = Messages::listen(path.clone()).map_err(failed)?;
        Ok(Self { path, server })
    }

    /// Its socket, and which one that is.
    pub fn socket(&self) -> (&Path, SocketIdentity) {
        let (device, inode) = self.server.socket();
        (&self.path, SocketIdentity { device, inode })
    }

    /// Serves programs of those whom `policy` lets, on that core or any.
    pub fn start(&mut self, core: Option<u32>, policy: Policy) -> Result<(), Failure> {
        let start = StartMessages { cpu: core.map(|core| core as usize), may: may(policy) };
        let started = self.server.start(start);
        started.map_err(|error| Failure::Usage(format!("--message-cpu: no thread for the engine: {error}")))
    }
}

/// The path from the root, so that `millrace rdma` finds the socket; if that is not too long.
fn known_everywhere(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).ok().filter(|path| path.as_os_str().len() <= MAX_PATH).unwrap_or(path)
}

/// Whoever has the right.
fn may(policy: Policy) -> May {
    Box::new(move |socket| {
        let peer = peer_of(socket)?;
        let is_limited = peer.uid != 0 && peer.uid != rustix::process::geteuid().as_raw();
        let caller = Caller { pid: peer.pid, uid: peer.uid, is_limited };
        policy.rights_of(&peer).has(&Right::Rdma).then_some(caller)
    })
}

fn wire_failed(error: &LinkError) -> Failure {
    Failure::Usage(format!("--rdma-wire: {error}"))
}

/// What fits into frames of the link, or what is wanted of it.
fn mtu(wanted: Option<u16>, link: Option<&Link>) -> Result<u16, Failure> {
    const ETHERNET: usize = 14;
    let longest = link.map_or(usize::MAX, Link::longest);
    let fits = Format::RoceV2.path_mtu(longest.saturating_sub(ETHERNET)).map_or(0, |most| most as u16);
    let usual = link.and_then(Link::usual_mtu).unwrap_or(fits).min(fits);
    match wanted.unwrap_or(usual) {
        0 => Err(Failure::Usage(format!("--rdma-wire: frames of {longest} bytes are too short for packets"))),
        mtu if mtu > fits => Err(Failure::Usage(format!(
            "--rdma-mtu {mtu}: at most {fits} bytes fit into frames of the wire; a card takes longer ones with --frame-max and --buffer"
        ))),
        mtu => Ok(mtu),
    }
}
